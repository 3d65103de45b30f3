"""Thumbnails: the picture that a player shows at a time, small, and nothing of a file that asks for too much."""

import io
import random
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from video_files import cut, noise, plain, write_sound, write_video

from prvr_search.serve import ServeLimits
from prvr_search.serve.media import encode_preview
from prvr_search.thumbnails import thumbnail
from prvr_search.video import Limits, VideoError


def opened(content: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(content))
    picture.load()
    return picture


def grey(content: bytes) -> float:
    return float(np.asarray(opened(content).convert("L"), np.float64).mean())


@pytest.fixture(scope="module")
def stairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 s at 10 frames per second, a key frame every 0.8 s; each second is a grey of its own."""
    values = [20 + 10 * (number // 10) for number in range(200)]
    return write_video(tmp_path_factory.mktemp("thumbnails") / "stairs.mp4", plain(values, 96, 128))


def test_the_picture_of_that_second(stairs: Path, tmp_path: Path) -> None:
    for seconds in (0.0, 0.95, 1.05, 7.3, 12.55, 19.95):
        assert grey(thumbnail(stairs, seconds)) == pytest.approx(20 + 10 * int(seconds), abs=2.5)
    assert grey(thumbnail(stairs, 1e7)) == pytest.approx(210, abs=2.5)  # beyond the end is the last
    raw = write_video(
        tmp_path / "raw.h264", plain([40] * 10 + [160] * 10)
    )  # without an index, it is read from its start
    assert grey(thumbnail(raw, 0.0)) == pytest.approx(40, abs=3)
    whole = write_video(tmp_path / "whole.mp4", noise(60), options={"movflags": "faststart"})
    assert opened(thumbnail(cut(whole, tmp_path / "part.mp4", 0.5), 5.9)).size == (64, 48)  # what is left


def test_size(tmp_path: Path) -> None:
    wide = write_video(tmp_path / "wide.mp4", plain([90] * 3, 300, 640))
    tall = write_video(tmp_path / "tall.mp4", plain([90] * 3, 640, 300))
    turned = write_video(tmp_path / "turned.mp4", plain([90] * 3, 300, 640), turned=(90, False, False))
    assert opened(thumbnail(wide, 0.1)).size == (320, 150)
    assert opened(thumbnail(tall, 0.1)).size == opened(thumbnail(turned, 0.1)).size == (150, 320)
    assert opened(thumbnail(wide, 0.1, width=64)).size == (64, 30)
    assert opened(thumbnail(wide, 0.1, width=1000)).size == (640, 300)  # never made larger
    picture = opened(thumbnail(wide, 0.1))
    assert (picture.format, picture.mode) == ("JPEG", "RGB")


def test_what_is_refused(stairs: Path, tmp_path: Path) -> None:
    write_sound(tmp_path / "sound.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "list.mp4").write_text(f"ffconcat version 1.0\nfile '{stairs}'\n")
    for name, why in (("sound", "only sound"), ("empty", "empty"), ("list", "not a video"), ("none", "no such file")):
        with pytest.raises(VideoError, match=why):
            thumbnail(tmp_path / f"{name}.mp4", 0.0)
    with pytest.raises(VideoError, match="128 x 96 pixels"):
        thumbnail(stairs, 0.0, limits=Limits(pixels=100))
    with pytest.raises(VideoError, match="the limit is 5 s"):
        thumbnail(stairs, 0.0, limits=Limits(seconds=5.0))
    for seconds, width in ((-1.0, 320), (float("inf"), 320), (1.0, 8), (1.0, 100_000)):
        with pytest.raises(ValueError, match="expected a time from 0"):
            thumbnail(stairs, seconds, width=width)


@pytest.mark.parametrize("kind", ["mp4", "webm"])
def test_damaged_files_give_a_picture_or_a_reason(tmp_path: Path, kind: Literal["mp4", "webm"]) -> None:
    """Pictures and previews alike; which bytes are damaged is drawn by lot, the same ones every time."""
    frames = plain(range(40, 200, 8)) + noise(10)
    whole = [
        write_video(tmp_path / "a.mp4", frames).read_bytes(),
        write_video(tmp_path / "a.mkv", frames).read_bytes(),
        write_video(tmp_path / "a.ts", frames).read_bytes(),
        write_video(tmp_path / "a.avi", frames, codec="mpeg4").read_bytes(),
    ]
    rng = random.Random(kind)
    damaged, given = tmp_path / "damaged", 0
    for _ in range(20):
        content = bytearray(rng.choice(whole))
        for _ in range(rng.choice([1, 3, 30])):
            content[rng.randrange(rng.choice([1000, len(content)]))] = rng.randrange(256)
        damaged.write_bytes(content[: rng.choice([len(content), rng.randrange(1, len(content))])])
        for seconds in (0.0, 1.5):
            with suppress(VideoError, HTTPException):  # nothing else may be raised
                opened(thumbnail(damaged, seconds, width=64))
                encode_preview(damaged, seconds, seconds + 1, kind, ServeLimits())
                given += 1
    assert given
