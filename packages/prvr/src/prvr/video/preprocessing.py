"""What CLIP and SigLIP do with a picture before they look at it, from the file that lies beside their weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8

from prvr.errors import InputError

_MODES = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}  # numbers of PIL
_LARGEST = 4096  # pixels of a side that any model takes
_LONGEST = 64  # times the shorter side: what is longer is cut first, since only the middle is kept
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, normalise.

    Args:
        height, width: resized to; a width of 0 means that the shorter side becomes `height` and the shape is kept.
        crop: side of the square that is cut from the middle; 0: none is.
        mode: of `torch.nn.functional.interpolate`, antialiased.
        mean, std: of red, green and blue, from 0 to 1.
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
            most = _LONGEST * min(pixels.shape[:2])
            top, left = (max(0, side - most) // 2 for side in pixels.shape[:2])
            pixels = pixels[top : top + most, left : left + most]
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

    Example:
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
