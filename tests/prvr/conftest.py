"""What tests of several modules share, made once per worker and read only."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from film_collections import Collection
from matplotlib.figure import Figure
from search_files import make_features, make_index, some_videos
from training_runs import Runs, StraightRuns, make_config
from video_files import hostile_folder
from video_models import tiny_clip, tiny_roberta

from prvr.data import Corpus, PackedSplit, open_corpus, pack
from prvr.encoders import VideoFeatures
from prvr.training import RunResult, Splits, open_splits
from prvr_search import VideoIndex


@pytest.fixture(scope="session", autouse=True)
def _small_pictures() -> Iterator[None]:
    """Runs leave an empty picture, since curves take as long as a tiny run; test_training_curves.py draws them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prvr.training.run_folder.curves_figure", lambda history, title: Figure((1, 1)))
        yield


@pytest.fixture
def berlin() -> Iterator[None]:
    """The zone of this computer is one hour ahead of UTC, two in summer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def corpus(toy_root: Path) -> Corpus:
    """The smallest toy corpus."""
    return open_corpus(toy_root, "toy-tiny")


@pytest.fixture(scope="module")
def packed(corpus: Corpus, toy_cache: Path) -> PackedSplit:
    """Its test split, packed."""
    return pack(corpus, "test", cache_dir=toy_cache / "packed")


@pytest.fixture(scope="session")
def cache(toy_cache: Path) -> str:
    """For `data.cache_dir`."""
    return str(toy_cache)


@pytest.fixture(scope="session")
def splits(cache: str) -> Iterator[Splits]:
    """Those of `training_runs.make_config`."""
    opened = open_splits(make_config(cache))
    yield opened
    opened.close()


@pytest.fixture
def runs(tmp_path: Path, cache: str, splits: Splits) -> Runs:
    """Trains on these splits, in the folder of the test."""
    return Runs(tmp_path, cache, splits)


@pytest.fixture(scope="session")
def straight_runs(_caches: Path, cache: str, splits: Splits) -> StraightRuns:
    """Runs of `training_runs.RUNS`, saved only where epochs end; read only."""
    return StraightRuns(_caches / "straight", cache, splits)


@pytest.fixture(scope="session")
def straight(straight_runs: StraightRuns) -> RunResult:
    """The run of `make_config` alone."""
    return straight_runs["plain"]


@pytest.fixture(scope="session")
def features() -> VideoFeatures:
    """Features of eight videos, v000.mp4 to v007.mp4."""
    return make_features(some_videos([30, 7, 1, 24, 25, 60, 12, 90]))


@pytest.fixture
def index(features: VideoFeatures, tmp_path: Path) -> VideoIndex:
    """A zero-shot index of these videos, which a test may change."""
    return make_index(tmp_path / "index", features=features)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `hostile_folder`."""
    pytest.importorskip("av")
    return hostile_folder(tmp_path_factory.mktemp("videos") / "all")


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CLIP, as `open_encoder` takes it."""
    pytest.importorskip("transformers")
    return str(tiny_clip(tmp_path_factory.mktemp("models") / "clip"))


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny RoBERTa, as `open_featurizer` takes it."""
    pytest.importorskip("transformers")
    return str(tiny_roberta(tmp_path_factory.mktemp("models") / "roberta"))


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Collection:
    """Three films that no library knows yet, in a home of their own."""
    pytest.importorskip("av")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ENCODED", str(tmp_path / "encoded.txt"))
    return Collection(tmp_path, capsys)
