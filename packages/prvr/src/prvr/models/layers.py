"""The small layers that every part is made of: stacks of equal layers, input projection, positions, pooling, dropout.

A stack of K blocks keeps its weights in one tensor `(*stack, out, in)`, so that K small blocks run as one batched
computation. `stacked_dims` tells the optimiser how many leading axes count separate weights.

Dropout has its own implementation because on a CPU drawing one float per element costs more than all else.
"""

from typing import Any, Literal, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prvr.config import AnyModelConfig
from prvr.errors import InputError
from prvr.models.rows import Sequences, Tokens

START_STD = 0.02
"""Standard deviation of the weights of linear maps at the start."""
_LEVELS = 2**16  # values that a draw of 16 bits can have
_BLOCK = 2**17  # elements worked on at a time on a CPU: they stay in its cache
_SIZES = {
    "words": ("query_dim", "max_words"),
    "clips": ("video_dim", "num_clips"),
    "frames": ("video_dim", "max_frames"),
}
"""The keys of `model` that hold the width and the length of sequences."""


@runtime_checkable
class Bounded(Protocol):
    """A module that keeps its parameters within bounds by projection, as only released parts do."""

    def project_bounds(self) -> None:
        """Puts the parameters of this module back into their bounds."""
        ...


def expect_fits(name: Literal["words", "clips", "frames"], x: Shaped[Tensor, "b l f"], config: AnyModelConfig) -> None:
    """Refuses sequences that a model was not built for.

    Args:
        name: what they consist of.
        x: `(b, l, f)` the sequences.
        config: the configuration of the model.

    Raises:
        InputError: another width, a longer sequence, or another number of clips.
    """
    width_key, length_key = _SIZES[name]
    width, length = getattr(config, width_key), getattr(config, length_key)
    if x.shape[2] != width:
        raise InputError(
            f"{name} have {x.shape[2]} features, this model was built for {width}: use the features it was trained "
            f"on, or set model.{width_key}={x.shape[2]} and train again"
        )
    if x.shape[1] > length or (name == "clips" and x.shape[1] != length):
        bound = "exactly" if name == "clips" else "at most"
        raise InputError(
            f"got {x.shape[1]} {name}, this model takes {bound} {length} (model.{length_key}): pool or cut them first "
            "(prvr.data does)"
        )


def bounded_modules(*models: nn.Module) -> list[Bounded]:
    """The modules inside models that keep their parameters within bounds.

    The search takes milliseconds: do it once, not after each step.
    """
    return [module for model in models for module in model.modules() if isinstance(module, Bounded)]


def project_bounds(*models: nn.Module) -> None:
    """Puts bounded parameters back into their bounds: to be called after loading and after each optimiser step.

    Args:
        models: retrievers and objectives; only those of presets of released code have bounded parameters.
    """
    for module in bounded_modules(*models):
        module.project_bounds()


def initialise(*linears: nn.Linear) -> None:
    """Starts linear maps as all parts of a retriever start: weights N(0, `START_STD`), biases 0."""
    for linear in linears:
        nn.init.normal_(linear.weight, std=START_STD)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


class StackedLinear(nn.Module):
    """`prod(stack)` linear maps in one: y = x W^T + b, weight `(*stack, out, in)`, bias `(*stack, out)`.

    Examples:
        >>> linear = StackedLinear((8, 3), 16, 16)
        >>> linear.shared(torch.ones(2, 5, 16)).shape, linear.stacked_dims
        (torch.Size([8, 3, 2, 5, 16]), 2)
    """

    def __init__(self, stack: tuple[int, ...], in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.stacked_dims = len(stack)
        self.weight = nn.Parameter(torch.empty(*stack, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(*stack, out_features)) if bias else None
        nn.init.normal_(self.weight, std=START_STD)

    def side_by_side(self, x: Float[Tensor, "v l i"], parts: slice = slice(None)) -> Float[Tensor, "v l s"]:
        """Every map of the stack (or `parts` of its last axis) applied to the same input, side by side in each row."""
        weight = self.weight if parts == slice(None) else self.weight[..., parts, :, :]
        bias = self.bias if self.bias is None or parts == slice(None) else self.bias[..., parts, :]
        return F.linear(x, weight.flatten(0, -2), None if bias is None else bias.flatten())

    def shared(self, x: Float[Tensor, "v l i"]) -> Float[Tensor, "*stack v l o"]:
        """Every map of the stack applied to the same input, as one matrix product."""
        y = self.side_by_side(x).unflatten(-1, self.weight.shape[:-1])
        return y.movedim((0, 1), (-3, -2))

    def forward(self, x: Float[Tensor, "k v l i"]) -> Float[Tensor, "k v l o"]:
        """Map k applied to input k (a stack with one axis)."""
        return self.rows(x.flatten(1, 2)).unflatten(1, x.shape[1:3])

    def rows(self, x: Float[Tensor, "k n i"]) -> Float[Tensor, "k n o"]:
        """Map k applied to every row of part k."""
        weight = self.weight.mT
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], x, weight)


