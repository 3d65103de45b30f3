"""Pictures as queries: files of every kind are read as a viewer shows them, and none takes much time or memory."""

import io
import os
import time
from pathlib import Path

import numpy as np
import pytest
from kills import growth
from PIL import Image
from video_files import png_bomb

from prvr.errors import InputError
from prvr_search.films.picture import PICTURE_PIXELS, read_picture, tone_mapped


def square(colour: str) -> np.ndarray:
    """A square of a colour on grey."""
    pixels = np.full((64, 64, 3), 90, np.uint8)
    pixels[16:48, 16:48] = {"red": (220, 30, 30), "green": (30, 160, 50)}[colour]
    return pixels


def encoded(pixels: np.ndarray, kind: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def test_the_usual_files_are_read_and_turned_as_a_viewer_turns_them() -> None:
    wide = np.concatenate([square("red"), square("green")], 1)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        found = read_picture(encoded(wide, kind)).astype(int)
        assert found.shape == wide.shape
        assert np.abs(found[30, [30, 100]] - wide[30, [30, 100]]).max() < 16
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    found = read_picture(encoded(wide, "JPEG", exif=exif, quality=95)).astype(int)
    assert found.shape == (128, 64, 3)
    assert np.abs(found[[30, 100], 30] - wide[30, [30, 100]]).max() < 16


def test_lights_above_white_paper_stay_apart() -> None:
    """PQ signals of 100, 203 (white paper), 240 and 300 candelas."""
    signals = np.array([33297, 38055, 39207, 40754], np.uint16)
    grey = tone_mapped(np.repeat(signals[:, None, None], 3, 2), 16)[:, 0, 0].astype(int)
    assert (np.diff(grey) > 1).all()


def test_what_is_clear_becomes_white_and_what_is_large_small() -> None:
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4] = (200, 0, 0, 255)
    file = io.BytesIO()
    Image.fromarray(clear).save(file, "PNG")
    found = read_picture(file.getvalue())
    assert found[0, 0].tolist() == [200, 0, 0]
    assert found[7, 7].tolist() == [255, 255, 255]
    for kind in ("PNG", "JPEG"):
        assert read_picture(encoded(np.full((1500, 3000, 3), 90, np.uint8), kind)).shape == (512, 1024, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as a picture"),
        (encoded(square("red"), "TIFF"), "Expected JPEG, PNG"),
        (png_bomb(9000), f"81,000,000 pixels, at most {PICTURE_PIXELS['PNG']:,} are decoded"),
        (png_bomb(2**31 - 1), "Make it smaller"),
        (np.zeros((0, 4, 3), np.uint8), r"expected \(height, width, 3\) uint8"),
    ],
)
def test_other_files_are_refused(content: bytes | np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_picture(content)


def plain(kind: str, pixels: int, mode: str = "RGB", **options: object) -> bytes:
    """A square picture of one colour, which takes few bytes."""
    file, side = io.BytesIO(), int(pixels**0.5)
    Image.new(mode, (side, side), 200).save(file, kind, **options)
    return file.getvalue()


def many_scans(count: int, pixels: int) -> bytes:
    """A progressive JPEG whose last scan is there so many times."""
    content = plain("JPEG", pixels, progressive=True)
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * (count - content.count(b"\xff\xda")) + content[-2:]


def test_a_jpeg_with_many_scans_is_refused_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"in 1500 scans.*Make it smaller"):
        read_picture(many_scans(1500, 4_000_000))
    baseline = plain("JPEG", 4_000_000)
    with pytest.raises(InputError, match=r"in 1501 scans.*Make it smaller"):
        read_picture(baseline[:-2] + baseline[baseline.rindex(b"\xff\xda") :][:12] * 1500 + baseline[-2:])
    assert time.monotonic() - start < 0.5
    assert read_picture(many_scans(100, 1_000_000)).shape == (1000, 1000, 3)


def test_the_largest_pictures_take_little_memory(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("JPEG", {"progressive": True}),
        ("PNG", {"compress_level": 1}),
        ("WEBP", {"lossless": True, "method": 0, "quality": 0}),
    ]
    for kind, options in cases:
        mode = "CMYK" if kind == "JPEG" else "RGBA"
        most = 28_000_000 if kind == "JPEG" else PICTURE_PIXELS[kind]
        if kind == "WEBP":
            with pytest.raises(InputError, match=f"at most {most:,} are decoded"):
                read_picture(plain(kind, most + 20_000, mode, **options))
        (tmp_path / kind).write_bytes(plain(kind, most, mode, **options))
    assert growth(lambda: [read_picture(path) for path in tmp_path.iterdir()]) < 300e6


@pytest.mark.parametrize("side", [64, 1500])
def test_grey_of_16_bits_is_scaled(side: int) -> None:
    ramp = np.linspace(0, 65535, side).astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(np.tile(ramp, (side, 1))).save(file, "PNG")
    pixels = read_picture(file.getvalue())
    expected = np.linspace(0, 255, pixels.shape[1])
    assert np.abs(pixels[pixels.shape[0] // 2].astype(float) - expected[:, None]).max() < 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=r"not a regular file. Name a picture"):
            read_picture(path)
