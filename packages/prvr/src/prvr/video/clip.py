"""CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023) of `transformers`: frames, words and sentences."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8

from prvr.errors import DataError, InputError
from prvr.video.encoders import Identity
from prvr.video.preprocessing import Preprocessing, preprocessing_from
from prvr.video.pretrained import (
    explained,
    hash_model,
    hash_tokenizer,
    load_model,
    load_tokenizer,
    read_config,
    read_json,
)
from prvr.video.tokens import token_ids

_FAMILIES = ("clip", "siglip")


@dataclass(frozen=True)
class Clip:
    """A loaded model of either family.

    Args:
        name: it was asked for by.
        family: `clip` or `siglip`.
        model: with `get_image_features` and `get_text_features`.
        weights: its sha256.
        preprocessing: of pictures.
        device: it is on.
    """

    name: str
    family: str
    model: Any
    weights: str
    preprocessing: Preprocessing
    device: torch.device


def load_clip(name: str, device: Any = "cpu") -> Clip:
    """Loads a model, once for both of its sides.

    Raises:
        DataError: there is no such model, it is of another family, or its preprocessing is one that is not done here.
        prvr.MissingExtraError: transformers is not installed.
    """
    config = read_config(name)
    family: str = config["model_type"]
    if family not in _FAMILIES:
        raise DataError(f"{name}: a model of type {family!r}. Expected one of {', '.join(_FAMILIES)}.")
    model: Any = load_model(name, device)
    found = read_json(name, "preprocessor_config.json") or read_json(name, "processor_config.json")
    try:
        size = int(model.config.vision_config.image_size)
        preprocessing = preprocessing_from(found.get("image_processor", found), family, size)
        side = preprocessing.crop or preprocessing.height
        if side != size or (not preprocessing.crop and preprocessing.width != size):
            raise InputError(f"it gives pictures of {side} pixels, the model takes {size} x {size}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{name}: its preprocessing cannot be followed ({error}). Choose another model.") from error
    return Clip(name, family, model, hash_model(model, config), preprocessing, torch.device(device))


class ClipEncoder:
    """Frames in the joint space, not normalised, as the public CLIP features are."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        how = clip.preprocessing
        self.identity = Identity(clip.name, clip.weights, str(how))
        shape = (3, 1, 1)
        self._mean, self._std = (torch.tensor(x, device=clip.device).view(shape) for x in (how.mean, how.std))
        side = (how.crop, how.crop) if how.crop else (how.height, how.width or how.height)
        with explained(clip.name):
            self.dim = self.joint_dim = self.encode(np.zeros((1, *side, 3), np.uint8)).shape[1]

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """Resized and cropped as the model was trained."""
        return self._clip.preprocessing.apply(pixels)

    def encode(self, frames: UInt8[np.ndarray, "n s s 3"]) -> Float32[np.ndarray, "n e"]:
        """Projected image embeddings."""
        with torch.inference_mode():
            x = torch.from_numpy(frames).to(self._clip.device).permute(0, 3, 1, 2).float() / 255
            found = self._clip.model.get_image_features(pixel_values=(x - self._mean) / self._std)
            return found.pooler_output.float().cpu().numpy()

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """As they are."""
        return rows


class ClipText:
    """Hidden states of the last layer as words, the projected embedding as sentence.

    The row of the token that begins every text is left out: it is the same for all.
    """

    def __init__(self, clip: Clip) -> None:
        self._clip, self._tokenizer = clip, load_tokenizer(clip.name)
        text = clip.model.config.text_config
        self._most = int(text.max_position_embeddings)
        cut = hash_tokenizer(self._tokenizer)
        self.identity = Identity(clip.name, clip.weights, f"tokens {cut[:16]}, at most {self._most}")
        self.word_dim = int(text.hidden_size)
        with explained(clip.name):
            self.joint_dim = self._run("a")[1].shape[0]

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """Hidden states of the tokens, that of the end included: in CLIP it has read all others."""
        return self._run(text)[0]

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text in the joint space."""
        return self._run(text)[1]

    def _run(self, text: str) -> tuple[Float32[np.ndarray, "w e"], Float32[np.ndarray, " d"]]:
        ids = token_ids(self._tokenizer, text, self._most)
        count = len(ids)
        if self._clip.family == "siglip":  # trained on texts that are filled up, without a mask
            ids = ids + [self._tokenizer.pad_token_id] * (self._most - count)
        with torch.inference_mode():
            given = torch.tensor([ids], device=self._clip.device)
            found = self._clip.model.get_text_features(input_ids=given)
            first = 1 if ids[0] == self._tokenizer.bos_token_id else 0
            words = found.last_hidden_state[0, first:count].float().cpu().numpy()
            return words, F.normalize(found.pooler_output[0].float(), dim=-1).cpu().numpy()
