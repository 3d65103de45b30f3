"""The linear layer between hyperboloids."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz import functional as lf
from lorentz._precision import Scalar, evaluate
from lorentz._series import safe_divide, safe_sqrt
from lorentz._validation import check_positive

from ._layer import OnHyperboloid, check_features, check_points
from .curvature import Curvature


def _along(direction: Tensor, length: Tensor, c: Scalar) -> Tensor:
    """The vector of this length; the zero vector where the direction vanishes."""
    return length * safe_divide(direction, safe_sqrt(hyp.dot(direction, direction)))


class LorentzLinear(OnHyperboloid):
    """Linear map between hyperboloids (Chen et al. 2022; HLFormer eq. 13-14).

    "free": space part W h(x) + b. "bounded": length lambda sigmoid(p.x + b') along W h(x) + b, and the origin where
    that vanishes. The time part follows. (Eq. 14 as printed lacks the sigmoid, so its sign can flip.)

    Args:
        in_features: space dimension of the input points.
        out_features: space dimension of the output points.
        bias: add b.
        activation: h, applied to the ambient input of W; None is the identity.
        magnitude: "free" or "bounded".
        c: curvature -c, a number or a `Curvature`.
        max_length: initial lambda of "bounded"; learned as its logarithm.

    Raises:
        ValueError: unknown `magnitude`, `max_length` <= 0, a dimension < 1; at the call, points of another dimension.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Example:
        >>> LorentzLinear(4, 3, magnitude="bounded")(lf.expmap0(torch.ones(2, 4))).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        c: float | Curvature = 1.0,
        max_length: float = 2.0,
    ) -> None:
        super().__init__(c)
        if magnitude not in ("free", "bounded"):
            raise ValueError(f"magnitude: got {magnitude!r}, expected 'free' or 'bounded'")
        check_positive("max_length", max_length, "it bounds the length of the space part")
        check_features("in_features", in_features)
        check_features("out_features", out_features)
        self.in_features, self.out_features, self.magnitude = in_features, out_features, magnitude
        self.activation = activation
        self.linear = nn.Linear(in_features + 1, out_features, bias)
        if magnitude == "bounded":
            self.gate = nn.Linear(in_features + 1, 1)
            self.log_length = nn.Parameter(torch.tensor(math.log(max_length)))

    def space(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Space part of the output; x is read as it is, time part included."""
        linear = self.linear
        check_points("x", x, self.in_features, linear.weight)
        return self._space(x.to(linear.weight.dtype))

    def _space(self, x: Tensor) -> Tensor:
        """`space` of an input that was checked."""
        space = self.linear(x if self.activation is None else self.activation(x))
        if self.magnitude == "free":
            return space
        length = torch.sigmoid(self.gate(x)) * torch.exp(self.log_length)
        return evaluate(_along, None, self.c, space, length)

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        return lf.project(self.space(x), self.c)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, magnitude={self.magnitude!r}"
