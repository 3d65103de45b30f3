"""Effect on SumR of each difference between released and correct parts, one at a time, on the toy corpus.

    python benchmarks/compat.py --seeds 0 1 2

Each row turns one key of a paper's preset to its correct value, everything else equal; differences are by seed.
"""

import json
import statistics
from pathlib import Path

from _harness import option, parse_options, show
from prvr import load_config
from prvr.training import train

ROWS = {
    "model.compat.window": ("hlformer", {"model.compat.window": "centred"}),
    "model.compat.padding": ("hlformer", {"model.compat.padding": "masked", "model.compat.window": "centred"}),
    "model.compat.lorentz": ("hlformer", {"model.compat.lorentz": "correct"}),
    "model.compat.entailment": ("hlformer", {"model.compat.entailment": "correct"}),
    "model.window": (
        "hlformer",
        {"model.window": "add", "model.compat.window": "centred", "model.compat.lorentz": "correct"},
    ),
    "data.keep_last_frame": ("hlformer", {"data.keep_last_frame": True}),
    "optim": ("hlformer", {"optim.name": "adamw", "optim.decay": "matrices"}),
    "model.registers.start": ("dreamprvr", {"model.registers.start": "prior_sample"}),
    "model.compat.register_noise": ("dreamprvr", {"model.compat.register_noise": "gaussian"}),
    "model.compat.register_times": ("dreamprvr", {"model.compat.register_times": "sincos"}),
    "model.compat.transport": ("holmes", {"model.compat.transport": "masked"}),
}


def sumr(preset: str, overrides: dict, seed: int, folder: Path, cache: Path) -> float:
    if not (folder / "evaluation.json").is_file():
        chosen = overrides | {"train.seed": seed, "data.cache_dir": str(cache)}
        train(load_config(f"{preset}-toy", chosen), output=folder)
    return json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["text_to_video"]["sumr"]


def main() -> None:
    args = parse_options(
        __doc__,
        seeds=[0],
        rows=option(list(ROWS), choices=list(ROWS)),
        output=option("runs/compat", "finished runs in it are not trained again"),
    )
    output, rows = Path(args.output), []
    for key in args.rows:
        preset, overrides = ROWS[key]
        base = [sumr(preset, {}, s, output / f"{preset}-{s}", output) for s in args.seeds]
        ours = [sumr(preset, overrides, s, output / f"{key}-{s}", output) for s in args.seeds]
        each = " ".join(f"{b - a:+.1f}" for a, b in zip(base, ours, strict=True))
        rows.append([key, preset, f"{statistics.mean(base):.1f}", f"{statistics.mean(ours):.1f}", each])
    show("SumR on the toy corpus", ["key", "base", "released", "correct", "difference, each seed"], rows)


if __name__ == "__main__":
    main()
