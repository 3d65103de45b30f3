"""Readers of frame and query features: both layouts give the same rows; bad files are named."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from file_formats import write_bigfile

from prvr.data import DataError, open_features, open_query_features

IDS = ("plain", "two#signs#in#it", "naïve-日本-Ω", "nbsp\u00e0\u0085x")


@pytest.fixture
def videos() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((n, 5)).astype(np.float32) for n, name in enumerate(IDS, 1)}


@pytest.fixture(params=["bigfile", "hdf5"])
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


def written(folder: Path, videos: dict[str, np.ndarray], layout: str) -> Path:
    if layout == "bigfile":
        return write_bigfile(folder, videos.items())
    with h5py.File(folder / "feature.hdf5", "w") as file:
        for name, rows in videos.items():
            file[name] = rows
    return folder


def test_both_layouts_give_back_what_was_written(tmp_path: Path, videos: dict, layout: str) -> None:
    with open_features(written(tmp_path, videos, layout)) as reader:
        assert sorted(reader.video_ids) == sorted(videos)
        assert reader.dim == 5
        for video_id, x in videos.items():
            np.testing.assert_array_equal(reader.read(video_id), x)


def test_bigfile_rows_may_lie_anywhere(tmp_path: Path) -> None:
    np.arange(8, dtype="<f4").tofile(tmp_path / "feature.bin")
    (tmp_path / "shape.txt").write_text("4 2\n")
    (tmp_path / "id.txt").write_bytes("a_0 b\xe9_0 a_1 a_2".encode("latin-1"))  # ISO-8859-1, as published
    (tmp_path / "video2frames.txt").write_text(repr({"a": ["a_2", "a_0", "a_1"], "b": ["b\xe9_0"]}), encoding="utf-8")
    with open_features(tmp_path) as reader:
        assert reader.read("a").tolist() == [[6, 7], [0, 1], [4, 5]]
        assert reader.read("b").tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("shape.txt", "many 5", "expected one line 'ROWS WIDTH'"),
        ("video2frames.txt", "{'v': ['elsewhere_7']}", "frame 'elsewhere_7' is not in id.txt"),
        ("video2frames.txt", "__import__('os')", "not a Python dict literal"),
        ("video2frames.txt", r"{'v': ['\x']}", "video 1: .*unicode error"),
    ],
)
def test_bad_bigfile_text(tmp_path: Path, videos: dict, name: str, content: str, message: str) -> None:
    folder = written(tmp_path, videos, "bigfile")
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        open_features(folder)
    assert name in str(caught.value)


def test_missing_and_truncated_files_are_named(tmp_path: Path, videos: dict) -> None:
    folder = written(tmp_path, videos, "bigfile")
    data = (folder / "feature.bin").read_bytes()
    (folder / "feature.bin").write_bytes(data[:-6])
    with pytest.raises(DataError, match=rf"feature\.bin: {len(data) - 6} bytes.* = {len(data)} bytes"):
        open_features(folder)
    (folder / "id.txt").unlink()
    with pytest.raises(DataError, match=r"feature\.hdf5.*missing: id\.txt"):
        open_features(folder)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_bad_number_is_named_by_video_and_row(tmp_path: Path, videos: dict, layout: str, value: float) -> None:
    videos["two#signs#in#it"][1, 3] = value
    with open_features(written(tmp_path, videos | {"empty": np.zeros((0, 5), np.float32)}, layout)) as reader:
        reader.read("plain")
        with pytest.raises(DataError, match=r"'two#signs#in#it'.*NaN or infinity in frame row 1"):
            reader.read("two#signs#in#it")
        with pytest.raises(DataError, match=r"'empty'.*0 frames"):
            reader.read("empty")


def test_query_features(tmp_path: Path) -> None:
    path = tmp_path / "q.hdf5"
    bad = np.ones((3, 4), np.float32)
    bad[2, 0] = np.nan
    with h5py.File(path, "w") as file:
        file["v#enc#0"], file["v#enc#1"] = np.full((2, 4), 2.0), bad
        file["v#enc#2"] = np.ones((0, 4))
    with open_query_features(path) as queries:
        assert queries.dim == 4
        assert queries.read("v#enc#0").tolist() == [[2.0] * 4] * 2
        for caption_id, message in [("v#enc#1", "word row 2"), ("v#enc#2", "0 words"), ("w#enc#0", "has no features")]:
            with pytest.raises(DataError, match=f"'{caption_id}'.*{message}"):
                queries.read(caption_id)


def test_a_video_of_another_width_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "feature.hdf5", "w") as file:
        file["a"], file["b"], file["c"] = np.full((2, 4), 0.1), np.ones((2, 3)), np.arange(3)
    with open_features(tmp_path) as reader:
        assert (reader.read("a") == 0.1).all()  # in float64, as it is
        with pytest.raises(DataError, match=r"'b'.*\(2, 3\), expected \(frames, 4\)"):
            reader.read("b")
        with pytest.raises(DataError, match="'c' is int64"):
            reader.read("c")


def test_the_only_matrix_in_a_group_and_axes_of_length_one_are_read(tmp_path: Path) -> None:
    """As files of CLIP's pooled output, and of an encoder that writes a group per video, have them."""
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with h5py.File(tmp_path / "feature.hdf5", "w") as file:
        file["a"], file["b"], file["c/features"] = rows[None], rows[:, None], rows
        file["one"], file["d/x"], file["d/y"] = rows[:1, None], rows, rows
        file["three"] = np.ones((2, 2, 4), np.float32)
        file["deep/er/features"] = rows
    with open_features(tmp_path) as reader:
        assert reader.dim == 4
        for name in "abc":
            np.testing.assert_array_equal(reader.read(name), rows)
        np.testing.assert_array_equal(reader.read("one"), rows[:1])
        with pytest.raises(DataError, match=r"entry 'd' is a Group of 2 entries, among them \['x', 'y'\], expected"):
            reader.read("d")
        with pytest.raises(DataError, match=r"'deep/er' is a Group of 1 entries, among them \['features'\]"):
            reader.read("deep")
        with pytest.raises(DataError, match=r"float32 of shape \(2, 2, 4\)"):
            reader.read("three")


def test_a_file_that_another_program_has_open_is_not_called_damaged(tmp_path: Path) -> None:
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'w'); f['v'] = [[1.0]]; f.flush(); print(flush=True); input()"
    path = tmp_path / "feature.hdf5"
    environment = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(DataError, match=r"is locked .*Another program has it open.*HDF5_USE_FILE_LOCKING=FALSE"):
            open_features(tmp_path)
        other.communicate(b"\n")
    with open_features(tmp_path) as reader:
        assert reader.read("v").tolist() == [[1.0]]