def feed_forward(
    x: Float[Tensor, "k n d"], expand: StackedLinear, contract: StackedLinear, p: float
) -> tuple[Float[Tensor, "k n d"], Float[Tensor, "k n d"]]:
    """Two linear maps with ReLU and dropout between them. The second result is x for the residual connection.

    On a GPU the gradient of this x is added to that of the residual in place.
    """
    if x.is_cpu:
        # In place on a tensor of its own: on a view, autograd would copy the whole hidden layer.
        return contract.rows(dropout(F.relu_(expand.rows(x)), p)), x
    kind = x.device.type
    factors: Any = (x, expand.weight, expand.bias, contract.weight, contract.bias)
    if kind != "meta" and torch.is_autocast_enabled(kind):
        factors = (t.to(torch.get_autocast_dtype(kind)) for t in factors)
    update, same, _ = cast(tuple[Tensor, Tensor, Tensor], _FeedForward.apply(*factors, p))
    return update, same if same.dtype == x.dtype else x


class _FeedForward(torch.autograd.Function):
    """`feed_forward` with products that add the bias and apply ReLU.

    What ReLU or dropout made zero is zero in the hidden layer, which is all that gradients read: no mask is kept.
    """

    @staticmethod
    def forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
        hidden, update = x.new_empty(*x.shape[:2], w1.shape[1]), torch.empty_like(x)
        for *factors, out in zip(b1, x, w1.mT, hidden, strict=True):
            torch._addmm_activation(*factors, out=out)
        hidden = F.dropout(hidden, p) if p else hidden
        for *factors, out in zip(b2, hidden, w2.mT, update, strict=True):
            torch.addmm(*factors, out=out)
        return update, x.view_as(x), hidden

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, w1, _, w2, _, p = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, w1, w2, output[2])
        ctx.scale = 1 / (1 - p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, rest: Tensor, _: Tensor) -> tuple[Any, ...]:
        (x, w1, w2, hidden), scale = ctx.saved_tensors, ctx.scale
        inner = g @ (w2 * scale)
        torch.ops.aten.threshold_backward(inner, hidden, 0, grad_input=inner)
        parameters = inner.mT @ x, inner.sum(1), g.mT @ hidden, g.sum(1)
        return rest.baddbmm_(inner, w1), *parameters, None  # in place: all else that needs `rest` has run


class StackedLayerNorm(nn.Module):
    """Layer norm with its own scale and shift for each of K parts; input `(k, v, l, d)`."""

    def __init__(self, num: int, dim: int) -> None:
        super().__init__()
        self.stacked_dims = 1
        self.weight = nn.Parameter(torch.ones(num, dim))
        self.bias = nn.Parameter(torch.zeros(num, dim))

    def forward(self, x: Float[Tensor, "k v l d"]) -> Float[Tensor, "k v l d"]:
        """Part k of `(k, v, l, d)` normalised with the scale and shift of part k."""
        if not x.is_cpu:
            return cast(tuple[Tensor, ...], _Normed.apply(x.to(self.weight.dtype), self.weight, self.bias))[0]
        normed = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias[:, None, None], normed, self.weight[:, None, None])


