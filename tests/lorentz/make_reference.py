"""Make a reference for every Lorentz operation: python tests/lorentz/make_reference.py --seed 1 --output FILE.

60-digit values by the definitions of `textbook`, rounded once to float64. Test with LORENTZ_REFERENCE=FILE pytest
tests/lorentz/test_reference.py. Keys "<group>.c<0.1|1|10>.d<2|16|128>.<field>", see `GROUPS`; `*_space` inputs are
exact in float32 (float64 in pair64), `*_full` is ambient. `*_cond` is the relative condition number of the output: how
far it moves when every coordinate of the inputs moves by its own size times one small number, the worst of some signs.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import textbook as tb
from mpmath import mp, mpf
from textbook import Number, Vector

CURVATURES = {"0.1": float(np.float32(0.1)), "1": 1.0, "10": 10.0}
DIMENSIONS = {2: 1.0, 16: 0.5, 128: 0.06}  # and the share of the rows drawn there
MIN_RADIUS = float(np.float32(0.1))
POINTS = 8  # of a centroid
SIGNS = 8  # tried for a condition number where all are too many


def vector(x: np.ndarray) -> Vector:
    return [mpf(float(k)) for k in x.ravel()]


def norm(x: Vector) -> Number:
    return mp.sqrt(tb.dot(x, x))


def unit(rng: np.random.Generator, d: int) -> Vector:
    u = vector(rng.standard_normal(d))
    return tb.scale(1 / norm(u), u)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def rounded(x: Vector, dtype: type = np.float32) -> np.ndarray:
    return np.array([float(k) for k in x]).astype(dtype)


def at_radius(rng: np.random.Generator, d: int, c: float, radius: float) -> np.ndarray:
    """Space part of a point at distance radius/sqrt(c) from the origin."""
    length = mpf(radius) / mp.sqrt(c)
    return rounded(tb.expmap0(tb.scale(length, unit(rng, d)), mpf(c))[1:])


def towards(rng: np.random.Generator, x: np.ndarray, c: float, length: float, kind: int) -> Vector:
    """Space part of a tangent vector at x of that length (times sqrt(c)): along the ray, across it, or both."""
    x_, t = vector(x), unit(rng, len(x))
    r = norm(x_)
    u = tb.scale(1 / r, x_) if r else unit(rng, len(x))
    across = tb.combine(1, t, -tb.dot(t, u), u)
    across = tb.scale(1 / norm(across), across)
    phi = (0.0, np.pi / 2, float(rng.uniform(0, 2 * np.pi)))[kind]
    radial = mp.cos(phi) * mp.sqrt(1 + c * r * r)  # the unit vector along the ray has space part sqrt(1 + c r^2) u
    return tb.scale(length / mp.sqrt(c), tb.combine(radial, u, mp.sin(phi), across))


def near(rng: np.random.Generator, x: np.ndarray, c: float, gap: float, kind: int, dtype: type) -> np.ndarray:
    """A point at about that distance (times sqrt(c)) from x."""
    y = rounded(tb.expmap(vector(x), towards(rng, x, c, gap, kind), mpf(c))[1:], dtype)
    if (y == x).all():  # the gap is below the spacing of the dtype there
        y[-1] = np.nextafter(y[-1], dtype(np.inf))
    return y


Row = tuple[np.ndarray, ...]
Draw = Callable[[np.random.Generator, int, float], Row]


def draw_exp0(rng: np.random.Generator, d: int, c: float) -> Row:
    radius = log_uniform(rng, 1e-8, 15) if rng.random() < 0.5 else float(rng.uniform(0, 15))
    return (rounded(tb.scale(mpf(radius) / mp.sqrt(c), unit(rng, d))),)


def draw_log0(rng: np.random.Generator, d: int, c: float) -> Row:
    return (at_radius(rng, d, c, log_uniform(rng, 1e-8, 15)),)


def draw_exp(rng: np.random.Generator, d: int, c: float) -> Row:
    x = at_radius(rng, d, c, float(rng.uniform(0, 10)))
    return x, rounded(towards(rng, x, c, log_uniform(rng, 1e-8, 15), int(rng.integers(3))))


def pair_of_kind(rng: np.random.Generator, d: int, c: float, kind: int) -> tuple[np.ndarray, np.ndarray]:
    if kind < 3:  # close: along the ray, across it, both
        x = at_radius(rng, d, c, float(rng.uniform(0.1, 10)))
        return x, near(rng, x, c, log_uniform(rng, 1e-6, 1e-2), kind, np.float32)
    x, y = (at_radius(rng, d, c, float(rng.uniform(0, 15))) for _ in range(2))
    return (x, y) if kind == 3 else (np.zeros_like(x), y)


def draw_pair(rng: np.random.Generator, d: int, c: float) -> Row:
    return *pair_of_kind(rng, d, c, int(rng.integers(5))), rng.uniform(-1, 1, d).astype(np.float32)


def draw_pair64(rng: np.random.Generator, d: int, c: float) -> Row:
    x = at_radius(rng, d, c, float(rng.uniform(0.1, 10))).astype(np.float64) * float(rng.uniform(0.9, 1))
    return x, near(rng, x, c, log_uniform(rng, 1e-6, 1e-2), int(rng.integers(3)), np.float64)


def draw_proj(rng: np.random.Generator, d: int, c: float) -> Row:
    return at_radius(rng, d, c, float(rng.uniform(0, 15))), rng.standard_normal(d + 1).astype(np.float32)


def draw_cent(rng: np.random.Generator, d: int, c: float) -> Row:
    radius = log_uniform(rng, 1e-6, 10)
    if rng.random() < 0.5:
        rows = [at_radius(rng, d, c, float(rng.uniform(0, radius))) for _ in range(POINTS)]
    else:  # a narrow cluster far out
        first = at_radius(rng, d, c, radius)
        rows = [near(rng, first, c, log_uniform(rng, 1e-3, 1), 2, np.float32) for _ in range(POINTS)]
    return np.stack(rows), rng.dirichlet(np.ones(POINTS)).astype(np.float32)


def draw_cone(rng: np.random.Generator, d: int, c: float) -> Row:
    return (at_radius(rng, d, c, log_uniform(rng, 1e-3, 10)),)


def draw_ext(rng: np.random.Generator, d: int, c: float) -> Row:
    kind = int(rng.integers(6))
    x = at_radius(rng, d, c, float(rng.uniform(0.1, 10)))
    if kind >= 4:  # on the line through the origin, exactly (12 bits times 4) or but for one coordinate
        x = (np.round(x / np.abs(x).max() * 2048) / 2048 * 2.0 ** np.floor(np.log2(np.abs(x).max()))).astype(np.float32)
        y = (x * np.float32(rng.choice([2.0, 1.5, 1.125, 0.5, -0.25, -4.0]))).astype(np.float32)
        if kind == 5:
            y[0] = np.nextafter(y[0], np.float32(np.inf))
        return x, y
    return x, pair_of_kind(rng, d, c, 3)[1] if kind == 3 else near(
        rng, x, c, log_uniform(rng, 1e-6, 1), kind, np.float32
    )


class Output(NamedTuple):
    """A field, that of its condition number, and the definition, which takes that many inputs and c."""

    field: str
    condition: str | None
    takes: int
    function: Callable[..., Number | Vector]


class Group(NamedTuple):
    """Rows at d = 2, the fields of the inputs, how to draw them, and what is computed from them."""

    rows: int
    inputs: tuple[str, ...]
    draw: Draw
    outputs: tuple[Output, ...]


def centroid(p: Vector, w: Vector, c: Number) -> Vector:
    d = len(p) // POINTS
    return tb.centroid([p[i * d : (i + 1) * d] for i in range(POINTS)], w, c)


def half_aperture(x: Vector, c: Number) -> Number:
    return tb.half_aperture(x, c, mpf(MIN_RADIUS))


PAIR = (
    Output("dist", "dist_cond", 2, tb.dist),
    Output("inner", "inner_cond", 2, tb.inner_of_points),
    Output("log_full", "log_cond", 2, tb.logmap),
)
ANGLE = Output("angle", "angle_cond", 2, tb.exterior_angle)
TRANSPORT = Output("pt_full", "pt_cond", 3, tb.parallel_transport)
PROJ = (Output("x_full", None, 1, tb.point), Output("u_full", "u_cond", 2, tb.project_tangent))
APERTURE = Output("half_aperture", "half_aperture_cond", 1, half_aperture)
GROUPS = {
    "exp0": Group(32, ("v_space",), draw_exp0, (Output("y_full", "y_cond", 1, tb.expmap0),)),
    "log0": Group(32, ("x_space",), draw_log0, (Output("v_space", "v_cond", 1, tb.logmap0),)),
    "exp": Group(35, ("x_space", "v_space"), draw_exp, (Output("y_full", "y_cond", 2, tb.expmap),)),
    "pair": Group(80, ("x_space", "y_space", "v_space"), draw_pair, (*PAIR, TRANSPORT)),
    "pair64": Group(70, ("x_space", "y_space"), draw_pair64, (*PAIR, ANGLE)),
    "proj": Group(8, ("x_space", "w_full"), draw_proj, PROJ),
    "cent": Group(8, ("p_space", "w"), draw_cent, (Output("m_full", "m_cond", 2, centroid),)),
    "cone": Group(13, ("x_space",), draw_cone, (APERTURE,)),
    "ext": Group(48, ("x_space", "y_space"), draw_ext, (ANGLE,)),
}


def split(flat: Vector, sizes: list[int]) -> list[Vector]:
    ends = list(itertools.accumulate(sizes))
    return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def pushes(f: Callable[[Vector], Vector], flat: Vector) -> Iterator[Vector]:
    """How f moves as every input moves by plus or minus its own size: J s x for some or all signs s."""
    if len(flat) <= 6:
        signs = [(1, *rest) for rest in itertools.product((1, -1), repeat=len(flat) - 1)]
    else:
        signs = np.random.default_rng(0).choice([1, -1], (SIGNS, len(flat))).tolist()
    for sign in signs:
        push = [k * s for k, s in zip(flat, sign, strict=True)]
        yield tb.derivatives(lambda t, push=push: f(tb.combine(1, flat, t[0], push)), [mpf(0)])[0]


def value_and_condition(output: Output, row: Row, c: float) -> tuple[Vector, float]:
    """The output as a vector, and its condition number (absolute where the output is 0)."""
    row = row[: output.takes]

    def of(flat: Vector) -> Vector:
        value = output.function(*split(flat, [x.size for x in row]), mpf(c))
        return value if isinstance(value, list) else [value]

    flat = [k for x in row for k in vector(x)]
    value = of(flat)
    return value, float(max(norm(moved) for moved in pushes(of, flat)) / (norm(value) or 1))


def arrays_of(group: Group, rows: list[Row], c: float) -> Iterator[tuple[str, np.ndarray]]:
    """Inputs and references of rows, under their fields."""
    for i, field in enumerate(group.inputs):
        yield field, np.stack([row[i] for row in rows])
    for output in group.outputs:
        values, conditions = zip(*(value_and_condition(output, row, c) for row in rows), strict=True)
        numbers = np.array([[float(k) for k in value] for value in values])
        yield output.field, numbers if output.field.endswith(("_full", "_space")) else numbers[:, 0]
        if output.condition:
            yield output.condition, np.array(conditions, dtype=np.float32)


def make(seed: int) -> dict[str, np.ndarray]:
    """All arrays of a reference file."""
    arrays = {"c_values": np.array(list(CURVATURES.values())), "min_radius": np.array(MIN_RADIUS)}
    for (g, (name, group)), (label, c), d in itertools.product(
        enumerate(GROUPS.items()), CURVATURES.items(), DIMENSIONS
    ):
        rng = np.random.default_rng([seed, g, round(100 * c), d])
        count = max(2, round(group.rows * DIMENSIONS[d]))
        rows = [group.draw(rng, d, c) for _ in range(count)]
        if name in ("exp0", "log0"):  # the origin itself
            rows[0] = tuple(np.zeros_like(x) for x in rows[0])
        for field, values in arrays_of(group, rows, c):
            arrays[f"{name}.c{label}.d{d}.{field}"] = values
    return arrays


def main(doc: str, make: Callable[[int], dict[str, np.ndarray]]) -> None:
    """Writes the arrays that `make` returns for the seed and to the file that the command line names."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    np.savez_compressed(args.output, **make(args.seed))


if __name__ == "__main__":
    main(__doc__, make)
