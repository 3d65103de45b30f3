"""Layers that change the space part coordinate by coordinate; the time part follows."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import functional as lf
from lorentz.points import point_spaces

from ._layer import OnHyperboloid
from .curvature import Curvature


class LorentzActivation(OnHyperboloid):
    """An activation on the space part, time recomputed: (sqrt(1/c + |h(x)|^2), h(x)) (Hypformer, Yang et al. 2024).

    No map to a tangent space and back. Where |h(t)| <= |t| (ReLU, GELU, tanh) points move towards the origin.

    Args:
        activation: h, a function or a module (a module's parameters are registered); may change the dimension.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        TypeError: `activation` is not callable; at the call, `x` is no floating-point tensor.
        ValueError: `c` is a number <= 0.

    Examples:
        >>> import lorentz, torch
        >>> LorentzActivation(torch.relu, c=1 / 16)(lorentz.project(torch.tensor([3.0, -4.0]), c=1 / 16))
        tensor([5., 3., 0.])
    """

    def __init__(self, activation: Callable[[Tensor], Tensor], c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        if not callable(activation):
            raise TypeError(f"activation: got {type(activation).__name__}, expected a function or a module")
        self.activation = activation

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Apply the activation to the space parts of points (*b, d + 1) and recompute their time parts."""
        c = self.c
        (space,) = point_spaces(c, x=x)
        return lf.project(self.activation(space), c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return "" if isinstance(self.activation, nn.Module) else getattr(self.activation, "__name__", "")


class LorentzDropout(OnHyperboloid):
    """Dropout on the space part, time recomputed; in `eval()` the point itself.

    In training every space coordinate is 0 with probability p and divided by 1 - p otherwise: the space part keeps its
    mean, and the point stays on the hyperboloid. With every coordinate dropped it is the origin.

    Args:
        p: probability of dropping a coordinate.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `p` is not in [0, 1), or `c` is a number <= 0.
        TypeError: at the call, `x` is no floating-point tensor.

    Examples:
        >>> import lorentz, torch
        >>> x = lorentz.project(torch.tensor([3.0, -4.0]))
        >>> LorentzDropout(0.5).eval()(x).equal(x)
        True
    """

    def __init__(self, p: float = 0.5, c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        if not 0.0 <= p < 1.0:
            raise ValueError(f"p: got {p}, expected 0 <= p < 1")
        self.p = p

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Drop space coordinates of points (*b, d + 1) in training and recompute their time parts."""
        c = self.c
        (space,) = point_spaces(c, x=x)
        return lf.project(F.dropout(space, self.p, self.training), c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"p={self.p}"
