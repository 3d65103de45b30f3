"""Residual connections and feed-forward layers in pieces, against torch's own operators on all rows."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from prvr.models.layers import StackedLayerNorm, StackedLinear
from prvr.models.pieces import feed_forward, residual_norm

Module = TypeVar("Module", bound=nn.Module)
NUM, WIDTH, HIDDEN = 3, 8, 12
ROWS = (5, 700)  # more rows than a piece of one thread or of two


def random(module: Module) -> Module:
    for parameter in module.double().parameters():
        nn.init.normal_(parameter)
    return module


def residual(shared: bool, p: float) -> tuple[Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor], nn.Module]:
    norm = random(StackedLayerNorm(NUM, WIDTH))
    x = torch.randn(*(() if shared else (NUM,)), *ROWS, WIDTH, dtype=torch.float64)
    update = torch.randn(NUM, *ROWS, WIDTH, dtype=torch.float64)
    return lambda x, update: residual_norm(x, update, norm, p), (x, update), norm


def layer(p: float) -> tuple[Callable[[Tensor], Tensor], tuple[Tensor], nn.Module]:
    expand, contract = random(StackedLinear((NUM,), WIDTH, HIDDEN)), random(StackedLinear((NUM,), HIDDEN, WIDTH))
    x = torch.randn(NUM, *ROWS, WIDTH, dtype=torch.float64)
    return lambda x: feed_forward(x, expand, contract, p), (x,), nn.ModuleList([expand, contract])


CASES = {
    "residual, one input": lambda p: residual(True, p),
    "residual, an input each": lambda p: residual(False, p),
    "feed-forward": layer,
}


def outcome(function: Callable[..., Tensor], given: tuple[Tensor, ...], module: nn.Module) -> list[Tensor]:
    """The value and all gradients, from the same draws each time."""
    leaves = [one.clone().requires_grad_() for one in given]
    torch.manual_seed(1)
    value = function(*leaves)
    weight = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(2))
    return [value, *torch.autograd.grad((value * weight).sum(), [*leaves, *module.parameters()])]


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_in_pieces_as_at_once(case: str, p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made = CASES[case](p)
    in_pieces = outcome(*made)
    monkeypatch.setattr("prvr.models.pieces._by_hand", lambda x: False)
    for piece, whole in zip(in_pieces, outcome(*made), strict=True):
        torch.testing.assert_close(piece, whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_without_gradients_the_same_value(case: str) -> None:
    function, given, _ = CASES[case](0.0)
    with torch.no_grad():
        value = function(*given)
    assert torch.equal(value, function(*(one.requires_grad_() for one in given)))


def test_under_autocast_in_its_type() -> None:
    function, (x,), both = layer(0.0)
    both.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert function(x.float()).dtype == torch.bfloat16
