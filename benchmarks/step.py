"""One training step: where its time goes, as shares, and how much arithmetic it does.

    python benchmarks/step.py                                    # HLFormer on TVR sizes, 32 videos with 5 captions each
    python benchmarks/step.py --preset dreamprvr-tvr --batch 32 --repeats 3 --json step.json

The videos are noise in the public layout, packed and read by the training loader. Arithmetic is what torch's flop
counter sees (matrix products and attention, two operations per multiply-add; forward and backward). It grows as
a b + c b^2 with the batch b; a and c come from two small batches, and the batch that is timed is counted as a check.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from prvr.config import Config, load_config
from prvr.data import Caption, PackedSplit, PackSettings, make_loader, open_corpus, pack, write_layout
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training import build_optimizer
from prvr.types import Batch

PARTS = ("data", "forward", "losses", "backward", "optimiser")


def packed_noise(folder: Path, config: Config, videos: int, captions: int, seed: int) -> PackedSplit:
    """A training split of random features: every video is longer than the model's frames, captions have 5-30 words."""
    rng = np.random.default_rng(seed)
    model = config.model
    names = [f"video{i:04d}" for i in range(videos)]
    texts = [Caption(f"{name}#enc#{k}", name, "noise") for name in names for k in range(captions)]

    def rows(low: int, high: int, width: int) -> np.ndarray:
        return rng.standard_normal((int(rng.integers(low, high + 1)), width), np.float32)

    write_layout(
        folder,
        "noise",
        captions={"train": texts},
        videos=((name, rows(model.max_frames, 2 * model.max_frames, model.video_dim)) for name in names),
        queries=((caption.id, rows(5, model.max_words, model.query_dim)) for caption in texts),
    )
    settings = PackSettings(model.num_clips, model.max_frames, model.max_words)
    return pack(open_corpus(folder, "noise"), "train", cache_dir=folder / "cache", settings=settings)


class Step:
    """The parts of a training step, as `prvr.training` runs them."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        self.retriever = Retriever(config.model).to(device).train()
        self.objective = Objective(config.loss, config.model).to(device).train()
        self.optimizer, self.scheduler = build_optimizer(config, self.retriever, self.objective, 1000)
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds[part] += time.perf_counter() - start
        return result

    def optimise(self) -> None:
        if self.scheduler is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.config.optim.max_grad_norm)
            self.scheduler.step()
        self.optimizer.step()
        self.retriever.project_bounds()
        self.objective.project_bounds()

    def run(self, batches: Iterator[Batch]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.timed("data", lambda: next(batches).to(self.device))
        output = self.timed("forward", lambda: self.retriever(batch))
        terms = self.timed("losses", lambda: self.objective(output, batch, negatives="hard"))
        self.timed("backward", terms["total"].backward)
        self.timed("optimiser", self.optimise)

    def flops(self, batch: Batch) -> tuple[int, int]:
        """Of the forward pass and of the whole step, losses included."""
        with FlopCounterMode(display=False) as forward:
            output = self.retriever(batch)
        with FlopCounterMode(display=False) as rest:
            self.objective(output, batch, negatives="hard")["total"].backward()
        return forward.get_total_flops(), forward.get_total_flops() + rest.get_total_flops()


def scaled(small: tuple[int, float], large: tuple[int, float], batch: int) -> float:
    """a b + c b^2 through two counts."""
    (b1, f1), (b2, f2) = small, large
    c = (f2 / b2 - f1 / b1) / (b2 - b1)
    return (f1 / b1 - c * b1) * batch + c * batch**2


def endless(packed: PackedSplit, batch: int) -> Iterator[Batch]:
    loader, epoch = make_loader(packed, batch, drop_last=True), 0
    while True:
        loader.set_epoch(epoch)
        yield from loader
        epoch += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="hlformer-tvr")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scale-to", type=int, default=128, help="batch for which arithmetic is also given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = load_config(args.preset)
    device = torch.device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        packed = packed_noise(Path(folder), config, args.batch, args.captions, args.seed)
        step = Step(config, device)
        sizes = (max(args.batch // 8, 2), max(args.batch // 4, 4))
        counts = {b: step.flops(next(endless(packed, b)).to(device)) for b in (*sizes, args.batch)}
        batches = endless(packed, args.batch)
        step.run(batches)  # the first step allocates
        step.seconds = dict.fromkeys(PARTS, 0.0)
        for _ in range(args.repeats):
            step.run(batches)
        packed.close()
    total = sum(step.seconds.values())
    whole = [(b, counts[b][1]) for b in sizes]
    result = {
        "preset": args.preset,
        "device": str(device),
        "batch": args.batch,
        "captions_per_video": args.captions,
        "parameters": sum(p.numel() for p in step.retriever.parameters()),
        "shares": {part: seconds / total for part, seconds in step.seconds.items()},
        "forward_gflop_per_video": counts[args.batch][0] / args.batch / 1e9,
        "step_tflop": counts[args.batch][1] / 1e12,
        "step_tflop_by_formula": scaled(*whole, args.batch) / 1e12,
        f"step_tflop_at_{args.scale_to}": scaled(*whole, args.scale_to) / 1e12,
    }
    table = Table(title=f"one training step: {args.preset}, {args.batch} videos x {args.captions} captions, {device}")
    table.add_column("what")
    table.add_column("value", justify="right")
    for part, share in result["shares"].items():
        table.add_row(f"share of time: {part}", f"{share:.1%}")
    table.add_row("parameters of the retriever, million", f"{result['parameters'] / 1e6:.2f}")
    table.add_row("forward, GFLOP per video", f"{result['forward_gflop_per_video']:.2f}")
    table.add_row(f"step of {args.batch}, TFLOP (counted)", f"{result['step_tflop']:.3f}")
    table.add_row(f"step of {args.batch}, TFLOP (a b + c b^2)", f"{result['step_tflop_by_formula']:.3f}")
    table.add_row(f"step of {args.scale_to}, TFLOP (a b + c b^2)", f"{result[f'step_tflop_at_{args.scale_to}']:.3f}")
    Console().print(table)
    text = json.dumps(result, indent=2) + "\n"
    Console().print_json(text)
    if args.json is not None:
        args.json.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
