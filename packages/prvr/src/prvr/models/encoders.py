"""The query encoder and a video branch: input projection, positions, blocks, fusion."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.models.layers import AttentionPooling, InputProjection, Positions
from prvr.models.rows import Rows

__all__ = ["BlockStack", "BranchEncoder", "QueryEncoder"]


def embedded(
    project: InputProjection, positions: Positions, features: Float[Tensor, "v l f"], rows: Rows | None
) -> Float[Tensor, "b m d"]:
    """Projected features with positions: all of them `(v, l, d)`, or the given rows `(1, r, d)`."""
    if rows is None:
        return positions(project(features))
    return positions(project(rows.pack(features)), rows.length, rows.position)


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

    def forward(
        self, words: Float[Tensor, "q w e"], mask: Bool[Tensor, "q w"], rows: Rows | None = None
    ) -> Float[Tensor, "q d"]:
        """One vector per query; with `rows`, absent words are not computed."""
        encoded = self.block(embedded(self.project, self.positions, words, rows), None, mask, None, rows)[0]
        return self.pool(encoded if rows is None else rows.pad(encoded), mask)


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
        mask: Bool[Tensor, "v l"] | None = None,
        registers: Float[Tensor, "v n d"] | None = None,
        rows: Rows | None = None,
    ) -> Float[Tensor, "k v l d"]:
        """Output of every block before the fusion, in the configured order; absent rows are 0."""
        length = x.shape[1] if rows is None else rows.length
        outputs = [
            group(x, window(length), mask, registers, rows)
            for group, window in zip(self.groups, self.windows, strict=True)
        ]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        joined = joined if self.order is None else joined[self.order]
        return joined if rows is None else rows.pad(joined)

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "v l"] | None = None,
        registers: Float[Tensor, "v n d"] | None = None,
        rows: Rows | None = None,
    ) -> Float[Tensor, "v l d"]:
        return self.fusion(self.blocks(x, mask, registers, rows), mask)


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

    def embed(self, features: Float[Tensor, "v l f"], rows: Rows | None = None) -> Float[Tensor, "b m d"]:
        """Projected features with positions: what the blocks, and the register generator, start from."""
        return embedded(self.project, self.positions, features, rows)

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "v l"] | None = None,
        registers: Float[Tensor, "v n d"] | None = None,
        rows: Rows | None = None,
    ) -> Float[Tensor, "v l d"]:
        """What `embed` gave, through all layers; with `rows`, absent positions of the result mean nothing."""
        if registers is not None and self.registers is not None:
            registers = self.registers(registers)
        for number, layer in enumerate(self.layers):
            if number and rows is not None:
                x = rows.pack(x)
            x = layer(x, mask, registers, rows)
        return x
