"""Attention between points: squared Lorentz distance as score, Lorentz centroid as sum."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from . import _hyperboloid as hyp
from ._centroid import largest_time, normalised, over_its_time
from ._precision import Precision, Scalar, evaluate
from ._validation import check_alike, check_batch, check_float, check_positive, check_scalar_like, described, vectors
from .maps import project
from .points import point_spaces


def _logit_bias(
    attn_bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """The attn_mask that shows each row its visible keys, and which rows have any.

    A row without keys is shown all of them and set to the origin afterwards: no softmax over an empty set.
    """
    if mask is not None:
        mask = mask.reshape((1,) * (2 - mask.ndim) + mask.shape)
    if attn_bias is None:
        if mask is None:
            return None, None
        alive = mask.any(-1, keepdim=True)
        return mask | ~alive, alive
    attn_bias = attn_bias.to(dtype).reshape((1,) * (2 - attn_bias.ndim) + attn_bias.shape)
    visible = attn_bias > -torch.inf if mask is None else mask & (attn_bias > -torch.inf)
    alive = visible.any(-1, keepdim=True)
    return torch.where(visible, attn_bias, torch.where(alive, -torch.inf, 0.0).to(dtype)), alive


def fused_width(width: int, device: torch.device) -> int:
    """How many numbers a row of `width` is to have, zeros included, so that a fused kernel takes it.

    On a GPU a row of float32 must be a multiple of 4 numbers long and of half precision 8; others fall to the kernel
    that forms all logits. On a CPU a wider row costs time and gains nothing.
    """
    return width if device.type == "cpu" else width + -width % 8


def _weighted_sum(q: Tensor, k: Tensor, v: Tensor, shown: Tensor | None, dropout_p: float) -> Tensor:
    """softmax(q k^T + shown) v, such that one of torch's fused kernels, which never form all logits, takes it.

    They ask for rows of one width, also in v. More than one batch axis is merged: they take four axes, no more.
    """
    if 0 in q.shape[:-2] + k.shape[:-2]:  # torch 2.10 divides by the number of heads
        return q @ k.mT @ v
    width = fused_width(max(q.shape[-1], v.shape[-1]), q.device)
    if q.shape[-1] != width or v.shape[-1] != width:
        q, k, padded = (pad(t, (0, width - t.shape[-1])) for t in (q, k, v))
        return _weighted_sum(q, k, padded, shown, dropout_p)[..., : v.shape[-1]]
    if max(q.ndim, k.ndim, v.ndim) <= 4:
        return scaled_dot_product_attention(q, k, v, attn_mask=shown, dropout_p=dropout_p, scale=1.0)
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])

    def merged(t: Tensor) -> Tensor:
        t = t.reshape((1,) * (len(lead) + 3 - t.ndim) + t.shape)
        return t.expand(*lead, *t.shape[-3:]).flatten(0, -4)

    mask = None if shown is None else merged(shown)
    total = scaled_dot_product_attention(
        merged(q), merged(k), merged(v), attn_mask=mask, dropout_p=dropout_p, scale=1.0
    )
    return total.unflatten(0, lead)


def _time_last(x: Tensor, x0: Tensor) -> Tensor:
    """Points with the time part last: added first, -q0 k0 would have all terms of q.k rounded at its own size."""
    return torch.cat([x.expand(*x0.shape[:-1], -1), x0], dim=-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Scalar,
    temperature: Scalar,
    attn_bias: Tensor | None,
    mask: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """`lorentz_attention` from space parts to space parts, in their dtype."""
    sharpness = 2.0 / (temperature.to(q.dtype) if isinstance(temperature, Tensor) else temperature)
    queries = _time_last(q, -hyp.time(q, c)) * sharpness
    keys = _time_last(k, hyp.time(k, c))
    values = hyp.lifted(v, c)
    shown, alive = _logit_bias(attn_bias, mask, q.dtype)
    total = _weighted_sum(queries, keys, values, shown, dropout_p)
    if dropout_p:
        total = over_its_time(total)
    space = normalised(total, largest_time(values[..., :1]), c)
    return space if alive is None else torch.where(alive, space, 0.0)


def check_mask(name: str, mask: object, shape: tuple[int, ...], other: str, meaning: str) -> None:
    """Refuse what is not boolean, and a shape that does not broadcast against `shape`, that of `other`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = described(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: got {got}, expected booleans, True where {meaning}")
    check_batch(name, mask.shape, mask.shape, other, shape)


def _check_shown(q: Tensor, k: Tensor, attn_bias: Tensor | None, mask: Tensor | None) -> None:
    """Refuse an `attn_bias` that is not floating point, a mask that is not boolean, and shapes that do not fit."""
    logits = (*torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    if attn_bias is not None:
        check_float("attn_bias", attn_bias)
        check_batch("attn_bias", attn_bias.shape, attn_bias.shape, "the logits", logits)
    if mask is not None:
        other = "the logits; for one of keys (b, s) write mask[:, None, None]"
        check_mask("mask", mask, logits, other, "a key is valid, to be attended to")


def lorentz_attention(
    q: Float[Tensor, "*#b l n"],
    k: Float[Tensor, "*#b s n"],
    v: Float[Tensor, "*#b s m"],
    c: Scalar = 1.0,
    *,
    temperature: Scalar,
    attn_bias: Float[Tensor, "..."] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*#b l m"]:
    """Lorentz attention (HLFormer eq. 15): the centroid of v under the weights softmax(-d^2/temperature + attn_bias).

    d^2 = -2/c - 2<q, k>_L is the squared Lorentz distance; <q, k>_L is a plain dot product once the sign of q0 is
    flipped, so this is one `scaled_dot_product_attention`.
    Rows whose keys are all masked give the origin, with zero gradient. Computed in the dtype of the points, which is
    sound up to about radius 6 in float32; `with lorentz.precision("float64")` chooses another.

    Args:
        q: query points, leading axes (batch, heads, stacked blocks) free and broadcastable.
        k: key points.
        v: value points; may have another dimension than the keys.
        c: see the conventions of `lorentz.functional`.
        temperature: > 0; a number or a tensor that broadcasts against the logits with a last axis of length 1.
        attn_bias: added to the logits (the logarithm of a window, say), broadcastable to (*b, l, s); -inf hides a key.
        mask: True where a key may be attended to, broadcastable to (*b, l, s).
        dropout_p: dropout on the attention weights (the centroid does not depend on their total).

    Returns:
        Points, one per query.

    Raises:
        ValueError: `c` or `temperature` is a number <= 0, or a shape does not fit.
        TypeError: an argument is no floating-point tensor, float32 meets float64, or `mask` is not boolean.

    Examples:
        >>> from lorentz import project
        >>> x = project(torch.tensor([[0.0], [2.0]]))
        >>> lorentz_attention(x, x, x, temperature=1.0, mask=torch.eye(2, dtype=torch.bool))[:, 1]
        tensor([0., 2.])
    """
    point_spaces(c, 2, q=q, k=k)
    point_spaces(c, 2, v=v)
    check_alike(q=q, v=v)
    if v.shape[-2] != k.shape[-2]:
        raise ValueError(f"v: got shape {tuple(v.shape)}, expected {k.shape[-2]} points as in k {tuple(k.shape)}")
    check_batch("v", v.shape, v.shape[:-2], "q", q.shape[:-2])
    check_batch("v", v.shape, v.shape[:-2], "k", k.shape[:-2])
    check_positive("temperature", temperature, "the logits are -d^2/temperature")
    if isinstance(temperature, Tensor) and temperature.ndim:
        check_scalar_like("temperature", temperature, 1, (q,))
    _check_shown(q, k, attn_bias, mask)

    def kernel(q: Tensor, k: Tensor, v: Tensor, c: Scalar) -> Tensor:
        return hyp.lifted(attend(q, k, v, c, temperature, attn_bias, mask, dropout_p), c)

    return evaluate(kernel, None, c, q[..., 1:], k[..., 1:], v[..., 1:], auto="native", axes=2)


def squares_at_distance_1(c: float) -> tuple[float, float]:
    """|x|^2 and x0^2 of a point at distance 1 from the origin; as of c = 1600 where float32 does not hold them."""
    root = min(math.sqrt(c), 40.0)
    return (math.sinh(root) / root) ** 2, (math.cosh(root) / root) ** 2


def initial_temperature(head_dim: int, weight_variance: float, bias_variance: float = 0.0, *, c: float = 1.0) -> float:
    r"""The temperature at which the logits -d^2/temperature start with a deviation of about 1 over keys.

    It is the deviation of d^2 between heads whose space parts are W x + b, for points x at distance 1 from the origin
    whose directions differ. To first order in the key, d^2 = 2 (q0 k0 - q.k) - 2/c changes by 2 (q0 k/k0 - q) . dk. The
    mean square of that vector is 8 R^2, whatever c is, where R is the length of a head's space part. So the deviation
    is $\sqrt{8}\, \sigma R$: $\sigma^2 = v |x|^2$ is the variance of a coordinate over keys, and
    $R^2 = n (v |x|^2 + v x_0^2 + b)$, for n coordinates, weights of variance v and biases of variance b, with
    |x| = sinh(sqrt(c))/sqrt(c) and x0 = cosh(sqrt(c))/sqrt(c).

    Args:
        head_dim: space coordinates n of a head.
        weight_variance: v.
        bias_variance: b.
        c: the curvature is -c.

    Returns:
        The deviation of d^2, > 0.

    Examples:
        >>> round(initial_temperature(8, weight_variance=1 / 99, bias_variance=1 / 99), 3)  # nn.Linear(33, 32), 4 heads
        0.207
    """
    square, time = squares_at_distance_1(c)
    length = head_dim * (weight_variance * (square + time) + bias_variance)
    return math.sqrt(8.0 * weight_variance * square * length)


def split_heads(
    x: Float[Tensor, "*b l d"], heads: int, c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*b h l n"]:
    """Cut space parts into `heads` pieces and make each a point of its own; the inverse of `join_heads`.

    Args:
        x: space parts (without time), d divisible by `heads`.
        heads: number of pieces h.
        c: curvature -c < 0 of every piece.
        precision: see the conventions of `lorentz.functional`.

    Returns:
        Points of d/h + 1 ambient coordinates, heads before positions.

    Raises:
        ValueError: d is not divisible by `heads`, `c` is a number <= 0, or a shape does not fit.
        TypeError: `x` is no floating-point tensor.

    Examples:
        >>> split_heads(torch.zeros(5, 6), 2).shape
        torch.Size([2, 5, 4])
    """
    vectors(2, x=x)
    if heads < 1 or x.shape[-1] % heads:
        raise ValueError(f"heads: got {heads}, expected a divisor of the space dimension {x.shape[-1]}")
    return project(x.unflatten(-1, (heads, -1)).transpose(-3, -2), c, precision=precision)


def join_heads(
    x: Float[Tensor, "*b h l n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*b l k"]:
    """Join heads on the manifold: space parts side by side, time recomputed.

    Args:
        x: points of every head; only their space parts are read.
        c: curvature -c < 0; a number or a tensor that broadcasts against the joined (*b, l, 1).
        precision: see the conventions of `lorentz.functional`.

    Returns:
        Points of h * (n - 1) + 1 ambient coordinates.

    Examples:
        >>> from lorentz import split_heads
        >>> join_heads(split_heads(torch.ones(5, 6), 2)).shape
        torch.Size([5, 7])
    """
    (space,) = point_spaces(c.unsqueeze(-3) if isinstance(c, Tensor) and c.ndim > 2 else c, 3, x=x)
    return project(space.transpose(-3, -2).flatten(-2), c, precision=precision)
