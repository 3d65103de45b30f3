"""From what a decoder gives to the picture that a viewer sees: colours, shape of the pixels, rotation."""

from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import UInt8

_UNSPECIFIED = 2  # colour space number of the standard
_BT709, _BT601 = "ITU709", "ITU601"
_HD = 720  # rows from which a file that does not say has BT.709, as players take it
_WIDEST = 4  # ratio of a pixel's sides beyond which the file is not believed
_LARGEST = 3840 * 2160  # pixels that are shown of any picture


Matrix = tuple[int, int, int, int]
"""The linear part (a, b, c, d) of a display matrix: a point (x, y) is shown at `(a x + c y, b x + d y)`, y down."""


def to_rgb(
    frame: Any, pixel_shape: Fraction | None = None, matrix: Matrix | None = None, most: int | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture of a decoded frame, upright, with square pixels; made smaller where it would be larger than 4K.

    All of that in one step: a picture of 8K whose pixels are four times as wide as high would need half a gigabyte.

    Args:
        frame: of PyAV, in any pixel format.
        pixel_shape: width of a pixel by its height, where the file says so.
        matrix: a matrix of `display_matrix`.
        most: pixels of the longer side; a larger picture is made smaller before its colours are converted.

    Returns:
        red green blue, 0 to 255.
    """
    shape = Fraction(1) if not pixel_shape or not 1 <= max(pixel_shape, 1 / pixel_shape) <= _WIDEST else pixel_shape
    unsaid = _BT709 if frame.height >= _HD else _BT601
    width, height = max(1, round(frame.width * shape)), frame.height
    shrink = min(1.0, (_LARGEST / (width * height)) ** 0.5, most / max(width, height) if most else 1.0)
    pixels = frame.to_ndarray(
        format="rgb24",
        width=max(1, int(width * shrink)) if shrink < 1 else width,
        height=max(1, int(height * shrink)) if shrink < 1 else height,
        src_colorspace=unsaid if frame.colorspace == _UNSPECIFIED and "yuv" in frame.format.name else None,
        interpolation="BICUBIC",
        threads=1,  # small work: more threads would wait for each other
    )
    return upright(pixels, matrix)


def upright(pixels: UInt8[np.ndarray, "h w 3"], matrix: Matrix | None) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Applies a display matrix, taken to the nearest quarter turn, mirrored or not.

    Examples:
        >>> row = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
        >>> upright(row, (0, 1, -1, 0)).shape  # phones write this one: x goes down, y goes left
        (2, 1, 3)
    """
    if matrix is None:
        return pixels
    a, b, c, d = matrix
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels, a, d = pixels.swapaxes(0, 1), c, b  # what was a row is a column now
    pixels = pixels[:, ::-1] if a < 0 else pixels
    pixels = pixels[::-1] if d < 0 else pixels
    return np.ascontiguousarray(pixels)


def display_matrix(frame: Any) -> Matrix | None:
    """How a decoded frame is to be turned; None if nothing is said.

    Not for every frame: once PyAV was asked for its side data, a frame and they hold each other until the garbage
    collector comes by, hundreds of frames later. `frame.rotation` costs nothing.
    """
    # Nine numbers of 4 bytes, row by row, in the machine's order.
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    rows = np.frombuffer(bytes(data), np.int32)
    return (int(rows[0]), int(rows[1]), int(rows[3]), int(rows[4])) if len(rows) == 9 else None
