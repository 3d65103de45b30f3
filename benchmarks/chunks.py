"""Memory and time of a training step in chunks, against the same batch at once: `python benchmarks/chunks.py`.

    python benchmarks/chunks.py                                        # 32 videos at paper size, whole and in chunks
    python benchmarks/chunks.py --batch 128 --chunks 16                # needs about 15 GB where it runs at once
    python benchmarks/chunks.py --batch 128 --chunks 16 --no-whole     # only the chunks

Each size runs in a process of its own: one forward and backward pass of a preset on noise, 5 captions per video. Memory
is the peak of the process above what it held before the step (on a GPU, the peak of what was allocated). Gradients
must agree with those of the whole batch, dropout off; some, such as those of key biases, are nothing but rounding.
"""

from typing import Any

import torch

from _harness import alone, environment, memory, option, parse_options, seconds, show, write_figures
from against import SMALL, noise_batch
from prvr.config import load_config
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training.gradients import backward_in_parts


def step(preset: str, batch: int, chunk: int, device: str, small: bool) -> dict[str, Any]:
    """One step of a process that does nothing else, and its gradients."""
    config = load_config(
        preset, {"model.dropout": 0.0, "model.input_dropout": 0.0} | (SMALL if small else {}), shared=True
    )
    torch.manual_seed(1)
    retriever = Retriever(config.model).to(device).train()
    objective = Objective(config.loss, config.model, retriever.registers).to(device).train()
    data = noise_batch(config.model, batch, most=128).to(device)
    before = memory(device)
    parts = data.split(chunk)
    generator, seeds = torch.Generator(device).manual_seed(2), list(range(len(parts)))

    def backward() -> float:
        labels = data.labels
        terms = backward_in_parts(retriever, objective, parts, labels, generator=generator, seeds=seeds)
        return terms["total"].item()

    loss, spent = seconds(backward, device)
    gradients = {name: p.grad.cpu() for name, p in retriever.named_parameters() if p.grad is not None}
    return {"bytes": memory(device) - before, "seconds": spent, "loss": loss, "gradients": gradients}


def main() -> None:
    args = parse_options(
        __doc__,
        preset="dreamprvr-tvr",
        batch=32,
        chunks=[16, 8],
        no_whole=option(False, "leave out the whole batch, where memory is short"),
        device="cuda" if torch.cuda.is_available() else "cpu",
        small=option(False, "a narrow model"),
    )
    print(environment(args.device))
    sizes = [*([] if args.no_whole else [args.batch]), *args.chunks]
    found = {size: alone(step, args.preset, args.batch, size, args.device, args.small) for size in sizes}
    first, rows = found[sizes[0]], []
    largest = max(float(g.abs().max()) for g in first["gradients"].values())
    for size, row in found.items():
        pairs = [(row["gradients"][name], g) for name, g in first["gradients"].items()]
        gap = max(float((ours - g).abs().max()) for ours, g in pairs) / largest
        shares = (row["bytes"] / first["bytes"], row["seconds"] / first["seconds"])
        rows.append([str(size), f"{row['bytes'] / 1e9:.2f}", *shares, f"{row['loss']:.6f}", f"{gap:.1e}"])
    head = [
        "chunk",
        "memory, GB",
        "of the first",
        "time, of the first",
        "loss",
        "largest gap of gradients to the first, of the largest gradient",
    ]
    show(f"{args.preset}, {args.batch} videos with 5 captions each, {args.device}", head, rows)
    write_figures(args, {size: {k: v for k, v in row.items() if k != "gradients"} for size, row in found.items()})


if __name__ == "__main__":
    main()
