"""Multi-head attention between points."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lorentz._centroid import largest_time, over_its_time
from lorentz._precision import Scalar, at_least_float32, evaluate
from lorentz._validation import check_batch, check_positive
from lorentz.attention import (
    _check_shown,
    _logit_bias,
    _weighted_sum,
    check_mask,
    fused_width,
    initial_temperature,
    squares_at_distance_1,
)

from ._heads import joined, lifted
from ._layer import OnHyperboloid, check_features
from .curvature import Constant, Curvature
from .linear import LorentzLinear


def _start(linear: LorentzLinear, num_heads: int) -> float:
    """The initial temperature for heads of this linear map."""
    c = linear.curvature.c if isinstance(linear.curvature, Constant) else linear.curvature.init
    with_bias = linear.linear.bias is not None
    variance = 1.0 / (3 * (linear.in_features + 1))  # of the weights and biases of nn.Linear
    if linear.magnitude == "bounded":  # the length lambda sigmoid(0) of all heads together, whatever the weights
        variance = (0.5 * linear.max_length) ** 2 / (linear.out_features * (sum(squares_at_distance_1(c)) + with_bias))
    return initial_temperature(linear.out_features // num_heads, variance, variance * with_bias, c=c)


class LorentzMultiheadAttention(OnHyperboloid):
    r"""Multi-head attention between points (HLFormer eq. 15): squared Lorentz distance, Lorentz centroid per head.

    Query, key and value pass through a `LorentzLinear` each and are cut into heads; a head's logit is -d^2/temperature,
    with a learned temperature. Heads are joined on the manifold: space parts side by side, time recomputed. It
    returns points only, where `nn.MultiheadAttention` returns a tuple.

    Feed points at about distance 1 from the origin, for example `expmap0(x / embed_dim**0.5)` for the output x of a
    layer norm: the temperature then starts where logits have a deviation of about 1 over the keys. It is the deviation
    of d^2, sqrt(8) sigma R, where a head's coordinates vary by sigma over keys and its points have the length R. Far
    beyond distance 1 the softmax is saturated, close to the origin it is uniform, and neither learns.

    One of torch's fused kernels takes the product, so that memory grows with the length, not with its square; on a GPU
    zeros fill the heads up to a multiple of 8 coordinates, as these kernels ask for. It runs in float32 for points in
    half precision too: -q0 k0 + q.k cancels. A bfloat16 kernel was as good as its inputs up to radius 2; at radius 5
    half of its results were off by more than 2 % of their distance from the origin, some by all of it.

    Args:
        embed_dim: space dimension of the input points.
        num_heads: number of heads.
        head_dim: space dimension of a head; None shares out `embed_dim`, or the ambient embed_dim + 1, whichever
            `num_heads` divides.
        out_features: space dimension after a final LorentzLinear; None leaves the joined heads, num_heads * head_dim.
        dropout: dropout on the attention weights.
        bias: bias of the linear maps.
        activation: activation of the linear maps.
        magnitude: magnitude of the linear maps, "free" or "bounded".
        temperature: initial temperature > 0; None is the deviation of d^2 for points at distance 1. HLFormer's eq. 15
            has sqrt(head_dim + 1), which suits points far from the origin.
        c: curvature -c, a number or a `Curvature`, shared by input, heads and output.

    Raises:
        ValueError: `num_heads` divides neither embed_dim nor embed_dim + 1 and `head_dim` is None, `dropout` is not in
            [0, 1), or `temperature` <= 0; at the call, a shape that does not fit.
        TypeError: at the call, no floating-point tensor, float32 meets float64, or a mask that is not boolean.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> x = expmap0(torch.ones(2, 5, 8))
        >>> LorentzMultiheadAttention(8, num_heads=2)(x, x, x).shape
        torch.Size([2, 5, 9])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        temperature: float | None = None,
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout: got {dropout}, expected 0 <= dropout < 1")
        check_features("embed_dim", embed_dim)
        check_features("num_heads", num_heads)
        if head_dim is None:
            if embed_dim % num_heads and (embed_dim + 1) % num_heads:
                raise ValueError(
                    f"num_heads: got {num_heads}, which divides neither embed_dim {embed_dim} nor embed_dim + 1; "
                    "pass head_dim"
                )
            whole = embed_dim % num_heads == 0
            head_dim = embed_dim // num_heads if whole else (embed_dim + 1) // num_heads - 1
        if head_dim < 1:
            raise ValueError(
                f"head_dim: got {head_dim} for embed_dim {embed_dim} and {num_heads} heads, expected at least 1"
            )
        self.embed_dim, self.num_heads, self.head_dim, self.dropout = embed_dim, num_heads, head_dim, dropout
        inside = num_heads * head_dim

        def linear() -> LorentzLinear:
            return LorentzLinear(embed_dim, inside, bias=bias, activation=activation, magnitude=magnitude, c=c)

        self.query, self.key, self.value = linear(), linear(), linear()
        if temperature is None:
            temperature = _start(self.query, num_heads)
        check_positive("temperature", temperature, "the logits are -d^2/temperature")
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.out = None if out_features is None else LorentzLinear(inside, out_features, bias=bias, c=c)

    def forward(
        self,
        q: Float[Tensor, "*b l n"],
        k: Float[Tensor, "*b s n"],
        v: Float[Tensor, "*b s n"],
        *,
        attn_bias: Float[Tensor, "..."] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        key_padding_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> Float[Tensor, "*b l m"]:
        """Attend.

        Args:
            q: query points.
            k: key points.
            v: value points.
            attn_bias: added to the logits (the logarithm of a window, say), broadcastable to (*b, num_heads, l, s).
            mask: True where a key is valid, broadcastable to (*b, num_heads, l, s); a row without keys gives the
                origin.
            key_padding_mask: that of `nn.MultiheadAttention`, (*b, s): True where a key is padding, the opposite of
                `mask`. With both, a key counts where `mask` is True and `key_padding_mask` is not.
            is_causal: hide from each query the keys after it; the last query sees all keys.
            cache: where keys and values of earlier calls are, {} at first: those of `k` and `v` are put behind them,
                and all are attended to (s counts them). With `is_causal` a decoder needs the new points alone.

        Returns:
            Points with num_heads * head_dim + 1 (or out_features + 1) ambient coordinates.
        """
        q, k, v = self._checked(q, k, v)
        gap = fused_width(self.head_dim + 1, q.device) - self.head_dim
        # (*b, l, heads, gap + d), zeros in place of the time parts: heads change places with positions as views, later.
        heads = self.num_heads, gap
        queries = self.query._gapped(q, *heads, -1)
        keys = self.key._gapped(k, *heads, -1)
        values = self.value._gapped(v, *heads)
        if cache is not None:
            earlier = ((cache["keys"], keys), (cache["values"], values)) if cache else ((keys,), (values,))
            keys, values = cache["keys"], cache["values"] = [torch.cat(parts, dim=-3) for parts in earlier]
        if key_padding_mask is not None:
            shape = keys.shape[:-2]
            check_mask("key_padding_mask", key_padding_mask, shape, "the keys", "a key is padding, to ignore")
            valid = ~key_padding_mask[..., None, None, :]
            mask = valid if mask is None else mask & valid
        if is_causal:
            length, count = queries.shape[-3], keys.shape[-3]
            before = torch.ones(length, count, dtype=torch.bool, device=q.device).tril(count - length)
            mask = before if mask is None else mask & before
        parts = (queries, keys, values)
        if attn_bias is not None or mask is not None:
            _check_shown(queries.transpose(-3, -2), keys.transpose(-3, -2), attn_bias, mask)
        # The logits are -d^2 / temperature up to a constant, and d^2 = -2/c - 2 <q, k>_L.
        sharpness = 2.0 * torch.exp(-self.log_temperature.to(at_least_float32(self.log_temperature.dtype)))
        dropout = self.dropout if self.training else 0.0

        def attend(q: Tensor, k: Tensor, v: Tensor, c: Scalar) -> Tensor:
            queries = lifted(q, c, -1.0, -1) * sharpness.to(q.dtype)
            keys = lifted(k, c, 1.0, -1)
            values = lifted(v, c)
            shown, alive = _logit_bias(attn_bias, mask, q.dtype)
            largest = None
            if dropout or not v.shape[-3]:  # what is left of the weights has any total, also none
                largest = largest_time(values[..., :1].transpose(-3, -2)).transpose(-3, -2)
            queries, keys, values = (part.transpose(-3, -2) for part in (queries, keys, values))
            total = _weighted_sum(queries, keys, values, shown, dropout).transpose(-3, -2)
            if alive is not None:
                alive = alive.reshape((1,) * (3 - alive.ndim) + alive.shape).transpose(-3, -2)
            if largest is not None:
                total = over_its_time(total)
                alive = total[..., :1] > 0 if alive is None else alive & (total[..., :1] > 0)
            return joined(total, c, gap, largest, alive)

        # join_heads(lorentz_attention(split_heads(q), split_heads(k), split_heads(v))) in fewer passes over memory.
        points = evaluate(attend, None, self.c, *parts, auto="native")
        return points if self.out is None else self.out(points)

    def _checked(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def checked(name: str, x: Tensor) -> Tensor:
            points = self._checked_points(name, x, self.embed_dim, self.query.weight)
            if x.ndim < 2:
                raise ValueError(f"{name}: got shape {tuple(x.shape)}, expected (*b, length, {self.embed_dim + 1})")
            return points

        queries = checked("q", q)
        keys = queries if k is q else checked("k", k)
        values = queries if v is q else keys if v is k else checked("v", v)
        if k.shape[-2] != v.shape[-2]:
            raise ValueError(f"v: got shape {tuple(v.shape)}, expected one value for each key of k {tuple(k.shape)}")
        if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
            check_batch("k", k.shape, k.shape[:-2], "q", q.shape[:-2])
            check_batch("v", v.shape, v.shape[:-2], "q", q.shape[:-2])
        return queries, keys, values

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}"
        )
