"""The encoder of the toy world, as an encoder of frames of any size: they are squeezed to 64 x 64 pixels."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8

from prvr.encoders import ENCODERS, EncoderFamily, Identity
from prvr.toy.encoder import DIM, MAX_WORDS, WORD_DIM, load_encoder, split_words
from prvr.toy.toy_corpus import MOTION, with_motion
from prvr.toy.world import FRAME

TOY = "toy"


class ToyEncoder:
    """Frames as the toy corpora have them: 256 columns of the joint space, then 256 of how they change.

    A frame that is not square is squeezed; pixels are averaged over the area that becomes one.

    Args:
        device: a torch device.
    """

    def __init__(self, device: Any = "cpu") -> None:
        model = load_encoder()
        self.identity = Identity(
            TOY, model.sha256, f"{FRAME} x {FRAME} by area; joint {DIM}, change times {MOTION:g} {DIM}"
        )
        self.dim, self.joint_dim = 2 * DIM, DIM
        self._model = copy.deepcopy(model).to(device)  # the one that is loaded is shared

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The mean of each of 64 x 64 areas."""
        return area_means(pixels, FRAME)

    def encode(self, frames: UInt8[np.ndarray, "n s s 3"]) -> Float32[np.ndarray, "n e"]:
        """Unit vectors of frames."""
        return self._model.encode_frames(frames)

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """Adds how they change, as in the toy corpora."""
        return with_motion(rows)


def area_means(pixels: UInt8[np.ndarray, "h w 3"], side: int) -> UInt8[np.ndarray, "s s 3"]:
    """A picture of `side` x `side` pixels, each the mean of the area that becomes it, halves rounded up."""
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float()
    return (F.adaptive_avg_pool2d(planes, side) + 0.5).byte().permute(1, 2, 0).contiguous().numpy()


class ToyText:
    """Words and sentences of the toy world."""

    def __init__(self) -> None:
        self._model = load_encoder()
        self.identity = Identity(TOY, self._model.sha256, f"words in lower case, at most {MAX_WORDS}")
        self.word_dim, self.joint_dim = WORD_DIM, DIM
        self._word = lru_cache(4096)(lambda word: self._model.encode_words(word)[0])

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """Unit vectors of the words, 48 wide."""
        return np.stack([self._word(word) for word in split_words(text)])

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text in the joint space."""
        return self._model.encode_text(text)

    def sentences(self, texts: Sequence[str]) -> Float32[np.ndarray, "t d"]:
        """The unit vectors of several texts in the joint space."""
        return self._model.encode_texts(texts)


ENCODERS.register(
    TOY,
    EncoderFamily(text=lambda name, device: ToyText(), frames=lambda name, device: ToyEncoder(device), bundled=True),
    "the encoder of the toy world",
)
