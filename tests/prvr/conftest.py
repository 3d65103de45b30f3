"""What the tests of training share: the tiny corpus, packed once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from training_runs import make_config

from prvr.training import Splits, open_splits


@pytest.fixture(scope="session")
def cache(embedded_cache: Path) -> str:
    """For `data.cache_dir`."""
    return str(embedded_cache)


@pytest.fixture(scope="session")
def splits(cache: str) -> Iterator[Splits]:
    """Of `training_runs.make_config`; read only."""
    opened = open_splits(make_config(cache))
    yield opened
    opened.close()
