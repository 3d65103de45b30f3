"""What every test and doctest shares: one thread, no network, fixed seeds, no deadlines, and one toy corpus."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; xdist workers share the cores
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: a name that is not here is refused at once

import jaxtyping
import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

settings.register_profile(
    "local", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("local"), max_examples=300, print_blob=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))
torch.set_num_threads(1)
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
"""Without a GPU, `torch.manual_seed` records a stack trace for each kind of device, longer than many tests take."""


def pytest_collection_finish() -> None:
    """What has been imported stays: the garbage collector need not go through it again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state, in any order and on any worker."""
    SEED(0)
    np.random.seed(0)  # noqa: NPY002  the libraries below draw from the global generator


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C is not ignored, here and in child processes, though the suite may have been started so (nohup, `&`)."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the shape checks of `make shapes`, as a user has it: for tests of our own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The caches of the session, the same for all workers: tests neither read nor write those of the user."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))  # Linux
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("LOCALAPPDATA", str(folder))  # Windows
        yield folder


@pytest.fixture(scope="session")
def toy_cache(_caches: Path) -> Path:
    """A cache folder, for `data.cache_dir`, in which prvr finds the corpus toy-tiny made; the default on Linux."""
    from prvr.toy import corpus_key, write_corpus

    cache = _caches / "prvr"
    cache.mkdir(parents=True, exist_ok=True)
    jaxtyping.config.update("jaxtyping_disable", True)  # checked elsewhere; three times as long here
    try:
        with FileLock(_caches / "toy.lock"):  # the first worker makes it, the others wait
            write_corpus(cache / corpus_key(), "tiny")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    return cache


@pytest.fixture(scope="session")
def toy_root(toy_cache: Path) -> Path:
    """The folder that holds the corpus toy-tiny, for `open_corpus` and `data.root`; read only."""
    from prvr.toy import corpus_key

    return toy_cache / corpus_key()
