"""Named sets of rows: what a model stores beside the score comes back, and is kept like clips and frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from search_files import TOY, make_features, make_index, some_videos, without

from prvr.encoders import VideoFeatures
from prvr_search import RowSet, VideoIndex, WindowVectors, open_model
from prvr_search.vectors import unit

ACCURACY = 2e-3


class Storing:
    """The joint encoder with raw frames, a row of words for every second frame, and one pooled row or none."""

    stored: ClassVar = {"frames": RowSet(256, lengths=True), "words": RowSet(12, lengths=True), "pooled": RowSet(5)}

    def __init__(self) -> None:
        self._model = open_model("zero-shot", TOY)
        self.identity, self.dim, self.clips = self._model.identity, self._model.dim, self._model.clips
        self.clip_weight, self.frame_weight = 0.0, 1.0
        self.frames_by_clip = self.frame_means = False

    def encode_windows(self, windows: Sequence[np.ndarray]) -> list[WindowVectors]:
        return [
            found._replace(
                frames=rows[:, :256], stored={"words": 3 * rows[::2, 256:268], "pooled": rows[: len(rows) % 2, :5]}
            )
            for rows, found in zip(windows, self._model.encode_windows(windows), strict=True)
        ]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return self._model.encode_texts(texts)


def check_rows(index: VideoIndex, features: VideoFeatures) -> None:
    """Every window of every video has the rows that the model gave, raw and as unit rows."""
    source = index.snapshot
    for number, video in enumerate(index.video_ids):
        windows = source.rows_of_videos(np.array([number]))
        spans = source.spans[windows].tolist()
        given = [features.read(video)[round(2 * start) : round(2 * end)] for start, end in spans]
        for name, expected in (
            ("words", [3 * rows[::2, 256:268] for rows in given]),
            ("frames", [rows[:, :256] for rows in given]),
            ("pooled", [unit(rows[: len(rows) % 2, :5]) for rows in given]),
        ):
            found = source.stored_rows(name, windows, raw=name != "pooled")
            for one, rows in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, rows, atol=ACCURACY * max(1.0, np.abs(rows).max(initial=0)))
            np.testing.assert_allclose(source.stored_rows(name, windows[:1])[0], unit(expected[0]), atol=ACCURACY)


def test_stored_rows_come_back_and_survive_all_changes(tmp_path: Path) -> None:
    features = make_features(some_videos([30, 7, 1, 24, 13]))
    with make_index(tmp_path / "index", Storing(), features, window=5.0, stride=2.5) as index:
        check_rows(index, features)
        index.update(without(features, "v000.mp4", "v003.mp4", "v004.mp4"))  # more than half: written again
        index.update(features)
        check_rows(index, features)
    with make_index(tmp_path / "plain", features=features) as index:
        with pytest.raises(KeyError, match="stores clips, frames"):
            index.snapshot.stored_rows("words", [0])
        with pytest.raises(ValueError, match="lengths"):
            index.snapshot.stored_rows("frames", [0], raw=True)
