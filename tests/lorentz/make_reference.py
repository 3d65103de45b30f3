"""Make a reference for every Lorentz operation: python tests/lorentz/make_reference.py --seed 1 --output FILE.

60-digit values by the definitions of `textbook`, rounded once to float64. Test with LORENTZ_REFERENCE=FILE pytest
tests/lorentz/test_reference.py. Keys "<group>.c<0.1|1|10>.d<2|16|128>.<field>", see `GROUPS`; `*_space` inputs are
exact in float32 (float64 in pair64), `*_full` is ambient. `*_cond` is the relative condition number of the output: how
far it moves when every coordinate of the inputs moves by its own size times one small number, the worst of some signs.

With --gradients the reference of gradients: for every operation f a row holds its inputs, a direction g, "size" =
<|g|, |f|>, and the gradient of <g, f> with respect to every input and to c, by differences of the definitions. Keys
"<operation>.c<0.1|1|10>.d<2|5>.<field>", fields "<input>", "value" (of f), "g", "size", "grad_<input>", "grad_c" and,
for value and gradients, "<...>_cond".
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import textbook as tb
from mpmath import mp, mpf
from reference_rows import FLOAT64_PAIRS, GRADIENTS, MIN_RADIUS, OPERATIONS, POINTS, Operation
from textbook import Number, Vector

CURVATURES = {"0.1": float(np.float32(0.1)), "1": 1.0, "10": 10.0}
DIMENSIONS = {2: 1.0, 16: 0.5, 128: 0.06}  # and the share of the rows drawn there
GRADIENT_ROWS = {2: 6, 5: 2}
KINK = 1e20
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


def draw_geodesic(rng: np.random.Generator, d: int, c: float) -> Row:
    x, y, _ = draw_pair(rng, d, c)
    return x, y, rng.uniform(0, 1, 1).astype(np.float32)


class Group(NamedTuple):
    """Rows at d = 2, the fields of the inputs, and how to draw them."""

    rows: int
    inputs: tuple[str, ...]
    draw: Draw


GROUPS = {
    "exp0": Group(32, ("v_space",), draw_exp0),
    "log0": Group(32, ("x_space",), draw_log0),
    "exp": Group(35, ("x_space", "v_space"), draw_exp),
    "pair": Group(80, ("x_space", "y_space", "v_space"), draw_pair),
    "pair64": Group(70, ("x_space", "y_space"), draw_pair64),
    "proj": Group(8, ("x_space", "w_full"), draw_proj),
    "cent": Group(8, ("p_space", "w"), draw_cent),
    "cone": Group(13, ("x_space",), draw_cone),
    "ext": Group(48, ("x_space", "y_space"), draw_ext),
}
DRAWS = {name: GROUPS[operation.group].draw for name, operation in OPERATIONS.items()}
DRAWS |= {"dist0": draw_log0, "geodesic": draw_geodesic}


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


def value_of(operation: Operation, flat: Vector, row: Row, c: Number) -> Vector:
    """The output as a vector, of the numbers of a row one after the other."""
    value = operation.definition(*split(flat, [x.size for x in row]), c)
    return value if isinstance(value, list) else [value]


def value_and_condition(operation: Operation, row: Row, c: float) -> tuple[Vector, float]:
    """The output as a vector, and its condition number (absolute where the output is 0)."""
    row = row[: len(operation.inputs)]

    def of(flat: Vector) -> Vector:
        return value_of(operation, flat, row, mpf(c))

    flat = [k for x in row for k in vector(x)]
    value = of(flat)
    return value, float(max(norm(moved) for moved in pushes(of, flat)) / (norm(value) or 1))


def arrays_of(name: str, rows: list[Row], c: float) -> Iterator[tuple[str, np.ndarray]]:
    """Inputs and references of rows of a group, under their fields."""
    for i, field in enumerate(GROUPS[name].inputs):
        yield field, np.stack([row[i] for row in rows])
    for operation in {o.output: o for o in (*OPERATIONS.values(), *FLOAT64_PAIRS.values()) if o.group == name}.values():
        values, conditions = zip(*(value_and_condition(operation, row, c) for row in rows), strict=True)
        numbers = np.array([[float(k) for k in value] for value in values])
        yield operation.output, numbers if operation.output.endswith(("_full", "_space")) else numbers[:, 0]
        if operation.condition:
            yield operation.condition, np.array(conditions, dtype=np.float32)


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
        for field, values in arrays_of(name, rows, c):
            arrays[f"{name}.c{label}.d{d}.{field}"] = values
    return arrays


def direction(rng: np.random.Generator, operation: Operation, row: Row, c: float) -> tuple[np.ndarray, float]:
    """g, and <|g|, |f|>: the size of the number that is differentiated."""
    value = [abs(k) for k in value_of(operation, [k for x in row for k in vector(x)], row, mpf(c))]
    g = rng.uniform(-1, 1, len(value)).astype(np.float32)
    return g, float(tb.dot(vector(np.abs(g)), value))


def gradients(operation: Operation, row: Row, g: np.ndarray, c: float) -> tuple[list[Vector], list[float]]:
    """The gradient of <g, f> with respect to every input and c, and their condition numbers."""
    sizes, g_ = [*(x.size for x in row), 1], vector(g)

    def loss(flat: Vector) -> Vector:
        return [tb.dot(g_, value_of(operation, flat[:-1], row, flat[-1]))]

    def gradient(flat: Vector) -> Vector:
        return [column[0] for column in tb.derivatives(loss, flat)]

    flat = [*(k for x in row for k in vector(x)), mpf(c)]
    found = split(gradient(flat), sizes)
    worst = [mpf(0)] * len(sizes)
    for moved in pushes(gradient, flat):
        worst = [max(w, norm(part)) for w, part in zip(worst, split(moved, sizes), strict=True)]
    conditions = [float(w / (norm(part) or 1)) for w, part in zip(worst, found, strict=True)]
    # At a kink (an angle on the line through the origin) the gradient is the mean of both sides, 0, with no derivative.
    smooth = [k < KINK for k in conditions]
    found = [part if s else [mpf(0)] * len(part) for part, s in zip(found, smooth, strict=True)]
    return found, [k if s else 0.0 for k, s in zip(conditions, smooth, strict=True)]


def make_gradients(seed: int) -> dict[str, np.ndarray]:
    """All arrays of a file of gradients."""
    arrays = {}
    for (i, (name, operation)), (label, c), (d, count) in itertools.product(
        enumerate(GRADIENTS.items()), CURVATURES.items(), GRADIENT_ROWS.items()
    ):
        rng = np.random.default_rng([seed, i, round(100 * c), d])
        rows = [DRAWS[name](rng, d, c)[: len(operation.inputs)] for _ in range(count)]
        if name in ("expmap0", "logmap0"):  # the origin itself
            rows[0] = tuple(np.zeros_like(x) for x in rows[0])
        directions = [direction(rng, operation, row, c) for row in rows]
        found = [gradients(operation, row, g, c) for row, (g, _) in zip(rows, directions, strict=True)]
        prefix = f"{name}.c{label}.d{d}."
        values, conditions = zip(*(value_and_condition(operation, row, c) for row in rows), strict=True)
        arrays[prefix + "value"] = np.array([[float(k) for k in value] for value in values])
        arrays[prefix + "value_cond"] = np.array(conditions, dtype=np.float32)
        arrays[prefix + "g"] = np.stack([g for g, _ in directions])
        arrays[prefix + "size"] = np.array([size for _, size in directions])
        for j, field in enumerate((*operation.fields, "c")):
            if field != "c":
                arrays[prefix + field] = np.stack([row[j] for row in rows])
            arrays[f"{prefix}grad_{field}"] = np.array([[float(k) for k in parts[j]] for parts, _ in found])
            arrays[f"{prefix}grad_{field}_cond"] = np.array([cond[j] for _, cond in found], dtype=np.float32)
    return arrays


def main() -> None:
    """Writes the arrays to the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--gradients", action="store_true")
    args = parser.parse_args()
    np.savez_compressed(args.output, **(make_gradients if args.gradients else make)(args.seed))


if __name__ == "__main__":
    main()
