"""MP4 files of the embedded world: for players, and to show that a file holds what the array held."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.data.files import replace_file
from prvr.data.synthetic.world import FPS, FRAME
from prvr.errors import DataError, InputError, MissingExtraError, require

ENCODER = "libx264"
_OPTIONS = {"crf": "16", "preset": "veryfast", "g": "20"}  # a key frame every 10 s at least, to seek to
_BT709, _LIMITED = 1, 1  # numbers of the standard: every player honours them
_RED, _BLUE = 0.2126, 0.0722  # what red and blue are worth in BT.709's luma
_ZERO = np.array([16, 128, 128], dtype=np.float32)


def _to_yuv() -> np.ndarray:
    luma = np.array([_RED, 1 - _RED - _BLUE, _BLUE])
    blue, red = (0, 0, 1) - luma, (1, 0, 0) - luma
    return np.stack([219 * luma, 112 * blue / (1 - _BLUE), 112 * red / (1 - _RED)]) / 255


_YUV = _to_yuv().T.astype(np.float32)
_RGB = np.linalg.inv(_to_yuv()).T.astype(np.float32)


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

    Example:
        >>> from prvr.data.synthetic.render import render
        >>> write_mp4("v0.mp4", render(video))  # doctest: +SKIP
    """
    if not frames.size or scale < 2 or scale % 2 or not fps > 0:
        raise InputError(
            f"write_mp4: frames {frames.shape}, scale={scale}, fps={fps}; expected at least one frame, an even scale "
            "(chroma has half the resolution) and a positive rate"
        )
    av = import_av()
    if ENCODER not in av.codecs_available:
        raise MissingExtraError(
            f"write_mp4: this PyAV {av.__version__} was built without the encoder {ENCODER}; the wheels on PyPI have "
            'it: pip install --force-reinstall --only-binary av "prvr[video]"'
        )

    def write(file: BinaryIO) -> None:
        with av.open(file, "w", format="mp4") as container:
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


def read_mp4(path: Path | str, *, scale: int = 4) -> UInt8[np.ndarray, "n 64 64 3"]:
    """Reads every frame of what [write_mp4][prvr.data.synthetic.mp4.write_mp4] wrote: the mean of each block.

    Equal to the frames that were written but for compression: on average 0.8 of 255.
    Damage that the decoder stumbles over is an error; a file has no checksum that would tell all.

    Args:
        path: the file.
        scale: that it was written with.

    Raises:
        DataError: the file is missing, damaged, or not one of ours.
        prvr.MissingExtraError: PyAV is not installed.
    """
    av = import_av()
    path = Path(path)
    try:
        with path.open("rb") as file, av.open(file, format="mp4") as container:
            if not container.streams.video:
                raise DataError(f"{path}: has no video stream. Expected a file of write_mp4; write it again.")
            stream = container.streams.video[0]
            promised = stream.frames
            frames = list(_decode(path, container, stream, scale))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Expected an MP4 of write_mp4; write it first.") from None
    except (av.FFmpegError, OSError) as error:  # a damaged file may ask for a place that no file has
        raise DataError(
            f"{path}: not an MP4, or a damaged one ({error}). Expected a file of write_mp4; write it again."
        ) from error
    if not frames or len(frames) != promised:
        raise DataError(f"{path}: {len(frames)} of {promised} frames can be decoded: it is damaged. Write it again.")
    return np.stack(frames)


def _decode(path: Path, container: Any, stream: Any, scale: int) -> Iterator[UInt8[np.ndarray, "64 64 3"]]:
    stream.codec_context.options = {"err_detect": "explode"}  # or else damaged parts are made up
    side = FRAME * scale
    for frame in container.decode(stream):
        found = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range)
        if found != (side, side, "yuv420p", _BT709, _LIMITED):
            raise DataError(
                f"{path}: frames of {frame.width} x {frame.height} pixels, {frame.format.name}, colour space "
                f"{frame.colorspace}, range {frame.color_range}. Expected {side} x {side} pixels (scale={scale}), "
                "yuv420p, BT.709 (1), limited (1), as write_mp4 writes them; write it again or give its scale."
            )
        yield _pixels(frame.to_ndarray(), scale)


def _planes(pixels: UInt8[np.ndarray, "h w 3"], scale: int) -> UInt8[np.ndarray, "r c"]:
    """Luma enlarged, then the two of chroma enlarged half as much, as rows of one array."""
    yuv = (pixels @ _YUV + (_ZERO + np.float32(0.5))).astype(np.uint8)
    y, u, v = (yuv[..., k].repeat(step, 0).repeat(step, 1) for k, step in enumerate((scale, scale // 2, scale // 2)))
    return np.concatenate([y, u.reshape(-1, y.shape[1]), v.reshape(-1, y.shape[1])])


def _pixels(planes: UInt8[np.ndarray, "r c"], scale: int) -> UInt8[np.ndarray, "h w 3"]:
    """What `_planes` made the planes of."""
    height, width = planes.shape[0] * 2 // 3, planes.shape[1]
    y, u, v = np.split(planes.ravel(), (height * width, height * width * 5 // 4))
    blocks = _means(y, width, scale), _means(u, width // 2, scale // 2), _means(v, width // 2, scale // 2)
    rgb = (np.stack(blocks, axis=-1) - _ZERO) @ _RGB + np.float32(0.5)
    return np.clip(rgb, 0, 255).astype(np.uint8)


def _means(plane: UInt8[np.ndarray, " p"], width: int, step: int) -> Float32[np.ndarray, "h w"]:
    blocks = plane.reshape(-1, step, width // step, step)
    return blocks.sum((1, 3), dtype=np.uint32).astype(np.float32) / np.float32(step * step)


def import_av() -> ModuleType:
    """PyAV.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("av", "video", "Reading and writing video files")
