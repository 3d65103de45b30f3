"""From what a decoder gives to the picture that a viewer sees: colours, shape of the pixels, rotation."""

import io
import warnings
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8, UInt16

from prvr.errors import InputError, PrvrError
from prvr.reading import printable, read_bytes

_UNSPECIFIED = 2  # colour space number of the standard
_BT709, _BT601 = "ITU709", "ITU601"
_PQ, _HLG = 16, 18  # transfer numbers of the standard
_WHITE = 203.0  # candelas per square metre of white paper in HDR (ITU-R BT.2408)
_KNEE = 0.6  # of white, up to which lights keep their level
_TO_709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)  # linear red green blue of BT.2020
_HD = 720  # rows from which a file that does not say has BT.709, as players take it
_WIDEST = 4  # ratio of a pixel's sides beyond which the file is not believed
_LARGEST = 3840 * 2160  # pixels that are shown of any picture
PICTURE_PIXELS = {
    "JPEG": 2**26,
    "PNG": 24 * 10**6,
    "WEBP": 14 * 10**6,
    "GIF": 2**26,
    "BMP": 40 * 10**6,
    "AVIF": 12 * 10**6,
}
"""The kinds of picture files that are read, and the most pixels of each: decoding them takes at most 256 MB."""
_PROGRESSIVE_PIXELS = 28 * 10**6  # of a progressive JPEG, which is kept whole while it is decoded
_SCANNED_PIXELS = 2**30  # pixels times scans: 0.4 s
_FILE_BYTES = 2**27
_SCAN = b"\xff\xda"  # begins each scan of a JPEG; that of a preview in the file counts too
_FINE = 1024  # pixels of the longer side, more than any encoder takes


Picture = UInt8[np.ndarray, "h w 3"]
"""Red green blue, 0 to 255."""
Matrix = tuple[int, int, int, int]
"""The linear part (a, b, c, d) of a display matrix: a point (x, y) is shown at `(a x + c y, b x + d y)`, y down."""


def to_rgb(
    frame: Any, pixel_shape: Fraction | None = None, matrix: Matrix | None = None, most: int | None = None
) -> Picture:
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
    is_hdr = frame.color_trc in (_PQ, _HLG)
    pixels = frame.to_ndarray(
        format="rgb48le" if is_hdr else "rgb24",
        width=max(1, int(width * shrink)),
        height=max(1, int(height * shrink)),
        src_colorspace=unsaid if frame.colorspace == _UNSPECIFIED and "yuv" in frame.format.name else None,
        interpolation="BICUBIC",
        threads=1,  # small work: more threads would wait for each other
    )
    return upright(tone_mapped(pixels, frame.color_trc) if is_hdr else pixels, matrix)


def tone_mapped(pixels: UInt16[np.ndarray, "h w 3"], transfer: int) -> Picture:
    """A picture in high dynamic range as a display of standard range shows it: what is brighter than white paper is
    compressed, with its hue.

    Args:
        pixels: red green blue of BT.2020, 0 to 65535.
        transfer: 16 for PQ (SMPTE ST 2084), 18 for HLG (ARIB STD-B67), see ITU-R BT.2100.

    Examples:
        >>> tone_mapped(np.full((1, 1, 3), 38055, np.uint16), 16).tolist()  # 203 candelas: white paper
        [[[239, 239, 239]]]
    """
    light = _lights(transfer)[pixels]
    if transfer == _HLG:  # brightness of a display of 1000 candelas
        light *= (1000 / _WHITE) * (light @ np.array([0.2627, 0.678, 0.0593], np.float32))[..., None] ** np.float32(0.2)
    brightest = light.max(2, keepdims=True)
    over = np.maximum(brightest - _KNEE, 0) / (1 - _KNEE)
    light *= (brightest - over * (1 - _KNEE) + (1 - _KNEE) * -np.expm1(-over)) / np.maximum(brightest, 1e-6)
    return (np.clip(light @ _TO_709.T, 0, 1) ** np.float32(1 / 2.4) * 255 + 0.5).astype(np.uint8)


