"""Rotary positions: a rotation of the space part by the place in a sequence."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lorentz import functional as lf
from lorentz._precision import at_least_float32
from lorentz._validation import check_batch, check_positive

from ._layer import OnHyperboloid
from .curvature import Curvature


def angles(positions: Tensor, features: int, base: float, dtype: torch.dtype) -> Tensor:
    """Angles (*b, features / 2) of positions (*b): p base^(-2i/features)."""
    powers = torch.arange(0, features, 2, dtype=dtype, device=positions.device) / -features
    return positions.to(dtype).unsqueeze(-1) * base**powers


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x with coordinates i and i + h turned in their plane by angle i of h; what comes after them stays."""
    half = angles.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], -1)


def turned_heads(x: Tensor, begin: int, features: int, base: float) -> Tensor:
    """Heads (*b, l, h, n), whose first `features` coordinates are turned by the positions begin, begin + 1, ..."""
    positions = torch.arange(begin, begin + x.shape[-3], device=x.device)
    return rotated(x, angles(positions, features, base, at_least_float32(x.dtype)).unsqueeze(-2))


def check_even(name: str, features: int) -> None:
    """Refuse what cannot be cut into planes."""
    if features < 2 or features % 2:
        raise ValueError(f"{name}: got {features}, expected an even number: rotary positions turn pairs of coordinates")


class LorentzRotary(OnHyperboloid):
    """Rotary positions (Su et al. 2021) on the space part (HELM, arXiv:2505.24722): an isometry for each position.

    Coordinates i and i + d/2 of the point at position p turn by p base^(-2i/d). The turn fixes the origin, so the time
    part stays, and the distance of two points depends on the difference of their positions alone:
    dist(R_p x, R_q y) = dist(x, R_(q-p) y). In attention `LorentzMultiheadAttention(rotary=base)` turns the heads of
    queries and keys.

    Args:
        features: space dimension d of the points, even.
        base: the slowest plane turns once in about 2 pi base positions.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `features` is odd, or `base` <= 0; at the call, points of another dimension, or positions that do
            not fit.
        TypeError: at the call, no floating-point tensor.

    Examples:
        >>> x = lf.project(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        >>> LorentzRotary(2)(x)
        tensor([[1.4142, 1.0000, 0.0000],
                [1.4142, 0.5403, 0.8415]])
    """

    def __init__(self, features: int, *, base: float = 10_000.0, c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        check_even("features", features)
        check_positive("base", base, "angles are its powers")
        self.features, self.base = features, base

    def forward(
        self, x: Float[Tensor, "*b l n"], positions: Int64[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*b l n"]:
        """Turn points (*b, l, features + 1).

        Args:
            x: points.
            positions: that of every point, broadcastable to (*b, l); None: 0 to l - 1.
        """
        x, c = self._checked_points("x", x, self.features, None), self.c
        if positions is None:
            positions = torch.arange(x.shape[-2] if x.ndim > 1 else 1, device=x.device)
        check_batch("positions", positions.shape, positions.shape, "the points", x.shape[:-1])
        turn = angles(positions, self.features, self.base, at_least_float32(x.dtype))
        return lf.project(rotated(x[..., 1:], turn), c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.features}, base={self.base:g}"
