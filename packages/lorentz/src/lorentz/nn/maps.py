"""Into the hyperboloid and out of it."""

import torch
from jaxtyping import Float
from torch import Tensor

from lorentz import _hyperboloid as hyp
from lorentz import functional as lf
from lorentz._precision import Scalar, evaluate
from lorentz._validation import vectors

from ._layer import OnHyperboloid
from .curvature import Curvature


class ExpMap0(OnHyperboloid):
    """`lorentz.functional.expmap0` as a layer: (*b, d) -> points (*b, d+1), no farther out than `max_norm`.

    Longer vectors are shortened to it first, which keeps their direction (feature clipping: Guo et al. 2022). Far out
    the logits of a classifier are nearly steps without gradients, and features as they come, such as pixels from 0 to
    16, end in NaN; at the default, radius 5, all layers keep their digits in float32.

    Args:
        c: curvature -c, a number or a `Curvature`.
        max_norm: largest distance sqrt(c)|v| of a point from the origin, in units of 1/sqrt(c); None shortens nothing.
            Guo et al. take 1 for images.

    Raises:
        ValueError: `c` is a number <= 0, or `max_norm` is not positive.

    Examples:
        >>> import torch
        >>> from lorentz.nn import LogMap0, LorentzLinear
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 4), ExpMap0(), LorentzLinear(4, 3), LogMap0())
        >>> layers(torch.ones(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(self, c: float | Curvature = 1.0, *, max_norm: float | None = 5.0) -> None:
        super().__init__(c)
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm: got {max_norm}, expected a positive number, or None")
        self.max_norm = max_norm

    def forward(self, v: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d+1"]:
        """Map tangent vectors at the origin (*b, d) to points (*b, d + 1)."""
        c, limit = self.c, self.max_norm
        if limit is None:
            return lf.expmap0(v, c)

        def shortened(v: Tensor, c: Scalar) -> Tensor:
            length = hyp.root(c) * hyp.length(v)
            beyond = length > limit
            return torch.where(beyond, v * (limit / torch.where(beyond, length, 1.0)), v)

        return lf.expmap0(evaluate(shortened, None, c, *vectors(v=v), auto="native"), c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"max_norm={self.max_norm}"


class LogMap0(OnHyperboloid):
    """`lorentz.functional.logmap0` as a layer: points (*b, d+1) -> (*b, d).

    Args:
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `c` is a number <= 0.

    Examples:
        >>> import torch
        >>> from lorentz.nn import ExpMap0
        >>> LogMap0()(ExpMap0()(torch.ones(2, 8))).shape
        torch.Size([2, 8])
    """

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n-1"]:
        """Map points (*b, d + 1) to tangent vectors at the origin (*b, d)."""
        return lf.logmap0(x, self.c)
