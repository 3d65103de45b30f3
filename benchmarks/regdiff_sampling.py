"""What `ConditionalDiffusion.sample` costs beside its denoiser, and `import regdiff` beside torch, on one thread.

    python benchmarks/regdiff_sampling.py
    python benchmarks/regdiff_sampling.py --shape 32 4 64  # a chain of some milliseconds
    python benchmarks/regdiff_sampling.py --rounds 40 --only ddim --shape 128 8 384

"bare" calls the same `RegisterDenoiser` (2 blocks) as often, each call on the result of the one before, and nothing
else. Medians of all rounds with the lowest and the highest.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from _harness import Contender, Tasks, compare, environment, option, parse_options, show, show_imports, write_figures
from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler
from regdiff.registers import RegisterDenoiser

#: name in the table -> (scheduler, options of ConditionalDiffusion, options of sample)
SAMPLERS = {name: (name, {}, {}) for name in SCHEDULERS if name not in ("ddim", "tcd")} | {
    "ddim, eta=0": ("ddim", {"eta": 0.0}, {}),
    "ddim, eta=1": ("ddim", {"eta": 1.0}, {}),
    "tcd, eta=0.3": ("tcd", {"eta": 0.3}, {}),
    "ddim, eta=1, checkpoint": ("ddim", {"eta": 1.0}, {"checkpoint": True}),
}
IMPORTS = {
    "regdiff": "import regdiff",
    "regdiff, and a scheduler made": "import regdiff; regdiff.make_scheduler('ddim', 10)",
}


def timesteps_of(name: str, steps: int) -> list[int]:
    """Where a sampler calls its denoiser: Heun's does so nearly twice as often."""
    scheduler, options, _ = SAMPLERS[name]
    diffusion = ConditionalDiffusion(torch.nn.Identity(), make_scheduler(scheduler, steps), **options)
    return [stage.timestep for stage in diffusion.stages()]


def sampling(name: str | None, shape: tuple[int, int, int], steps: int, calls: list[int]) -> Tasks:
    """A sampler, forward, and forward with backward; None: the bare calls of the denoiser at these timesteps."""
    denoiser = RegisterDenoiser(shape[2], steps)
    condition, initial = torch.randn(shape), torch.randn(shape, requires_grad=True)
    timesteps = [torch.full((shape[0],), t) for t in calls]

    def bare() -> Tensor:
        x = initial
        for t in timesteps:
            x = denoiser(x, t, condition)
        return x

    run: Callable[[], Tensor] = bare
    if name is not None:
        scheduler, options, call = SAMPLERS[name]
        diffusion = ConditionalDiffusion(denoiser, make_scheduler(scheduler, steps), **options)
        run = partial(diffusion.sample, initial, condition, **call)
    return {"forward": torch.no_grad()(run), "forward and backward": lambda: run().sum().backward()}


def main() -> None:
    options = parse_options(
        __doc__,
        shape=option([128, 8, 384], "batch, registers, width"),
        steps=10,
        rounds=5,
        only=option("", "samplers whose name contains this"),
        no_imports=False,
    )
    print(environment())
    shape, names = tuple(options.shape), [name for name in SAMPLERS if options.only in name]
    calls = {name: timesteps_of(name, options.steps) for name in names}
    bare = {len(timesteps): timesteps for timesteps in calls.values()}
    sides = [Contender(f"{count} bare", sampling, (None, shape, options.steps, bare[count])) for count in bare]
    sides += [Contender(name, sampling, (name, shape, options.steps, calls[name])) for name in names]
    comparison = compare(sides, rounds=options.rounds, threads=options.threads)
    rows = [
        [name, *(comparison.ratio(task, name, f"{len(calls[name])} bare") for task in comparison)] for name in names
    ]
    show(f"{options.steps} steps at {shape} over the bare denoiser calls", ["sampler", *comparison], rows)
    if not options.no_imports:
        show_imports(IMPORTS, options.rounds)
    write_figures(options, comparison.figures())


if __name__ == "__main__":
    main()
