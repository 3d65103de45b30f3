"""Dropout with four elements to a draw: the probability, independence, gradients, and what it leaves alone."""

import math

import pytest
import torch
from accelerator import DEVICE, Accelerator

from prvr.models.layers import Dropout, StackedLinear, dropout, feed_forward

COUNT = 400_003  # no multiple of the four elements that share a draw


@pytest.mark.parametrize("p", [0.1, 0.2, 0.31, 0.5, 0.9])
def test_the_share_of_zeros_is_p_and_the_mean_is_kept(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(COUNT), p)
    zeros = float((y == 0).double().mean())
    assert abs(zeros - p) < 5 * math.sqrt(p * (1 - p) / COUNT) + 2**-17
    assert y.unique().numel() == 2
    # The scale belongs to the probability that was drawn with, so that the expected value is exact.
    assert float(y.max()) == pytest.approx(1 / (1 - p), rel=2**-16 / (1 - p))


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5])
def test_neighbours_are_dropped_independently(lag: int) -> None:
    torch.manual_seed(1)
    dropped = (dropout(torch.ones(COUNT), 0.2) == 0).double() - 0.2
    correlation = float((dropped[lag:] * dropped[:-lag]).mean()) / 0.16
    assert abs(correlation) < 5 / math.sqrt(COUNT)


def test_another_draw_each_time_and_the_same_from_the_same_seed() -> None:
    x = torch.ones(64, 33)
    torch.manual_seed(2)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(2)
    assert torch.equal(first, dropout(x, 0.3))
    assert not torch.equal(first, second)


def test_gradient_of_dropout_is_what_was_kept_times_the_scale() -> None:
    x = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * gradient)
    assert gradient.unique().numel() == 2


def test_nothing_happens_without_training_or_at_zero() -> None:
    x = torch.randn(8)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert not torch.equal(Dropout(0.5)(x), x)


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 0, 3), (5, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = dropout(torch.ones(shape, dtype=dtype), 0.2)
    assert y.shape == shape
    assert y.dtype == dtype


def test_a_view_that_is_not_contiguous() -> None:
    x = torch.arange(1.0, 25.0).view(4, 6).mT
    y = dropout(x, 0.5)
    assert set((y / x).unique().tolist()) == {0.0, 2.0}


def test_gradients_of_a_feed_forward_layer_on_a_gpu_are_those_of_what_was_kept() -> None:
    with Accelerator():
        torch.manual_seed(3)
        expand, contract = (StackedLinear((2,), *sizes).double().to(DEVICE) for sizes in ((8, 32), (32, 8)))
        x = torch.randn(2, 50, 8, dtype=torch.float64).to(DEVICE).requires_grad_()
        inputs = [x, *expand.parameters(), *contract.parameters()]
        steps = [1e-6 * torch.randn_like(tensor) for tensor in inputs]

        def outcome(p: float = 0.4) -> torch.Tensor:
            torch.manual_seed(4)
            return sum(part.sin().sum() for part in feed_forward(x, expand, contract, p))

        outcome().backward()
        slope = sum((tensor.grad * step).sum() for tensor, step in zip(inputs, steps, strict=True)).item()
        values = []
        with torch.no_grad():
            for sign in (1, -2):
                for tensor, step in zip(inputs, steps, strict=True):
                    tensor.add_(step, alpha=sign)
                values.append(outcome().item())
            assert values[1] != outcome(0.0).item()
    assert (values[0] - values[1]) / 2 == pytest.approx(slope, rel=1e-5)
