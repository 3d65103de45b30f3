"""Memory and time of a training step in chunks, against the same batch at once: `python benchmarks/chunks.py`.

    python benchmarks/chunks.py                                        # 32 videos at paper size, whole and in chunks
    python benchmarks/chunks.py --batch 128 --chunks 16                # needs about 15 GB where it runs at once
    python benchmarks/chunks.py --batch 128 --chunks 16 --no-whole     # only the chunks

Each size runs in a process of its own: one forward and backward pass of a preset on noise, 5 captions per video. Memory
is the peak of the process above what it held before the step (on a GPU, the peak of what was allocated). Gradients
must agree with those of the whole batch, dropout off.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from prvr.config import load_config
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training.gradients import backward_in_parts
from prvr.types import Batch


def noise(videos: int, video_dim: int, query_dim: int) -> Batch:
    torch.manual_seed(0)
    frames = torch.randint(30, 129, (videos,))
    words = torch.randint(5, 31, (5 * videos,))
    return Batch(
        clips=torch.randn(videos, 32, video_dim),
        frames=torch.randn(videos, 128, video_dim),
        frame_mask=torch.arange(128) < frames[:, None],
        words=torch.randn(5 * videos, 30, query_dim),
        word_mask=torch.arange(30) < words[:, None],
        query_to_video=torch.arange(videos).repeat_interleave(5),
    )


def one(preset: str, batch: int, chunk: int, device: str, out: Path, small: bool) -> None:
    """The step of this process: prints a JSON line, leaves a sample of the gradient in `out`."""
    torch.set_num_threads(1)
    tiny = {"model.hidden": 32, "model.video_dim": 64, "model.query_dim": 48, "model.lorentz_dim": 31} if small else {}
    config = load_config(preset, {"model.dropout": 0.0, "model.input_dropout": 0.0, **tiny})
    torch.manual_seed(1)
    retriever = Retriever(config.model).to(device).train()
    objective = Objective(config.loss, config.model).to(device).train()
    data = noise(batch, config.model.video_dim, config.model.query_dim).to(device)
    cuda = torch.device(device).type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.process_time()
    chunks = data.split(chunk)
    generator = torch.Generator(device).manual_seed(2)
    seeds = list(range(len(chunks)))
    terms = backward_in_parts(retriever, objective, chunks, data.labels, generator=generator, seeds=seeds)
    loss = terms["total"].item()
    seconds = time.process_time() - start
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.save({name: p.grad.cpu() for name, p in retriever.named_parameters() if p.grad is not None}, out)
    print(json.dumps({"chunk": chunk, "bytes": peak - before, "seconds": seconds, "loss": loss}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="dreamprvr-tvr")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 8])
    parser.add_argument("--no-whole", action="store_true", help="leave out the whole batch, where memory is short")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a narrow model")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        one(args.preset, args.batch, args.one, args.device, args.out, args.small)
        return
    sizes = [*([] if args.no_whole else [args.batch]), *args.chunks]
    first, wanted = None, None
    print(f"{args.preset}, {args.batch} videos with 5 captions each, {args.device}")
    print("chunk   memory, GB   of the first   time, of the first   loss       largest gap of a gradient to the first")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            out = Path(folder) / f"{size}.pt"
            command = [sys.executable, __file__, "--preset", args.preset, "--batch", str(args.batch)]
            command += ["--device", args.device, "--one", str(size), "--out", str(out)]
            command += ["--small"] if args.small else []
            row = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            gradients = torch.load(out, weights_only=True)
            first, wanted = first or row, wanted or gradients
            gap = max(float((gradients[n] - g).abs().max() / g.abs().max().clamp_min(1e-12)) for n, g in wanted.items())
            memory, cost = row["bytes"] / first["bytes"], row["seconds"] / first["seconds"]
            print(
                f"{size:5d} {row['bytes'] / 1e9:12.2f} {memory:14.2f} {cost:20.2f}   {row['loss']:.6f}   {gap:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
