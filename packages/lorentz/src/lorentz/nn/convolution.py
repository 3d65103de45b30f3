"""Convolution of points, over the windows of an image or the neighbours in a graph; pooling and flattening."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz import functional as lf
from lorentz._centroid import largest_time, normalised, over_its_time
from lorentz._precision import Scalar, evaluate
from lorentz._validation import check_batch, check_float, described
from lorentz.points import point_spaces

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature
from .linear import LorentzLinear


def _lifted(space: Tensor, c: Scalar) -> Tensor:
    return hyp.point(space, hyp.safe_time(space, c))


def _windows(space: Tensor, size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Windows (*b, *places, d, *size) of space parts (*b, *image, d)."""
    axes = len(size)
    for length, step, spread in zip(size, stride, dilation, strict=True):  # a window comes last
        space = space.unfold(-axes - 1, (length - 1) * spread + 1, step)[..., ::spread]
    return space


def _sizes(name: str, size: int | tuple[int, ...], axes: int, least: int) -> tuple[int, ...]:
    """One number for each axis, refused below `least`."""
    sizes = (size,) * axes if isinstance(size, int) else tuple(size)
    if len(sizes) != axes or min(sizes) < least:
        raise ValueError(f"{name}: got {size}, expected a number >= {least} or {axes} of them, one for each axis")
    return sizes


class _Convolution(OnHyperboloid):
    """What convolutions of 2 and 3 axes share."""

    axes: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
        magnitude: Literal["free", "bounded"] = "free",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        check_features("in_features", in_features)
        self.in_features = in_features
        self.kernel_size = _sizes("kernel_size", kernel_size, self.axes, 1)
        self.stride = _sizes("stride", stride, self.axes, 1)
        self.padding = _sizes("padding", padding, self.axes, 0)
        self.dilation = _sizes("dilation", dilation, self.axes, 1)
        self.groups = groups
        check_features("groups", groups)
        if in_features % groups or out_features % groups:
            raise ValueError(f"groups: got {groups}, expected a divisor of {in_features} and {out_features} features")
        size = in_features // groups * math.prod(self.kernel_size)

        def linear() -> LorentzLinear:
            options = {"bias": bias, "activation": activation, "magnitude": magnitude, "c": c}
            return LorentzLinear(size, out_features // groups, **options)

        self.linear: Any = linear() if groups == 1 else nn.ModuleList(linear() for _ in range(groups))

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*a m"]:
        """Map an image of points (*b, ..., in_features + 1) to one of points (*b, ..., out_features + 1)."""
        linears: list[LorentzLinear] = [self.linear] if self.groups == 1 else list(self.linear)
        x = self._checked_points("x", x, self.in_features, linears[0].weight)
        reach = tuple((size - 1) * step + 1 for size, step in zip(self.kernel_size, self.dilation, strict=True))
        image = x.shape[-self.axes - 1 : -1]
        if len(image) < self.axes or any(n + 2 * p < r for n, p, r in zip(image, self.padding, reach, strict=True)):
            axes = ("h, w", "t, h, w")[self.axes - 2]
            raise ValueError(
                f"x: got shape {tuple(x.shape)}, expected (*b, {axes}, {self.in_features + 1}) with an image of at "
                f"least {reach} points, padding {self.padding} included"
            )
        space = F.pad(x[..., 1:], (0, 0, *(p for p in reversed(self.padding) for _ in range(2))))
        windows = _windows(space, self.kernel_size, self.stride, self.dilation).flatten(-self.axes - 1)
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


class LorentzConv2d(_Convolution):
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

    axes = 2


class LorentzConv3d(_Convolution):
    """3-D convolution of a video or volume of points (*b, t, h, w, in_features + 1): `LorentzConv2d` with an axis more.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> LorentzConv3d(3, 16, 3, padding=1)(expmap0(torch.rand(2, 4, 8, 8, 3))).shape
        torch.Size([2, 4, 8, 8, 17])
    """

    axes = 3


class LorentzPool2d(OnHyperboloid):
    """Pooling of an image of points: of every window the Lorentz centroid, or the largest of each space coordinate.

    "mean" is the centroid with equal weights, `lorentz.centroid`, in the place of HypLL's `HAvgPool2d`; its limit as
    c -> 0 is `nn.AvgPool2d`. "max" is `nn.MaxPool2d` on the space part, time recomputed, as activations are here: it
    depends on the axes and the origin. (HypLL's `HMaxPool2d` takes coordinates at the origin's tangent space.)

    Args:
        kernel_size: height and width of a window, or both as one number.
        stride: step between windows; None: `kernel_size`.
        mode: "mean" or "max".
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: a size below 1, or an unknown `mode`; at the call, an image smaller than a window.
        TypeError: at the call, no floating-point tensor.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> LorentzPool2d(2)(expmap0(torch.rand(2, 8, 8, 3))).shape
        torch.Size([2, 4, 4, 4])
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        *,
        mode: Literal["mean", "max"] = "mean",
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        if mode not in ("mean", "max"):
            raise ValueError(f"mode: got {mode!r}, expected 'mean' or 'max'")
        self.kernel_size, self.mode = _sizes("kernel_size", kernel_size, 2, 1), mode
        self.stride = self.kernel_size if stride is None else _sizes("stride", stride, 2, 1)

    def forward(self, x: Float[Tensor, "*b h w n"]) -> Float[Tensor, "*b i j n"]:
        """Map an image of points (*b, h, w, d + 1) to a smaller one (*b, i, j, d + 1)."""
        c = self.c
        (space,) = point_spaces(c, x=x)
        if x.ndim < 3 or x.shape[-3] < self.kernel_size[0] or x.shape[-2] < self.kernel_size[1]:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected (*b, h, w, d + 1), at least {self.kernel_size}")
        windows = _windows(space, self.kernel_size, self.stride, (1, 1)).flatten(-2)
        if self.mode == "max":
            return lf.project(windows.amax(-1), c)
        return lf.centroid(lf.project(windows.mT, c), c=c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, mode={self.mode!r}"


class LorentzFlatten(OnHyperboloid):
    """Make the points of the last axes one: their space parts side by side, time recomputed, as `nn.Flatten`.

    The direct concatenation of Qu and Zou (2022), by which `LorentzConv2d` joins a window and attention its heads: the
    squared space parts add up. (HypLL's `HFlatten` scales the tangent vectors of the parts instead.)

    Args:
        axes: how many axes before that of the coordinates; 2 for an image.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `axes` < 1, or at the call fewer axes than that.
        TypeError: at the call, no floating-point tensor.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> LorentzFlatten()(expmap0(torch.rand(2, 4, 4, 3))).shape
        torch.Size([2, 49])
    """

    def __init__(self, axes: int = 2, *, c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        check_features("axes", axes)
        self.axes = axes

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*a m"]:
        """Map points (*b, ..., d + 1) to points (*b, k d + 1), k of them one."""
        c = self.c
        (space,) = point_spaces(c, x=x)
        if x.ndim <= self.axes:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected {self.axes} axes before the coordinates")
        return lf.project(space.flatten(-self.axes - 1), c)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"axes={self.axes}"


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
