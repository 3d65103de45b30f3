"""How the embedded world is lit: the same scenes and captions with other pixels, a shift of known cause."""

import numpy as np
from jaxtyping import UInt8

from prvr.errors import InputError

__all__ = ["DAY", "LOOKS", "with_look"]

DAY = "day"
# What is left of the light, and a light that lies over everything; red, green, blue.
_LIGHT: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "dusk": ((0.38, 0.42, 0.62), (2.0, 4.0, 14.0)),
    "haze": ((0.45, 0.45, 0.45), (112.0, 114.0, 116.0)),
}
LOOKS = (DAY, *_LIGHT)
"""day: as the encoder has learned the world; dusk: dark and bluish, white looks nearly blue; haze: pale, of little
contrast, and colours keep their hue."""


def with_look(frames: UInt8[np.ndarray, "n h w 3"], look: str) -> UInt8[np.ndarray, "n h w 3"]:
    """Frames in another light.

    Args:
        frames: as `render` gives them.
        look: one of `LOOKS`.

    Raises:
        ValueError: there is no such look.

    Example:
        >>> with_look(np.full((1, 1, 1, 3), 200, np.uint8), "dusk")[0, 0, 0].tolist()
        [78, 88, 138]
    """
    if look not in LOOKS:
        raise InputError(f"look {look!r} is not one of {', '.join(LOOKS)}")
    if look == DAY:
        return frames
    kept, added = (np.array(values, np.float32) for values in _LIGHT[look])
    return (frames * kept + added + np.float32(0.5)).astype(np.uint8)
