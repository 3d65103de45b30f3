"""Every differentiable operation under one signature, so that the laws of derivatives and compilation run on all."""

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from functions import Operation, operations
from torch import Tensor
from unchecked import unchecked

import lorentz
import lorentz.functional


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames and not any(
        m.args[0] == "name" for m in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("name", list(operations(lorentz.functional)))


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """Values are checked in every test that does not ask for `any_time`."""
    with lorentz.checked():
        yield


@pytest.fixture
def any_time(_checked: None) -> Iterator[None]:
    """Points of any time part: for derivatives by ambient coordinates, and for what one curvature does to all."""
    with lorentz.checked(False):
        yield


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device at hand, on which tensors and modules are made."""
    with torch.device(request.param):
        yield request.param


@pytest.fixture
def operation(name: str) -> Operation:
    """The operation of this name, from lorentz.functional."""
    return operations(lorentz.functional)[name]


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    """lorentz.functional as users import it, in sys.modules for a whole test module."""
    with unchecked("lorentz"):
        yield importlib.import_module("lorentz.functional")


@pytest.fixture
def inputs() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Random arguments of an operation."""

    def draw(c: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y, v = torch.randn(3, 3, 4, dtype=dtype)
        return x, y, v, torch.tensor(c, dtype=dtype)

    return draw
