"""Backends behind an index: where they give enough candidates, the final list is that of the exact one."""

from pathlib import Path

import numpy as np
import pytest
from clip_sources import BruteBackend
from search_files import make_features, make_index, some_videos, tiny_model, without

from prvr.encoders import VideoFeatures
from prvr_search import VideoIndex
from prvr_search.ranking.backends import BACKENDS
from prvr_search.ranking.scores import num_candidates

VIDEOS = 120
QUERIES = ["a red square moves left", "a circle", "blue", "a green triangle rises", "it falls", "a square", "left"]


@pytest.fixture(scope="module")
def features() -> VideoFeatures:
    return make_features(some_videos([30 if number % 3 == 0 else 12 for number in range(VIDEOS)]))


@pytest.fixture(scope="module", params=["clips", "both"])
def folder(request: pytest.FixtureRequest, features: VideoFeatures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third video has two windows; the last ones lie in a file of their own. By what makes the score."""
    base = tmp_path_factory.mktemp(request.param)
    tiny_model(base / "model", branches=request.param)
    opened(base / request.param, without(features, *features.video_ids[-9:])).close()
    return base / request.param


def opened(folder: Path, features: VideoFeatures, backend: str = "exact") -> VideoIndex:
    return make_index(folder, folder.parent / "model", features, window=10.0, stride=5.0, backend=backend)


def searched(folder: Path, features: VideoFeatures, k: int, backend: str) -> list[list[tuple[str, float]]]:
    """Every tenth video was removed."""
    with opened(folder, without(features, *features.video_ids[::10]), backend) as index:
        assert len(index.snapshot.files) == 2
        return [[(hit.video_id, hit.score) for hit in one.hits] for one in index.search_many(QUERIES, k)]


def test_a_pack_is_named_after_its_model_too(features: VideoFeatures, tmp_path: Path) -> None:
    """Machines share collections by this name."""
    packs = set[str]()
    for model in ("zero-shot", "training-free", tiny_model(tmp_path / "model")):
        with make_index(tmp_path / "index", model, features, backend=BruteBackend.name) as index:
            index.search(QUERIES[0])
            packs.add(vars(index._backend)["pack"])
    assert len(packs) == 3


@pytest.mark.parametrize("backend", [BruteBackend.name, "milvus"])
def test_final_list_is_the_exact_one(folder: Path, features: VideoFeatures, backend: str) -> None:
    """Where clips alone make the score, and where so many are wanted that all are scored."""
    if backend == "milvus":
        pytest.importorskip("milvus_lite")
        backend = f"milvus:{folder / 'milvus.db'}"
    k = 10 if folder.name == "clips" else VIDEOS // 4
    assert (num_candidates(k) < VIDEOS * 9 // 10) == (folder.name == "clips")
    exact = searched(folder, features, k, "exact")
    assert searched(folder, features, k, backend) == exact
    assert [len(one) for one in exact] == [k] * len(QUERIES)


def test_only_what_a_backend_names_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = make_features(some_videos([4] * 160))
    with make_index(tmp_path, "zero-shot", features) as index:
        exact = index.search_many(QUERIES, 160)
    registered = BACKENDS[BruteBackend.name].part  # of the module's first import
    monkeypatch.setattr(
        registered, "nearest", lambda backend, text, vectors: [np.arange(vectors) // backend.clips] * len(text)
    )
    with make_index(tmp_path, "zero-shot", features, backend=BruteBackend.name) as index:
        results = index.search_many(QUERIES, 5)
        owners = index.snapshot.clip_owners  # one window each
        named = {index.video_ids[video] for video in owners[: num_candidates(5)]}
    for result, ranking in zip(results, exact, strict=True):
        expected = [hit.video_id for hit in ranking.hits if hit.video_id in named]
        assert [hit.video_id for hit in result.hits] == expected[:5]
