"""`prvr index`: what it makes, what it says, and what it refuses."""

from pathlib import Path

import pytest
from commands import cells, explained
from search_files import forget, some_videos, tiny_model, walk, write_store

from prvr.cli import main
from prvr.search import VideoIndex
from prvr.video import VideoStore


@pytest.fixture
def store(tmp_path: Path) -> VideoStore:
    return write_store(tmp_path / "store", some_videos([10, 20, 30, 300]))


def add(store: VideoStore, index: Path, *more: str) -> list[str]:
    return ["index", "add", str(index), "--store", str(store.folder), *more]


def test_from_a_store_to_an_index_and_on(store: VideoStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "index"
    assert main(add(store, index, "--model", "zero-shot", "--device", "cpu")) == 0
    out, err = capsys.readouterr()
    assert "added 4 unchanged 0 in the index 4" in cells(out)
    assert "\r" not in err  # no bar where there is no terminal
    assert main(["index", "info", str(index), "--videos"]) == 0
    said = cells(capsys.readouterr().out)
    assert "videos 4 (0.05 hours)" in said
    assert "windows 5 (120 s, every 60 s)" in said
    assert "256 wide, float16" in said
    assert "v003.mp4 150.0 2 /videos/v003.mp4" in said
    assert "bytes per video" in said
    assert "zero-shot" in said

    store = forget(write_store(store.folder, {"v001.mp4": walk(9, 9), "new.mp4": walk(9, 8)}), "v002.mp4")
    assert main(add(store, index)) == 0
    out = capsys.readouterr().out
    assert "added 1 unchanged 2 changed since, not updated 1 in the index 5" in cells(out)
    assert "prvr index update" in out
    assert main(["index", "update", str(index), "--store", str(store.folder)]) == 0
    assert "added 0 embedded again 1 removed 1 unchanged 3 in the index 4" in cells(capsys.readouterr().out)
    assert main(["index", "remove", str(index), "new.mp4"]) == 0
    assert "removed 1" in cells(capsys.readouterr().out)
    assert main(["index", "verify", str(index)]) == 0
    assert "no problems found" in capsys.readouterr().out
    assert VideoIndex.open(index).video_ids == ("v000.mp4", "v001.mp4", "v003.mp4")


def test_a_trained_model_and_every_option(store: VideoStore, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "run" / "best").parent
    options = ["--model", str(model), "--dtype", "int8", "--window", "50", "--stride", "40", "--text", "toy"]
    assert main([*add(store, tmp_path / "a", *options), "-q"]) == 0
    with VideoIndex.open(tmp_path / "a") as index:
        about = index.source.manifest
        assert (about.dtype, about.window, about.stride, about.dim) == ("int8", 50.0, 40.0, 16)
        assert index.source.windows_of("v003.mp4") == 4
        assert index.search("a red square").hits
    assert main(add(store, tmp_path / "b", "--model", "zero-shot", "--window", "0")) == 0
    assert VideoIndex.open(tmp_path / "b").source.manifest.window is None
    assert main(add(store, tmp_path / "c", "--model", "zero-shot", "--window", "20")) == 0
    assert VideoIndex.open(tmp_path / "c").source.manifest.stride == 10.0


def test_what_is_refused_is_explained(store: VideoStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "index"
    assert "pass --model" in explained(add(store, index), capsys)
    assert "no store" in explained(["index", "add", str(index), "--store", str(tmp_path / "none")], capsys)
    assert "neither a run" in explained(add(store, index, "--model", str(tmp_path)), capsys)
    assert "0 < stride <= window" in explained(add(store, index, "--model", "zero-shot", "--stride", "500"), capsys)
    assert not index.exists()
    assert "no index" in explained(["index", "update", str(index), "--store", str(store.folder)], capsys)
    assert "no index" in explained(["index", "info", str(index)], capsys)
    assert main(add(store, index, "--model", "zero-shot")) == 0
    again = explained(add(store, index, "--model", "zero-shot", "--stage", "qb_norm", "--dtype", "int8"), capsys)
    assert "--model, --stage, --dtype can only be used for a new index" in again
    assert "not in the index" in explained(["index", "remove", str(index), "v9.mp4"], capsys)


def test_verify_names_the_file_and_fails(store: VideoStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "index"
    assert main(add(store, index, "--model", "zero-shot")) == 0
    (clips,) = index.rglob("clips.npy")
    clips.write_bytes(clips.read_bytes()[:-5])
    capsys.readouterr()
    assert main(["index", "verify", str(index)]) == 1
    said = capsys.readouterr().out
    assert str(clips) in said
    assert "Problems found: 1" in said
    assert "expected" in explained(["index", "info", str(index)], capsys)
