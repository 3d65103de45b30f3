"""Damaged indexes and stores: each is refused with a sentence that names a file, or gives what it gave before."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzzing import json_mutations, json_text_mutations, mutations
from search_files import (
    QUERY,
    forget,
    make_index,
    npy,
    replace_in_segment,
    sha,
    sign,
    some_videos,
    tiny_model,
    walk,
    write_store,
)

from prvr.data import DataError
from prvr.search import SearchHit, VideoIndex, verify_index
from prvr.video import VideoStore, open_featurizer

TEXT = open_featurizer("toy")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Indexes by dtype, each of a trained model, with two segments and a removed video; nothing may write to them."""
    base = tmp_path_factory.mktemp("whole")
    model = tiny_model(base / "model")
    store = write_store(base / "store", some_videos([30, 7, 3, 24]))
    more = write_store(base / "more", some_videos([12, 5], seed=50) | {"other.mp4": walk(9, 77)})
    more = forget(more, "v001.mp4")
    made: dict[str, Path] = {}

    def get(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = base / dtype
            with make_index(base / dtype, model, store, dtype=dtype, window=5.0, stride=2.5) as index:
                index.add(more)
                index.remove(["v002.mp4"])
                assert len(index.source.segments) == 2
        return made[dtype]

    return get


@pytest.fixture
def index(whole: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the one of int8."""
    return Path(shutil.copytree(whole("int8"), tmp_path / "index"))


def segment_of(index: Path, number: int) -> Path:
    record = json.loads((index / "index.json").read_text())["index"]["segments"][number]
    return index / "segments" / record["name"]


def refused(index: Path, name: str) -> None:
    """It cannot be opened, and `verify` tells of it too; both name the file."""
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        VideoIndex.open(index)
    assert any(name in said for said in verify_index(index))


# Tables that cannot be, though all hashes are right.


def changed(at: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(rows: np.ndarray) -> np.ndarray:
        rows = rows.copy()
        rows[at] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("owners.npy", lambda rows: rows + 1),
        ("owners.npy", lambda rows: rows[::-1].copy()),
        ("owners.npy", changed(-1, 10**6)),
        ("owners.npy", lambda rows: rows * 0),
        ("owners.npy", lambda rows: rows.astype("<i4")),
        ("owners.npy", lambda rows: rows[:-1]),
        ("frame_counts.npy", changed(0, -1)),
        ("frame_counts.npy", changed(0, 2**62)),
        ("frame_counts.npy", lambda rows: rows + 1),
        ("frame_counts.npy", lambda rows: rows[None]),
        ("steps.npy", changed(0, 10**6)),
        ("steps.npy", changed(0, -1)),
        ("keys.npy", changed(0, -1)),
        ("keys.npy", changed(-1, 10**9)),
        ("keys.npy", lambda rows: rows[::-1].copy()),
        ("spans.npy", changed((0, 0), np.nan)),
        ("spans.npy", changed((0, 1), np.inf)),
        ("spans.npy", changed((0, 1), 10**6)),
        ("spans.npy", lambda rows: rows[:, ::-1].copy()),
        ("spans.npy", lambda rows: rows[:, :1].copy()),
        ("clips.npy", lambda rows: rows[:-1]),
        ("clips.npy", lambda rows: rows[:, :-1].copy()),
        ("clips.npy", lambda rows: rows.astype("<f2")),
        ("frames.npy", lambda rows: np.concatenate([rows, rows])),
        ("clips_scales.npy", changed(0, np.nan)),
        ("clips_scales.npy", changed(0, -1)),
        ("frames_scales.npy", lambda rows: rows[:-1]),
    ],
)
def test_a_table_that_cannot_be_is_refused(index: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    replace_in_segment(index, 0, {name: npy(change(np.load(segment_of(index, 0) / name)))})
    refused(index, name)


@pytest.mark.parametrize(
    "change",
    [
        {"duration": 0.0},
        {"duration": -1.0},
        {"duration": 1e-3},
        {"frames": 0},
        {"id": ""},
        {"id": "v001.mp4"},
        {"id": 7},
        {"id": "\ud800"},
        {"warnings": None},
        {"width": "wide"},
        {"sha256": None},
    ],
)
def test_a_video_that_cannot_be_is_refused(index: Path, change: dict[str, Any]) -> None:
    videos = json.loads((segment_of(index, 0) / "videos.json").read_text())
    replace_in_segment(index, 0, {"videos.json": json.dumps([videos[0] | change, *videos[1:]]).encode()})
    refused(index, "videos.json")


@pytest.mark.parametrize("content", [b"null", b"{}", b"[null]", b"[[]]", b"[" * 100_000, b"7", b"\xff"])
def test_videos_of_another_form_are_refused(index: Path, content: bytes) -> None:
    replace_in_segment(index, 0, {"videos.json": content})
    refused(index, "videos.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [("clips.npy", 0.5), ("frames.npy", 2.0), ("clips.npy", np.nan), ("frames.npy", np.inf)],
)
def test_verify_looks_at_every_vector(whole: Callable[[str], Path], tmp_path: Path, name: str, value: float) -> None:
    """Vectors with the right size and hash but not of unit length: opening does not read them."""
    folder = Path(shutil.copytree(whole("float16"), tmp_path / "index"))
    rows = np.load(segment_of(folder, 1) / name)
    rows[-1] *= np.float16(value)
    segment = replace_in_segment(folder, 1, {name: npy(rows)})
    with VideoIndex.open(folder) as index:
        assert [str(segment / name) in said for said in index.verify()] == [True]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("dim", lambda about: about | {"dim": 0}),
        ("dim", lambda about: about | {"dim": "16"}),
        ("dim", lambda about: about | {"dim": 10**30}),
        ("clips", lambda about: about | {"clips": -1}),
        ("window", lambda about: about | {"window": -1.0}),
        ("next_key", lambda about: about | {"next_key": -1}),
        ("model_files", lambda about: about | {"model_files": {"../index.json": {"size": 1, "sha256": "0"}}}),
        ("model_files", lambda about: about | {"model_files": None}),
        ("segments", lambda about: about | {"segments": [*about["segments"], about["segments"][0]]}),
        ("segments", lambda about: about | {"segments": [None]}),
        ("encoder", lambda about: about | {"encoder": about["encoder"] | {"rate": 0.0}}),
        ("dtype", lambda about: about | {"dtype": "float64"}),
    ],
)
def test_an_index_that_tells_what_cannot_be_is_refused(
    index: Path, what: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    sign(index / "index.json", lambda body: body | {"index": change(body["index"])})
    refused(index, "index.json")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../elsewhere"},
        {"name": "0" * 32},
        {"removed": [0, 0]},
        {"removed": [2, 1]},
        {"removed": [99]},
        {"removed": [-1]},
        {"videos": 0},
        {"windows": 1},
        {"frames": -1},
        {"files": {}},
    ],
)
def test_a_segment_that_cannot_be_is_refused(index: Path, change: dict[str, Any]) -> None:
    def apply(body: dict[str, Any]) -> dict[str, Any]:
        body["index"]["segments"][0] |= change
        return body

    sign(index / "index.json", apply)
    refused(index, "index.json")


@pytest.mark.parametrize("change", [{"dim": 8}, {"clips": 4}, {"clip_weight": 1.0}, {"frame_weight": 0.25}])
def test_an_index_that_tells_of_another_score_than_its_model_is_refused(index: Path, change: dict[str, Any]) -> None:
    sign(index / "index.json", lambda body: body | {"index": body["index"] | change})
    with pytest.raises(DataError), VideoIndex.open(index) as found:
        found.search(QUERY)
    assert verify_index(index)


# Pipes, folders and devices in the place of files.


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "folder", "gone"])
def test_what_is_no_file_is_refused(whole: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    """Every file of an index and of a store; opening a pipe would wait for ever."""
    for source in (whole("int8"), whole("int8").parent / "store"):
        for name in files_of(source):
            if name.endswith((".lock", "README.md")):
                continue
            folder = Path(shutil.copytree(source, tmp_path / source.name))
            (folder / name).unlink()
            if kind == "pipe":
                os.mkfifo(folder / name)
            elif kind == "folder":
                (folder / name).mkdir()
            if not (kind == "gone" and name.startswith("videos/")):
                found, said = used(folder)
                assert found is None, name
                assert said, name
            shutil.rmtree(folder)


# Any damage.


def used_index(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """What a search finds, None where it is refused; and what is said of damage."""
    said = verify_index(folder)
    try:
        with VideoIndex.open(folder, text=TEXT) as index:
            index.info()
            found = index.search(QUERY, 10)
            return {hit.video_id: hit for hit in found.hits}, said
    except DataError as error:
        return None, (*said, str(error))


def used_store(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """What is read, None where it is refused; and what is said of damage."""
    try:
        with VideoStore(folder) as store:
            found = {video: (store.entries[video], store.read(video).tobytes()) for video in store.video_ids}
            store.verify()
            return found, ()
    except DataError as error:
        return None, (str(error),)


def used(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """What is found or read of an index or a store, None where it is refused; and what is said of damage."""
    return used_store(folder) if folder.name == "store" else used_index(folder)


def damages(folder: Path, random: Random) -> Iterator[tuple[str, bytes, str]]:
    """Files and damaged contents of them."""
    for name in files_of(folder):
        content = (folder / name).read_bytes()
        if name.endswith(".lock"):
            continue
        for what, damaged in random.sample(list(mutations(content, random, 2)), 6):
            if damaged != content:
                yield name, damaged, what


@pytest.mark.parametrize("kind", ["int8", "store"])
def test_no_damage_goes_unseen(whole: Callable[[str], Path], tmp_path: Path, kind: str, unchecked: None) -> None:
    """Damaged bytes: what is found is what was found, or somebody says that there is damage."""
    source = whole("int8").parent / "store" if kind == "store" else whole(kind)
    folder = Path(shutil.copytree(source, tmp_path / kind))
    before, said = used(folder)
    assert said == ()
    for name, damaged, what in damages(folder, Random(5)):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(damaged)
        found, said = used(folder)
        assert found in (before, None) or said, f"{name}: {what}"
        assert not said or any(part in " ".join(said) for part in (name.split("/")[-1], str(folder))), f"{name}: {what}"
        (folder / name).write_bytes(content)
    assert used(folder) == (before, ())


@pytest.mark.parametrize("kind", ["int8", "store"])
def test_whatever_is_signed_is_refused_or_true(
    whole: Callable[[str], Path], tmp_path: Path, kind: str, unchecked: None
) -> None:
    """`index.json` and `store.json` with other values and a right hash: no video is shown otherwise than it was."""
    source = whole("int8").parent / "store" if kind == "store" else whole(kind)
    folder = Path(shutil.copytree(source, tmp_path / kind))
    path = folder / ("store.json" if kind == "store" else "index.json")
    content = path.read_bytes()
    if kind != "store":
        sign(path, unremoved)
    before, _ = used(folder)
    path.write_bytes(content)
    for what, damaged in json_mutations(json.loads(content), Random(6), 150):
        if isinstance(damaged, dict):
            damaged = {key: value for key, value in damaged.items() if key != "sha256"}
            damaged["sha256"] = sha(json.dumps(damaged, sort_keys=True))
        path.write_text(json.dumps(damaged))
        found, said = used(folder)
        assert found is None or said or without_confidence(found).items() <= without_confidence(before).items(), what
    for what, damaged in json_text_mutations(json.loads(content), Random(7), 0):
        path.write_bytes(damaged)
        assert used(folder)[0] is None, what


def without_confidence(found: dict[str, Any]) -> dict[str, Any]:
    """What was found or read, but for the confidences of hits, which depend on the other videos."""
    return {key: replace(one, confidence=None) if isinstance(one, SearchHit) else one for key, one in found.items()}


def unremoved(body: dict[str, Any]) -> dict[str, Any]:
    """All videos count."""
    for record in body["index"]["segments"]:
        record["removed"] = []
    return body
