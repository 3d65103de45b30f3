"""The encoder of the toy world, applied to video files: frames are squeezed to 64 x 64 pixels."""

import copy
import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8

from prvr.data.synthetic.encoder import DIM, MAX_WORDS, WORD_DIM, load_encoder, split_words
from prvr.data.synthetic.mp4 import DRAWN
from prvr.data.synthetic.toy_corpus import MOTION, with_motion
from prvr.data.synthetic.world import FRAME
from prvr.errors import DataError
from prvr.reading import printable
from prvr.video.decode import VideoError, open_video
from prvr.video.encoders import ENCODERS, TOY, EncoderFamily, Identity

logger = logging.getLogger(__name__)


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
        self._device = torch.device(device)
        self._model = copy.deepcopy(model).to(self._device)  # the one that is loaded is shared

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The mean of each of 64 x 64 areas."""
        return area_means(pixels, FRAME)

    def encode(self, frames: UInt8[np.ndarray, "n s s 3"]) -> Float32[np.ndarray, "n e"]:
        """Unit vectors of frames."""
        with torch.inference_mode():
            return F.normalize(self._model(torch.from_numpy(frames).to(self._device)), dim=-1).cpu().numpy()

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


def is_toy_video(path: Path) -> bool | None:
    """Whether a video file is of the toy corpus; None where it cannot be read."""
    try:
        with open_video(path) as video:
            return video.info.comment == DRAWN
    except VideoError:
        return None


def foreign_video(encoder: Identity, videos: Iterable[Path]) -> Path | None:
    """The first video that is not of the toy corpus if the encoder is `toy`, which supports no others; or None.

    Args:
        encoder: the identity of the encoder of frames.
        videos: the files, which are opened up to that video; none for other encoders.
    """
    return next((path for path in videos if is_toy_video(path) is False), None) if encoder.name == TOY else None


def refuse_foreign(encoder: Identity, videos: Iterable[Path], named: bool = False) -> None:
    """Refuses videos that are not of the toy corpus if the encoder is `toy`, which supports no others.

    Args:
        encoder, videos: as of `foreign_video`.
        named: whether the user has named the encoder: then a warning is logged instead.

    Raises:
        DataError: a video is not of the toy corpus.
    """
    if (foreign := foreign_video(encoder, videos)) is None:
        return
    message = (
        f"{printable(str(foreign))} is not a video of the toy corpus, and the encoder toy supports no others. Pass "
        "another encoder with --encoder NAME."
    )
    if not named:
        raise DataError(message)
    logger.warning("%s The results have no meaning.", message)


ENCODERS.register(
    TOY,
    EncoderFamily(text=lambda name, device: ToyText(), frames=lambda name, device: ToyEncoder(device), bundled=True),
    "the encoder of the toy world",
)
