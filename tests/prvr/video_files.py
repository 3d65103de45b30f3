"""Video files that the tests make, whole and broken."""

import shutil
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.encoders import Identity

MILLISECOND = Fraction(1, 1000)
KINDS = {".mkv": "matroska", ".ts": "mpegts"}
SOUND_RATE, FILM_SECONDS = 48_000, 10


def plain(values: Sequence[int], height: int = 48, width: int = 64) -> list[np.ndarray]:
    """Frames of one grey each."""
    return [np.full((height, width, 3), value, np.uint8) for value in values]


def noise(count: int, seed: int = 0, height: int = 48, width: int = 64) -> list[np.ndarray]:
    """Frames that hardly compress: a file of them is mostly picture."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 255, (height, width, 3), dtype=np.uint8) for _ in range(count)]


def greys(frames: Sequence[Any]) -> list[int]:
    """What is left of `plain`."""
    return [round(float(frame.pixels.mean())) for frame in frames]


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    fps: int = 10,
    times: Sequence[int] | None = None,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    preset: str = "ultrafast",
    encoder: dict[str, str] | None = None,
    turned: tuple[int, bool, bool] | None = None,
    pixel_shape: Fraction | None = None,
) -> Path:
    """A video by PyAV.

    Args:
        path: the file; its ending chooses the container.
        frames: (h w 3) each.
        fps: frames per second.
        times: of frames, in ms, for a variable rate.
        codec: of FFmpeg.
        options: of the container.
        preset: of x264; "ultrafast" stores frames in the order in which they are shown.
        encoder: its options, in place of those of the preset.
        turned: degrees, mirrored left to right, upside down.
        pixel_shape: width by height of a pixel.
    """
    import av

    base = MILLISECOND if times else Fraction(1, fps)
    with (
        path.open("wb") as file,
        av.open(file, "w", format=KINDS.get(path.suffix, path.suffix[1:]), options=options or {}) as container,
    ):
        fast = {"preset": preset, "g": "8" if preset == "ultrafast" else "50"} if codec == "libx264" else {}
        stream: Any = container.add_stream(codec, rate=1000 if times else fps, options=encoder or fast)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.time_base, stream.codec_context.time_base = "yuv420p", base, base
        if pixel_shape:
            stream.codec_context.sample_aspect_ratio = pixel_shape
        if turned:
            stream.set_display_rotation(turned[0], hflip=turned[1], vflip=turned[2])
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = times[number] if times else number, base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_film(
    path: Path, codec: str = "libx264", sound: str = "aac", options: dict[str, str] | None = None, late: int = 0
) -> Path:
    """10 s at 10 frames per second, each of its own grey; second s sounds at 200 + 100 s Hz.

    The picture begins `late` frames after the sound.
    """
    import av

    kind = KINDS.get(path.suffix, path.suffix[1:])
    with path.open("wb") as file, av.open(file, "w", format=kind) as container:
        pictures: Any = container.add_stream(codec, rate=10, options=options or {"g": "20"})
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        voice: Any = container.add_stream(sound, rate=SOUND_RATE)
        voice.layout = "mono"
        for number, pixels in enumerate(plain([20 + 2 * number for number in range(10 * FILM_SECONDS)])):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number + late, Fraction(1, 10)
            container.mux(pictures.encode(frame))
            times = (np.arange(SOUND_RATE // 10) + number * SOUND_RATE // 10) / SOUND_RATE
            wave = 0.5 * np.sin(2 * np.pi * (200 + 100 * (number // 10)) * times)
            heard = av.AudioFrame.from_ndarray(wave[None].astype(np.float32), format="fltp", layout="mono")
            heard.sample_rate, heard.time_base = SOUND_RATE, Fraction(1, SOUND_RATE)
            heard.pts = number * SOUND_RATE // 10
            container.mux(voice.encode(heard))
        container.mux(pictures.encode(None))
        container.mux(voice.encode(None))
    return path


def write_sound(path: Path) -> Path:
    """A file with sound and no picture."""
    import av

    with path.open("wb") as file, av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=8000)
        for number in range(20):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.rate, frame.pts = 8000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def move_stamps(source: Path, path: Path, numbers: Sequence[int]) -> Path:
    """The picture of a video, in which some frames are to be shown an hour later."""
    import av

    with av.open(str(source)) as file, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(file.streams.video[0])
        for number, packet in enumerate(packet for packet in file.demux(video=0) if packet.size):
            packet.stream = stream
            if number in numbers:
                packet.pts += int(3600 / packet.time_base)
            container.mux(packet)
    return path


def cut(source: Path, path: Path, share: float) -> Path:
    """The first part of a file."""
    content = source.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def png_bomb(side: int, pixels: bytes = bytes(64)) -> bytes:
    """A small PNG that says it is huge, and the rows of its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


LONG = "x" * 251 + ".mp4"  # 255 bytes, the most that file systems take
READABLE = {
    "one.mp4": 1,
    "variable.mp4": 5,
    "turned.mp4": 2,
    "tall-4k.mp4": 1,
    "Été à la mer 🌊 [bold].mp4": 2,
    LONG: 2,
    "truncated.mp4": None,
    "plain.mp4": 2,
}
"""Files of `hostile_folder` and how many frames each has at 2 per second; None: fewer than it had."""
UNREADABLE = {
    "empty.mp4": "it is empty (0 bytes)",
    "sound.mp4": "has no video stream, only sound",
    "headless.mp4": "truncated or broken",
    "text.mp4": "not a video",
    "list.mp4": "not a video",
}
"""Files of `hostile_folder` that give nothing, and what is said of each."""


def hostile_folder(folder: Path) -> Path:
    """One file of every kind that a folder of videos may hold, and one that is as it should be."""
    folder.mkdir(parents=True)
    ordinary = plain(range(20, 120, 10))
    write_video(folder / "plain.mp4", ordinary)
    write_video(folder / "one.mp4", ordinary[:1])
    write_video(folder / "variable.mp4", plain([20, 60, 100, 140]), times=[0, 100, 1000, 2500])
    write_video(folder / "turned.mp4", ordinary, turned=(90, False, False))
    write_video(folder / "tall-4k.mp4", plain([90, 90], 3840, 2160))
    for name in list(READABLE)[4:6]:
        shutil.copy(folder / "plain.mp4", folder / name)
    whole = write_video(folder / "whole.mp4", noise(60), options={"movflags": "faststart"})
    cut(whole, folder / "truncated.mp4", 0.5)
    whole.unlink()
    cut(folder / "plain.mp4", folder / "headless.mp4", 0.3)
    write_sound(folder / "sound.mp4")
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("not a video at all " * 50)
    (folder / "list.mp4").write_text("ffconcat version 1.0\nfile plain.mp4\n")
    (folder / "notes.txt").write_text("no video, and not named like one")
    (folder / ".hidden.mp4").write_text("left alone")
    return folder


class MeanColour:
    """The smallest encoder there is: the mean colour of each frame, and how many frames a video has."""

    dim, joint_dim = 4, 3

    def __init__(self, weights: str = "0" * 64, preprocessing: str = "halved") -> None:
        self.identity = Identity("mean", weights, preprocessing)

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        return (
            np.ascontiguousarray(pixels[:16:2, :16:2]) if min(pixels.shape[:2]) >= 16 else np.zeros((8, 8, 3), np.uint8)
        )

    def encode(self, frames: UInt8[np.ndarray, "n s s 3"]) -> Float32[np.ndarray, "n e"]:
        return frames.mean((1, 2), dtype=np.float32)

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        return np.concatenate([rows, np.full((len(rows), 1), len(rows), np.float32)], 1)
