"""The linear layers between hyperboloids."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz._precision import Scalar, evaluate
from lorentz._series import safe_divide
from lorentz._validation import check_positive

from ._heads import lifted
from ._layer import OnHyperboloid, check_features
from .curvature import Curvature
from .mlr import LorentzMLR


def _along(direction: Tensor, gate: Tensor, log_length: Tensor, c: Scalar) -> Tensor:
    """The vector of length exp(log_length) sigmoid(gate); the zero vector where the direction vanishes."""
    length = torch.exp(log_length) * torch.sigmoid(gate)
    # A scale does not matter to a direction; with the largest coordinate 1, no square overflows or vanishes.
    largest = direction.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    direction = direction / torch.where(zero, 1.0, largest)
    return direction * torch.where(
        zero, 0.0, length * torch.rsqrt(torch.where(zero, 1.0, hyp.dot(direction, direction)))
    )


def _with_gaps(x: Tensor, heads: int, gap: tuple[int, int]) -> Tensor:
    """Zeros before and after each of `heads` pieces of the last axis, which becomes two."""
    return F.pad(x.unflatten(-1, (heads, -1)), gap)


def _is_plain(linear: nn.Module) -> bool:
    """Whether it is torch's layer, its weight an ordinary tensor, and nothing watches or replaces its `forward`.

    LoRA, offloading and quantisation do.
    """
    if type(linear) is not nn.Linear or type(linear.weight) not in (nn.Parameter, Tensor):
        return False
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    return not any(hooks) and "forward" not in linear.__dict__


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

    Examples:
        >>> from lorentz import expmap0
        >>> LorentzLinear(4, 3, magnitude="bounded")(expmap0(torch.ones(2, 4))).shape
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
        self.in_features, self.out_features = in_features, out_features
        self.magnitude, self.max_length = magnitude, max_length
        self.activation = activation
        self.linear = nn.Linear(in_features + 1, out_features, bias)
        if magnitude == "bounded":
            self.gate = nn.Linear(in_features + 1, 1)
            self.log_length = nn.Parameter(torch.tensor(math.log(max_length)))

    def space(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Space part of the output; x is read as it is, time part included."""
        return self._gapped(self._checked(x), 1, 1)[..., 0, 1:]

    def _checked(self, x: Tensor) -> Tensor:
        return self._checked_points("x", x, self.in_features, self.weight)

    @property
    def weight(self) -> Tensor | None:
        """The weight of the linear map inside; None if it is quantised, packed in a form of its own."""
        weight = self.linear.weight
        return weight if isinstance(weight, Tensor) and weight.is_floating_point() else None

    def _gapped(self, x: Tensor, heads: int, gap: int, place: Literal[0, -1] = 0) -> Tensor:
        """Space part for an input that was checked, cut into heads (*b, heads, gap + m/heads), each after `gap` zeros.

        The first is the place of a time part; with place -1 the zeros come behind and it is the last. It adds nothing
        to a norm, and products with an ambient number of columns, usually a multiple of 8, take down to two thirds of
        the time of those with one fewer.
        """
        gaps = (gap, 0) if place == 0 else (0, gap)
        linear, h = self.linear, x if self.activation is None else self.activation(x)
        if _is_plain(linear):
            weight = F.pad(linear.weight.unflatten(0, (heads, -1)), (0, 0, *gaps)).flatten(0, 1)
            bias = None if linear.bias is None else _with_gaps(linear.bias, heads, gaps).flatten()
            space = F.linear(h, weight, bias).unflatten(-1, (heads, -1))
        else:
            space = _with_gaps(linear(h), heads, gaps)
        if self.magnitude == "free":
            return space
        # The length is that of all heads together.
        flat = evaluate(_along, None, self.c, space.flatten(-2), self.gate(x), self.log_length, auto="native")
        return flat.unflatten(-1, (heads, -1))

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Map points (*b, in_features + 1) to points (*b, out_features + 1); only the space parts of `x` are read."""
        return evaluate(lifted, None, self.c, self._gapped(self._checked(x), 1, 1).squeeze(-2), auto="native")

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, magnitude={self.magnitude!r}"


class LorentzPlaneLinear(OnHyperboloid):
    """Linear map between hyperboloids by distances to hyperplanes (Shimizu et al. 2021; ILNN, arXiv:2602.23981).

    With d_k the signed distance of x from hyperplane k, see `LorentzMLR`, coordinate k of the space part is

        y_k = sinh(sqrt(c) h(v_k))/sqrt(c),  v_k = |z_k| d_k,

    and the time part follows: y is at distance h(v_k) from the hyperplane y_k = 0. HypLL's `HLinear` is the same in the
    ball. "angle" has sinh(sqrt(c) v_k) = |z_k| sinh(sqrt(c) d_k) instead, the layer of van der Klis et al. (FGG,
    arXiv:2601.21529). Both are one at |z_k| = 1, and as c -> 0 both are h(z_k.x - |z_k| a_k), a Euclidean linear layer.
    "distance" takes distances to a multiple of themselves, where `LorentzLinear` and "angle" add the logarithm of their
    weights: what is to lie far out is reached in a number of steps that grows with the distance, not with its
    exponential.

    Args:
        in_features: space dimension of the input points.
        out_features: space dimension of the output points.
        activation: h; None is the identity.
        scale: "distance" or "angle", what |z_k| multiplies.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: unknown `scale`, or a dimension < 1; at the call, points of another dimension.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz import dist0, expmap0
        >>> layer = LorentzPlaneLinear(2, 1)
        >>> layer.planes.load_state_dict({"weight": torch.tensor([[2.0, 0.0]]), "offset": torch.tensor([0.5])})
        <All keys matched successfully>
        >>> print(f"{dist0(layer(expmap0(torch.tensor([1.5, 0.0])))):.4f}")  # twice the distance 1.5 - 0.5
        2.0000
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        scale: Literal["distance", "angle"] = "distance",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        if scale not in ("distance", "angle"):
            raise ValueError(f"scale: got {scale!r}, expected 'distance' or 'angle'")
        check_features("out_features", out_features)
        self.planes, self.activation, self.scale = LorentzMLR(in_features, out_features, c=c), activation, scale

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Map points (*b, in_features + 1) to points (*b, out_features + 1)."""
        length = torch.linalg.vector_norm(self.planes.weight, dim=-1)

        def placed(v: Tensor, c: Scalar) -> Tensor:
            root = hyp.root(c)
            if self.scale == "angle":
                z = length.to(v.dtype)
                v = torch.asinh(z * torch.sinh(root * safe_divide(v, z))) / root
            return hyp.lifted(torch.sinh(root * (v if self.activation is None else self.activation(v))) / root, c)

        return evaluate(placed, None, self.c, self.planes(x), auto="native")

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"scale={self.scale!r}"
