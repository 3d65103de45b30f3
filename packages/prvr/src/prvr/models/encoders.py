"""The query encoder and a video branch: input projection, positions, blocks, fusion."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prvr.models.layers import AttentionPooling, InputProjection, Positions
from prvr.models.rows import Sequences

__all__ = ["BlockStack", "BranchEncoder", "QueryEncoder"]


class QueryEncoder(nn.Module):
    """Words -> one vector: projection, positions, one block, attention pooling (HLFormer eq. 7)."""

    def __init__(
        self, project: InputProjection, positions: Positions, block: nn.Module, pool: AttentionPooling
    ) -> None:
        super().__init__()
        self.project = project
        self.positions = positions
        self.block = block
        self.pool = pool

    def forward(self, words: Float[Tensor, "q w e"], sequences: Sequences) -> Float[Tensor, "q d"]:
        """One vector `(q, d)` per query, from its words `(q, w, e)`."""
        x = self.positions(self.project(sequences.pack(words)), sequences)
        return self.pool(sequences.pad(self.block(x, sequences)[0]), sequences.mask)


class BlockStack(nn.Module):
    """Blocks side by side, grouped by geometry, each group one batched computation, then fused.

    Args:
        groups: one stack per geometry.
        windows: one window module per group: `length -> (k, l, l) | None`.
        order: position of each stacked block in the configured list.
        fusion: `((k, v, l, d), mask) -> (v, l, d)`.
    """

    order: Tensor | None

    def __init__(
        self, groups: Sequence[nn.Module], windows: Sequence[nn.Module], order: Sequence[int], fusion: nn.Module
    ) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.windows = nn.ModuleList(windows)
        self.fusion = fusion
        mixed = list(order) != sorted(order)
        self.register_buffer("order", torch.tensor(order).argsort() if mixed else None, persistent=False)

    def blocks(
        self,
        x: Float[Tensor, "b m d"],
        sequences: Sequences,
        registers: Float[Tensor, "v n d"] | None = None,
    ) -> Float[Tensor, "k v l d"]:
        """Output of every block before the fusion, in the configured order; padding that was not computed is 0."""
        outputs = [
            group(x, sequences, window(sequences.length), registers)
            for group, window in zip(self.groups, self.windows, strict=True)
        ]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return sequences.pad(joined if self.order is None else joined[self.order])

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        sequences: Sequences,
        registers: Float[Tensor, "v n d"] | None = None,
    ) -> Float[Tensor, "v l d"]:
        """All blocks, fused: rows `(b, m, d)` to padded sequences `(v, l, d)`."""
        return self.fusion(self.blocks(x, sequences, registers), sequences.mask)


class BranchEncoder(nn.Module):
    """One branch of the video side, for clips or for frames.

    Args:
        project: features to width d.
        positions: position embedding.
        layers: stacks of blocks, one after the other.
        registers: projection of the registers into this branch, or None.
    """

    def __init__(
        self,
        project: InputProjection,
        positions: Positions,
        layers: Sequence[BlockStack],
        registers: InputProjection | None = None,
    ) -> None:
        super().__init__()
        self.project = project
        self.positions = positions
        self.layers = nn.ModuleList(layers)
        self.registers = registers

    def embed(self, features: Float[Tensor, "v l f"], sequences: Sequences) -> Float[Tensor, "b m d"]:
        """Projected features with positions: what the blocks, and the register generator, start from."""
        return self.positions(self.project(sequences.pack(features)), sequences)

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        sequences: Sequences,
        registers: Float[Tensor, "v n d"] | None = None,
    ) -> Float[Tensor, "v l d"]:
        """The result of `embed` through all layers, padded; rows of padding hold nothing of use."""
        if registers is not None and self.registers is not None:
            registers = self.registers(registers)
        for number, layer in enumerate(self.layers):
            x = layer(sequences.pack(x) if number else x, sequences, registers)
        return x
