"""What `ConditionalDiffusion.sample` costs beside its denoiser, and `import regdiff` beside torch, on one thread.

    python benchmarks/regdiff_sampling.py
    python benchmarks/regdiff_sampling.py --rounds 40 --only ddim --shape 128 8 384

"bare" calls the same `RegisterDenoiser` (2 blocks) as often, each call on the result of the one before, and nothing
else. They take turns, bare, sampler, bare, sampler, ..., and each round gives one ratio per sampler; the table has the
median of all rounds and their quartiles. The time is that of the processor, so that other programs disturb it less.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from regdiff import ConditionalDiffusion, RegisterDenoiser, make_scheduler

#: name in the table -> (scheduler, options of ConditionalDiffusion, options of sample)
SAMPLERS = {
    "ddim, eta=0": ("ddim", {"eta": 0.0}, {}),
    "ddim, eta=1": ("ddim", {"eta": 1.0}, {}),
    "ddpm": ("ddpm", {}, {}),
    "dpmsolver++": ("dpmsolver++", {}, {}),
    "sde-dpmsolver++": ("sde-dpmsolver++", {}, {}),
    "euler": ("euler", {}, {}),
    "lcm": ("lcm", {}, {}),
    "flow": ("flow", {}, {}),
    "ddim, eta=1, checkpoint": ("ddim", {"eta": 1.0}, {"checkpoint": True}),
}
IMPORTS = {
    "regdiff": "import regdiff",
    "regdiff, and a scheduler made": "import regdiff; regdiff.make_scheduler('ddim', 10)",
    "regdiff.pipeline": "import regdiff.pipeline",
}


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def ratios(
    bare: Callable[[], object], samplers: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Each sampler's time over that of the bare calls before it, once per round; the first round does not count."""
    found: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(rounds + 1):
        for name, sampler in samplers.items():
            first = seconds(bare)
            found[name] += [seconds(sampler) / first] * (turn > 0)
    return found


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:5.2f} ({low:.2f}-{high:.2f})"


def sampling(shape: tuple[int, int, int], steps: int, rounds: int, only: str) -> None:
    rows, _, dim = shape
    torch.manual_seed(0)
    denoiser = RegisterDenoiser(dim, steps)
    condition, initial = torch.randn(shape), torch.randn(shape, requires_grad=True)
    timesteps = [torch.full((rows,), t) for t in reversed(range(steps))]

    def bare() -> Tensor:
        x = initial
        for t in timesteps:
            x = denoiser(x, t, condition)
        return x

    def without_gradient(run: Callable[[], Tensor]) -> Callable[[], object]:
        return torch.no_grad()(run)

    def with_gradient(run: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: run().sum().backward()

    samplers = {}
    for name, (scheduler, options, call) in SAMPLERS.items():
        if only in name:
            diffusion = ConditionalDiffusion(denoiser, make_scheduler(scheduler, steps), **options)
            samplers[name] = partial(diffusion.sample, initial, condition, **call)
    forward = ratios(without_gradient(bare), {n: without_gradient(run) for n, run in samplers.items()}, rounds)
    both = ratios(with_gradient(bare), {n: with_gradient(run) for n, run in samplers.items()}, rounds)
    print(f"{steps} steps at {shape}, over the bare denoiser calls: median (quartiles) of {rounds} rounds")
    print(f"{'':26s}{'forward':>20s}{'forward and backward':>24s}")
    for name in samplers:
        print(f"{name:26s}{spread(forward[name]):>20s}{spread(both[name]):>24s}", flush=True)


def imports(rounds: int) -> None:
    """Each in a fresh process, between two that import torch alone."""
    print(f"\nprocessor time of an import over that of torch alone: median (quartiles) of {rounds} rounds")
    for name, statement in IMPORTS.items():
        found = []
        for _ in range(rounds):
            first, ours, last = import_time("import torch"), import_time(statement), import_time("import torch")
            found.append(2 * ours / (first + last))
        print(f"{name:32s}{spread(found)}", flush=True)


def import_time(statement: str) -> float:
    code = f"import time; start = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=(128, 8, 384), metavar=("B", "N", "D"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--no-imports", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sampling(tuple(arguments.shape), arguments.steps, arguments.rounds, arguments.only)
    if not arguments.no_imports:
        imports(arguments.rounds)
