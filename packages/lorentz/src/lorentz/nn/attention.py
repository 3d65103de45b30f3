"""Multi-head attention between points, and one in linear time."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lorentz._centroid import largest_time, normalised, over_its_time
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
from .rotary import check_even, turned_heads


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
        rotary: base of rotary positions, see `LorentzRotary`, by which the heads of queries and keys turn; None: none.
        c: curvature -c, a number or a `Curvature`, shared by input, heads and output.

    Raises:
        ValueError: `num_heads` divides neither embed_dim nor embed_dim + 1 and `head_dim` is None, `dropout` is not in
            [0, 1), `temperature` <= 0, or `rotary` with an odd `head_dim`; at the call, a shape that does not fit.
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
        rotary: float | None = None,
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
        if rotary is not None:
            check_even("head_dim", head_dim)
            check_positive("rotary", rotary, "angles are its powers")
        self.embed_dim, self.num_heads, self.head_dim, self.dropout = embed_dim, num_heads, head_dim, dropout
        self.rotary = rotary
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
        if self.rotary is not None:
            begin = cache["keys"].shape[-3] if cache else 0
            queries, keys = (turned_heads(part, begin, self.head_dim, self.rotary) for part in (queries, keys))
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


class LorentzLinearAttention(OnHyperboloid):
    """Attention in time linear in the length: the centroid of the values under the weights phi(q).phi(k).

    With phi = elu + 1 on the space parts of a head (Katharopoulos et al. 2020) the sums over keys are formed once,

        m_i = s/sqrt(-c<s, s>_L),  s = sum_j (phi(q_i).phi(k_j)) v_j = phi(q_i) (sum_j phi(k_j) v_j^T),

    v_j the ambient values of the head. Hypformer (Yang et al. 2024) has linear attention on space parts, too, and
    recomputes the time where this takes the centroid. As c -> 0 it is Euclidean linear attention. Query, key and value
    pass through a `LorentzLinear` each; heads are joined as in `LorentzMultiheadAttention`. It has neither bias nor
    causal mask, and its weights are flat: phi(q).phi(k) has no temperature.

    Args:
        embed_dim: space dimension of the input points.
        num_heads: number of heads, a divisor of embed_dim.
        out_features: space dimension after a final LorentzLinear; None leaves the joined heads, embed_dim.
        bias: bias of the linear maps.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`; at the call, a shape that does not fit.
        TypeError: at the call, no floating-point tensor, float32 meets float64, or a mask that is not boolean.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> x = expmap0(torch.ones(2, 5, 8))
        >>> LorentzLinearAttention(8, num_heads=2)(x, x, x).shape
        torch.Size([2, 5, 9])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        out_features: int | None = None,
        bias: bool = True,
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads}, expected a divisor of embed_dim {embed_dim}")
        self.num_heads = num_heads
        self.query, self.key, self.value = (LorentzLinear(embed_dim, embed_dim, bias=bias, c=c) for _ in range(3))
        self.out = None if out_features is None else LorentzLinear(embed_dim, out_features, bias=bias, c=c)

    def forward(
        self,
        q: Float[Tensor, "*b l n"],
        k: Float[Tensor, "*b s n"],
        v: Float[Tensor, "*b s n"],
        *,
        mask: Bool[Tensor, "*#b s"] | None = None,
    ) -> Float[Tensor, "*b l m"]:
        """Attend; `mask` is True where a key counts, (*b, s), and without any the result is the origin."""
        parts = self.query.space(q), self.key.space(k), self.value.space(v)
        if mask is not None:
            check_mask("mask", mask, k.shape[:-1], "the keys", "a key counts")

        def attend(q: Tensor, k: Tensor, v: Tensor, c: Scalar) -> Tensor:
            parts = (F.elu(q) + 1.0, F.elu(k) + 1.0, v)
            of_query, of_key, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for part in parts)
            values = lifted(F.pad(v, (1, 0)), c)
            if mask is not None:
                of_key = of_key * mask[..., None, :, None]
            total = over_its_time(of_query @ (of_key.mT @ values))
            space = normalised(total, largest_time(values[..., :1]), c)
            return lifted(F.pad(space.transpose(-3, -2).flatten(-2), (1, 0)), c)

        points = evaluate(attend, None, self.c, *parts, auto="native")
        return points if self.out is None else self.out(points)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"num_heads={self.num_heads}"
