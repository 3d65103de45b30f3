"""How right lorentz is: errors against the 60-digit reference, in units of the last place, and how far out they hold.

    python benchmarks/lorentz_accuracy.py [--curvature 1]

First the promises: per operation, dtype and precision mode the largest and median error in eps (in float64 divided by
1 + the condition number), NaN and inf counted, and the same of gradients. Then the share of rows wrong by more than 1 %
or not finite, also of plain torch and of geoopt. Ends with 1 where a promise is broken.

The last table has the largest radius (times sqrt(c)) up to which all values and all gradients, curvature included, are
finite and within 0.1 % of the textbook's definition in as many digits as the radius asks for. Points stand alone and in
pairs: along a ray, across it, opposite, at random, with a point near the origin, and (in float32, where rounding moves
them visibly apart) close ones. Rows whose true result is larger than the dtype's largest number do not count. The last
radius tried is the largest that the dtype can store.
"""

import importlib
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from _harness import ROOT, parse_options, show

sys.path.insert(0, str(ROOT / "tests" / "lorentz"))  # the names of the reference files, shared with the tests

from far_rows import OPERATIONS as FAR_OPERATIONS
from far_rows import errors_at
from reference_rows import (
    FLOAT64_PAIRS,
    GRADIENT_LABELS,
    GRADIENTS,
    LABELS,
    OPERATIONS,
    arguments,
    curvature_of,
    gradient_errors,
    gradients_of,
    reference_of,
    relative_error,
)  # fmt: skip

MODES = ("auto", "native", "float64")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
WRONG, WRONG_FAR_OUT = 0.01, 1e-3
RADII = {
    torch.float32: (1, 5, 10, 15, 20, 22, 25, 30, 40, 44, 50, 60, 66, 75, 80, 85, 88),
    torch.float64: (1, 10, 20, 40, 80, 120, 170, 177, 200, 250, 300, 350, 400, 500, 600, 700, 709),
}
Table = tuple[list[str], list[list[str]]]
Peer = dict[str, Callable[[list[Tensor], Tensor], Tensor]]


def worst(errors: list[np.ndarray]) -> tuple[float, float, int]:
    """Largest and median error of the finite ones, and how many are not finite."""
    flat = np.concatenate(errors)
    finite = flat[np.isfinite(flat)]
    return float(finite.max()), float(np.median(finite)), int(flat.size - finite.size)


def number(x: float) -> str:
    return f"{x:.2f}" if x < 100 else f"{x:.1e}"


def promises(reference: dict[str, np.ndarray], gradients: dict[str, np.ndarray]) -> tuple[Table, list[str]]:
    """The table, and what is broken: the promise is about mode "auto", the default."""
    rows, broken = [], []
    for name, operation in {**OPERATIONS, **{k: v for k, v in GRADIENTS.items() if k not in OPERATIONS}}.items():
        for dtype_name, dtype in DTYPES.items():
            eps = torch.finfo(dtype).eps
            for mode in MODES:
                options = {"precision": mode}
                values, slopes = [], []
                data, labels = (reference, LABELS) if name in OPERATIONS else (gradients, GRADIENT_LABELS)
                for label in labels:
                    subjects = [operation, *([FLOAT64_PAIRS[name]] if eps < 1e-15 and name in FLOAT64_PAIRS else [])]
                    for subject in subjects:
                        expected, condition = reference_of(data, subject, label)
                        inputs = arguments(data, subject, label, dtype)
                        got = subject.function(*inputs, curvature_of(label), **options)
                        error = relative_error(got, expected) / eps
                        values.append(error / (1 + condition) if eps < 1e-15 else error)
                if name in GRADIENTS:
                    subject = GRADIENTS[name]
                    for label in GRADIENT_LABELS:
                        slopes_of = gradients_of(gradients, subject, label, dtype, **options)
                        for error, condition in gradient_errors(gradients, subject, label, slopes_of).values():
                            slopes.append(error / eps / (1 + condition if eps < 1e-15 else 1))
                most, middle, lost = worst(values)
                cells = [number(most), number(middle), str(lost)]
                steep, usual, gone = worst(slopes) if slopes else (float("nan"), float("nan"), 0)
                cells += [number(steep), number(usual), str(gone)] if slopes else ["-", "-", "-"]
                rows.append([name, dtype_name, mode, *cells])
                bound = operation.float32_bound if dtype == torch.float32 else 8.0
                if mode == "auto" and (most > bound or lost + gone):
                    broken.append(f"{name} {dtype_name}: {most:.2f} eps (promised {bound:g}), {lost + gone} not finite")
    head = ["operation", "dtype", "precision", "max", "median", "not finite"]
    return ([*head, "gradient max", "gradient median", "gradient not finite"], rows), broken


