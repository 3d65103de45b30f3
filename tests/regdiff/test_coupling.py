"""Couplings of a minibatch: optimal, and without a trace of the condition in the noise."""

import itertools

import pytest
import torch

from regdiff.coupling import coupled


def test_no_permutation_is_closer():
    noise, target = torch.randn(2, 5, 3, dtype=torch.float64)
    condition = {"place": torch.randn(5, 2, dtype=torch.float64), "class": torch.randint(2, (5,)), "name": "kept"}
    for weight in (0.0, 0.7, 1e3):
        ours = coupled(noise, target, condition, weight)

        def cost(order, weight=weight):
            moved = (noise[list(order)] - target).square().sum()
            apart = (condition["place"][list(order)] - condition["place"]).square().sum()
            return moved + weight * (apart + (condition["class"][list(order)] != condition["class"]).sum())

        best = min(itertools.permutations(range(5)), key=cost)
        assert torch.equal(ours, noise[list(best)])


def test_the_noise_of_a_class_stays_in_it():
    """Plain couplings give each class the noise on its side, which sampling does not: the mean of the noise tells."""
    classes = torch.arange(200) % 2
    target = (2.0 * classes - 1)[:, None] + 0.1 * torch.randn(200, 1)
    noise = torch.randn(200, 1)
    ours, plain = coupled(noise, target, classes), coupled(noise, target)
    for one in (0, 1):
        assert torch.equal(ours[classes == one].sort(0).values, noise[classes == one].sort(0).values)
    assert (plain[classes == 1].mean() - plain[classes == 0].mean()).abs() > 1.0
    assert (ours - target).square().sum() < (noise - target).square().sum()


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"noise, weight: got \(2, 2\) and 1000.0, expected \(3, 2\)"):
        coupled(x[:2], x)
    with pytest.raises(ValueError, match=r"noise, weight: got .* and -1"):
        coupled(x, x, weight=-1.0)
    with pytest.raises(ValueError, match=r"condition: got a tensor of shape \(4,\)"):
        coupled(x, x, torch.zeros(4))
