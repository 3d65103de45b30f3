"""MP4 files of the toy world: what is read is what was written."""

from pathlib import Path

import numpy as np
import pytest

from prvr.encoders import open_encoder
from prvr.toy import render
from prvr.toy.rendering import RGB
from prvr.toy.world import FPS, Shot, Thing, Video
from prvr_search.films import open_video
from prvr_search.films.toy_videos import write_mp4

av = pytest.importorskip("av")

SHOTS = (
    Shot(0.0, 8.0, Thing("square", "red", "large"), "right", bystanders=(Thing("star", "blue", "medium"),)),
    Shot(8.0, 14.0, Thing("ring", "pink", "small"), "clockwise"),
    Shot(14.0, 20.3, Thing("heart", "green", "medium"), "brighten", bystanders=(Thing("cross", "brown", "large"),)),
)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return render(Video("v", 20.3, "chequered", False, 5, SHOTS))


@pytest.fixture(scope="module")
def written(frames: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mp4") / "v.mp4"
    write_mp4(path, frames)
    return path


def read(path: Path) -> np.ndarray:
    """The frames of a file as `prvr extract` reads them: the mean of what became of each pixel."""
    encoder = open_encoder("toy")
    with open_video(path) as file:
        return np.stack([encoder.prepare(frame.pixels) for frame in file.sample(FPS)])


def test_what_is_read_and_what_a_player_sees_is_what_was_written(frames: np.ndarray, written: Path) -> None:
    """Luma and chroma of BT.709, limited range, are computed anew; libswscale's are a whole step too low."""
    found = read(written)
    assert found.shape == frames.shape
    errors = abs(found.astype(int) - frames).mean((1, 2, 3))
    assert errors.max() < 2  # of 255; 1.3 here, a part of which is the rounding of decoders
    nearest = [abs(frames.astype(int) - one).mean((1, 2, 3)).argmin() for one in found]
    assert nearest == list(range(len(frames)))
    red, green, blue = frames.astype(float).mean((0, 1, 2))
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    chroma = [128 + 112 * (blue - luma) / 0.9278 / 255, 128 + 112 * (red - luma) / 0.7874 / 255]
    with av.open(str(written)) as container:
        planes = np.stack([frame.to_ndarray() for frame in container.decode(video=0)])  # Y, then U, then V
    found = [planes[:, rows].mean() for rows in (slice(0, 256), slice(256, 320), slice(320, 384))]
    assert found == pytest.approx([16 + 219 * luma / 255, *chroma], abs=0.2)


def test_chroma_costs_no_colour(tmp_path: Path) -> None:
    """Columns of one pixel in all nine colours, which 4:2:0 would mix if they were not enlarged."""
    colours = np.array(list(RGB.values()), dtype=np.uint8)
    still = np.tile(colours[np.arange(64) % len(colours)], (3, 64, 1, 1))
    write_mp4(tmp_path / "v.mp4", still, fps=29.97, scale=2)
    errors = abs(read(tmp_path / "v.mp4").astype(int) - still)
    assert errors.mean() < 4  # of 255; 50 where neighbours are mixed


def test_what_cannot_be_written_is_refused(tmp_path: Path, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_mp4(tmp_path / "v.mp4", frames[:0])
    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(ImportError, match=r"without the encoder libx264.*prvr-search"):
        write_mp4(tmp_path / "v.mp4", frames)
    assert not list(tmp_path.iterdir())
