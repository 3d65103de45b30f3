"""Does the embedded corpus measure what it says? Chance, oracle, zero-shot, trained models, and controls, with bands.

    python benchmarks/audit.py [--size demo] [--preset hybrid-embedded] [--runs RUN ...]

Trains the preset with three seeds and two controls; finished runs in the output folder, or given with --runs, are used
again. Ends with 1 where a band is missed.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console

from drawn_world import audit, audit_table
from prvr import load_config
from prvr.data import write_corpus
from prvr.training import terminal_bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="demo", help="tiny, demo or bench; the bands are meant for demo")
    parser.add_argument("--preset", default="hybrid-embedded")
    parser.add_argument("--epochs", type=int, help="default: the preset's")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", nargs="*", default=[], help="folders of finished runs on the same corpus")
    parser.add_argument("--output", default="runs/audit")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small matrices: threads would wait for each other
    config = load_config(args.preset, {} if args.epochs is None else {"train.epochs": args.epochs})
    corpus = write_corpus(args.output, args.size)
    report = audit(
        corpus, config, seeds=args.seeds, folder=args.output, runs=args.runs, epochs=terminal_bar,
        progress=lambda what, done, total: print(f"{done}/{total} {what}", file=sys.stderr),
    )  # fmt: skip
    report.to_json(Path(args.output) / "audit.json")
    Console(width=80).print(audit_table(report))
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
