"""The time of an epoch on cards that are not here, predicted from counts: `python benchmarks/cards.py`.

    python benchmarks/cards.py                                         # DreamPRVR at TVR size, 128 videos a step
    python benchmarks/cards.py --presets gmmformer-tvr hybrid-tvr

A step is counted on the meta device (`_counts`). Two times bound it, and the longer one counts. The card's: for each
operator its arithmetic at 70 % of the rate of matrix products or its bytes at 80 % of the rate of the memory, whichever
takes longer. The host's: 10 microseconds for each operator that it starts. Evaluation and checkpoints are left out. It
is an estimate; `benchmarks/gpu.py` measures.
"""

import math
from dataclasses import dataclass

from _counts import count_step
from _device import Traffic
from _harness import option, parse_options, show, write_figures
from prvr.config import ConfigError, load_config

LAUNCH = 10e-6
"""Seconds of the host for each operator of a step, autograd and Python included."""
OF_FLOP, OF_BYTES = 0.7, 0.8
"""Shares of the rates on paper that large operators reach."""


@dataclass(frozen=True)
class Card:
    """Rates on paper, of products without sparsity.

    Args:
        bandwidth: bytes per second of the memory.
        fp32, tf32, bf16: FLOP per second of matrix products.
    """

    bandwidth: float
    fp32: float
    tf32: float
    bf16: float


CARDS = {
    "H200": Card(4.8e12, 67e12, 494e12, 989e12),
    "H100 (SXM)": Card(3.35e12, 67e12, 494e12, 989e12),
    "A100 (80 GB)": Card(2.04e12, 19.5e12, 156e12, 312e12),
    "L40S": Card(0.864e12, 91.6e12, 183e12, 362e12),
    "L4": Card(0.3e12, 30.3e12, 60e12, 121e12),
    "RTX 4090": Card(1.01e12, 82.6e12, 82.6e12, 165e12),
    "RTX 3090": Card(0.936e12, 35.6e12, 35.6e12, 71e12),
}


def device_seconds(traffic: Traffic, card: Card, precision: str) -> float:
    """Seconds of a step on the card alone; with "bf16" at most so many, as bytes are counted in float32."""
    flop, bandwidth = OF_FLOP * getattr(card, precision), OF_BYTES * card.bandwidth
    return sum(max(work.flop / flop, work.bytes / bandwidth) for work in traffic.done.values())


def host_seconds(traffic: Traffic) -> float:
    """Seconds that the host takes to start the operators of a step."""
    return LAUNCH * traffic.total().calls


def main() -> None:
    args = parse_options(
        __doc__,
        presets=["dreamprvr-tvr", "hlformer-tvr", "gmmformer-tvr", "hybrid-tvr"],
        videos=option(17_435, "training videos"),
        batch=option(128, "videos of a step"),
    )
    steps, figures = math.ceil(args.videos / args.batch), {}
    for preset in args.presets:
        for rows in ("compute", "drop"):
            try:
                config = load_config(preset, {"model.padded_rows": rows})
            except ConfigError:  # the preset refuses it
                continue
            traffic = count_step(config, args.batch)
            done, host = traffic.total(), host_seconds(traffic)
            shown = f"{done.calls:,} operators, {done.bytes / 1e9:.1f} GB, {done.flop / 1e12:.2f} TFLOP"
            table, seconds = [], {}
            for name, card in CARDS.items():
                alone = {kind: device_seconds(traffic, card, kind) for kind in ("fp32", "tf32", "bf16")}
                seconds[name] = {kind: steps * max(host, bound) for kind, bound in alone.items()}
                table.append([name, *(f"{s:.1f}" for s in seconds[name].values()), f"{steps * alone['tf32']:.1f}"])
            figures[f"{preset}, {rows}"] = {"counts": vars(done), "host": steps * host, "epoch": seconds}
            head = ["card", "float32", "TF32", "bf16, at most", "TF32, the card alone"]
            title = f"seconds of an epoch of {steps} steps, estimated: {preset}, padded_rows {rows}; a step: {shown}"
            show(title, head, table, note=f"the host alone: {steps * host:.1f}")
    write_figures(args, figures)


if __name__ == "__main__":
    main()
