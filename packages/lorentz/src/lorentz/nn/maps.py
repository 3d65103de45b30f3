"""Into the hyperboloid and out of it."""

from jaxtyping import Float
from torch import Tensor

from lorentz import functional as lf

from ._layer import OnHyperboloid


class ExpMap0(OnHyperboloid):
    """`lorentz.functional.expmap0` as a layer: (*b, d) -> points (*b, d+1).

    Args:
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `c` is a number <= 0.

    Examples:
        >>> import torch
        >>> from lorentz.nn import LogMap0, LorentzLinear
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 4), ExpMap0(), LorentzLinear(4, 3), LogMap0())
        >>> layers(torch.ones(2, 8)).shape
        torch.Size([2, 3])
    """

    def forward(self, v: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d+1"]:
        """Map tangent vectors at the origin (*b, d) to points (*b, d + 1)."""
        return lf.expmap0(v, self.c)


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
