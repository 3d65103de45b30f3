"""What the property tests share: points of every dtype drawn by hypothesis, Lorentz transformations, and bounds.

`HYPOTHESIS_PROFILE=nightly` draws other points at each run: 1 to 64 dimensions, float16 too, radius up to 40/sqrt(c).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from nightly import NIGHTLY
from torch import Tensor

import lorentz.functional as lf

LAW = settings(
    max_examples=300 if NIGHTLY else 20,
    derandomize=not NIGHTLY,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        *([HealthCheck.filter_too_much] if NIGHTLY else []),
    ],
)
DIM = 3
DTYPES = (torch.float32, torch.float64, torch.bfloat16, *([torch.float16] if NIGHTLY else []))

curvatures = st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0])
seeds = st.integers(0, 2**16)
dimensions = st.integers(1, 64) if NIGHTLY else st.just(DIM)


def eps(dtype: torch.dtype) -> float:
    """The machine epsilon of the dtype that points of `dtype` are computed in."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


@dataclass(frozen=True)
class Situation:
    """A curvature, a dtype and points: `c, dtype, (x, y) = situation`, made when a test takes them apart.

    Points of bfloat16 have its coordinates and come in float32: laws join operations, each of which would round.
    """

    c: float
    dtype: torch.dtype
    rows: list[list[float]]  # logarithms at the origin, times sqrt(c)

    def __iter__(self) -> Iterator[Any]:
        x = lf.expmap0(torch.tensor(self.rows, dtype=torch.float64) / self.c**0.5, self.c)
        wide = torch.promote_types(self.dtype, torch.float32)
        points = tuple(lf.project(space.to(self.dtype).to(wide), self.c) for space in x[:, 1:])
        return iter((self.c, self.dtype, points))


def situations(
    count: int, radius: float = 2.0, dtypes: tuple[torch.dtype, ...] = DTYPES, most: float = 6.0
) -> st.SearchStrategy[Situation]:
    """`count` points, coordinates of their logarithms up to `radius`/sqrt(c): zeros, tiny and equal ones among them.

    Nightly ones have radii up to `most`/sqrt(c), 40 for what holds everywhere: bounds that grow as cosh(r)^2 say
    nothing beyond 6.
    """
    if NIGHTLY:
        radii = st.lists(st.just(0.0) | st.floats(1e-6, most), min_size=count, max_size=count)
        return st.builds(_placed, curvatures, st.sampled_from(dtypes), radii, dimensions, seeds)
    numbers = st.floats(-radius, radius, allow_subnormal=False, width=32)
    rows = st.lists(st.lists(numbers, min_size=DIM, max_size=DIM), min_size=count, max_size=count)
    return st.builds(Situation, curvatures, st.sampled_from(dtypes), rows)


def _placed(c: float, dtype: torch.dtype, radii: list[float], dim: int, seed: int) -> Situation:
    """Points of these radii, in random directions, in nearly one, or in opposite ones."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    apart = 10.0 ** (-8.0 * torch.rand(1, **draw)) if seed % 2 else torch.ones(1, dtype=torch.float64)
    signs = 2.0 * torch.randint(2, (len(radii), 1), generator=generator) - 1.0
    directions = signs * torch.randn(dim, **draw) * (apart < 1) + apart * torch.randn(len(radii), dim, **draw)
    directions = torch.nn.functional.normalize(directions, dim=-1)
    most = 10.0 if dtype == torch.float16 else torch.inf  # float16 holds no coordinates farther out
    return Situation(c, dtype, (directions * torch.tensor(radii).double().clamp_max(most)[:, None]).tolist())


def tangents(x: Tensor, c: float, seed: int, count: int = 1) -> tuple[Tensor, ...]:
    """Tangent vectors at x of Lorentz length up to about 2/sqrt(c), in the dtype of x."""
    dim = x.shape[-1] - 1
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, dim, generator=generator, dtype=torch.float64) / (dim / DIM * c) ** 0.5
    origin = lf.project(torch.zeros_like(x[..., 1:]).double(), c)
    ambient = torch.nn.functional.pad(noise, (1, 0))
    return tuple(lf.parallel_transport(origin, x.double(), v, c).to(x.dtype) for v in ambient)


def exact(x: Tensor, c: float) -> Tensor:
    """The point itself, time part and all, in float64."""
    return lf.project(x[..., 1:].double(), c)


def exact_tangent(x: Tensor, v: Tensor, c: float) -> Tensor:
    """The tangent vector at x with the space part of v, in float64."""
    x, space = exact(x, c), v[..., 1:].double()
    return torch.cat([(x[..., 1:] * space).sum(-1, keepdim=True) / x[..., :1], space], dim=-1)


def spread(c: float, *points: Tensor) -> float:
    """Product of cosh(sqrt(c) r), the factor by which a rounding of coordinates far out is larger as a distance."""
    product = 1.0
    for x in points:
        product *= float((c**0.5 * exact(x, c)[..., 0]).max())
    return product


def length(v: Tensor) -> Tensor:
    """Lorentz length of exact tangent vectors."""
    return lf.lorentz_inner(v, v).clamp_min(0).sqrt()


def lorentz_transformation(dim: int, seed: int, boost: bool = True) -> Tensor:
    """A rotation of the space part, followed by a boost: the isometries of every hyperboloid, in float64."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.eye(dim + 1, dtype=torch.float64)
    rotation[1:, 1:] = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    if not boost:
        return rotation
    w = torch.randn(dim, generator=generator, dtype=torch.float64) / (dim / DIM) ** 0.5
    gamma = torch.sqrt(1 + w.square().sum())
    matrix = torch.eye(dim + 1, dtype=torch.float64)
    matrix[0, 0], matrix[0, 1:], matrix[1:, 0] = gamma, w, w
    matrix[1:, 1:] += torch.outer(w, w) / (1 + gamma)
    return matrix @ rotation
