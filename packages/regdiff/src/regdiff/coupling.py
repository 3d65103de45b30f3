"""Couplings of noise and targets by optimal transport, which leave every condition its own noise."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regdiff.conditioning import check_condition


def coupled(
    noise: Float[Tensor, "..."],
    target: Float[Tensor, "b *s"],
    condition: Any = None,
    weight: float = 1e3,
) -> Float[Tensor, "b *s"]:
    r"""The rows of the noise in the order that brings them closest to the targets, for `loss(target, c, noise=...)`.

    The permutation p that minimises sum_i |noise_p(i) - target_i|^2 + weight |c_p(i) - c_i|^2, an optimal coupling of
    a minibatch (Pooladian et al. 2023; Tong et al. 2024) in which row i of the noise was drawn for condition c_i
    (Chemseddine et al. 2024, "Conditional Wasserstein distances"; Cheng and Schwing 2025). Without the second term the
    noise that a condition meets in training follows from the condition, while in sampling it does not: samples are
    then wrong. A large weight moves noise among rows of one condition alone, and among few of continuous ones.

    Args:
        noise: Rows of the base distribution.
        target: As many of the data, in the range that the noise is of (mapped, where there is a `data_range`).
        condition: A pytree of tensors with b rows; None where there is none. Of integers and booleans, how many
            differ is the squared distance.
        weight: Of a squared distance of 1 between conditions; 0 forgets them.

    Raises:
        ValueError: Another shape of the noise or batch of the condition, or a negative weight.
        ImportError: scipy, which finds the permutation, is not installed.

    Examples:
        >>> import torch
        >>> noise, target = torch.tensor([[1.0], [-1.0]]), torch.tensor([[-2.0], [2.0]])
        >>> coupled(noise, target).flatten().tolist()
        [-1.0, 1.0]
        >>> coupled(noise, target, condition=torch.tensor([0, 1])).flatten().tolist()
        [1.0, -1.0]
    """
    from scipy.optimize import linear_sum_assignment  # no other part of regdiff needs scipy

    if noise.shape != target.shape or weight < 0:
        raise ValueError(
            f"noise, weight: got {tuple(noise.shape)} and {weight}, expected {tuple(target.shape)}, the target's, and "
            "at least 0"
        )
    check_condition(condition, len(target))
    cost = _apart(target, noise)
    for leaf in tree_leaves(condition):
        if isinstance(leaf, Tensor) and leaf.ndim:
            cost += weight * _apart(leaf, leaf)
    _, order = linear_sum_assignment(cost.detach().cpu().numpy())
    return noise[order.tolist()]


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances of the rows; of integers and booleans, how many differ."""
    a, b = (values.reshape(len(values), -1).double() for values in (x, y))
    return torch.cdist(a, b).square() if x.is_floating_point() else torch.cdist(a, b, p=0.0)
