"""Ratios of lorentz's operations to plain forms and to geoopt, on one thread: `python benchmarks/lorentz_ops.py`.

Below 1 is faster than the other side; medians of all rounds with the lowest and the highest. "auto" is the default
precision, which computes distances and centroids in float64; the textbook forms and geoopt compute in float32 and lose
most digits of close pairs (benchmarks/lorentz_accuracy.py). The last line is about `import lorentz`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import lorentz.functional as lf
from _harness import Contender, Spread, Tasks, compare, environment, parse_options, show, show_imports, write_figures

Function = Callable[..., Tensor]
ROWS, DIM, PAIRS, SETS = 1024, 128, 64, 16


def plain_expmap0(v: Tensor) -> Tensor:
    norm = v.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.cat([torch.cosh(norm), torch.sinh(norm) / norm * v], dim=-1)


def plain_logmap0(x: Tensor) -> Tensor:
    space = x[..., 1:]
    norm = space.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return torch.acosh(x[..., :1].clamp_min(1.0 + 1e-7)) / norm * space


def plain_dist(x: Tensor, y: Tensor) -> Tensor:
    inner = (x[..., 1:] * y[..., 1:]).sum(-1) - x[..., 0] * y[..., 0]
    return torch.acosh((-inner).clamp_min(1.0 + 1e-7))


def plain_pairwise(x: Tensor, y: Tensor) -> Tensor:
    inner = x[..., 1:] @ y[..., 1:].mT - x[..., :1] * y[..., :1].mT
    return torch.acosh((-inner).clamp_min(1.0 + 1e-7))


def plain_centroid(x: Tensor, weights: Tensor) -> Tensor:
    total = weights @ x
    inner = total[..., 1:].square().sum(-1, keepdim=True) - total[..., :1].square()
    return total / (-inner).clamp_min(1e-8).sqrt()


def backward(function: Function, *inputs: Tensor) -> None:
    leaves = [x.detach().requires_grad_() for x in inputs]
    function(*leaves).square().sum().backward()


def inputs() -> dict[str, tuple[Tensor, ...]]:
    v = 0.1 * torch.randn(ROWS, DIM)
    x, y = lf.expmap0(v), lf.expmap0(v.flip(0))
    points, weights = lf.expmap0(0.1 * torch.randn(SETS, 32, DIM)), torch.rand(SETS, 8, 32)
    pairs = (x[:PAIRS], y[:PAIRS])
    named = {"expmap0": (v,), "logmap0": (x,), "dist": (x, y), "pairwise_dist": pairs, "pairwise_dist, exact": pairs}
    return named | {"centroid": (points, weights)}


def tasks(functions: dict[str, Function]) -> Tasks:
    """Each operation forward, and forward with backward."""
    found: dict[str, Callable[[], object]] = {}
    for name, given in inputs().items():
        if name in functions:
            found |= {name: partial(functions[name], *given), f"{name}, b": partial(backward, functions[name], *given)}
    return found


def ours(precision: str) -> Tasks:
    functions: dict[str, Function] = {name: getattr(lf, name) for name in ("expmap0", "logmap0", "dist", "centroid")}
    functions |= {"pairwise_dist": lf.pairwise_dist, "pairwise_dist, exact": partial(lf.pairwise_dist, exact=True)}
    return tasks({name: partial(function, precision=precision) for name, function in functions.items()})


def plain() -> Tasks:
    pairwise = {"pairwise_dist": plain_pairwise, "pairwise_dist, exact": plain_pairwise}
    single = {"expmap0": plain_expmap0, "logmap0": plain_logmap0, "dist": plain_dist, "centroid": plain_centroid}
    return tasks(single | pairwise)


def theirs() -> Tasks:
    """geoopt's, where it is installed; its k is 1/c, and its vectors at the origin are ambient."""
    try:
        import geoopt
    except ImportError:
        return {}
    manifold = geoopt.Lorentz(k=1.0)

    def expmap0(v: Tensor) -> Tensor:
        return manifold.expmap0(torch.nn.functional.pad(v, (1, 0)))

    def pairwise(x: Tensor, y: Tensor) -> Tensor:
        return manifold.dist(x.unsqueeze(-2), y)

    names = {"expmap0": expmap0, "logmap0": manifold.logmap0, "dist": manifold.dist}
    return tasks(names | {"pairwise_dist": pairwise, "pairwise_dist, exact": pairwise})


def main() -> None:
    options = parse_options(__doc__, rounds=7)
    print(environment())
    sides = [Contender("auto", ours, ("auto",)), Contender("native", ours, ("native",))]
    sides += [Contender("plain", plain), Contender("geoopt", theirs)]
    comparison = compare(sides, rounds=options.rounds, threads=options.threads)
    rows = []
    for name in inputs():
        for precision in ("auto", "native"):
            cells: list[Spread | str] = []
            for task in (name, f"{name}, b"):
                known = comparison.measured[task]
                cells += [comparison.ratio(task, precision, o) if o in known else "-" for o in ("plain", "geoopt")]
            rows.append([name, precision, *cells])
    head = ["operation", "precision", "forward / plain", "/ geoopt", "forward and backward / plain", "/ geoopt"]
    show(f"time over the plain form's and geoopt's, {options.rounds} rounds", head, rows)
    write_figures(options, comparison.figures())
    show_imports({"lorentz": "import lorentz"}, options.rounds)


if __name__ == "__main__":
    main()
