"""Ratios of lorentz's operations to plain forms and to other libraries, on one thread.

    python benchmarks/lorentz_ops.py [--rows 1024 --dim 128]

Below 1 is faster than the other side; medians of all rounds with the lowest and the highest. "auto" is the default
precision, which computes distances and centroids in float64; "compiled" is torch.compile of the operations in native
precision. The textbook forms and the other libraries compute in float32, not compiled, and lose most digits of close
pairs (benchmarks/lorentz_accuracy.py). Of the other libraries (geoopt, HyperCore,
hypll, hyperbolix) those that can be imported run, in the same environment. The last line is about `import lorentz`.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import lorentz.functional as lf
from _harness import Contender, Tasks, compare, environment, parse_options, show, show_imports, write_figures

Function = Callable[..., Tensor]
PAIRS, SETS = 64, 16
COMPILED = ("expmap0", "logmap0", "expmap", "logmap", "dist")


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


def inputs(rows: int, dim: int) -> dict[str, tuple[Tensor, ...]]:
    torch.empty(2**22)  # a process that trains has held larger arrays, and its allocator keeps pages from then on
    v = 0.1 * torch.randn(rows, dim)
    x, y = lf.expmap0(v), lf.expmap0(v.flip(0))
    points, weights = lf.expmap0(0.1 * torch.randn(SETS, 32, dim)), torch.rand(SETS, 8, 32)
    pairs = (x[:PAIRS], y[:PAIRS])
    named = {"expmap0": (v,), "logmap0": (x,), "expmap": (x, lf.logmap(x, y)), "logmap": (x, y), "dist": (x, y)}
    return named | {"pairwise_dist": pairs, "pairwise_dist, exact": pairs, "centroid": (points, weights)}


def tasks(functions: dict[str, Function], shape: tuple[int, int]) -> Tasks:
    """Each operation forward, and forward with backward."""
    found: dict[str, Callable[[], object]] = {}
    for name, given in inputs(*shape).items():
        if name in functions:
            found |= {name: partial(functions[name], *given), f"{name}, b": partial(backward, functions[name], *given)}
    return found


def ours(precision: str, shape: tuple[int, int]) -> Tasks:
    single = ("expmap0", "logmap0", "expmap", "logmap", "dist", "centroid")
    functions: dict[str, Function] = {name: getattr(lf, name) for name in single}
    functions |= {"pairwise_dist": lf.pairwise_dist, "pairwise_dist, exact": partial(lf.pairwise_dist, exact=True)}
    return tasks({name: partial(function, precision=precision) for name, function in functions.items()}, shape)


def compiled(shape: tuple[int, int]) -> Tasks:
    torch._dynamo.config.recompile_limit = 64  # the operations share inner functions
    functions = {name: torch.compile(partial(getattr(lf, name), precision="native")) for name in COMPILED}
    return tasks(functions, shape)


def plain(shape: tuple[int, int]) -> Tasks:
    pairwise = {"pairwise_dist": plain_pairwise, "pairwise_dist, exact": plain_pairwise}
    single = {"expmap0": plain_expmap0, "logmap0": plain_logmap0, "dist": plain_dist, "centroid": plain_centroid}
    return tasks(single | pairwise, shape)


def of_manifold(manifold: object, shape: tuple[int, int]) -> Tasks:
    """geoopt's names; its k is 1/c, and its vectors at the origin are ambient."""
    names = {name: getattr(manifold, name) for name in ("expmap", "logmap", "logmap0", "dist")}

    def expmap0(v: Tensor) -> Tensor:
        return manifold.expmap0(torch.nn.functional.pad(v, (1, 0)))  # type: ignore[attr-defined]

    def pairwise(x: Tensor, y: Tensor) -> Tensor:
        return names["dist"](x.unsqueeze(-2), y)

    return tasks(names | {"expmap0": expmap0, "pairwise_dist": pairwise, "pairwise_dist, exact": pairwise}, shape)


