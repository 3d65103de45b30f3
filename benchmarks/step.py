"""One training step: exact and fast against a plain reference in the same run, and what bounds it.

    python benchmarks/step.py                                          # DreamPRVR on TVR sizes, 32 videos x 5 captions
    python benchmarks/step.py --preset hlformer-tvr --rounds 3         # presets without registers have no reference
    python benchmarks/step.py --device cuda --batch 128 --precision bf16 --compile

The videos are noise in the public layout, about 60 frames each: ours reads them packed, the reference (`_plain_model`,
`_plain_training`) item by item from HDF5. Each has a process of its own, and they take turns, step by step; a ratio is
the median over rounds with the lowest and the highest. "fast" is `model.padded_rows=drop`. Arithmetic is what torch's
flop counter sees (matrix products and attention, two operations per multiply-add), bytes are what each operator reads
and writes. Both are compared with the rates of a matrix product and a copy measured here. Prints milliseconds on a
GPU, on a CPU ratios only.
"""

import argparse
import itertools
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from _device import Traffic, kept_for_backward, rates
from _harness import (
    Contender,
    Tasks,
    compare,
    environment,
    memory,
    option,
    parse_options,
    returned,
    seconds,
    show,
    write_figures,
)
from _plain_model import PlainRetriever
from _plain_training import PlainBertAdam, all_terms
from loader import batches_from_hdf5, noise_corpus
from prvr.config import Config, load_config
from prvr.data import Corpus, PackedSplit, PackSettings, make_loader, open_corpus, pack
from prvr.models import Retriever, project_bounds
from prvr.objective import Objective
from prvr.training import build_optimizer
from prvr.training.processes import kept_memory
from prvr.training.retrieval import compile_blocks
from prvr.types import Batch

PARTS = ("data", "forward", "losses", "backward", "optimiser")
STEPS = 20_000
PROCESS = ExitStack()  # each contender has one of its own


class Step(ABC):
    """A way of taking a training step, part by part.

    Args:
        model: what encodes a batch.
        batches: without an end.
        args: the options of this benchmark.
    """

    optimizer: Any

    def __init__(self, model: nn.Module, batches: Iterator[Batch], args: argparse.Namespace) -> None:
        self.device, self.batches = torch.device(args.device), batches
        self.model = model.to(self.device).train()
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=args.precision == "bf16")

    def data(self) -> Batch:
        return next(self.batches).to(self.device)

    def forward(self, batch: Batch) -> Any:
        self.optimizer.zero_grad()
        with self.autocast:
            return self.model(batch)

    @abstractmethod
    def losses(self, output: Any, batch: Batch) -> torch.Tensor: ...

    @abstractmethod
    def optimise(self) -> None: ...


class Ours(Step):
    """A training step as `prvr.training` runs it."""

    def __init__(self, config: Config, packed: PackedSplit, batch: int, args: argparse.Namespace) -> None:
        self.config, retriever = config, Retriever(config.model)
        super().__init__(retriever, packed_batches(packed, batch), args)
        self.objective = Objective(config.loss, config.model, retriever.registers).to(self.device).train()
        self.optimizer, self.scheduler = build_optimizer(config, retriever, self.objective, STEPS)
        if args.compile:
            compile_blocks(retriever)

    def losses(self, output: Any, batch: Batch) -> torch.Tensor:
        return self.objective(output, batch, negatives="hard")["total"]

    def optimise(self) -> None:
        if self.scheduler is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.config.optim.max_grad_norm)
            self.scheduler.step()
        self.optimizer.step()
        project_bounds(self.model, self.objective)


class Plain(Step):
    """The same step written down from the equations."""

    def __init__(self, config: Config, corpus: Corpus, batch: int, args: argparse.Namespace) -> None:
        self.config, passes = config, (batches_from_hdf5(corpus, batch) for _ in itertools.count())
        super().__init__(PlainRetriever(config.model), itertools.chain.from_iterable(passes), args)
        self.optimizer = PlainBertAdam(self.model, config, STEPS)

    def losses(self, output: Any, batch: Batch) -> torch.Tensor:
        return all_terms(output, batch.query_to_video.tolist(), self.config.loss)

    def optimise(self) -> None:
        self.optimizer.step()


def packed_batches(packed: PackedSplit, batch: int) -> Iterator[Batch]:
    loader = make_loader(packed, batch, drop_last=True)
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield from loader


def one_step(way: Step) -> dict[str, float]:
    """Seconds of each part, and of all."""
    batch, data = seconds(way.data, way.device)
    output, forward = seconds(lambda: way.forward(batch), way.device)
    total, losses = seconds(lambda: way.losses(output, batch), way.device)
    _, backward = seconds(total.backward, way.device)
    _, optimiser = seconds(way.optimise, way.device)
    times = dict(zip(PARTS, (data, forward, losses, backward, optimiser), strict=True))
    return times | {"seconds": sum(times.values())}


def work(way: Step) -> dict[str, float]:
    """FLOP, bytes, operators and kept activations of one step; the optimiser's bytes are part of it."""
    batch = way.data()
    traffic = Traffic()
    with traffic:
        with kept_for_backward() as kept:
            output = way.forward(batch)
            forward = traffic.total().flop
            total = way.losses(output, batch)
        total.backward()
        way.optimise()
    done = traffic.total()
    return {
        "forward_flop": forward,
        "flop": done.flop,
        "bytes": done.bytes,
        "operators": done.calls,
        "kept": sum(kept),
    }


