"""Joint encoders of `transformers`: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), and others like them."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from prvr.errors import DataError
from prvr.video.encoders import ENCODERS, OTHER, EncoderFamily, Identity
from prvr.video.hub import (
    explained,
    hash_model,
    hash_tokenizer,
    load_image_processor,
    load_model,
    load_tokenizer,
    most_tokens,
    read_config,
    read_json,
    token_ids,
)

_TITLES = {"clip": "CLIP", "siglip": "SigLIP"}
_PADDED = ("siglip", "siglip2")  # trained on lower-case texts padded to one length, without a mask
_LARGEST = 4096  # pixels of a side that any model takes
_LONGEST = 64  # times the shorter side: longer pictures are cropped first, since only the middle counts


class PictureProcessor:
    """The image processor of a model. A prepared picture is one row that holds all tensors the model reads.

    Most models read the pixels alone. SigLIP 2 for pictures of any shape reads patches, their mask and their number in
    each direction.

    Args:
        name: the model, a folder or a name on the hub.

    Attributes:
        description: changes whenever the file of the image processor does.

    Raises:
        DataError: the model has no image processor, or one that cannot run.
    """

    def __init__(self, name: str) -> None:
        values = read_json(name, "preprocessor_config.json") or read_json(name, "processor_config.json")
        values = values.get("image_processor", values)
        self.description = (
            f"image processor {hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]}"
        )
        with explained(name):
            sizes = [values.get(key) or 0 for key in ("size", "crop_size", "pad_size", "max_num_patches")]
            if max(max(size.values()) if isinstance(size, dict) else size for size in sizes) > _LARGEST:
                raise DataError(f"{name}: pictures of more than {_LARGEST} pixels a side. Choose another model.")
            self._processor = load_image_processor(name)
            tensors = self._tensors(np.zeros((64, 64, 3), np.uint8))
            self._parts = {key: (value.shape, value.dtype) for key, value in tensors.items()}

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, " n"]:
        """The tensors of a picture, one after the other."""
        most = _LONGEST * min(pixels.shape[:2])  # of a very long, thin picture the whole would fill the memory
        top, left = (max(0, side - most) // 2 for side in pixels.shape[:2])
        tensors = self._tensors(pixels[top : top + most, left : left + most])
        return np.concatenate([value.astype(np.float32).ravel() for value in tensors.values()])

    def inputs(self, frames: Float32[np.ndarray, "n _"], device: torch.device) -> dict[str, Tensor]:
        """The tensors of prepared pictures, by the names of the model's arguments."""
        tensors, first = dict[str, Tensor](), 0
        for name, (shape, dtype) in self._parts.items():
            last = first + math.prod(shape)
            part = frames[:, first:last].astype(dtype).reshape(-1, *shape)
            tensors[name], first = torch.from_numpy(part).to(device), last
        return tensors

    def _tensors(self, pixels: UInt8[np.ndarray, "h w 3"]) -> dict[str, np.ndarray]:
        output = self._processor(images=pixels, input_data_format="channels_last", return_tensors="np")
        return {name: np.asarray(output[name])[0] for name in self._processor.model_input_names}


class JointFrames:
    """Frames in the joint space, not normalised, as the public CLIP features are.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.

    Raises:
        DataError: there is no such model, its preprocessing cannot run, or it gives no finite row for a picture.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        self._device, self.pictures = torch.device(device), PictureProcessor(name)
        self._model: Any = load_model(name, self._device)
        self.identity = Identity(name, hash_model(self._model, read_config(name)), self.pictures.description)
        with explained(name):
            trial = self.encode(self.prepare(np.zeros((64, 64, 3), np.uint8))[None])
        if not np.isfinite(trial).all():
            raise DataError(f"{name}: gives NaN or infinity for a black picture. Choose another model.")
        self.dim = self.joint_dim = trial.shape[1]

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> np.ndarray:
        """The picture as the model's own image processor prepares it."""
        return self.pictures.prepare(pixels)

    def encode(self, frames: np.ndarray) -> Float32[np.ndarray, "n e"]:
        """Projected image embeddings."""
        with torch.inference_mode():
            output = self._model.get_image_features(**self.pictures.inputs(frames, self._device))
            return _pooled(output, len(frames)).float().cpu().numpy()

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """As they are."""
        return rows


class JointText:
    """Hidden states of the last layer as words, the projected embedding as sentence.

    A text goes through the model alone, so nothing is padded and no mask is needed, except in SigLIP, which was trained
    on texts of one length. In CLIP and SigLIP the row of a token that begins every text is left out: it is the same for
    all. In other models that token has read the whole text.

    Args:
        name: a folder, or a name on the hub.
        device: a torch device.

    Raises:
        DataError: there is no such model, its tokenizer is missing, or it gives no single row for a text.
        prvr.MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: Any = "cpu") -> None:
        config = read_config(name)
        self._device, self._family = torch.device(device), config["model_type"]
        self._model: Any = load_model(name, self._device)
        self._tokenizer = load_tokenizer(name)
        with explained(name):
            self._most = most_tokens(self._model.config.text_config)
            if self._family not in _TITLES:
                self._most = min(self._most, self._tokenizer.model_max_length)
            words, sentence = self._run("a")
        tokens = f"tokens {hash_tokenizer(self._tokenizer)[:16]}, at most {self._most}"
        self.identity = Identity(name, hash_model(self._model, config), tokens)
        self.word_dim, self.joint_dim = words.shape[1], sentence.shape[0]

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """Hidden states of the tokens, that of the end included: in CLIP it has read all others."""
        return self._run(text)[0]

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text in the joint space."""
        return self._run(text)[1]

    def _run(self, text: str) -> tuple[Float32[np.ndarray, "w e"], Float32[np.ndarray, " d"]]:
        padded = self._family in _PADDED
        ids = token_ids(self._tokenizer, text.lower() if padded else text, self._most)
        first, count = 0, len(ids)
        if padded:
            padding = [self._tokenizer.pad_token_id] * (self._most - count)
            left = self._tokenizer.padding_side == "left"
            ids, first = (padding + ids, len(padding)) if left else (ids + padding, 0)
        last = first + count
        if self._family in _TITLES and ids[first] == self._tokenizer.bos_token_id:
            first += 1
        with torch.inference_mode():
            tokens = torch.tensor([ids], device=self._device)
            mask = None if padded else torch.ones_like(tokens)
            output = self._model.get_text_features(input_ids=tokens, attention_mask=mask)
            words = output.last_hidden_state[0, first:last].float().cpu().numpy()
            return words, F.normalize(_pooled(output, 1)[0].float(), dim=-1).cpu().numpy()


def _pooled(output: Any, count: int) -> Float[Tensor, "n d"]:
    """The rows of pictures or texts in the joint space.

    Raises:
        DataError: there is not one for each.
    """
    rows = output.pooler_output
    if rows.ndim != 2 or len(rows) != count:
        raise DataError(f"got shape {tuple(rows.shape)} for {count} pictures or texts, expected one row for each")
    return rows


_BOTH_SIDES = EncoderFamily(text=JointText, frames=JointFrames)
for _kind, _title in _TITLES.items():
    ENCODERS.register(_kind, _BOTH_SIDES, _title)
ENCODERS.register(OTHER, _BOTH_SIDES, "any other model of transformers with features of images and of texts")
