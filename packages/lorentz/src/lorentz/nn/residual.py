"""The residual connection of points."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz._precision import Scalar, evaluate
from lorentz.points import point_spaces

from ._layer import OnHyperboloid
from .curvature import Curvature


class LorentzResidual(OnHyperboloid):
    """Residual connection x "+" f(x): the Lorentz centroid of x and y = f(x) with weights 1 - w and w.

    m = s / sqrt(-c<s, s>_L), s = (1 - w) x + w y (Law et al. 2019; He et al. 2024, LResNet). The centroid does not
    depend on the total of its weights, so one number w says all, the same for every point. With Q = c<x-y, x-y>_L,
    -c<s, s>_L = 1 + w (1 - w) Q: no cancellation, and x = y gives x. The result lies on the geodesic between the two,
    for w = 1/2 in its middle.

    Args:
        share: w, the weight of f(x), between 0 and 1; the initial one if learned.
        learnable: learn w (as its logit).
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `share` is not in (0, 1), or `c` is a number <= 0; at the call, shapes that do not fit.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> x, y = expmap0(torch.tensor([[1.0], [3.0]]))
        >>> torch.allclose(LorentzResidual()(x, y), expmap0(torch.tensor([2.0])))
        True
    """

    def __init__(self, share: float = 0.5, *, learnable: bool = False, c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        if not 0.0 < share < 1.0:
            raise ValueError(f"share: got {share}, expected 0 < share < 1")
        self.init, self.learnable = share, learnable
        if learnable:
            self.logit = nn.Parameter(torch.tensor(math.log(share / (1.0 - share))))

    @property
    def share(self) -> Scalar:
        """The current weight of f(x): a number, or a scalar tensor with gradient."""
        return torch.sigmoid(self.logit) if self.learnable else self.init

    def forward(self, x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Join x and y = f(x)."""
        c, share = self.c, self.share

        def between(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
            w = share.to(x.dtype) if isinstance(share, Tensor) else share
            of = hyp.pair(x, y, c)
            return hyp.lifted((x + w * of.d) / torch.sqrt(1.0 + w * (1.0 - w) * hyp.separation(of, c)), c)

        return evaluate(between, None, c, *point_spaces(c, x=x, y=y))

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"share={self.init}, learnable={self.learnable}"
