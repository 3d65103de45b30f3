"""The text correlation preservation of MSC-PRVR: distances and angles between queries as their features have them."""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from prvr.config import LossSettings
from prvr.losses.term import LossInputs, Scalar, Term

_ANGLES = 2**24  # cosines that are computed at a time


def _products(x: Float[Tensor, "q d"]) -> tuple[Float[Tensor, "q q"], Float[Tensor, "q q"]]:
    """Products of rows from which their mean is taken, and the squared distances of rows."""
    centred = x - x.mean(0)
    products = centred @ centred.mT
    return products, products.diagonal()[:, None] + products.diagonal() - 2 * products


def distance_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Scalar:
    r"""Keeps the proportions of the distances between queries (MSC-PRVR; RKD-D of Park et al., CVPR 2019).

    Mean over all pairs of $\mathrm{smooth}_{L1}(d_{pq} / \bar d - f_{pq} / \bar f)$: d distances of embeddings, f
    those of fixed vectors, each divided by its mean over different queries. Smooth L1 is $x^2 / 2$ up to 1, then
    $|x| - 1/2$.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Examples:
        >>> distance_geometry_loss(2 * torch.eye(3), torch.eye(3)).item()
        0.0
    """
    itself = torch.eye(len(text), dtype=torch.bool, device=text.device)
    relative = []
    for x in (text, fixed.detach()):
        distances = _products(x)[1].clamp_min(1e-12).sqrt().masked_fill(itself, 0)
        relative.append(distances * max(distances.numel() - len(text), 1) / distances.sum().clamp_min(1e-12))
    return F.smooth_l1_loss(relative[0], relative[1])


def angle_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Scalar:
    r"""Keeps the angles between queries (MSC-PRVR; RKD-A of Park et al., CVPR 2019).

    Mean over all triples of $\mathrm{smooth}_{L1}(\cos\angle_{qpr} - \cos\angle^*_{qpr})$: the angle at p between
    q and r, of embeddings and of fixed vectors; 0 where p equals q or r up to rounding. The angles at a few p at a time
    are computed, and again for the gradient: memory grows with the second power of the number of queries.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Examples:
        >>> angle_geometry_loss(2 * torch.eye(3), torch.eye(3)).item()
        0.0
    """
    queries, both = len(text), []
    for x in (text, fixed.detach()):
        products, squares = _products(x)
        distinct = squares > 1e-6 * products.diagonal().mean()
        both += [products, squares.masked_fill(~distinct, torch.inf).rsqrt()]

    def cosines(at: slice, products: Tensor, inverse: Tensor) -> Tensor:
        dots = products - products[at, None] - products[at, :, None] + products.diagonal()[at, None, None]
        return dots * inverse[at, None] * inverse[at, :, None]

    def loss(at: slice, *both: Tensor) -> Tensor:
        return F.smooth_l1_loss(cosines(at, *both[:2]), cosines(at, *both[2:]), reduction="sum")

    step = max(1, _ANGLES // queries**2)
    points = [slice(first, first + step) for first in range(0, queries, step)]
    if len(points) > 1:
        again = partial(checkpoint, loss, use_reentrant=False, preserve_rng_state=False)
    else:
        again = loss
    parts = [again(part, *both) for part in points]
    return torch.stack(parts).sum() / queries**3


class TextDistances(Term[LossSettings]):
    """`distance_geometry_loss` of the queries and the features of their last words."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the distances of the queries are from those of their features."""
        return distance_geometry_loss(inputs.text, inputs.last_words)


class TextAngles(Term[LossSettings]):
    """`angle_geometry_loss` of the queries and the features of their last words."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the angles between the queries are from those of their features."""
        return angle_geometry_loss(inputs.text, inputs.last_words)
