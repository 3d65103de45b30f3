"""Every question about speed that needs a GPU, one after the other, each answer a JSON file.

    python benchmarks/gpu.py --out results                             # TVR size: writes 25 GB of noise, needs a GPU
    python benchmarks/gpu.py --out results --only epoch --dtype float16
    python benchmarks/gpu.py --out results --device cpu --small        # the same at toy size, to see that it works

rates       operations and bytes per second of a matrix product and a copy, by precision
epoch       seconds of an epoch and of a step (the real loop: features on the device, losses, optimiser), peak memory,
            eager and compiled, for each precision; exact, and with padded rows dropped
operators   the five that take longest in a step, with their arithmetic and bytes against the measured rates
evaluation  10,895 queries against 2,179 videos, after encoding
chunks      memory of a batch of 128 encoded in parts (benchmarks/chunks.py)
authors     a step of other code on the same batches: `--authors FILE`, a Python file with `make(config, device)` that
            returns `step(batch)`

Times are of the host, after waiting for the device.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.profiler import ProfilerActivity, profile

from _device import Traffic, name_and_shapes, rates
from _harness import option, parse_options, peak, seconds
from _noise_store import noise_store
from evaluation import encoded_noise, streamed
from prvr.config import Config, load_config
from prvr.data import PackedSplit, make_loader
from prvr.data.dataset import BatchInfo
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training import RetrievalTask, Splits
from prvr.training.data import training_batches
from prvr.training.retrieval import compile_blocks
from prvr.training.step import TrainingStep
from prvr.types import Batch

TINY = {"hidden": 32, "video_dim": 64, "query_dim": 48, "num_clips": 8, "max_frames": 16, "lorentz_dim": 31}
PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    videos: int = 17_435
    captions: int = 5
    batch: int = 128
    frames: float = 60.0
    steps: int = 136
    warm: int = 5
    queries: int = 10_895
    gallery: int = 2_179


SMALL = Size(videos=24, captions=2, batch=8, frames=12.0, steps=2, warm=1, queries=60, gallery=20)


class Training:
    """The loop of `prvr.training` without its log and checkpoints, in one precision."""

    def __init__(self, config: Config, packed: PackedSplit, args: argparse.Namespace, precision: str) -> None:
        self.device = torch.device(args.device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        AcceleratorState._reset_state(reset_partial_state=True)
        compiled, mixed = config.train.compile, "bf16" if precision == "bf16" else "no"
        config = replace(config, train=replace(config.train, precision=mixed))
        accelerator = Accelerator(cpu=self.device.type == "cpu", mixed_precision=mixed)
        torch.manual_seed(0)
        config = replace(config, train=replace(config.train, hard_negatives_from=0, compile=False))
        retriever = Retriever(config.model).train()
        objective = Objective(config.loss, config.model, retriever.registers).train()
        if compiled:
            compile_blocks(retriever, args.backend)
        loader = make_loader(packed, config.train.batch_size, drop_last=True)
        self.loader = training_batches(loader, self.device, config.train.data_on_device)
        splits = Splits(packed, packed, packed)
        self.task = RetrievalTask(config, accelerator, retriever, objective, splits, self.loader)
        self.step = TrainingStep(self.task, accelerator, *self.task.optimizer(100_000))
        self.generator = torch.Generator(self.device)
        self.batches = self._endless()
        self.done = 0

    def _endless(self) -> Iterator[tuple[Batch, BatchInfo | None]]:
        for epoch in itertools.count():
            yield from self.task.batches(epoch, 0)

    def steps(self, count: int) -> None:
        """Takes steps; as in training, the numbers of one are read when the next one is queued."""
        waiting = None
        for _ in range(count):
            numbers = self.step(next(self.batches), 0, self.done, self.generator)
            self.done += 1
            if waiting is not None:
                waiting.values  # noqa: B018  # waits for these numbers alone
            waiting = numbers


def epochs(packed: PackedSplit, size: Size, args: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for rows in ("compute", "drop"):
        for precision in args.precisions:
            for compiled in (False, True):
                config = load_config(args.preset, args.changes | run_changes(size, rows, compiled))
                training = Training(config, packed, args, precision)
                _, first = seconds(lambda t=training: t.steps(size.warm), training.device)
                timed = partial(seconds, partial(training.steps, size.steps), training.device)
                (_, spent), most = peak(timed, training.device)
                step = spent / size.steps
                found.append(
                    {
                        "padded_rows": rows,
                        "precision": precision,
                        "compiled": compiled,
                        "step_seconds": step,
                        "epoch_seconds": step * len(training.loader),
                        "first_steps_seconds": first,
                        "loader": type(training.loader).__name__,
                        "peak_bytes": most,
                    }
                )
                del training
                if args.device.startswith("cuda"):
                    torch.cuda.empty_cache()
    return found


def run_changes(size: Size, rows: str, compiled: bool) -> dict[str, Any]:
    where = {"train.data_on_device": "always"}
    return where | {"model.padded_rows": rows, "train.compile": compiled, "train.batch_size": size.batch}


def operators(packed: PackedSplit, size: Size, args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    gpu = args.device.startswith("cuda")
    for precision in args.precisions:
        training = Training(
            load_config(args.preset, args.changes | run_changes(size, "compute", False)), packed, args, precision
        )
        training.steps(size.warm)
        with Traffic() as traffic:
            training.steps(1)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        with profile(activities=kinds, record_shapes=True) as profiled:
            training.steps(1)
        events = [  # of what computes; views and calls that only call others are not in the ledger
            event
            for event in profiled.key_averages(group_by_input_shape=True)
            if name_and_shapes(event.key, event.input_shapes) in traffic.done
        ]
        spent = [(e.self_device_time_total if gpu else e.self_cpu_time_total) * 1e-6 for e in events]
        flop_rate, byte_rate = measured_rates(training.device, precision)
        order = sorted(range(len(events)), key=lambda i: -spent[i])[:5]
        rows = []
        for event, time in ((events[i], spent[i]) for i in order):
            done = traffic.done[name_and_shapes(event.key, event.input_shapes)]
            rows.append(
                {
                    "operator": event.key,
                    "shapes": event.input_shapes,
                    "calls": event.count,
                    "share_of_step": time / sum(spent),
                    "flop": done.flop,
                    "bytes": done.bytes,
                    "of_flop_rate": done.flop / time / flop_rate,
                    "of_byte_rate": done.bytes / time / byte_rate,
                }
            )
        found[precision] = {"longest": rows, "operators_that_compute": sum(event.count for event in events)}
    return found


def measured_rates(device: torch.device, precision: str) -> tuple[float, float]:
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    return rates(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def evaluation(size: Size, args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    text, video, owner = encoded_noise(size.queries, size.gallery, 384, 32, 128, device)
    times = []
    with torch.inference_mode():
        for _ in range(3):
            times.append(seconds(lambda: streamed(text, video, owner, 256, 64), device)[1])
    return {"queries": size.queries, "videos": size.gallery, "first_seconds": times[0], "seconds": min(times)}


def chunks(size: Size, args: argparse.Namespace) -> list[str]:
    small = ["--small"] if args.small else []
    command = [sys.executable, str(Path(__file__).with_name("chunks.py")), "--device", args.device, *small]
    command += ["--batch", str(size.batch), "--chunks", str(size.batch // 4), str(size.batch // 8)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def authors(packed: PackedSplit, size: Size, args: argparse.Namespace) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("authors_step", args.authors)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for precision in ("fp32", "tf32"):
        config = load_config(args.preset, args.changes | run_changes(size, "compute", False))
        ours = Training(config, packed, args, precision)
        step: Callable[[Batch], Any] = module.make(config, ours.device)
        times = []
        for _ in range(size.warm + 10):
            batch = next(ours.batches)
            times.append(seconds(lambda take=step, given=batch: take(given), ours.device)[1])
        found[precision] = {"step_seconds": statistics.median(times[size.warm :])}
    return found


def parse() -> argparse.Namespace:
    args = parse_options(
        __doc__,
        out=option(None, "folder of the answers; default: they are printed", type=Path),
        device="cuda" if torch.cuda.is_available() else "cpu",
        preset="dreamprvr-tvr",
        only=option([], "questions to answer; default: all"),
        precisions=option(list(PRECISIONS), choices=PRECISIONS),
        dtype=option("float32", "type of the stored features", choices=["float32", "float16"]),
        steps=option(None, "steps timed per configuration; default: an epoch", type=int),
        backend=option(None, "backend of torch.compile; default: inductor, with --small eager"),
        authors=option(None, "a Python file with make(config, device)", type=Path),
        scratch=option(None, "where the noise is written; default: a temporary folder", type=Path),
        small=option(False, "toy sizes; without a GPU always"),
    )
    args.small |= args.device == "cpu"
    args.backend = args.backend or ("eager" if args.small else "inductor")
    args.changes = {f"model.{key}": value for key, value in TINY.items()} if args.small else {}
    return args


def main() -> None:
    args = parse()
    size = SMALL if args.small else Size()
    if args.steps is not None:
        size = Size(**vars(size) | {"steps": args.steps})
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    model = load_config(args.preset, args.changes).model
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        questions: dict[str, Callable[[], Any]] = {
            "rates": lambda: {p: measured_rates(device, p) for p in args.precisions},
            "evaluation": lambda: evaluation(size, args),
            "chunks": lambda: chunks(size, args),
        }
        wanted = set(args.only or ("rates", "epoch", "operators", "evaluation", "chunks", "authors"))
        if wanted & {"epoch", "operators", "authors"}:
            sizes = {"videos": size.videos, "captions": size.captions, "frames": size.frames}
            packed = noise_store(Path(folder) / "noise", model, dtype=args.dtype, **sizes)
            questions["epoch"] = lambda: epochs(packed, size, args)
            questions["operators"] = lambda: operators(packed, size, args)
            if args.authors is not None:
                questions["authors"] = lambda: authors(packed, size, args)
        for question, answer in questions.items():
            if question in wanted:
                print(question, flush=True)
                text = json.dumps({"device": name, "size": vars(size), question: answer()}, indent=2)
                if args.out is None:
                    print(text)
                else:
                    (args.out / f"{question}.json").write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