def tasks(way: str, folder: str, args: argparse.Namespace) -> Tasks:
    """A step, and its work counted after all steps."""
    PROCESS.enter_context(kept_memory(way != "reference"))  # as the trainer does
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    config = load_config(args.preset, {"model.padded_rows": "drop" if way == "fast" else "compute"})
    corpus = open_corpus(folder, "noise")
    if way == "reference":
        stepper: Step = Plain(config, corpus, args.batch, args)
    else:
        settings = PackSettings(config.model.num_clips, config.model.max_frames, config.model.max_words)
        packed = pack(corpus, "train", cache_dir=Path(folder) / f"cache-{way}", settings=settings)
        stepper = Ours(config, packed, args.batch, args)
    one_step(stepper)  # the first step allocates, and compiles
    peak = memory(stepper.device)

    def count() -> dict[str, float]:
        for module in stepper.model.modules() if args.compile else ():
            module._compiled_call_impl = None  # counting looks at every operator, which a compiled graph hides
        return work(stepper) | {"peak": peak}

    return {"step": lambda: one_step(stepper), "count": count}


def ways(config: Config) -> list[str]:
    """The contenders that a preset has."""
    plain = config.model.registers.kind == "diffusion" and not any(b.space == "lorentz" for b in config.model.blocks)
    fast = config.model.compat.padding != "to_batch"
    return [*(["reference"] if plain else []), "exact", *(["fast"] if fast else [])]


def main() -> None:
    args = parse_options(
        __doc__,
        preset="dreamprvr-tvr",
        batch=32,
        captions=5,
        frames=option(60.0, "frames of a video, on average"),
        rounds=3,
        device="cpu",
        precision=option("no", choices=["no", "tf32", "bf16"]),
        compile=option(False, "torch.compile the blocks"),
    )
    print(environment(args.device))
    config, device = load_config(args.preset), torch.device(args.device)
    names = ways(config)
    with tempfile.TemporaryDirectory() as folder:
        drawn = np.random.default_rng(args.seed).normal(args.frames, 25, args.batch).round()
        lengths = drawn.clip(8, config.model.max_frames).astype(int).tolist()
        dims = (config.model.video_dim, config.model.query_dim)
        noise_corpus(Path(folder), lengths, args.captions, (5, config.model.max_words), dims)
        sides = [Contender(way, tasks, (way, folder, args)) for way in names]
        found = compare(sides, rounds=args.rounds, measure=returned, threads=args.threads, last=("count",))
    flop_rate, byte_rate = rates(device, torch.bfloat16 if args.precision == "bf16" else torch.float32)
    rows = []
    for way in names:
        rounds, counted = found.measured["step"][way], found.measured["count"][way][0]
        whole = statistics.median(found.values("step", way))
        shares = {part: statistics.median(one[part] / one["seconds"] for one in rounds) for part in PARTS}
        over = {f"{other}_over_this": found.ratio("step", other, way) for other in names if other != "fast"}
        lines = {
            "roofline_flop": counted["flop"] / flop_rate / whole,
            "roofline_bytes": counted["bytes"] / byte_rate / whole,
        }
        rows.append({"name": way, "seconds": whole, "shares": shares, **counted, **over, **lines})
    print_steps(args, rows)
    write_figures(args, {"rates": (flop_rate, byte_rate), "steps": rows})


def print_steps(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    title = f"one training step: {args.preset}, {args.batch} videos x {args.captions} captions, {args.device}"
    lines: list[list[str]] = []

    def line(what: str, shown: Callable[[dict], str]) -> None:
        lines.append([what, *(shown(row) for row in rows)])

    if args.device.startswith("cuda"):
        line("milliseconds", lambda r: f"{r['seconds'] * 1e3:.1f}")
        line("peak memory, GiB", lambda r: f"{r['peak'] / 2**30:.2f}")
    for other in ("reference", "exact"):
        if f"{other}_over_this" in rows[0]:
            line(f"{other} / this, time", lambda r, key=f"{other}_over_this": str(r[key]))
    for part in PARTS:
        line(f"share of time: {part}", lambda r, part=part: f"{r['shares'][part]:.1%}")
    line("arithmetic, forward, GFLOP per video", lambda r: f"{r['forward_flop'] / args.batch / 1e9:.2f}")
    line("arithmetic, step, TFLOP", lambda r: f"{r['flop'] / 1e12:.3f}")
    line("bytes moved by operators, step, GB", lambda r: f"{r['bytes'] / 1e9:.1f}")
    line("operators that compute, step", lambda r: f"{r['operators']:,}")
    line("kept for the backward pass, GiB", lambda r: f"{r['kept'] / 2**30:.2f}")
    line("arithmetic at the rate of a matrix product / step", lambda r: f"{r['roofline_flop']:.0%}")
    line("bytes at the rate of a copy / step", lambda r: f"{r['roofline_bytes']:.0%}")
    title += f", precision {args.precision}{', compiled' if args.compile else ''}"
    show(title, ["what", *(row["name"] for row in rows)], lines)


if __name__ == "__main__":
    main()
