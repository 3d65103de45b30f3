"""MP4 files of the embedded world: what is read is what was written, or a clear refusal."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prvr.data.synthetic import mp4
from prvr.data.synthetic.mp4 import read_mp4, write_mp4
from prvr.data.synthetic.render import RGB, render
from prvr.data.synthetic.world import Shot, Thing, Video
from prvr.errors import DataError

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


def test_frames_come_back_in_number_and_order_with_small_errors(frames: np.ndarray, written: Path) -> None:
    read = read_mp4(written)
    assert read.shape == frames.shape
    difference = read.astype(int) - frames
    assert abs(difference).mean() < 1.2  # 0.75 here
    assert abs(difference).mean((1, 2, 3)).max() < 1.5
    assert abs(difference.mean((0, 1, 2))).max() < 0.2  # no colour is darker or brighter than it was
    nearest = [abs(frames.astype(int) - one).mean((1, 2, 3)).argmin() for one in read]
    assert nearest == list(range(len(frames)))


def test_a_player_sees_the_rate_the_length_and_the_colours(written: Path) -> None:
    with av.open(str(written)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.frames) == (256, 256, 41)
        assert stream.average_rate == 2
        assert stream.duration * stream.time_base == 20.5
        times = [frame.time for frame in container.decode(stream)]
        assert times == [i / 2 for i in range(41)]


@pytest.mark.parametrize("scale", [2, 4])
def test_chroma_costs_no_colour(tmp_path: Path, scale: int) -> None:
    """Columns of one pixel in all nine colours, which 4:2:0 would mix if they were not enlarged."""
    colours = np.array(list(RGB.values()), dtype=np.uint8)
    still = np.tile(colours[np.arange(64) % len(colours)], (3, 64, 1, 1))
    write_mp4(tmp_path / "v.mp4", still, scale=scale)
    read = read_mp4(tmp_path / "v.mp4", scale=scale)
    assert abs(read.astype(int) - still).mean() < 4  # of 255; 2 at most here, and 50 where neighbours are mixed


def test_a_rate_of_ones_own(tmp_path: Path, frames: np.ndarray) -> None:
    write_mp4(tmp_path / "v.mp4", frames[:5], fps=29.97)
    with av.open(str(tmp_path / "v.mp4")) as container:
        assert float(container.streams.video[0].average_rate) == pytest.approx(29.97, rel=1e-3)


def test_nothing_is_left_after_an_error_in_the_middle(
    tmp_path: Path, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = mp4._planes, []

    def fails(*args: Any) -> np.ndarray:
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(mp4, "_planes", fails)
    (tmp_path / "old.mp4").write_bytes(b"as before")
    for name in ("new.mp4", "old.mp4"):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            write_mp4(tmp_path / name, frames)
    assert [path.name for path in tmp_path.iterdir()] == ["old.mp4"]
    assert (tmp_path / "old.mp4").read_bytes() == b"as before"


@pytest.mark.parametrize("change", [{"scale": 3}, {"scale": 0}, {"fps": 0.0}, {"fps": float("nan")}])
def test_what_cannot_be_written_is_refused(tmp_path: Path, frames: np.ndarray, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_mp4(tmp_path / "v.mp4", frames[:2], **change)
    with pytest.raises(ValueError, match="at least one frame"):
        write_mp4(tmp_path / "v.mp4", frames[:0])
    assert not list(tmp_path.iterdir())


def test_foreign_and_damaged_files_are_refused(tmp_path: Path, written: Path) -> None:
    whole = written.read_bytes()
    quarter = len(whole) // 4
    for name, content, match in (
        ("text.mp4", b"no video at all", "not an MP4"),
        ("empty.mp4", b"", "not an MP4"),
        ("cut.mp4", whole[:-2000], "not an MP4"),
        ("hole.mp4", whole[:quarter] + b"\xff" * quarter + whole[2 * quarter :], "damaged"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.*{match}.*rite it again"):
            read_mp4(path)
    with pytest.raises(DataError, match="no such file"):
        read_mp4(tmp_path / "none.mp4")
    with pytest.raises(DataError, match=r"256 x 256 pixels.*Expected 128 x 128 pixels \(scale=2\)"):
        read_mp4(written, scale=2)


def test_a_video_of_another_make_is_refused(tmp_path: Path, frames: np.ndarray) -> None:
    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width = stream.height = 256
        for pixels in frames[:2]:
            big = np.ascontiguousarray(pixels.repeat(4, 0).repeat(4, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(big)))
        container.mux(stream.encode(None))
    with pytest.raises(DataError, match="as write_mp4 writes them"):
        read_mp4(tmp_path / "v.mp4")


def test_what_is_missing_is_named(tmp_path: Path, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(ImportError, match=r"without the encoder libx264.*prvr\[video\]"):
        write_mp4(tmp_path / "v.mp4", frames)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r'pip install "prvr\[video\]"'):
        write_mp4(tmp_path / "v.mp4", frames)
    with pytest.raises(ImportError, match=r'pip install "prvr\[video\]"'):
        read_mp4(tmp_path / "v.mp4")
    assert not list(tmp_path.iterdir())
