"""A small transformer denoiser: registers see each other and attend to a condition of any length."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regdiff.attention import MultiheadAttention
from regdiff.masks import expect_mask, masked
from regdiff.timestep import TimedDenoiser

#: Standard deviation of learned positions at the start, small beside the width of a normalised token.
POSITION_STD = 0.02

Condition = Float[Tensor, "b m d_c"] | tuple[Float[Tensor, "b m d_c"], Bool[Tensor, "b m"]]


class TransformerDenoiser(TimedDenoiser):
    r"""A denoiser whose registers see each other, modulated by time as in DiT (Peebles & Xie, ICCV 2023).

    With e = silu(W silu(W table[t])) and h = W x + position, each block adds three branches in turn,
    h = h + gate * F(LN(h) * (1 + scale) + shift), F = self-attention, attention to LN(W condition), W gelu(W .),
    each with its own (shift, scale, gate) = W e; the output is W (LN(h) * (1 + scale) + shift). The layers that give
    shift, scale and gate start at zero, and so does the last one: the first prediction is 0, whatever the input.

    Without positions the registers are a set: permuting them permutes the output. A sequence, such as the actions of a
    policy, needs `num_registers`. A condition as wide as the model has no W, and its length is lost in LN.

    Args:
        dim: Width d of the model.
        steps: T, the number of timesteps.
        layers: Number of blocks.
        num_heads: Attention heads; divides `dim`.
        num_registers: None for a set; a number for learned positions of so many registers (fewer may come).
        condition_dim: Width d_c of the condition; None means `dim`.
        register_dim: Width of the registers themselves; None means `dim`.
        mlp_ratio: Width of the MLP's hidden layer, in multiples of `dim`.
        dropout: Rate on attention weights and on what each branch adds.

    Raises:
        ValueError: Sizes below 1, or `num_heads` that do not divide `dim`.

    Examples:
        >>> import torch
        >>> denoiser = TransformerDenoiser(dim=16, steps=10, condition_dim=2, register_dim=3)
        >>> points, valid = torch.randn(2, 50, 2), torch.arange(50).expand(2, -1) < 40
        >>> denoiser(torch.randn(2, 5, 3), torch.tensor([0, 9]), (points, valid)).shape
        torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        dim: int,
        steps: int,
        layers: int = 2,
        num_heads: int = 4,
        *,
        num_registers: int | None = None,
        condition_dim: int | None = None,
        register_dim: int | None = None,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
    ) -> None:
        condition_dim = dim if condition_dim is None else condition_dim
        register_dim = dim if register_dim is None else register_dim
        sizes = {"dim": dim, "steps": steps, "layers": layers, "condition_dim": condition_dim}
        sizes |= {"register_dim": register_dim, "mlp_ratio": mlp_ratio}
        for name, size in (sizes | ({} if num_registers is None else {"num_registers": num_registers})).items():
            if size < 1:
                raise ValueError(f"{name}: got {size}, expected an integer of at least 1")
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads} with dim {dim}, expected a divisor of dim")
        super().__init__(dim, steps)
        self.condition_dim, self.register_dim = condition_dim, register_dim
        self.register_in = nn.Linear(self.register_dim, dim)
        self.positions = (
            None if num_registers is None else nn.Parameter(POSITION_STD * torch.randn(1, num_registers, dim))
        )
        # of a few raw numbers LN would keep next to nothing: of two, which one is larger
        self.condition_in = nn.Identity() if condition_dim == dim else nn.Linear(condition_dim, dim)
        self.condition_norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(_Block(dim, num_heads, mlp_ratio * dim, dropout) for _ in range(layers))
        self.out_modulation = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, self.register_dim)
        for linear in (self.out_modulation, self.out):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(
        self,
        sample: Float[Tensor, "b n d"],
        timestep: Int[Tensor, "b"],
        condition: Condition,
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Predict what the diffusion asks for: noise, clean sample or velocity.

        Args:
            sample: Noised registers.
            timestep: One timestep in [0, T) per row.
            condition: A sequence of any length, or (sequence, mask) where True marks a valid position. In a row without
                any valid position the registers read zeros.
            mask: True marks a valid register, None means all are. Others are seen by none and come out as zeros.

        Raises:
            ValueError: A tensor of a wrong shape, a mask that is not boolean, or more registers than positions.
        """
        rows, width = sample.shape[0], self.register_dim
        if sample.ndim != 3 or sample.shape[-1] != width:
            raise ValueError(f"sample: got shape {tuple(sample.shape)}, expected (b, n, {width})")
        sequence, sequence_mask = condition if isinstance(condition, tuple) else (condition, None)
        shape = tuple(sequence.shape)
        if len(shape) != 3 or (shape[0], shape[2]) != (rows, self.condition_dim) or shape[1] < 1:
            raise ValueError(f"condition: got shape {shape}, expected ({rows}, m >= 1, {self.condition_dim})")
        if sequence_mask is not None:
            expect_mask("condition mask", sequence_mask, sequence.shape[:2])
            sequence = masked(sequence, sequence_mask)  # a weight of 0 does not silence a NaN
        if mask is not None:
            expect_mask("mask", mask, sample.shape[:2])
        h = self.register_in(masked(sample, mask))
        if self.positions is not None:
            if sample.shape[1] > self.positions.shape[1]:
                raise ValueError(
                    f"sample: got {sample.shape[1]} registers, expected at most {self.positions.shape[1]}; "
                    "raise num_registers"
                )
            h = h + self.positions[:, : sample.shape[1]]
        time = F.silu(self.time_code(timestep)).unsqueeze(1)
        sequence = self.condition_norm(self.condition_in(sequence))
        for layer in self.layers:
            h = layer(h, time, sequence, mask, sequence_mask)
        return masked(self.out(_modulate(h, *self.out_modulation(time).chunk(2, dim=-1))), mask)


def _modulate(x: Float[Tensor, "b n d"], shift: Tensor, scale: Tensor) -> Float[Tensor, "b n d"]:
    """LN(x) * (1 + scale) + shift."""
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


class _Block(nn.Module):
    """Self-attention, cross-attention and MLP, each modulated and gated by time."""

    def __init__(self, dim: int, num_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiheadAttention(dim, num_heads, dropout=dropout)
        self.cross_attention = MultiheadAttention(dim, num_heads, dropout=dropout)
        self.mlp_in = nn.Linear(dim, hidden)
        self.mlp_out = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)
        self.modulation = nn.Linear(dim, 9 * dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        h: Float[Tensor, "b n d"],
        time: Float[Tensor, "b o d"],
        condition: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "b n"] | None,
        condition_mask: Bool[Tensor, "b m"] | None,
    ) -> Float[Tensor, "b n d"]:
        shift, scale, gate = self.modulation(time).unflatten(-1, (3, 3, -1)).unbind(-2)
        x = _modulate(h, shift[..., 0, :], scale[..., 0, :])
        h = h + gate[..., 0, :] * self.dropout(self.self_attention(x, x, mask))
        x = _modulate(h, shift[..., 1, :], scale[..., 1, :])
        h = h + gate[..., 1, :] * self.dropout(self.cross_attention(x, condition, condition_mask))
        x = _modulate(h, shift[..., 2, :], scale[..., 2, :])
        return h + gate[..., 2, :] * self.dropout(self.mlp_out(F.gelu(self.mlp_in(x))))
