"""Dropout with four elements to a draw: the probability, independence, gradients, and what it leaves alone."""

import math

import pytest
import torch
from accelerator import DEVICE, Accelerator

from prvr.models.layers import StackedLinear, dropout, feed_forward

COUNT = 400_003  # no multiple of the four elements that share a draw


@pytest.mark.parametrize("p", [0.1, 0.31, 0.9])
def test_the_share_of_zeros_is_p_the_mean_is_kept_and_neighbours_are_independent(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(COUNT), p)
    dropped = (y == 0).double() - p
    assert abs(float(dropped.mean())) < 5 * math.sqrt(p * (1 - p) / COUNT) + 2**-17
    assert y.unique().numel() == 2
    # The scale belongs to the probability that was drawn with, so that the expected value is exact.
    assert float(y.max()) == pytest.approx(1 / (1 - p), rel=2**-16 / (1 - p))
    for lag in range(1, 6):
        correlation = float((dropped[lag:] * dropped[:-lag]).mean()) / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(COUNT)


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
