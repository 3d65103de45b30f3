"""Make the reference of gradients: python tests/lorentz/make_gradients.py --seed 0 --output FILE.

For every operation f a row holds its inputs, a direction g, "size" = <|g|, |f|>, and the gradient of <g, f> with
respect to every input and to c, by differences of the 120-digit definitions. Keys
"<operation>.c<0.1|1|10>.d<2|5>.<field>", fields "<input>", "value" (of f), "g", "size", "grad_<input>", "grad_c" and,
for value and gradients, "<...>_cond": the relative condition number, as in `make_reference`.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import textbook as tb
from make_reference import (
    CURVATURES,
    GROUPS,
    Draw,
    Output,
    Row,
    draw_log0,
    draw_pair,
    main,
    norm,
    pushes,
    split,
    value_and_condition,
    vector,
)
from mpmath import mpf
from textbook import Number, Vector

ROWS = {2: 6, 5: 2}
KINK = 1e20


class Subject(NamedTuple):
    """An operation to differentiate: the fields of its inputs, how to draw them, and its definition."""

    inputs: tuple[str, ...]
    draw: Draw
    function: Callable[..., Number | Vector]


def draw_geodesic(rng: np.random.Generator, d: int, c: float) -> Row:
    x, y, _ = draw_pair(rng, d, c)
    return x, y, rng.uniform(0, 1, 1).astype(np.float32)


def of_group(group: str, field: str) -> Subject:
    output = next(o for o in GROUPS[group].outputs if o.field == field)
    return Subject(GROUPS[group].inputs[: output.takes], GROUPS[group].draw, output.function)


SUBJECTS = {
    "project": of_group("proj", "x_full"),
    "expmap0": of_group("exp0", "y_full"),
    "logmap0": of_group("log0", "v_space"),
    "expmap": of_group("exp", "y_full"),
    "logmap": of_group("pair", "log_full"),
    "project_tangent": of_group("proj", "u_full"),
    "parallel_transport": of_group("pair", "pt_full"),
    "inner": of_group("pair", "inner"),
    "dist": of_group("pair", "dist"),
    "dist0": Subject(("x_space",), draw_log0, tb.dist0),
    "geodesic": Subject(("x_space", "y_space", "t"), draw_geodesic, lambda x, y, t, c: tb.geodesic(x, y, t[0], c)),
    "centroid": of_group("cent", "m_full"),
    "half_aperture": of_group("cone", "half_aperture"),
    "exterior_angle": of_group("ext", "angle"),
}


def direction(rng: np.random.Generator, subject: Subject, row: Row, c: float) -> tuple[np.ndarray, float]:
    """g, and <|g|, |f|>: the size of the number that is differentiated."""
    value = subject.function(*(vector(x) for x in row), mpf(c))
    value = [abs(k) for k in (value if isinstance(value, list) else [value])]
    g = rng.uniform(-1, 1, len(value)).astype(np.float32)
    return g, float(tb.dot(vector(np.abs(g)), value))


def gradients(subject: Subject, row: Row, g: np.ndarray, c: float) -> tuple[list[Vector], list[float]]:
    """The gradient of <g, f> with respect to every input and c, and their condition numbers."""
    sizes, g_ = [*(x.size for x in row), 1], vector(g)

    def loss(flat: Vector) -> Vector:
        *inputs, (curvature,) = split(flat, sizes)
        value = subject.function(*inputs, curvature)
        return [tb.dot(g_, value if isinstance(value, list) else [value])]

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


def make(seed: int) -> dict[str, np.ndarray]:
    """All arrays of the file."""
    arrays = {}
    for (i, (name, subject)), (label, c), (d, count) in itertools.product(
        enumerate(SUBJECTS.items()), CURVATURES.items(), ROWS.items()
    ):
        rng = np.random.default_rng([seed, i, round(100 * c), d])
        rows = [subject.draw(rng, d, c)[: len(subject.inputs)] for _ in range(count)]
        if name in ("expmap0", "logmap0"):  # the origin itself
            rows[0] = tuple(np.zeros_like(x) for x in rows[0])
        directions = [direction(rng, subject, row, c) for row in rows]
        found = [gradients(subject, row, g, c) for row, (g, _) in zip(rows, directions, strict=True)]
        prefix = f"{name}.c{label}.d{d}."
        output = Output("value", "value_cond", len(subject.inputs), subject.function)
        values, conditions = zip(*(value_and_condition(output, row, c) for row in rows), strict=True)
        arrays[prefix + "value"] = np.array([[float(k) for k in value] for value in values])
        arrays[prefix + "value_cond"] = np.array(conditions, dtype=np.float32)
        arrays[prefix + "g"] = np.stack([g for g, _ in directions])
        arrays[prefix + "size"] = np.array([size for _, size in directions])
        for j, field in enumerate((*subject.inputs, "c")):
            if field != "c":
                arrays[prefix + field] = np.stack([row[j] for row in rows])
            arrays[f"{prefix}grad_{field}"] = np.array([[float(k) for k in parts[j]] for parts, _ in found])
            arrays[f"{prefix}grad_{field}_cond"] = np.array([cond[j] for _, cond in found], dtype=np.float32)
    return arrays


if __name__ == "__main__":
    main(__doc__, make)
