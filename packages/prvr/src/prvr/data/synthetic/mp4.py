"""MP4 files of the toy world, for players, and as videos to try every command with."""

from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from prvr.data.atomic import replace_file
from prvr.data.synthetic.world import FPS
from prvr.errors import InputError, MissingExtraError, require

ENCODER = "libx264"
DRAWN = "drawn by prvr"
"""The comment in these files, which marks drawn videos."""
_OPTIONS = {"crf": "16", "preset": "veryfast", "g": "20"}  # a key frame every 10 s at least, to seek to
_BT709, _LIMITED = 1, 1  # numbers of the standard: every player honours them
_RED, _BLUE = 0.2126, 0.0722  # what red and blue are worth in BT.709's luma
_ZERO = np.array([16, 128, 128], dtype=np.float32)


def _to_yuv() -> np.ndarray:
    luma = np.array([_RED, 1 - _RED - _BLUE, _BLUE])
    blue, red = (0, 0, 1) - luma, (1, 0, 0) - luma
    return np.stack([219 * luma, 112 * blue / (1 - _BLUE), 112 * red / (1 - _RED)]) / 255


_YUV = _to_yuv().T.astype(np.float32)


def write_mp4(path: Path | str, frames: UInt8[np.ndarray, "n h w 3"], *, fps: float = FPS, scale: int = 4) -> None:
    """Writes frames as H.264 (yuv420p) that any player shows; the file appears whole or not at all.

    Each pixel becomes a block of scale x scale: H.264 keeps colour at half the resolution, and so loses none of it.
    The conversion to BT.709 is our own and rounds to the nearest: libswscale's is a whole step too dark.

    Args:
        path: the file to write; its folder exists.
        frames: red green blue.
        fps: frames per second.
        scale: even.

    Raises:
        ValueError: no frame, an odd scale, or a rate that is not positive.
        prvr.MissingExtraError: PyAV is not installed, or has no H.264 encoder.
        OSError: the file cannot be written.

    Examples:
        >>> from prvr.data.synthetic.render import render
        >>> write_mp4("v0.mp4", render(video))  # doctest: +SKIP
    """
    if not frames.size or scale < 2 or scale % 2 or not fps > 0:
        raise InputError(
            f"write_mp4: frames {frames.shape}, scale={scale}, fps={fps}; expected at least one frame, an even scale "
            "(chroma has half the resolution) and a positive rate"
        )
    av = require("av", "video", "Writing video files")
    if ENCODER not in av.codecs_available:
        raise MissingExtraError(
            f"write_mp4: this PyAV {av.__version__} was built without the encoder {ENCODER}; the wheels on PyPI have "
            'it: pip install --force-reinstall --only-binary av "prvr[video]"'
        )

    def write(file: BinaryIO) -> None:
        with av.open(file, "w", format="mp4") as container:
            container.metadata["comment"] = DRAWN
            stream = container.add_stream(ENCODER, rate=Fraction(fps).limit_denominator(1001), options=_OPTIONS)
            stream.height, stream.width = (scale * side for side in frames.shape[1:3])
            stream.pix_fmt = "yuv420p"
            codec = stream.codec_context
            codec.thread_count = 1  # the bytes do not depend on the number of cores
            codec.colorspace = codec.color_primaries = codec.color_trc = _BT709
            codec.color_range = _LIMITED
            for number, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(_planes(pixels, scale), format="yuv420p")
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))

    replace_file(Path(path), write)


def _planes(pixels: UInt8[np.ndarray, "h w 3"], scale: int) -> UInt8[np.ndarray, "r c"]:
    """Luma enlarged, then the two of chroma enlarged half as much, as rows of one array."""
    yuv = (pixels @ _YUV + (_ZERO + np.float32(0.5))).astype(np.uint8)
    y, u, v = (yuv[..., k].repeat(step, 0).repeat(step, 1) for k, step in enumerate((scale, scale // 2, scale // 2)))
    return np.concatenate([y, u.reshape(-1, y.shape[1]), v.reshape(-1, y.shape[1])])
