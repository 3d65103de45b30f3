"""Every question about speed that needs a GPU, in about ten minutes; each answer is written when it is there.

    python benchmarks/gpu.py --out results.jsonl                       # TVR size, or what of it fits the card
    python benchmarks/gpu.py --out results.jsonl --only epoch --dtype float16
    python benchmarks/gpu.py --out results.jsonl --device cpu --small  # the same at toy size, to see that it works

equal       losses and gradients of a step on the device against those on the CPU: padded rows computed, dropped, and of
            fixed lengths, for each precision; float32 says whether they are equal but for rounding
epoch       seconds of an epoch and of a step (the real loop: features on the device, losses, optimiser), peak memory,
            for the same, fixed lengths also as CUDA graphs; beside it the seconds that the host needs to queue a step
            and those that the device computes: the larger one binds
rates       operations and bytes per second of a matrix product and a copy, by precision
operators   the five that take longest in a step, with their arithmetic and bytes against the measured rates
evaluation  10,895 queries against 2,179 videos: reading and encoding, ranking, and both
streamed    an epoch whose features are read from files, two batches ahead; the system has them in memory
chunks      a step and its memory with a batch that is encoded in parts
authors     a step of other code and one of ours on the same batches, in turn, counted alike: `--authors FILE`, a Python
            file with `make(config, device)` that returns `step(batch)`

The noise that stands for features takes at most half of the memory that is free: of fewer videos where all do not fit,
from files where not even two batches do. The first line says which. Every other line is one configuration: its
`result`, or why there is none: `refused` by the preset or the device, the `error` with its traceback, or `left_out`
because `--seconds` are over; `at` is when, in seconds. Times are of the host, after waiting for the device.
"""

import argparse
import gc
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from _device import Traffic, longest, rates
from _equal import largest_gap, terms_and_gradients
from _harness import environment, option, parse_options, peak, seconds, synchronise
from _noise_store import noise_store
from prvr.config import Config, ModelConfig, load_config
from prvr.data import PackedSplit, VideoLoader
from prvr.data.loader import BatchInfo
from prvr.data.on_device import matrix_products
from prvr.errors import PrvrError
from prvr.evaluation import EvaluationConfig, encode_split, evaluate
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training import RetrievalTask
from prvr.training.processes import make_accelerator
from prvr.training.task import TrainingStep
from prvr.types import Batch

TINY = {"hidden": 32, "video_dim": 64, "query_dim": 48, "num_clips": 8, "max_frames": 16, "lorentz_dim": 31}
PRECISIONS, ROWS = ("no", "tf32", "bf16"), ("compute", "drop", "fixed")
WITHOUT_DROPOUT = {"model.dropout": 0.0, "model.input_dropout": 0.0}
EQUAL = 1e-4
"""The largest gap of a loss or a gradient, of the largest one, that rounding of float32 explains."""


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    videos: int = 17_435
    captions: int = 5
    batch: int = 128
    frames: float = 60.0
    steps: int = 40
    warm: int = 5
    gallery: int = 2_179
    compared: int = 8
    streamed: int = 2_560


SMALL = Size(videos=24, captions=2, batch=8, frames=12.0, steps=2, warm=1, gallery=20, compared=3, streamed=16)
Work = Callable[[], Any]
Configurations = Iterator[tuple[Mapping[str, Any], Work]]


def model_of(config: Config) -> ModelConfig:
    """Its model, which no preset of DiffusionRet has: those are compared by other scripts."""
    assert isinstance(config.model, ModelConfig)
    return config.model