class _Normed(torch.autograd.Function):
    """Layer norm of each part; gradients come from one operator per part, and no copy of the normalised x is kept."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
        return torch.addcmul(bias[:, None, None], y, weight[:, None, None], out=y), mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, *affine = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *output[1:], *affine)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        parts = zip(gradient, *ctx.saved_tensors, strict=True)
        each = [
            torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], *rest, [True] * 3) for g, x, *rest in parts
        ]
        return tuple(map(torch.stack, zip(*each, strict=True)))


class InputProjection(nn.Module):
    """ReLU(Linear(dropout(LayerNorm(x)))): how features, and registers, enter a branch."""

    def __init__(self, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_features)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(in_features, out_features)
        initialise(self.linear)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        """Rows of width `in_features` to rows of width `out_features`."""
        return F.relu(self.linear(self.dropout(self.norm(x))))


class Positions(nn.Module):
    """Adds a learned position embedding, then layer norm and dropout."""

    def __init__(self, length: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, dim))
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tokens, sequences: Sequences) -> Tokens:
        """Rows `(b, m, d)`, padded or packed as `sequences` says, each with the embedding of its position."""
        at = sequences.positions
        # Not by indexing: its gradient adds rows of several threads in any order, so that no two runs agree.
        table = self.table[at] if isinstance(at, slice) else F.embedding(at, self.table)
        return self.dropout(self.norm(x + table))


class AttentionPooling(nn.Module):
    """Sum of rows weighted by softmax(w . x) (HLFormer eq. 7); masked rows get weight 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        """One vector `(b, d)` of each sequence `(b, l, d)`; `mask` is True at valid rows."""
        logits = x @ self.weight[0]
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return torch.einsum("bl,bld->bd", logits.softmax(-1), x)


class TokenWeights(nn.Module):
    """Weights of `prvr.scoring.word_scores`: g = Softmax(MLP(x)) over valid tokens (DiffusionRet, eq. 10).

    Args:
        width: d of the tokens.
        hidden: width of the hidden layer; default: twice that of the tokens.

    Examples:
        >>> weights = TokenWeights(width=4)(torch.randn(2, 3, 4), torch.tensor([[True, True, False]] * 2))
        >>> weights.sum(-1).allclose(torch.ones(2)), weights[:, 2].tolist()
        (True, [0.0, 0.0])
    """

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or 2 * width
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, tokens: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        """Weights of the tokens; `mask` is True at valid ones."""
        logits = self.net(tokens.masked_fill(~mask[..., None], 0)).squeeze(-1)
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~mask, 0)


def masked_mean(x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None) -> Float[Tensor, "b d"]:
    """Mean over the valid rows."""
    if mask is None:
        return x.mean(1)
    weights = mask.to(x.dtype)
    return torch.einsum("bl,bld->bd", weights, x) / weights.sum(1, keepdim=True)


class Dropout(nn.Module):
    """`torch.nn.Dropout`, with `dropout` below.

    Args:
        p: probability of a zero, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Zeros and scales in training; returns x otherwise."""
        return dropout(x, self.p) if self.training else x


def dropout(x: Float[Tensor, "*s"], p: float) -> Float[Tensor, "*s"]:
    """Each element zero with probability p, the others divided by the probability to stay; always, as in training.

    On a CPU four elements share one 64-bit draw, 16 bits each: p is rounded to 1/65536, the scale is exact for it.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> dropout(torch.ones(6), 0.5).tolist()
        [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]
    """
    if not p:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)  # a kernel that draws and multiplies at once
    zeros = min(round(p * _LEVELS), _LEVELS - 1)  # how many values of a draw make a zero
    keep = torch.empty(x.shape, dtype=torch.int8)  # bytes: torch converts booleans to floats ten times more slowly
    for part in keep.view(-1).split(_BLOCK):
        draws = torch.empty(-(-part.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        part.copy_(draws.view(torch.int16)[: part.numel()].ge_(zeros - _LEVELS // 2))
    return torch.as_tensor(_Masked.apply(x, keep, 1 / (1 - zeros / _LEVELS)))


class _Masked(torch.autograd.Function):
    """x times mask times scale, in blocks: the mask in the dtype of x, which that needs, never leaves the cache."""

    @staticmethod
    def forward(x: Tensor, keep: Tensor, scale: float) -> Tensor:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        blocks = (tensor.contiguous().view(-1).split(_BLOCK) for tensor in (x, keep, y))
        for values, mask, out in zip(*blocks, strict=True):
            torch.mul(values, mask.to(x.dtype), out=out).mul_(scale)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        _, keep, ctx.scale = inputs
        ctx.save_for_backward(keep)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, None, None]:
        return _Masked.apply(gradients[0], *ctx.saved_tensors, ctx.scale), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, keep: Tensor, scale: float) -> tuple[Tensor, int]:
        """`out=` of the blocks has no batching rule."""
        x, keep = (t if dim is None else t.movedim(dim, 0) for t, dim in zip((x, keep), in_dims, strict=False))
        return x * keep.to(x.dtype) * scale, 0