def ours(mode: str) -> Peer:
    def of(name: str) -> Callable[[list[Tensor], Tensor], Tensor]:
        return lambda inputs, c: OPERATIONS[name].function(*inputs, float(c), precision=mode)

    return {name: of(name) for name in OPERATIONS}


def with_time(x: Tensor, c: Tensor) -> Tensor:
    """The point in the dtype of its space part: what a library that reads time parts is given."""
    space = x[..., 1:]
    return torch.cat([(1 / c + space.square().sum(-1, keepdim=True)).sqrt(), space], dim=-1)


def geoopt_peer() -> Peer:
    geoopt = importlib.import_module("geoopt")

    def manifold(c: Tensor) -> object:
        return geoopt.Lorentz(k=1 / c)

    def tangent(x: Tensor, v: Tensor) -> Tensor:
        return torch.cat([(x[..., 1:] * v[..., 1:]).sum(-1, keepdim=True) / x[..., :1], v[..., 1:]], dim=-1)

    def at(operation: str, *kinds: str) -> Callable[[list[Tensor], Tensor], Tensor]:
        def run(inputs: list[Tensor], c: Tensor) -> Tensor:
            ready = [with_time(x, c) if kind == "point" else x for x, kind in zip(inputs, kinds, strict=True)]
            if kinds[-1] == "tangent":
                ready[-1] = tangent(ready[0], ready[-1])
            return getattr(manifold(c), operation)(*ready)

        return run

    def expmap0(inputs: list[Tensor], c: Tensor) -> Tensor:
        return manifold(c).expmap0(torch.nn.functional.pad(inputs[0], (1, 0)))

    return {
        "expmap0": expmap0,
        "logmap0": lambda inputs, c: manifold(c).logmap0(with_time(inputs[0], c))[..., 1:],
        "expmap": at("expmap", "point", "tangent"),
        "logmap": at("logmap", "point", "point"),
        "project_tangent": at("proju", "point", "ambient"),
        "parallel_transport": at("transp", "point", "point", "tangent"),
        "inner": lambda inputs, c: (lambda x, y: (x[..., 1:] * y[..., 1:]).sum(-1) - x[..., 0] * y[..., 0])(
            *(with_time(x, c) for x in inputs)
        ),
        "dist": at("dist", "point", "point"),
    }


