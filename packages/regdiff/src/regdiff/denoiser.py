"""The register denoiser (DRE of DreamPRVR): a residual MLP over each register, given its timestep and condition."""

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regdiff.masks import expect_mask, masked
from regdiff.timestep import TimedDenoiser


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

    def forward(
        self,
        sample: Float[Tensor, "b *n d"],
        timestep: Int[Tensor, "b"],
        condition: Float[Tensor, "b *m d"],
        mask: Bool[Tensor, "b *n"] | None = None,
    ) -> Float[Tensor, "b *n d"]:
        """Predict the noise, or what else the diffusion asks for.

        Args:
            sample: Noised registers.
            timestep: One timestep in [0, T) per row.
            condition: One condition per register, or a shape that broadcasts to the sample.
            mask: True marks a valid register, None means all are. The others come out as zeros.

        Raises:
            ValueError: A condition that does not broadcast to the sample, or a mask of a wrong shape or type.
        """
        rank, given, expected = sample.ndim, tuple(condition.shape), tuple(sample.shape)
        middle = zip(given[1:-1], expected[1:-1], strict=False)
        if (
            len(given) != rank
            or any(c not in (1, s) for c, s in middle)
            or (given[0], given[-1]) != (expected[0], expected[-1])
        ):
            raise ValueError(f"condition: got shape {given}, expected {expected}, or 1 in place of a register axis")
        if mask is not None:
            expect_mask("mask", mask, sample.shape[:-1])
            # Not only the output: a NaN in padding would reach the weights' gradients as 0 times NaN.
            sample = masked(sample, mask)
            if condition.shape[:-1] == mask.shape:
                condition = masked(condition, mask)
        time = F.silu(self.time_code(timestep)).view(expected[0], *(1,) * (rank - 2), expected[-1])
        condition = F.silu(self.condition_proj(F.relu(self.condition_norm(condition))))
        h = sample
        for layer in self.layers:
            h = layer(h, time, condition)
        return masked(self.out(h + sample), mask)


class _Block(nn.Module):
    """One residual block; `time` and `condition` arrive after their swish."""

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
        self, x: Float[Tensor, "b *n d"], time: Float[Tensor, "b *o d"], condition: Float[Tensor, "b *m d"]
    ) -> Float[Tensor, "b *n d"]:
        h = self.proj_in(F.silu(self.norm_in(x))) + self.time_proj(time) + self.condition_proj(condition)
        return self.proj_out(self.dropout(F.silu(self.norm_out(h)))) + self.shortcut(x)
