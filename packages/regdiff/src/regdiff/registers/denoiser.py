"""The register denoiser (DRE of DreamPRVR): a residual MLP over each register, given its timestep and condition."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regdiff.masks import expect_mask, masked
from regdiff.timestep import TimedDenoiser


class PreparedCondition(NamedTuple):
    """What a `RegisterDenoiser` knows of conditions and of one timestep before it knows the sample.

    Attributes:
        biases: For each block (d,), the bias of its first map with the timestep's share.
        terms: For each block (b, *m, d), the condition's share.
    """

    biases: tuple[Tensor, ...]
    terms: tuple[Tensor, ...]


class RegisterDenoiser(TimedDenoiser):
    r"""eps(x, t, c): the noise in each register x, given its timestep t and its condition c (DreamPRVR, DRE).

    te = W swish(W table[t]);  c' = W relu(LN(c));  h_0 = x;
    h_{i+1} = W drop(swish(LN(W swish(LN(h_i)) + W swish(te) + W swish(c')))) + W h_i;  eps = W (h_N + x),
    each W a linear map with its own weights and bias. Registers do not see each other: they differ through c and x. The
    table holds sinusoids; it is a buffer, kept in the state dict and never trained.

    Args:
        dim: Width d of registers and conditions.
        steps: T, the number of timesteps in the table.
        layers: N, the number of blocks.
        dropout: Rate inside the blocks.

    Raises:
        ValueError: Sizes below 1.

    Examples:
        >>> import torch
        >>> denoiser = RegisterDenoiser(dim=8, steps=10)
        >>> denoiser(torch.randn(2, 3, 8), torch.tensor([0, 9]), torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, dim: int, steps: int, layers: int = 2, dropout: float = 0.0) -> None:
        if min(dim, steps, layers) < 1:
            raise ValueError(f"dim, steps, layers: got {dim}, {steps}, {layers}, expected integers of at least 1")
        super().__init__(dim, steps)
        self.condition_norm = nn.LayerNorm(dim)
        self.condition_proj = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(_Block(dim, dropout) for _ in range(layers))
        self.out = nn.Linear(dim, dim)

    def prepare_steps(
        self, condition: Float[Tensor, "b *m d"], timesteps: Sequence[int], mask: Bool[Tensor, "b *n"] | None = None
    ) -> list[PreparedCondition]:
        """For each of some timesteps that all rows share, what `forward` takes in place of the condition.

        The condition is projected once for all of them, and a timestep once for all rows.

        Args:
            condition: As of `forward`.
            timesteps: Each in [0, T).
            mask: As of `forward`.

        Examples:
            >>> import torch
            >>> denoiser = RegisterDenoiser(dim=8, steps=10)
            >>> x, c, step = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.tensor([9, 9])
            >>> first, last = denoiser.prepare_steps(c, [9, 0])
            >>> torch.allclose(denoiser(x, step, first), denoiser(x, step, c), atol=1e-6)
            True
        """
        table = torch.stack([self.time_table[timestep] for timestep in timesteps])  # a list would travel to the device
        time, code = self._time(table), self._code(condition, mask)
        biases = zip(*((layer.proj_in.bias + layer.time_proj(time)).unbind() for layer in self._blocks), strict=True)
        terms = tuple(layer.condition_proj(code) for layer in self._blocks)
        return [PreparedCondition(bias, terms) for bias in biases]

    def forward(
        self,
        sample: Float[Tensor, "b *n d"],
        timestep: Int[Tensor, "b"],
        condition: Float[Tensor, "b *m d"] | PreparedCondition,
        mask: Bool[Tensor, "b *n"] | None = None,
    ) -> Float[Tensor, "b *n d"]:
        """Predict the noise, or what else the diffusion asks for.

        Args:
            sample: Noised registers.
            timestep: One timestep in [0, T) per row.
            condition: One condition per register, or a shape that broadcasts to the sample; or what `prepare_steps`
                made of it for this timestep.
            mask: True marks a valid register, None means all are. The others come out as zeros.

        Raises:
            ValueError: A condition that does not broadcast to the sample, or a mask of a wrong shape or type.
        """
        prepared = isinstance(condition, PreparedCondition)
        rank, expected = sample.ndim, tuple(sample.shape)
        shape = tuple((condition.terms[0] if prepared else condition).shape)
        middle = zip(shape[1:-1], expected[1:-1], strict=False)
        if (
            len(shape) != rank
            or any(c not in (1, s) for c, s in middle)
            or (shape[0], shape[-1]) != (expected[0], expected[-1])
        ):
            raise ValueError(f"condition: got shape {shape}, expected {expected}, or 1 in place of a register axis")
        if mask is not None:
            expect_mask("mask", mask, sample.shape[:-1])
            sample = masked(sample, mask)  # see `_code`
        if not prepared:
            code = self._code(condition, mask)
            time = self._time(self.time_table[timestep]).view(expected[0], *(1,) * (rank - 2), expected[-1])
            condition = PreparedCondition(
                tuple(layer.proj_in.bias for layer in self._blocks),
                tuple(layer.time_proj(time) + layer.condition_proj(code) for layer in self._blocks),
            )
        h = sample
        for layer, bias, term in zip(self._blocks, *condition, strict=True):
            h = layer(h, bias, term)
        return masked(self.out(h + sample), mask)

    @property
    def _blocks(self) -> "list[_Block]":
        return cast("list[_Block]", list(self.layers))

    def _time(self, rows: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """The code of timesteps, from their rows of the table, as blocks read it."""
        return F.silu(self.time_out(F.silu(self.time_in(rows))))

    def _code(self, condition: Float[Tensor, "b *m d"], mask: Tensor | None) -> Float[Tensor, "b *m d"]:
        """The code of conditions as blocks read it."""
        if mask is not None and condition.shape[:-1] == mask.shape:
            # Not only the output is masked: a NaN in padding would reach the weights' gradients as 0 times NaN.
            condition = masked(condition, mask)
        return F.silu(self.condition_proj(F.relu(self.condition_norm(condition))))


class _Block(nn.Module):
    """One residual block."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm_in = nn.LayerNorm(dim)
        self.proj_in = nn.Linear(dim, dim)
        self.time_proj = nn.Linear(dim, dim)
        self.condition_proj = nn.Linear(dim, dim)
        self.norm_out = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.proj_out = nn.Linear(dim, dim)
        self.shortcut = nn.Linear(dim, dim)

    def forward(
        self, x: Float[Tensor, "b *n d"], bias: Float[Tensor, "d"], term: Float[Tensor, "b *m d"]
    ) -> Float[Tensor, "b *n d"]:
        """`bias` is that of the first map, `term` is added to what it gives: together they hold time and condition."""
        h = F.linear(F.silu(self.norm_in(x)), self.proj_in.weight, bias) + term
        return self.proj_out(self.dropout(F.silu(self.norm_out(h)))) + self.shortcut(x)
