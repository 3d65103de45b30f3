"""What every test shares: one thread, fixed seeds, and hypothesis without deadlines."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; xdist workers share the cores

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "local", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state, in any order and on any worker."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  the libraries below draw from the global generator


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the shape checks of the test run, as a user has it: for tests of our own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