@cache
def _lights(transfer: int) -> Float32[np.ndarray, " n"]:
    """The light of each of 65536 signals: of PQ as a share of white paper, of HLG as one of the scene's brightest."""
    signal = np.linspace(0, 1, 1 << 16)
    if transfer == _HLG:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        return np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12).astype(np.float32)
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    power = signal ** (1 / m2)
    return (10_000 / _WHITE * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1)).astype(np.float32)


def upright(pixels: Picture, matrix: Matrix | None) -> UInt8[np.ndarray, "h2 w2 3"]:
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
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def display_matrix(frame: Any) -> Matrix | None:
    """How a decoded frame is to be turned; None if nothing is said.

    Not for every frame: once PyAV was asked for its side data, a frame and they hold each other until the garbage
    collector comes by, hundreds of frames later. `frame.rotation` costs nothing.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    # Nine numbers of 4 bytes, row by row, in the machine's order.
    match np.frombuffer(b"" if data is None else bytes(data), np.int32).tolist():
        case a, b, _, c, d, _, _, _, _:
            return a, b, c, d
    return None


def read_picture(source: Path | str | bytes | np.ndarray) -> Picture:
    """A picture as a viewer sees it: turned as its EXIF data say, on white where it is transparent, not too large.

    Of a picture that moves, it is the first one. The longer side has at most 1024 pixels afterwards.

    Args:
        source: a file (JPEG, PNG, WebP, GIF, BMP, and AVIF where Pillow reads it), the content of one, or pixels,
            which stay as they are.

    Returns:
        red green blue, 0 to 255.

    Raises:
        ValueError: there is no such file, it is no picture or a damaged one, or it has more than `PICTURE_PIXELS`.

    Examples:
        >>> read_picture(np.zeros((4, 6, 3), np.uint8)).shape
        (4, 6, 3)
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
            raise InputError(f"pixels of shape {source.shape} {source.dtype}; expected (height, width, 3) uint8")
        return source
    from PIL import Image, ImageOps  # of matplotlib

    label = "the picture" if isinstance(source, bytes) else printable(str(source))
    Image.init()
    formats = [name for name in PICTURE_PIXELS if name in Image.OPEN]
    try:
        content = source
        if not isinstance(content, bytes):
            path = Path(content).expanduser()
            if not path.is_file():
                raise InputError(
                    f"{label}: {'not a regular file' if path.exists() else 'no such file'}. Name a picture."
                )
            content = read_bytes(path, _FILE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked here
            with Image.open(io.BytesIO(content), formats=formats) as image:
                kind = image.format if image.format in PICTURE_PIXELS else "JPEG"  # MPO, which some cameras write
                size, most = image.width * image.height, PICTURE_PIXELS[kind]
                if kind == "JPEG":
                    scans = content.count(_SCAN)
                    most = _PROGRESSIVE_PIXELS if "progressive" in image.info else most
                    kind, most = f"JPEG in {scans} scans", min(most, _SCANNED_PIXELS // scans)
                if size > most:  # as its header says: it takes too much memory or time
                    raise InputError(
                        f"{label}: {size:,} pixels, at most {most:,} are decoded ({kind}). Make it smaller."
                    )
                if image.mode.startswith("I"):  # grey of 16 bits, which Pillow would cut off at 255
                    pixels = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
                else:
                    image.draft("RGB", (_FINE, _FINE))  # a JPEG is decoded at a part of its size
                    pixels = image
                pixels.thumbnail((_FINE, _FINE))
                picture = ImageOps.exif_transpose(pixels)
                if picture.has_transparency_data:
                    picture = picture.convert("RGBA")
                    picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
                return np.array(picture.convert("RGB"))
    except PrvrError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{label}: more pixels than are decoded. Make it smaller.") from error
    except Exception as error:  # whatever a reader of damaged files stumbles over
        raise InputError(
            f"{label}: cannot be read as a picture ({type(error).__name__}). Expected {', '.join(formats)}. Save it "
            "with another program."
        ) from error