class Bench:
    """What the questions share.

    Args:
        args: the options.
        folder: for the files of the noise.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.device = args, folder, torch.device(args.device)
        self.size = SMALL if args.small else Size()
        if args.steps is not None:
            self.size = replace(self.size, steps=args.steps)

    def config(self, rows: str = "compute", **changes: Any) -> Config:
        """The preset with padded rows as `model.padded_rows` says.

        Raises:
            ConfigError: the preset refuses that.
        """
        sizes = {f"model.{key}": value for key, value in TINY.items()} if self.args.small else {}
        fixed = {"train.batch_size": self.size.batch, "train.hard_negatives_from": 0, "model.padded_rows": rows}
        return load_config(self.args.preset, sizes | fixed | changes, shared=True)

    def store(self, name: str, videos: int, narrow: bool) -> PackedSplit:
        """A split of noise on disk; `narrow`: of one feature a row, for its lengths and numbers alone."""
        model = model_of(self.config())
        model = replace(model, video_dim=1, query_dim=1) if narrow else model
        size, dtype = self.size, self.args.dtype
        return noise_store(
            self.folder / name, model, videos=videos, captions=size.captions, frames=size.frames, dtype=dtype
        )

    @cached_property
    def noise(self) -> dict[str, Any]:
        """How many videos of noise are kept on the device, 0 where they are streamed, and what that follows from."""
        model, size, args = model_of(self.config()), self.size, self.args
        rows = (model.num_clips + size.frames) * model.video_dim
        rows += size.captions * (5 + model.max_words) / 2 * model.query_dim
        each = int(rows * np.dtype(args.dtype).itemsize)
        free = args.memory
        if free is None and self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        kept = videos_kept(size.videos, size.batch, each, free)
        return {"videos_on_device": kept, "of": size.videos, "bytes_of_a_video": each, "free_bytes": free}

    @cached_property
    def loader(self) -> VideoLoader:
        """Training batches of noise that is made on the device, once for all configurations, or streamed."""
        if not (videos := self.noise["videos_on_device"]):
            return self.streamed
        model = model_of(self.config())
        store = self.store("train", videos, narrow=True)
        loader = VideoLoader(store, self.size.batch, drop_last=True).to(self.device, resident=True)
        for runs, width in zip(loader.resident or (), (model.video_dim, model.video_dim, model.query_dim), strict=True):
            runs.rows = runs.rows.new_empty(len(runs.rows), width).normal_(std=width**-0.5)
        return loader

    @cached_property
    def streamed(self) -> VideoLoader:
        """Training batches that are read from files."""
        store = self.store("streamed", self.size.streamed, narrow=False)
        return VideoLoader(store, self.size.batch, drop_last=True).to(self.device)


def videos_kept(videos: int, batch: int, each: int, free: int | None) -> int:
    """How many videos of `each` bytes half of the `free` memory holds (None = all); 0 for fewer than two batches."""
    fit = videos if free is None else min(videos, free // 2 // each)
    return fit if fit >= min(videos, 2 * batch) else 0


class Training:
    """The loop of `prvr.training` without its log and checkpoints.

    Args:
        bench: batches and device.
        config: with `train.precision` and `train.cuda_graph`.
        stack: closed when this is not needed any more; it puts torch's settings back.
        streamed: whether the batches are read from files.
    """

    def __init__(self, bench: Bench, config: Config, stack: ExitStack, streamed: bool = False) -> None:
        self.device, self.loader = bench.device, bench.streamed if streamed else bench.loader
        precision = config.train.precision
        accelerator = stack.enter_context(make_accelerator(precision, bench.folder, bench.args.device, ()))
        stack.enter_context(matrix_products(precision))
        torch.manual_seed(0)
        retriever = Retriever(model_of(config)).train()
        objective = Objective(config.loss, config.model, retriever.registers).train()
        self.task = RetrievalTask(config, accelerator, retriever, objective, self.loader, self.loader.packed)
        self.step = TrainingStep(config, self.task, *self.task.optimizer(100_000), accelerator.device)
        self.generator = torch.Generator(self.device)
        self.batches = self._endless()
        self.done = 0

    def _endless(self) -> Iterator[tuple[Batch, BatchInfo | None]]:
        for epoch in itertools.count():
            yield from (batch for batch, _ in self.task.batches(epoch, 0))

    def take(self, batch: tuple[Batch, BatchInfo | None]) -> Any:
        """One step, without waiting for its numbers."""
        self.done += 1
        return self.step(batch, "", 0, self.done, self.generator)

    def steps(self, count: int) -> None:
        """Takes steps; as in training, the numbers of one are read when the next one is queued."""
        waiting = None
        for _ in range(count):
            numbers = self.take(next(self.batches))
            if waiting is not None:
                waiting.values  # noqa: B018  # waits for these numbers alone
            waiting = numbers

    def host_and_device(self, count: int) -> dict[str, float | None]:
        """Seconds that the host needs for a step when the device is idle, its median, and that a GPU computes."""
        times = []
        for _ in range(count):
            synchronise(self.device)
            start = time.perf_counter()
            self.take(next(self.batches))
            times.append(time.perf_counter() - start)
        computes = None
        if self.device.type == "cuda":
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                self.steps(1)
                synchronise(self.device)
            kernels = [e for e in profiled.key_averages() if e.device_type == DeviceType.CUDA]
            computes = sum(e.self_device_time_total for e in kernels if not e.is_user_annotation) * 1e-6
        return {"host_seconds": statistics.median(times), "device_seconds": computes}


def ways(bench: Bench) -> Iterator[dict[str, Any]]:
    """The ways of taking a step."""
    for rows, precision in itertools.product(bench.args.rows, bench.args.precisions):
        yield {"padded_rows": rows, "precision": precision}


def rates_of(bench: Bench) -> Configurations:
    for precision in bench.args.precisions:
        yield {"precision": precision}, partial(measured_rates, bench, precision)


def measured_rates(bench: Bench, precision: str) -> tuple[float, float]:
    with matrix_products(precision):
        return rates(bench.device, torch.bfloat16 if precision == "bf16" else torch.float32)


def equal(bench: Bench) -> Configurations:
    """Each way of taking a step against the same on the CPU: one batch, no dropout, all draws on the CPU."""

    @cache
    def batch() -> Batch:
        return next(iter(VideoLoader(bench.store("compared", bench.size.compared, narrow=False), bench.size.compared)))

    @cache
    def plain(rows: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return terms_and_gradients(bench.config(rows, **WITHOUT_DROPOUT), batch(), torch.device("cpu"))

    def gaps(padded_rows: str, precision: str) -> dict[str, Any]:
        config = bench.config(padded_rows, **WITHOUT_DROPOUT, **{"train.precision": precision})
        ours = terms_and_gradients(config, batch(), bench.device)
        pairs = zip(("losses", "gradients"), map(largest_gap, ours, plain(padded_rows)), strict=True)
        return (result := dict(pairs)) | ({"equal": max(result.values()) <= EQUAL} if precision == "no" else {})

    for chosen in ways(bench):
        yield chosen, partial(gaps, **chosen)


def epochs(bench: Bench) -> Configurations:
    for chosen in ways(bench):
        for graph in ("off", "auto") if chosen["padded_rows"] == "fixed" else ("off",):
            yield {**chosen, "cuda_graph": graph}, partial(epoch, bench, **chosen, **{"train.cuda_graph": graph})


def epoch(bench: Bench, padded_rows: str, precision: str, streamed: bool = False, **keys: Any) -> dict[str, Any]:
    with ExitStack() as stack:
        changes = {"train.precision": precision, **keys}
        training = Training(bench, bench.config(padded_rows, **changes), stack, streamed)
        _, first = seconds(partial(training.steps, bench.size.warm), bench.device)
        timed = partial(seconds, partial(training.steps, bench.size.steps), bench.device)
        (_, spent), most = peak(timed, bench.device)
        step = spent / bench.size.steps
        return {
            "step_seconds": step,
            "epoch_seconds": step * (bench.size.videos // bench.size.batch),
            **training.host_and_device(min(bench.size.steps, 5)),
            "first_steps_seconds": first,
            "peak_bytes": most,
        }


def streamed(bench: Bench) -> Configurations:
    for precision in bench.args.precisions:
        yield {"precision": precision}, partial(epoch, bench, "compute", precision, streamed=True)


def chunks(bench: Bench) -> Configurations:
    for videos in (bench.size.batch // 4, bench.size.batch // 8):
        yield {"chunk_videos": videos}, partial(epoch, bench, "compute", "no", **{"train.chunk_videos": videos})


def operators(bench: Bench) -> Configurations:
    for precision in bench.args.precisions:
        yield {"precision": precision}, partial(longest_operators, bench, precision)


def longest_operators(bench: Bench, precision: str) -> dict[str, Any]:
    gpu = bench.device.type == "cuda"
    with ExitStack() as stack:
        training = Training(bench, bench.config(**{"train.precision": precision}), stack)
        training.steps(bench.size.warm)
        with Traffic() as traffic:
            training.steps(1)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        with profile(activities=kinds, record_shapes=True) as profiled:
            training.steps(1)
    rows = longest(traffic, profiled, gpu, measured_rates(bench, precision))
    return {"longest": rows, **vars(traffic.total())}


def evaluation(bench: Bench) -> Configurations:
    def whole() -> dict[str, Any]:
        config, device = bench.config(), bench.device
        torch.manual_seed(0)
        retriever = Retriever(model_of(config)).to(device).eval()
        split = bench.store("gallery", bench.size.gallery, narrow=False)
        figures: dict[str, Any] = {"queries": len(split.query_ids), "videos": len(split)}
        for name in ("first", "again"):
            encoded, reading = seconds(partial(encode_split, retriever, split, device=device), device)
            settings = EvaluationConfig(bootstrap=0, lists=False)
            ranking = partial(evaluate, retriever, split, settings, encoded=encoded, device=device)
            figures[name] = {"read_and_encode_seconds": reading, "rank_seconds": seconds(ranking, device)[1]}
        return figures

    yield {}, whole


def authors(bench: Bench) -> Configurations:
    if bench.args.authors is None:
        return
    for precision in ("no", "tf32"):
        yield {"precision": precision}, partial(beside_authors, bench, precision)


def beside_authors(bench: Bench, precision: str) -> dict[str, Any]:
    """Both on the same batches, in turn; operators and bytes of both by the same ledger."""
    spec = importlib.util.spec_from_file_location("authors_step", bench.args.authors)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with ExitStack() as stack:
        config = bench.config(**{"train.precision": precision})
        training = Training(bench, config, stack)
        theirs = module.make(config, bench.device)
        sides: dict[str, Callable[[Any], Any]] = {"ours": training.take, "theirs": lambda batch: theirs(batch[0])}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for batch in itertools.islice(training.batches, bench.size.warm + bench.size.steps):
            for name, take in sides.items():
                times[name].append(seconds(partial(take, batch), bench.device)[1])
        figures = {}
        batch = next(training.batches)
        for name, take in sides.items():
            with Traffic() as traffic:
                take(batch)
            median = statistics.median(times[name][bench.size.warm :])
            figures[name] = {"step_seconds": median, **vars(traffic.total())}
        return figures


QUESTIONS: dict[str, Callable[[Bench], Configurations]] = {
    "equal": equal,
    "epoch": epochs,
    "rates": rates_of,
    "operators": operators,
    "evaluation": evaluation,
    "streamed": streamed,
    "chunks": chunks,
    "authors": authors,
}


def answer(work: Work, late: bool) -> dict[str, Any]:
    """The result of a configuration, or why there is none; the device is then free of it."""
    if late:
        return {"left_out": "--seconds are over"}
    try:
        return {"result": work()}
    except PrvrError as refused:
        return {"refused": str(refused)}
    except Exception:  # one that fails must not take the others along
        return {"error": traceback.format_exc()}
    finally:
        gc.collect()  # a model is part of a cycle: it would stay in memory beside the next one
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    args = parse_options(
        __doc__,
        words,
        out=option(None, "file that a line is added to for each configuration; they are printed as well", type=Path),
        device="cuda" if torch.cuda.is_available() else "cpu",
        preset="dreamprvr-tvr",
        only=option(list(QUESTIONS), "questions to answer", choices=list(QUESTIONS)),
        precisions=option(list(PRECISIONS), choices=PRECISIONS),
        dtype=option("float32", "type of the stored features", choices=["float32", "float16"]),
        steps=option(None, "steps timed per configuration", type=int),
        rows=option([*ROWS], "values of model.padded_rows", choices=ROWS),
        memory=option(None, "bytes of the device that count as free; default: what is", type=int),
        seconds=option(600.0, "nothing is begun after so many"),
        authors=option(None, "a Python file with make(config, device)", type=Path),
        small=option(False, "toy sizes; without a GPU always"),
    )
    args.small |= args.device == "cpu"
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    began, failed = time.monotonic(), False
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(args, Path(folder))
        gc.freeze()  # what is imported is not searched after every configuration
        stack.callback(gc.unfreeze)
        out = None if args.out is None else stack.enter_context(args.out.open("a", encoding="utf-8", newline="\n"))

        def write(line: Mapping[str, Any]) -> None:
            text = json.dumps({**line, "at": round(time.monotonic() - began, 1)})
            for file in (sys.stdout, out) if out else (sys.stdout,):
                print(text, file=file, flush=True)

        head = {"environment": environment(args.device), "preset": args.preset, "size": vars(bench.size)}
        write({**head, "noise": bench.noise})
        for question in args.only:
            for configuration, work in QUESTIONS[question](bench):
                outcome = answer(work, late=time.monotonic() - began > args.seconds)
                failed |= "error" in outcome
                write({"question": question, **configuration, **outcome})
    sys.exit(failed)


if __name__ == "__main__":
    main()
