"""Nearest neighbours among points."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from . import _hyperboloid as hyp
from ._manifold_curvature import one_number
from ._precision import Precision, Scalar, no_autocast, working_dtypes
from .distances import dist
from .maps import project
from .points import point_spaces

_BLOCK = 2**22  # numbers in memory at a time, for each of a few tensors


def _check_rows(name: str, x: Tensor) -> None:
    if x.ndim != 2:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, expected rows (n, d + 1)")


def _check_count(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: got {type(value).__name__}, expected an int")
    if not 1 <= value <= most:
        raise ValueError(f"{name}: got {value}, expected 1 to {most}, the number of points")


def _nearest(queries: Tensor, points: Tensor, k: int, c: Scalar) -> Int[Tensor, "q k"]:
    """Rows of the k nearest points, nearest first; space parts, of queries few enough for the memory."""
    # A lower bound of -<q, x>_L which rounding cannot break, and which orders almost as -<q, x>_L does.
    coarse = queries.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    eps = torch.finfo(torch.bfloat16 if coarse else queries.dtype).eps  # TF32 and bfloat16 may stand in for float32
    slack = (queries.shape[-1] + 8) * eps
    bound = (1.0 - slack) * hyp.time(queries, c) @ hyp.time(points, c).mT - queries @ points.mT
    count = min(len(points), 2 * k + 16)
    rows = bound.topk(count, dim=-1, largest=False)
    chosen = rows.indices.sort(dim=-1).values  # so that equal distances come in the order of the points
    ambient = project(queries, c, precision="native")
    places = project(points, c, precision="native")
    distances = dist(ambient.unsqueeze(-2), places[chosen], c, precision="native").sort(dim=-1, stable=True)
    nearest = chosen.gather(-1, distances.indices[:, :k])
    # Certain where the k-th is closer than the bound of every point that was not looked at.
    reach = torch.cosh(hyp.root(c) * distances.values[:, k - 1]) / c * (1.0 + slack)
    for row in torch.nonzero(~(reach <= rows.values[:, -1])).flatten().tolist() if count < len(points) else []:
        parts = [
            dist(ambient[row : row + 1], part, c, precision="native")
            for part in places.split(max(1, _BLOCK // places.shape[-1]))
        ]
        nearest[row] = torch.cat(parts).sort(stable=True).indices[:k]
    return nearest


def topk(
    queries: Float[Tensor, "q m"],
    points: Float[Tensor, "n m"],
    k: int,
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
    """The k nearest points of every query, exactly: distances and row numbers, nearest first.

    dist grows with -<q, x>_L, so one matrix product orders all points. It is formed as a lower bound that rounding
    cannot break; `dist` orders the best 2k + 16, and where the bound leaves a doubt (close points far out) `dist` looks
    at all. Queries go in blocks: beside a copy of the points, memory does not grow with their number. Values are
    read: a GPU is waited for, and torch.compile and vmap cannot pass.

    An approximate index over the transform (-x0, x), whose inner product with q is <q, x>_L, loses recall as the radius
    grows. A neighbour at distance t has -<q, x>_L = cosh(sqrt(c) t)/c, the difference of two numbers of size
    cosh(sqrt(c) r)^2 at radius r, of which codes of a few bits keep no digit, nor does float32 beyond radius 8; and as
    lengths grow as e^r, a graph of inner products leads to the points farthest out. At radius 4, of the ten nearest of
    20,000 points in 16 dimensions, HNSW finds 40 % and 8-bit codes 31 % (`benchmarks/studies/lorentz.md`).

    Args:
        queries: ambient points; only their space parts are read.
        points: ambient points; only their space parts are read.
        k: how many, 1 to n.
        c: curvature -c < 0; a number or a scalar tensor.
        precision: see the conventions of `lorentz.functional`.

    Returns:
        Distances, with gradients to `queries`, `points` and `c`, and int64 rows of `points`. Among equal distances the
        first row comes first.

    Raises:
        ValueError: `c` is a number <= 0 or no scalar, `k` is out of range, or a shape does not fit.
        TypeError: an argument is no floating-point tensor, `k` is no int, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> points = expmap0(torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]))
        >>> topk(points[2:], points, 2)
        (tensor([[0., 2.]]), tensor([[2, 1]]))
    """
    number = one_number("c", c, owner="set of points")
    query_space, point_space = point_spaces(c, 2, queries=queries, points=points)
    _check_rows("queries", queries)
    _check_rows("points", points)
    _check_count("k", k, len(points))
    wide, _ = working_dtypes(precision, (query_space, point_space))
    step = max(1, _BLOCK // (len(points) + (2 * k + 16) * points.shape[-1]))
    with torch.no_grad(), no_autocast(points.device.type):
        wide_points = point_space.detach().to(wide)
        blocks = [_nearest(part.to(wide), wide_points, k, number) for part in query_space.detach().split(step)]
        rows = torch.cat(blocks) if blocks else torch.empty(0, k, dtype=torch.int64, device=points.device)
    return dist(queries.unsqueeze(-2), points[rows], c, precision=precision), rows
