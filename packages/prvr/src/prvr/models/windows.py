"""Gaussian windows over time: how strongly position i attends to position j, before looking at content."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["ExactTable", "GaussianWindows", "gaussian_window"]


def gaussian_window(length: int, width: float | None, reference: int | None = None) -> Float[Tensor, "l l"]:
    r"""Window $G_{ij} = \exp(-((j - i)/(n - 1))^2 / 2s^2)$ with $s = \max(w, 0.01)/9$, in float64.

    Exactly 1 on the diagonal, symmetric, and independent of `length`: the scale is set by `reference`, so trimming
    padded positions changes nothing (GMMFormer eq. 3, HLFormer eq. 10; their form lies in `prvr.released`).

    Args:
        length: number of positions.
        width: w; None gives a window of ones.
        reference: n, positions the unit of time is divided into; default `length`.

    Example:
        >>> gaussian_window(3, 9.0).diagonal().tolist()
        [1.0, 1.0, 1.0]
    """
    if width is None:
        return torch.ones(length, length, dtype=torch.float64)
    unit = max((reference or length) - 1, 1)
    position = torch.arange(length, dtype=torch.float64) / unit
    sigma = max(width, 0.01) / 9
    return torch.exp(-((position[None] - position[:, None]) ** 2) / (2 * sigma**2))


class ExactTable(nn.Module):
    """A constant tensor that is rounded once, from float64, to whatever precision the model has.

    A plain buffer would keep the rounding of float32 after `.to(torch.float64)`.
    """

    table: Tensor

    def __init__(self, exact: Float[Tensor, "*s"]) -> None:
        super().__init__()
        self._exact = exact.cpu()
        self.register_buffer("table", exact.to(torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExactTable":
        super()._apply(fn, recurse)
        if not self.table.is_meta:
            self.table = self._exact.to(self.table.dtype).to(self.table.device)  # in this order: MPS has no float64
        return self

    def forward(self) -> Float[Tensor, "*s"]:
        return self.table


class GaussianWindows(nn.Module):
    """The windows of a stack of blocks, `(k, l, l)`, cut from a table made once; None if no block has a width.

    Args:
        widths: one per block, None = unlimited.
        length: longest input.
        logarithm: the table holds log G, to be added to attention logits.
    """

    def __init__(self, widths: Sequence[float | None], length: int, logarithm: bool = False) -> None:
        super().__init__()
        self.table = None
        if any(width is not None for width in widths):
            table = torch.stack([gaussian_window(length, width) for width in widths])
            # The log of a far, narrow window is below any float; -1e4 is "never", and keeps 0 * inf out of gradients.
            self.table = ExactTable(table.log().clamp_min(-1e4) if logarithm else table)

    def forward(self, length: int) -> Float[Tensor, "k l l"] | None:
        return None if self.table is None else self.table()[:, :length, :length]
