"""Modules over `lorentz.functional`: they hold parameters, the functions hold the maths.

Every module takes the curvature as `c`: a number, or a `Curvature` (learned, shared between modules).
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from . import functional as lf
from ._precision import Scalar, check_curvature, evaluate, no_autocast
from ._series import safe_divide, safe_sqrt
from .attention import attend

__all__ = ["Curvature", "ExpMap0", "LogMap0", "LorentzLinear", "LorentzMultiheadAttention"]


class Curvature(nn.Module):
    """The number c > 0 of curvature -c, learned within bounds: c = lo (hi/lo)^sigmoid(raw).

    The bounds are part of the expression: the gradient is that of the bounded value and no parameter is ever clipped.

    Args:
        init: initial c, strictly between the bounds.
        learnable: False keeps c = `init` as a buffer.
        bounds: open interval (lo, hi) for c.

    Raises:
        ValueError: `init` does not lie strictly between the bounds, or lo <= 0.

    Example:
        >>> Curvature(2.0)()
        tensor(2.0000, grad_fn=<ExpBackward0>)
    """

    def __init__(self, init: float = 1.0, learnable: bool = True, bounds: tuple[float, float] = (0.1, 10.0)) -> None:
        super().__init__()
        low, high = bounds
        if not 0.0 < low < init < high < math.inf:
            raise ValueError(
                f"init, bounds: got {init}, {bounds}, expected 0 < lo < init < hi; widen bounds or move init"
            )
        self.init, self.learnable, self.bounds = init, learnable, (low, high)
        self._log_low, self._log_range = math.log(low), math.log(high / low)
        if learnable:
            share = math.log(init / low) / self._log_range
            self.raw = nn.Parameter(torch.tensor(math.log(share / (1.0 - share))))
        else:
            self.register_buffer("value", torch.tensor(float(init)))

    def forward(self) -> Float[Tensor, ""]:
        """Return c as a scalar tensor."""
        if not self.learnable:
            return self.get_buffer("value")
        return torch.exp(self._log_low + self._log_range * torch.sigmoid(self.raw))

    def extra_repr(self) -> str:
        return f"init={self.init}, learnable={self.learnable}, bounds={self.bounds}"


class _OnHyperboloid(nn.Module):
    """Holds c: a `Curvature` is registered (and may be shared), a number is kept as it is."""

    def __init__(self, c: float | Curvature) -> None:
        super().__init__()
        if not isinstance(c, Curvature):
            check_curvature(c)
        self.curvature = c

    @property
    def c(self) -> Scalar:
        """The current c: a number, or a scalar tensor with gradient."""
        return self.curvature() if isinstance(self.curvature, Curvature) else self.curvature


class ExpMap0(_OnHyperboloid):
    """`lorentz.functional.expmap0` as a layer: (*b, d) -> points (*b, d+1).

    Args:
        c: curvature -c, a number or a `Curvature`.

    Example:
        >>> nn.Sequential(nn.Linear(8, 4), ExpMap0(), LorentzLinear(4, 3), LogMap0())(torch.ones(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(self, c: float | Curvature = 1.0) -> None:
        super().__init__(c)

    def forward(self, v: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d+1"]:
        return lf.expmap0(v, self.c)


class LogMap0(_OnHyperboloid):
    """`lorentz.functional.logmap0` as a layer: points (*b, d+1) -> (*b, d).

    Args:
        c: curvature -c, a number or a `Curvature`.

    Example:
        >>> LogMap0()(ExpMap0()(torch.ones(2, 8))).shape
        torch.Size([2, 8])
    """

    def __init__(self, c: float | Curvature = 1.0) -> None:
        super().__init__(c)

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n-1"]:
        return lf.logmap0(x, self.c)


class LorentzLinear(_OnHyperboloid):
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
        ValueError: unknown `magnitude`, or `max_length` <= 0.

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
        if not max_length > 0.0:
            raise ValueError(f"max_length: got {max_length}, expected a number > 0")
        self.in_features, self.out_features, self.magnitude = in_features, out_features, magnitude
        self.activation = activation
        self.linear = nn.Linear(in_features + 1, out_features, bias)
        if magnitude == "bounded":
            self.gate = nn.Linear(in_features + 1, 1)
            self.log_length = nn.Parameter(torch.tensor(math.log(max_length)))

    def space(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """Space part of the output; x is read as it is, time part included."""
        space = self.linear(x if self.activation is None else self.activation(x))
        if self.magnitude == "free":
            return space
        length = torch.sigmoid(self.gate(x)) * torch.exp(self.log_length)
        with no_autocast(x.device.type):
            wide = torch.promote_types(space.dtype, torch.float32)
            space, length = space.to(wide), length.to(wide)
            norm = safe_sqrt((space * space).sum(-1, keepdim=True))
            return length * safe_divide(space, norm)

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        return lf.project(self.space(x), self.c)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, magnitude={self.magnitude!r}"


class LorentzMultiheadAttention(_OnHyperboloid):
    """Multi-head attention between points (HLFormer eq. 15): squared Lorentz distance, Lorentz centroid per head.

    Query, key and value pass through a `LorentzLinear` each and are cut into heads; a head's logit is -d^2/scale with a
    learned scale, initially sqrt(head_dim + 1). Heads are joined on the manifold: space parts side by side, time
    recomputed.

    Args:
        dim: space dimension of the input points.
        heads: number of heads.
        head_dim: space dimension of a head; None shares out `dim`, or the ambient dim + 1, whichever `heads` divides.
        out_features: space dimension after a final LorentzLinear; None leaves the joined heads, heads * head_dim.
        dropout: dropout on the attention weights.
        bias: bias of the linear maps.
        activation: activation of the linear maps.
        magnitude: magnitude of the linear maps, "free" or "bounded".
        c: curvature -c, a number or a `Curvature`, shared by input, heads and output.

    Raises:
        ValueError: `heads` divides neither dim nor dim + 1 and `head_dim` is None, or `dropout` is not in [0, 1).

    Example:
        >>> x = lf.expmap0(torch.ones(2, 5, 8))
        >>> LorentzMultiheadAttention(8, heads=2)(x, x, x).shape
        torch.Size([2, 5, 9])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout: got {dropout}, expected 0 <= dropout < 1")
        if head_dim is None:
            if dim % heads and (dim + 1) % heads:
                raise ValueError(f"heads: got {heads}, which divides neither dim {dim} nor dim + 1; pass head_dim")
            head_dim = dim // heads if dim % heads == 0 else (dim + 1) // heads - 1
        if head_dim < 1:
            raise ValueError(f"head_dim: got {head_dim} for dim {dim} and {heads} heads, expected at least 1")
        self.dim, self.heads, self.head_dim, self.dropout = dim, heads, head_dim, dropout
        joined = heads * head_dim

        def linear() -> LorentzLinear:
            return LorentzLinear(dim, joined, bias=bias, activation=activation, magnitude=magnitude, c=self.curvature)

        self.query, self.key, self.value = linear(), linear(), linear()
        self.log_scale = nn.Parameter(torch.tensor(0.5 * math.log(head_dim + 1)))
        self.out = None if out_features is None else LorentzLinear(joined, out_features, bias=bias, c=self.curvature)

    def forward(
        self,
        q: Float[Tensor, "*b l n"],
        k: Float[Tensor, "*b s n"],
        v: Float[Tensor, "*b s n"],
        *,
        window: Float[Tensor, "..."] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*b l m"]:
        """Attend.

        Args:
            q: query points.
            k: key points.
            v: value points.
            window: added to the logits (the logarithm of a Gaussian window, say), broadcastable to (*b, heads, l, s).
            mask: True where a key is valid, broadcastable to (*b, heads, l, s); a row without keys gives the origin.

        Returns:
            Points with heads * head_dim + 1 (or out_features + 1) ambient coordinates.
        """
        c, scale = self.c, torch.exp(self.log_scale)
        dropout = self.dropout if self.training else 0.0
        pairs = ((self.query, q), (self.key, k), (self.value, v))
        heads = (linear.space(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for linear, x in pairs)

        def joined(q: Tensor, k: Tensor, v: Tensor, c: Scalar) -> Tensor:
            return attend(q, k, v, c, scale, window, mask, dropout).transpose(-3, -2).flatten(-2)

        # Heads stay space parts from cut to join, so each time part is formed once; the result is
        # join_heads(lorentz_attention(split_heads(q), split_heads(k), split_heads(v))).
        space = evaluate(joined, "native", c, *heads)
        return lf.project(space, c) if self.out is None else self.out(lf.project(space, c))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout}"