def plain_peer() -> Peer:
    """The textbook forms in plain torch, as papers' code has them (clamped to stay finite)."""

    def lorentz(x: Tensor, y: Tensor) -> Tensor:
        return (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True) - x[..., :1] * y[..., :1]

    def dist(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        return torch.acosh((-c * lorentz(x, y)).clamp_min(1 + torch.finfo(x.dtype).eps)) / c.sqrt()

    def logmap(inputs: list[Tensor], c: Tensor) -> Tensor:
        x, y = (with_time(x, c) for x in inputs)
        w = y + c * lorentz(x, y) * x
        return dist(x, y, c) / lorentz(w, w).clamp_min(1e-8).sqrt() * w

    def centroid(inputs: list[Tensor], c: Tensor) -> Tensor:
        s = (inputs[1].unsqueeze(-2) @ with_time(inputs[0], c))[..., 0, :]
        return s / (-c * lorentz(s, s)).clamp_min(1e-8).sqrt()

    def expmap0(inputs: list[Tensor], c: Tensor) -> Tensor:
        r = c.sqrt() * inputs[0].norm(dim=-1, keepdim=True).clamp_min(1e-8)
        return torch.cat([r.cosh() / c.sqrt(), r.sinh() / r * inputs[0]], dim=-1)

    def logmap0(inputs: list[Tensor], c: Tensor) -> Tensor:
        x = with_time(inputs[0], c)
        return (
            torch.acosh((c.sqrt() * x[..., :1]).clamp_min(1.0))
            / c.sqrt()
            * torch.nn.functional.normalize(x[..., 1:], dim=-1)
        )

    def exterior_angle(inputs: list[Tensor], c: Tensor) -> Tensor:
        x, y = (with_time(x, c) for x in inputs)
        inner = (c * lorentz(x, y))[..., 0]
        top = y[..., 0] + x[..., 0] * inner
        bottom = x[..., 1:].norm(dim=-1) * (inner.square() - 1).clamp_min(1e-8).sqrt()
        return torch.acos((top / bottom).clamp(-1 + 1e-8, 1 - 1e-8))

    return {
        "expmap0": expmap0,
        "logmap0": logmap0,
        "logmap": logmap,
        "inner": lambda inputs, c: lorentz(*(with_time(x, c) for x in inputs))[..., 0],
        "dist": lambda inputs, c: dist(*(with_time(x, c) for x in inputs), c)[..., 0],
        "centroid": centroid,
        "exterior_angle": exterior_angle,
    }


def comparison(reference: dict[str, np.ndarray]) -> Table:
    """Share of rows wrong by more than 1 % or not finite."""
    peers: dict[str, Peer] = {"lorentz": ours("auto"), "lorentz, native": ours("native"), "plain torch": plain_peer()}
    with suppress(ImportError):
        peers["geoopt"] = geoopt_peer()
    rows = []
    for name, operation in OPERATIONS.items():
        if name == "pairwise_dist":
            continue
        for dtype_name, dtype in DTYPES.items():
            subjects = [operation, *([FLOAT64_PAIRS[name]] if dtype == torch.float64 and name in FLOAT64_PAIRS else [])]
            cells = []
            for peer in peers.values():
                wrong = []
                for subject in subjects if name in peer else ():
                    for label in LABELS:
                        inputs = arguments(reference, subject, label, dtype)
                        with torch.no_grad():
                            got = peer[name](inputs, torch.tensor(curvature_of(label), dtype=dtype))
                        error = relative_error(got, reference_of(reference, subject, label)[0])
                        wrong.append(~(error <= WRONG))
                cells.append(f"{100 * np.concatenate(wrong).mean():.0f} %" if wrong else "-")
            rows.append([name, dtype_name, *cells])
    return ["operation", "dtype", *peers], rows


def radii(curvature: float) -> Table:
    """The largest radius up to which values are right, and gradients, by operation and dtype."""
    rows = []
    for name in FAR_OPERATIONS:
        cells = []
        for dtype, mode in ((torch.float32, "auto"), (torch.float32, "native"), (torch.float64, "auto")):
            errors = [errors_at(name, radius, curvature, dtype, mode) for radius in RADII[dtype]]
            for column in zip(*errors, strict=True):  # of values, then of gradients
                pairs = zip(RADII[dtype], column, strict=True)
                right = itertools.takewhile(lambda pair: pair[1] <= WRONG_FAR_OUT, pairs)
                cells.append(f"{max((radius for radius, _ in right), default=0):g}")
        rows.append([name, *cells])
    return ["operation", "float32", "gradient", "float32, native", "gradient", "float64", "gradient"], rows


def main() -> None:
    args = parse_options(__doc__, curvature=1.0)
    names = ("lorentz_reference", "lorentz_gradients")
    reference, gradients = (dict(np.load(ROOT / "tests" / "fixtures" / f"{name}.npz")) for name in names)
    table, broken = promises(reference, gradients)
    show("errors in eps of the dtype; in float64 divided by 1 + the condition number", *table)
    show("share of rows wrong by more than 1 % or not finite", *comparison(reference))
    show(f"largest radius at curvature -{args.curvature:g}", *radii(args.curvature))
    print("Every promise holds." if not broken else "BROKEN: " + "; ".join(broken))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
