"""Convolution of points: over the windows of an image, and over the neighbours in a graph."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz._centroid import largest_time, normalised, over_its_time
from lorentz._precision import Scalar, evaluate
from lorentz._validation import check_batch, check_float, described

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature
from .linear import LorentzLinear


def _lifted(space: Tensor, c: Scalar) -> Tensor:
    return hyp.point(space, hyp.safe_time(space, c))


class LorentzConv2d(OnHyperboloid):
    """2-D convolution of an image of points: a `LorentzLinear` of every window (Bdeir et al., ICLR 2024).

    The points of a window become one: their space parts side by side, in the order of `nn.Conv2d`'s weights, and the
    time recomputed, so that its squared space part is the sum of theirs. Padding is the origin. As in every layer here
    the coordinates are the last axis, where `nn.Conv2d` has the channels before the image.

    Args:
        in_features: space dimension of the input points.
        out_features: space dimension of the output points.
        kernel_size: height and width of a window, or both as one number.
        stride: step between windows.
        padding: rows and columns of origins around the image.
        dilation: step between the points of a window.
        groups: the coordinates are cut into so many groups, each with a `LorentzLinear` of its own, whose results stand
            side by side.
        bias, activation, magnitude: those of `LorentzLinear`.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: a size below 1, a negative padding, or `groups` that do not divide both dimensions; at the call,
            points of another dimension, fewer than two axes in front of the coordinates, or an image smaller than a
            window.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> image = expmap0(torch.rand(2, 8, 8, 3))
        >>> LorentzConv2d(3, 16, 3, stride=2, padding=1)(image).shape
        torch.Size([2, 4, 4, 17])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        check_features("in_features", in_features)
        self.in_features = in_features
        self.kernel_size = _both("kernel_size", kernel_size, 1)
        self.stride = _both("stride", stride, 1)
        self.padding = _both("padding", padding, 0)
        self.dilation = _both("dilation", dilation, 1)
        self.groups = groups
        check_features("groups", groups)
        if in_features % groups or out_features % groups:
            raise ValueError(f"groups: got {groups}, expected a divisor of {in_features} and {out_features} features")
        size = in_features // groups * self.kernel_size[0] * self.kernel_size[1]

        def linear() -> LorentzLinear:
            options = {"bias": bias, "activation": activation, "magnitude": magnitude, "c": c}
            return LorentzLinear(size, out_features // groups, **options)

        self.linear: Any = linear() if groups == 1 else nn.ModuleList(linear() for _ in range(groups))

    def forward(self, x: Float[Tensor, "*b h w n"]) -> Float[Tensor, "*b i j m"]:
        """Map an image of points (*b, h, w, in_features + 1) to one of points (*b, i, j, out_features + 1)."""
        linears: list[LorentzLinear] = [self.linear] if self.groups == 1 else list(self.linear)
        x = self._checked_points("x", x, self.in_features, linears[0].weight)
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel_size, self.dilation, strict=True)]
        padded = [n + 2 * p for n, p in zip(x.shape[-3:-1], self.padding, strict=x.ndim > 2)]
        if x.ndim < 3 or padded[0] < reach[0] or padded[1] < reach[1]:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}, expected (*b, h, w, {self.in_features + 1}) with an image of at least "
                f"{tuple(reach)} points, padding {self.padding} included"
            )
        (down, right), (top, left), (row, column) = self.stride, self.padding, self.dilation
        space = F.pad(x[..., 1:], (0, 0, left, left, top, top))
        windows = space.unfold(-3, reach[0], down).unfold(-3, reach[1], right)[..., ::row, ::column].flatten(-3)
        parts = windows.chunk(len(linears), -1)
        points = [
            linear(evaluate(_lifted, None, self.c, part, auto="native"))
            for linear, part in zip(linears, parts, strict=True)
        ]
        if len(points) == 1:
            return points[0]
        return evaluate(_lifted, None, self.c, torch.cat([part[..., 1:] for part in points], -1), auto="native")

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.in_features}, kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


def _both(name: str, size: int | tuple[int, int], least: int) -> tuple[int, int]:
    """Height and width, refused below `least`."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(f"{name}: got {size}, expected a number >= {least} or two of them, of height and width")
    return pair


class LorentzGraphConv(OnHyperboloid):
    """Graph convolution: a `LorentzLinear` of every node, then the Lorentz centroid of each node's neighbours.

    As in Chen et al. (2022), with their aggregation of HGCN (Chami et al. 2019) by the centroid in closed form:
    y_i = s/sqrt(-c<s, s>_L) with s = sum_j A_ij LorentzLinear(x_j). The scale of a row of A does not count; to have a
    node among its own neighbours add 1 to the diagonal. A node without neighbours becomes the origin. In native
    precision the sum is sound to about radius 6 in float32.

    Args:
        in_features: space dimension of the nodes.
        out_features: space dimension of the output.
        bias, activation, magnitude: those of `LorentzLinear`.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: a dimension < 1; at the call, nodes of another dimension, or an adjacency that does not fit.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> nodes, edge_index = expmap0(torch.rand(5, 3)), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> LorentzGraphConv(3, 8)(nodes, edge_index).shape
        torch.Size([5, 9])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        self.linear = LorentzLinear(
            in_features, out_features, bias=bias, activation=activation, magnitude=magnitude, c=c
        )

    def forward(
        self,
        x: Float[Tensor, "*b n k"],
        adjacency: Float[Tensor, "..."] | Int64[Tensor, "2 e"],
        edge_weight: Float[Tensor, " e"] | None = None,
    ) -> Float[Tensor, "*b i m"]:
        """Average over neighbours.

        Args:
            x: nodes (*b, n, in_features + 1).
            adjacency: weights >= 0 of the edges, (*b, i, n): row i has the neighbours of output i, usually one for each
                node. A sparse matrix (i, n) of torch, COO or CSR, belongs to nodes without batch axes; torch.compile
                takes dense ones alone. Or, as PyTorch Geometric has it, `edge_index` (2, e): the source and the target
                of each edge, for nodes (n, in_features + 1).
            edge_weight: with `edge_index`, weights >= 0 of the edges; default: 1.
        """
        x = self.linear(x)
        if adjacency.dtype == torch.int64 and adjacency.ndim == len(adjacency) == 2:
            weight = x.new_ones(adjacency.shape[1]) if edge_weight is None else edge_weight
            size = (x.shape[-2], x.shape[-2])
            adjacency = torch.sparse_coo_tensor(adjacency.flip(0), weight, size, check_invariants=True)
        check_float("adjacency", adjacency)
        if x.ndim < 2 or adjacency.ndim < 2 or adjacency.shape[-1] != x.shape[-2]:
            raise ValueError(
                f"adjacency: got {described(adjacency)}, expected (*b, i, n) with one weight for each of the nodes "
                f"(*b, n) of x, {tuple(x.shape[:-1])}"
            )
        if adjacency.layout == torch.strided:
            check_batch("adjacency", adjacency.shape, adjacency.shape[:-2], "x", x.shape[:-2])
        elif x.ndim != 2:
            raise ValueError(f"adjacency: got a sparse matrix for {x.ndim - 2} batch axes of x, expected none")

        def average(space: Tensor, c: Scalar) -> Tensor:
            points = _lifted(space, c)
            total = over_its_time(adjacency.to(space.dtype) @ points)
            return _lifted(normalised(total, largest_time(points[..., :1]), c), c)

        return evaluate(average, None, self.c, x[..., 1:], auto="native")
