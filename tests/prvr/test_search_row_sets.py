"""Named sets of rows: what a model stores beside the score comes back, and is kept like clips and frames."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_files import QUERY, TOY, found_in, make_index, npy, replace_in_segment, some_videos, write_store

from prvr.data import DataError
from prvr.search import RowSet, VideoIndex, WindowVectors, open_model, verify_index
from prvr.search.manifest import Manifest
from prvr.search.vectors import unit
from prvr.video import VideoStore

STORED = {"frames": RowSet(256, lengths=True), "words": RowSet(12, lengths=True), "pooled": RowSet(5)}
ACCURACY = {"float16": 2e-3, "float32": 1e-6, "int8": 2e-2}


class Storing:
    """The joint encoder with raw frames, a row of words for every second frame, and one pooled row or none."""

    def __init__(self, stored: Mapping[str, RowSet] = STORED) -> None:
        self._model = open_model("zero-shot", TOY)
        self.identity, self.dim, self.clips = self._model.identity, self._model.dim, self._model.clips
        self.clip_weight, self.frame_weight, self.stored = 0.0, 1.0, stored

    def encode_windows(self, windows: Sequence[np.ndarray]) -> list[WindowVectors]:
        return [
            found._replace(
                frames=rows[:, :256], stored={"words": 3 * rows[::2, 256:268], "pooled": rows[: len(rows) % 2, :5]}
            )
            for rows, found in zip(windows, self._model.encode_windows(windows), strict=True)
        ]

    def encode_text(self, text: str) -> np.ndarray:
        return self._model.encode_text(text)

    def rescorer(self, snapshot: Any) -> None:
        """There are no stages."""

    def save(self, folder: Path) -> None:
        self._model.save(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> VideoStore:
    return write_store(tmp_path_factory.mktemp("store"), some_videos([30, 7, 1, 24, 13]))


def storing(folder: Path, store: VideoStore | None = None, **options: Any) -> VideoIndex:
    return make_index(folder / "index", Storing(), store, window=5.0, stride=2.5, **options)


def check_rows(index: VideoIndex, store: VideoStore, accuracy: float) -> None:
    """Every window of every video has the rows that the model gave, raw and as unit rows."""
    source = index.source
    for number, video in enumerate(index.video_ids):
        windows = source.rows_of_videos(np.array([number]))
        spans = source.spans[windows].tolist()
        given = [store.read(video)[round(2 * start) : round(2 * end)] for start, end in spans]
        for name, expected in (
            ("words", [3 * rows[::2, 256:268] for rows in given]),
            ("frames", [rows[:, :256] for rows in given]),
            ("pooled", [unit(rows[: len(rows) % 2, :5]) for rows in given]),
        ):
            found = source.stored_rows(name, windows, raw=name != "pooled")
            for one, rows in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, rows, atol=accuracy * max(1.0, np.abs(rows).max(initial=0)))
            np.testing.assert_allclose(source.stored_rows(name, windows[:1])[0], unit(expected[0]), atol=accuracy)


@pytest.mark.parametrize("dtype", list(ACCURACY))
def test_stored_rows_come_back_and_survive_all_changes(dtype: str, store: VideoStore, tmp_path: Path) -> None:
    with storing(tmp_path, store, dtype=dtype) as index:
        check_rows(index, store, ACCURACY[dtype])
        index.remove(["v000.mp4", "v003.mp4", "v004.mp4"])  # more than half: the segment is written anew
        assert index.info().removed == 0
        index.update(store)
        check_rows(index, store, ACCURACY[dtype])
        assert index.verify() == ()
    assert json.loads((tmp_path / "index" / "index.json").read_text())["format"] == 3


def test_an_index_without_these_sets_or_a_bank_is_of_an_older_format(store: VideoStore, tmp_path: Path) -> None:
    with make_index(tmp_path / "index") as index:
        replace(index.source.manifest, bank=0).write(index.folder)
        index.update(store)
        with pytest.raises(KeyError, match="stores clips, frames"):
            index.source.stored_rows("words", [0])
        with pytest.raises(ValueError, match="lengths"):
            index.source.stored_rows("frames", [0], raw=True)
    body = json.loads((tmp_path / "index" / "index.json").read_text())
    assert body["format"] == 1
    assert not {"stored", "bank"} & body["index"].keys()
    with storing(tmp_path / "more") as index:
        replace(index.source.manifest, bank=0).write(index.folder)
        index.update(store)
        assert index.search(QUERY).hits[0].confidence is None
    body = json.loads((tmp_path / "more" / "index" / "index.json").read_text())
    assert body["format"] == 2
    assert "bank" not in body["index"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("words.npy", lambda rows: rows[:-1]),
        ("words.npy", lambda rows: rows[:, :-1].copy()),
        ("words_counts.npy", lambda counts: counts + 1),
        ("words_counts.npy", lambda counts: -counts),
        ("words_counts.npy", lambda counts: counts[:-1]),
        ("words_lengths.npy", lambda lengths: lengths * np.float32(np.nan)),
        ("words_lengths.npy", lambda lengths: -lengths),
        ("frames_lengths.npy", lambda lengths: lengths[:-1]),
        ("pooled_scales.npy", lambda scales: scales[:-1]),
    ],
)
def test_damaged_rows_are_named(name: str, change: Any, store: VideoStore, tmp_path: Path) -> None:
    with storing(tmp_path, store, dtype="int8") as index:
        segment = index.folder / "segments" / index.source.segments[0]
    content = npy(change(np.load(segment / name)))
    replace_in_segment(tmp_path / "index", 0, {name: content})
    part = name.split("_")[0].removesuffix(".npy")
    with pytest.raises(DataError, match=part):
        VideoIndex.open(tmp_path / "index")
    assert any(part in problem for problem in verify_index(tmp_path / "index"))


@pytest.mark.parametrize(
    "stored", [{"keys": RowSet(3)}, {"../x": RowSet(3)}, {"a_b": RowSet(3)}, {"words": RowSet(0)}, {"clips": RowSet(3)}]
)
def test_sets_that_cannot_be_are_refused(stored: Mapping[str, RowSet], tmp_path: Path) -> None:
    with storing(tmp_path) as index:
        replace(index.source.manifest, stored=stored).write(index.folder)
    with pytest.raises(DataError, match=r"index\.json"):
        Manifest.read(tmp_path / "index")


def test_a_model_of_other_sets_is_refused(tmp_path: Path) -> None:
    storing(tmp_path).close()
    with pytest.raises(DataError, match=r"its model has \{\}"):
        found_in(tmp_path / "index")