def geoopt(shape: tuple[int, int]) -> Tasks:
    import geoopt as library

    return of_manifold(library.Lorentz(k=1.0), shape)


def hypercore(shape: tuple[int, int]) -> Tasks:
    from hypercore.manifolds import Lorentz  # type: ignore[import-not-found]

    return of_manifold(Lorentz(c=1.0), shape)


def hypll(shape: tuple[int, int]) -> Tasks:
    """hypll has the Poincare ball only: the same distances there, of points that are there already."""
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall  # type: ignore[import-not-found]
    from hypll.tensors import ManifoldTensor  # type: ignore[import-not-found]

    ball = PoincareBall(c=Curvature(1.0))

    def dist(x: Tensor, y: Tensor) -> Tensor:
        return ball.dist(*(ManifoldTensor(p[..., 1:], manifold=ball) for p in (x, y)))

    pair = [torch.cat([x[..., :1], x[..., 1:] / (1 + x[..., :1])], -1) for x in inputs(*shape)["dist"]]
    return {"dist": partial(dist, *pair), "dist, b": partial(backward, dist, *pair)}


def hyperbolix(shape: tuple[int, int]) -> Tasks:
    """JAX: compiled, mapped over the rows."""
    import jax
    from hyperbolix.manifolds import Hyperboloid  # type: ignore[import-not-found]

    manifold = Hyperboloid()
    singles = {
        "expmap": lambda x, v: manifold.expmap(v, x, 1.0),
        "logmap": lambda x, y: manifold.logmap(y, x, 1.0),
        "dist": lambda x, y: manifold.dist(x, y, 1.0),
        "logmap0": lambda x: manifold.logmap_0(x, 1.0),
    }
    found: dict[str, Callable[[], object]] = {}
    for name, single in singles.items():
        arrays = [jax.numpy.asarray(x.numpy()) for x in inputs(*shape)[name]]
        rows = jax.vmap(single)
        slope = jax.grad(lambda *given, rows=rows: (rows(*given) ** 2).sum(), tuple(range(len(arrays))))
        for task, function in ((name, jax.jit(rows)), (f"{name}, b", jax.jit(slope))):
            found[task] = lambda function=function, given=arrays: jax.block_until_ready(function(*given))
    return found


PEERS = {"geoopt": geoopt, "hypercore": hypercore, "hypll": hypll, "hyperbolix": hyperbolix}


def main() -> None:
    options = parse_options(__doc__, rounds=7, rows=1024, dim=128)
    print(environment())
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    shape = (options.rows, options.dim)
    peers = {name: make for name, make in PEERS.items() if importlib.util.find_spec(name)}
    print("not here: " + (", ".join(sorted(PEERS.keys() - peers)) or "none"))
    sides = [Contender("auto", ours, ("auto", shape)), Contender("native", ours, ("native", shape))]
    sides += [Contender("compiled", compiled, (shape,))]
    sides += [Contender("plain", plain, (shape,)), *(Contender(name, make, (shape,)) for name, make in peers.items())]
    comparison = compare(sides, rounds=options.rounds, threads=options.threads)
    for suffix, title in (("", "forward"), (", b", "forward and backward")):
        rows = []
        for name in inputs(2, 2):
            for precision in ("auto", "native", "compiled")[: 3 if name in COMPILED else 2]:
                known = comparison.measured[name + suffix]
                others = ["plain", *peers]
                cells = [comparison.ratio(name + suffix, precision, o) if o in known else "-" for o in others]
                rows.append([name, precision, *cells])
        show(
            f"{title}: time over that of the others, {options.rounds} rounds",
            ["operation", "precision", "plain", *peers],
            rows,
        )
    write_figures(options, comparison.figures())
    show_imports({"lorentz": "import lorentz"}, options.rounds)


if __name__ == "__main__":
    main()
