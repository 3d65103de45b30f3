"""Joint encoders of `transformers`: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), and others like them."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from prvr.errors import DataError, InputError
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

_MODES = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}  # numbers of PIL
_LARGEST = 4096  # pixels of a side that any model takes
_LONGEST = 64  # times the shorter side: what is longer is cut first, since only the middle is kept
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_FILLED = ("siglip", "siglip2")  # trained on texts in lower case that are filled up, without a mask


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, normalise.

    Args:
        height, width: resized to; a width of 0 means that the shorter side becomes `height` and the shape is kept.
        crop: side of the square that is cut from the middle; 0: none is.
        mode: a mode of `torch.nn.functional.interpolate`, antialiased.
        mean, std: mean and standard deviation of red, green and blue, from 0 to 1.
    """

    height: int
    width: int
    crop: int
    mode: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not (0 < self.height <= _LARGEST and 0 <= self.width <= _LARGEST and 0 <= self.crop <= _LARGEST):
            raise InputError(
                f"height={self.height}, width={self.width}, crop={self.crop}; expected whole numbers up to {_LARGEST}"
            )
        if not (all(map(math.isfinite, self.mean + self.std)) and min(self.std) > 0):
            raise InputError(f"mean={self.mean}, std={self.std}; expected numbers, and those of std positive")

    def __str__(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def apply(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s t 3"]:
        """The picture resized and cropped, still 0 to 255: what is normalised later is a quarter as large."""
        if self.crop and not self.width:
            pixels = _shortened(pixels)
        planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        size = self._size(*pixels.shape[:2])
        smooth = self.mode in ("bilinear", "bicubic")
        planes = F.interpolate(planes, size, mode=self.mode, antialias=smooth) if size != pixels.shape[:2] else planes
        if self.crop:
            wide = [max(0, self.crop - side) for side in size]
            if any(wide):  # black around what is too small
                over, under, left, right = (part for w in wide for part in (w // 2, w - w // 2))
                planes = F.pad(planes, (left, right, over, under))
            top, left = ((side - self.crop) // 2 for side in planes.shape[2:])
            planes = planes[..., top : top + self.crop, left : left + self.crop]
        return planes[0].permute(1, 2, 0).contiguous().numpy()

    def normalised(self, frames: UInt8[np.ndarray, "n s t 3"], device: Any) -> Float[Tensor, "n 3 s t"]:
        """Prepared pictures as the model takes them: each colour scaled by `mean` and `std`."""
        mean, std = (torch.tensor(x, device=device).view(3, 1, 1) for x in (self.mean, self.std))
        return (torch.from_numpy(frames).to(device).permute(0, 3, 1, 2).float() / 255 - mean) / std

    def inputs(self, frames: UInt8[np.ndarray, "n s t 3"], device: Any) -> dict[str, Tensor]:
        """Prepared pictures, normalised, by the name under which the model takes them."""
        return {"pixel_values": self.normalised(frames, device)}

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of a prepared picture, if all of them are of one size."""
        return (self.crop, self.crop) if self.crop else (self.height, self.width or self.height)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if self.width:
            return self.height, self.width
        short = min(height, width)  # the longer side is rounded down, as in the original
        return max(1, self.height * height // short), max(1, self.height * width // short)


def preprocessing_from(found: Mapping[str, Any], model_type: str, image_size: int) -> Preprocessing:
    """Reads `preprocessor_config.json`; what it does not say is as in the original of the family.

    Args:
        found: its content; empty if there is none.
        model_type: `clip` or `siglip`.
        image_size: pixels that the model takes.

    Raises:
        ValueError: it asks for something else than is done here.

    Examples:
        >>> print(preprocessing_from({"size": 224}, "clip", 224)._size(480, 640))
        (224, 298)
    """
    clip = model_type == "clip"
    size = found.get("size", {"shortest_edge": image_size} if clip else {"height": image_size, "width": image_size})
    size = {"shortest_edge": size} if isinstance(size, int) and clip else size
    size = {"height": size, "width": size} if isinstance(size, int) else size
    crop = found.get("crop_size", image_size)
    crop = crop if isinstance(crop, int) else crop.get("height", image_size)
    mean, std = _OPENAI if clip else _HALF
    mode = _MODES.get(found.get("resample", 3))
    rescale = found.get("rescale_factor", 1 / 255)
    if mode is None or not found.get("do_resize", True) or abs(rescale * 255 - 1) > 1e-6:
        raise InputError(
            f"resample={found.get('resample')}, do_resize={found.get('do_resize')}, rescale_factor={rescale}; "
            f"expected resample in {sorted(_MODES)}, resizing, and a factor of 1/255"
        )
    edge = size.get("shortest_edge")
    normal = found.get("do_normalize", True)
    return Preprocessing(
        height=edge or size["height"],
        width=0 if edge else size["width"],
        crop=crop if found.get("do_center_crop", clip) else 0,
        mode=mode,
        mean=_three(found.get("image_mean", mean) if normal else (0, 0, 0)),
        std=_three(found.get("image_std", std) if normal else (1, 1, 1)),
    )


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = values
    return float(red), float(green), float(blue)


def _shortened(pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s t 3"]:
    """The middle of a very long, thin picture: resized as a whole, it would fill the memory."""
    most = _LONGEST * min(pixels.shape[:2])
    top, left = (max(0, side - most) // 2 for side in pixels.shape[:2])
    return pixels[top : top + most, left : left + most]


class OwnPreprocessing:
    """Whatever the image processor of a model does, which may give more than one tensor for a picture.

    A prepared picture is one row of numbers that holds all of them: the patches of a SigLIP 2 of any shape of picture,
    for example, with their mask and how many there are in each direction.

    Args:
        processor: the image processor of transformers.
        about: the content of its file.
    """

    def __init__(self, processor: Any, about: Mapping[str, Any]) -> None:
        self._processor = processor
        self._about = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        self._parts = {name: (part.shape, part.dtype) for name, part in self._given(np.zeros((64, 64, 3), np.uint8))}

    def __str__(self) -> str:
        return f"image processor {self._about[:16]}"

    def apply(self, pixels: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, " n"]:
        """All that the processor gives for a picture, one tensor after the other."""
        return np.concatenate([part.astype(np.float32).ravel() for _, part in self._given(_shortened(pixels))])

    def inputs(self, frames: Float32[np.ndarray, "n _"], device: Any) -> dict[str, Tensor]:
        """The tensors, by the names under which the model takes them."""
        found, first = dict[str, Tensor](), 0
        for name, (shape, dtype) in self._parts.items():
            last = first + math.prod(shape)
            part = frames[:, first:last].astype(dtype).reshape(-1, *shape)
            found[name], first = torch.from_numpy(part).to(device), last
        return found

    def _given(self, pixels: UInt8[np.ndarray, "h w 3"]) -> list[tuple[str, np.ndarray]]:
        found = self._processor(images=pixels, input_data_format="channels_last", return_tensors="np")
        return [(name, np.asarray(found[name])[0]) for name in self._processor.model_input_names]


@dataclass(frozen=True)
class Clip:
    """A loaded model of any family.

    Args:
        name: it was asked for by.
        family: its `model_type`, such as `clip` or `siglip`.
        model: with `get_image_features` and `get_text_features`.
        weights: its sha256.
        device: it is on.
    """

    name: str
    family: str
    model: Any
    weights: str
    device: torch.device


def load_clip(name: str, device: Any = "cpu") -> Clip:
    """Loads a model, once for both of its sides.

    Raises:
        DataError: there is no such model.
        prvr.MissingExtraError: transformers is not installed.
    """
    config = read_config(name)
    model: Any = load_model(name, device)
    return Clip(name, config["model_type"], model, hash_model(model, config), torch.device(device))


def preprocessing_of(clip: Clip) -> Preprocessing:
    """How the pictures of a CLIP or SigLIP are prepared, as its files say.

    Raises:
        DataError: it asks for something else than is done here.
    """
    found = _about_pictures(clip.name)
    try:
        size = int(clip.model.config.vision_config.image_size)
        preprocessing = preprocessing_from(found, clip.family, size)
        side = preprocessing.crop or preprocessing.height
        if side != size or (not preprocessing.crop and preprocessing.width != size):
            raise InputError(f"it gives pictures of {side} pixels, the model takes {size} x {size}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{clip.name}: its preprocessing cannot be followed ({error}). Choose another model."
        ) from error
    return preprocessing


def _about_pictures(name: str) -> dict[str, Any]:
    found = read_json(name, "preprocessor_config.json") or read_json(name, "processor_config.json")
    return found.get("image_processor", found)


class ClipEncoder:
    """Frames in the joint space, not normalised, as the public CLIP features are.

    Args:
        clip: the model. Pictures of a CLIP or SigLIP are prepared here, those of any other by its own image processor.

    Raises:
        DataError: its preprocessing cannot be followed or run, or the model gives no single row for a picture.
    """

    def __init__(self, clip: Clip) -> None:
        if clip.family in _FAMILIES:
            how = preprocessing_of(clip)
        else:
            processor = load_image_processor(clip.name)
            with explained(clip.name):
                how = OwnPreprocessing(processor, _about_pictures(clip.name))
        self._clip, self._how = clip, how
        self.identity = Identity(clip.name, clip.weights, str(how))
        with explained(clip.name):
            self.dim = self.joint_dim = self.encode(self.prepare(np.zeros((64, 64, 3), np.uint8))[None]).shape[1]

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> np.ndarray:
        """Resized and cropped as the model was trained."""
        return self._how.apply(pixels)

    def encode(self, frames: np.ndarray) -> Float32[np.ndarray, "n e"]:
        """Projected image embeddings."""
        with torch.inference_mode():
            found = self._clip.model.get_image_features(**self._how.inputs(frames, self._clip.device))
            return _pooled(found, len(frames)).float().cpu().numpy()

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """As they are."""
        return rows


class ClipText:
    """Hidden states of the last layer as words, the projected embedding as sentence.

    A text goes through the model alone, so nothing is filled up and no mask is needed, but in SigLIP, which was trained
    on texts of one length. In CLIP and SigLIP the row of a token that begins every text is left out: it is the same for
    all. In other models that token has read the whole text.

    Args:
        clip: the model.

    Raises:
        DataError: its tokenizer is missing, or the model gives no single row for a text.
    """

    def __init__(self, clip: Clip) -> None:
        self._clip, self._tokenizer = clip, load_tokenizer(clip.name)
        with explained(clip.name):
            self._most = most_tokens(clip.model.config.text_config)
            if clip.family not in _FAMILIES:
                self._most = min(self._most, self._tokenizer.model_max_length)
            words, sentence = self._run("a")
        cut = hash_tokenizer(self._tokenizer)
        self.identity = Identity(clip.name, clip.weights, f"tokens {cut[:16]}, at most {self._most}")
        self.word_dim, self.joint_dim = words.shape[1], sentence.shape[0]

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """Hidden states of the tokens, that of the end included: in CLIP it has read all others."""
        return self._run(text)[0]

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a text in the joint space."""
        return self._run(text)[1]

    def _run(self, text: str) -> tuple[Float32[np.ndarray, "w e"], Float32[np.ndarray, " d"]]:
        filled = self._clip.family in _FILLED
        ids = token_ids(self._tokenizer, text.lower() if filled else text, self._most)
        first, count = 0, len(ids)
        if filled:
            filling = [self._tokenizer.pad_token_id] * (self._most - count)
            left = self._tokenizer.padding_side == "left"
            ids, first = (filling + ids, len(filling)) if left else (ids + filling, 0)
        last = first + count
        if self._clip.family in _FAMILIES and ids[first] == self._tokenizer.bos_token_id:
            first += 1
        with torch.inference_mode():
            given = torch.tensor([ids], device=self._clip.device)
            mask = None if filled else torch.ones_like(given)
            found = self._clip.model.get_text_features(input_ids=given, attention_mask=mask)
            words = found.last_hidden_state[0, first:last].float().cpu().numpy()
            return words, F.normalize(_pooled(found, 1)[0].float(), dim=-1).cpu().numpy()


def _pooled(found: Any, count: int) -> Float[Tensor, "n d"]:
    """The rows of pictures or texts in the joint space.

    Raises:
        DataError: there is not one for each.
    """
    rows = found.pooler_output
    if rows.ndim != 2 or len(rows) != count:
        raise DataError(f"gives {tuple(rows.shape)} numbers for {count} pictures or texts, expected one row for each")
    return rows


_FAMILIES = {"clip": "CLIP", "siglip": "SigLIP"}
_BOTH_SIDES = EncoderFamily(
    text=lambda name, device: ClipText(load_clip(name, device)),
    frames=lambda name, device: ClipEncoder(load_clip(name, device)),
)
for _kind, _title in _FAMILIES.items():
    ENCODERS.register(_kind, _BOTH_SIDES, _title)
ENCODERS.register(OTHER, _BOTH_SIDES, "any other model of transformers with features of images and of texts")
