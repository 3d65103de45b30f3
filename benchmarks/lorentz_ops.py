"""Ratios of lorentz's operations to plain forms and to geoopt, on one thread: `python benchmarks/lorentz_ops.py`.

Below 1 is faster than the other side. All sides alternate in one process and the best of many rounds counts. "auto" is
the default precision, which computes distances and centroids in float64; the textbook forms and geoopt compute in
float32 and lose most digits of close pairs (benchmarks/lorentz_accuracy.py). The last lines are about `import lorentz`.
"""

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import lorentz.functional as lf

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import geoopt
except ImportError:
    geoopt = None

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


def best(functions: list[Callable[[], object]], rounds: int = 200, seconds: float = 3.0) -> list[float]:
    """Shortest time of each, the functions taking turns: 200 turns, or fewer (at least 5) after so many seconds."""
    shortest, end = [float("inf")] * len(functions), time.perf_counter() + seconds
    for turn in range(rounds):
        if turn >= 5 and time.perf_counter() > end:
            break
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            shortest[i] = min(shortest[i], time.perf_counter() - start)
    return shortest


def backward(function: Function, *arguments: Tensor) -> None:
    leaves = [argument.detach().requires_grad_() for argument in arguments]
    function(*leaves).square().sum().backward()


def report(name: str, ours: Function, plain: Function, arguments: tuple[Tensor, ...], *theirs: object) -> None:
    """One line a precision: ours over the plain form and over geoopt's (a function and its arguments)."""
    for precision in ("auto", "native"):
        sides = [(partial(ours, precision=precision), arguments), (plain, arguments)]
        if geoopt is not None and theirs:
            sides.append((theirs[0], theirs[1:]))
        cells = []
        for backwards in (False, True):
            calls = [partial(backward, f, *a) if backwards else partial(f, *a) for f, a in sides]
            mine, *others = best(calls)
            cells += [f"{mine / other:8.2f}" for other in others] + ["       -"] * (2 - len(others))
        print(f"{name:22s} {precision:8s}" + " ".join(cells))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    v = 0.1 * torch.randn(ROWS, DIM)
    x, y = lf.expmap0(v), lf.expmap0(v.flip(0))
    points, weights = lf.expmap0(0.1 * torch.randn(SETS, 32, DIM)), torch.rand(SETS, 8, 32)
    few, others = x[:PAIRS], y[:PAIRS]
    manifold = geoopt.Lorentz(k=1.0) if geoopt else None  # k = 1/c

    def pairwise(x: Tensor, y: Tensor) -> Tensor:
        return manifold.dist(x.unsqueeze(-2), y)

    print(f"{'ours over':31s} {'plain':>7s} {'geoopt':>8s} {'plain':>8s} {'geoopt':>8s}")
    print(f"{'operation':22s} {'precision':9s} {'forward':>15s} {'forward+backward':>17s}")
    tangent = torch.nn.functional.pad(v, (1, 0))
    report("expmap0", lf.expmap0, plain_expmap0, (v,), manifold and manifold.expmap0, tangent)
    report("logmap0", lf.logmap0, plain_logmap0, (x,), manifold and manifold.logmap0, x)
    report("dist", lf.dist, plain_dist, (x, y), manifold and manifold.dist, x, y)
    report("pairwise_dist", lf.pairwise_dist, plain_pairwise, (few, others), pairwise, few, others)
    exact = partial(lf.pairwise_dist, exact=True)
    report("pairwise_dist, exact", exact, plain_pairwise, (few, others), pairwise, few, others)
    report("centroid", lf.centroid, plain_centroid, (points, weights))
    print_import()


def print_import() -> None:
    """How much longer than `import torch` alone the import takes, and which packages it adds."""
    script = (
        "import sys, time; start = time.perf_counter(); import torch; before = set(sys.modules); "
        "middle = time.perf_counter(); import lorentz; end = time.perf_counter(); "
        "new = sorted({name.split('.')[0] for name in set(sys.modules) - before}); "
        "print((end - middle) / (middle - start), *new)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    share, *names = min((run.stdout.split() for run in runs), key=lambda words: float(words[0]))
    print(f"import lorentz: {float(share):.1%} of the time of import torch, on top of it; it adds {', '.join(names)}")


if __name__ == "__main__":
    main()
