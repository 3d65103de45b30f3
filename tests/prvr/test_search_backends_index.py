"""Backends behind an index: where they give enough candidates, the final list is that of the exact one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prvr.search.index import VideoIndex
from prvr.search.manifest import MODEL, SEGMENTS, Manifest
from prvr.search.model import ModelIdentity, RowSet
from prvr.search.segments import VideoVectors, write_segment
from prvr.search.vectors import WindowRows, pack_rows
from prvr.video import Identity, StoreHeader, VideoEntry

pytest.importorskip("faiss")
pytest.importorskip("milvus_lite")

CLIPS, FRAMES, DIM, VIDEOS = 4, 6, 16, 240
NOBODY = Identity("nobody", "0" * 64, "none")
DRAWN = ModelIdentity("zero-shot", "drawn", "0" * 64, NOBODY, NOBODY)
OPTIONS = {"faiss": {"storage": "Flat"}, "milvus": {"storage": "IVF_FLAT", "nprobe": 1024}}


@dataclass(frozen=True)
class Drawn:
    """A model whose queries are drawn by number."""

    clip_weight: float
    frame_weight: float
    identity: ModelIdentity = DRAWN
    dim: int = DIM
    clips: int = CLIPS
    stored: Mapping[str, RowSet] = field(default_factory=dict)

    def encode_windows(self, windows: Any) -> Any:
        raise AssertionError("nothing is encoded or saved here")

    def encode_text(self, text: str) -> np.ndarray:
        row = np.random.default_rng([99, int(text)]).standard_normal(DIM).astype(np.float32)
        return row / np.linalg.norm(row)

    def rescorer(self, snapshot: Any) -> None:
        """There are no stages."""

    def save(self, folder: Path) -> None:
        raise AssertionError("nothing is encoded or saved here")


def make_index(folder: Path, model: Drawn) -> None:
    """Two segments; every third video has two windows; every tenth was removed."""
    (folder / SEGMENTS).mkdir(parents=True)
    (folder / MODEL).mkdir()
    videos, key = [], 0
    for number in range(VIDEOS):
        windows = 2 if number % 3 == 0 else 1
        drawn = np.random.default_rng(number).standard_normal((windows * (CLIPS + FRAMES), DIM)).astype(np.float32)
        entry = VideoEntry(f"v{number:04d}", "", 0, 0, "0" * 64, 60.0, 60, 1, 1, "h264")
        videos.append(
            VideoVectors(
                entry,
                np.arange(key, key + windows),
                np.array([[30.0 * w, 30.0 * w + 30] for w in range(windows)]),
                np.full(windows, FRAMES),
                {
                    "clips": WindowRows(pack_rows(drawn[: windows * CLIPS], "float32"), np.full(windows, CLIPS)),
                    "frames": WindowRows(pack_rows(drawn[windows * CLIPS :], "float32"), np.full(windows, FRAMES)),
                },
            )
        )
        key += windows
    records = tuple(write_segment(folder, videos[start : start + VIDEOS // 2]) for start in (0, VIDEOS // 2))
    about = Manifest(
        index_id="abc",
        model=model.identity,
        encoder=StoreHeader(NOBODY, 2.0, DIM, DIM),
        dtype="float32",
        window=None,
        stride=None,
        dim=DIM,
        clips=CLIPS,
        clip_weight=model.clip_weight,
        frame_weight=model.frame_weight,
        model_files={},
        next_key=key,
        segments=records,
    )
    about.without({record.name: set(range(0, VIDEOS // 2, 10)) for record in records}).write(folder)


def searched(folder: Path, model: Drawn, backend: str, k: int, **options: Any) -> list[list[tuple[str, float]]]:
    with VideoIndex(folder, model=model, backend=backend, options=options) as index:
        return [[(hit.video_id, hit.score) for hit in one.hits] for one in index.search_many(list("0123456"), k)]


@pytest.mark.parametrize("backend", list(OPTIONS))
@pytest.mark.parametrize(("weights", "k"), [((1.0, 0.0), 10), ((0.7, 0.3), VIDEOS // 4)], ids=["clips", "all"])
def test_final_list_is_the_exact_one(backend: str, weights: tuple[float, float], k: int, tmp_path: Path) -> None:
    """Where clips alone make the score, and where so many are wanted that all are scored."""
    model = Drawn(*weights)
    make_index(tmp_path / "index", model)
    exact = searched(tmp_path / "index", model, "exact", k)
    found = searched(tmp_path / "index", model, backend, k, **OPTIONS[backend])
    assert found == exact
    assert [len(one) for one in exact] == [k] * 7
