"""Does the toy corpus measure what it says? Chance, oracle, zero-shot, trained models, and controls, with bands.

    python benchmarks/audit.py [--size demo] [--preset hybrid-toy] [--runs RUN ...]

Trains the preset with three seeds and two controls; finished runs in the output folder, or given with --runs, are used
again. Ends with 1 where a band is missed.
"""

import sys
from pathlib import Path

from rich.console import Console

from _harness import option, parse_options
from prvr import load_config
from prvr.data import write_corpus
from prvr.training import terminal_bar
from toy_world import audit, audit_table


def main() -> None:
    args = parse_options(
        __doc__,
        size=option("demo", "tiny, demo or bench; the bands are meant for demo"),
        preset="hybrid-toy",
        epochs=option(None, "default: the preset's", type=int),
        seeds=[0, 1, 2],
        runs=option([], "folders of finished runs on the same corpus"),
        output="runs/audit",
    )
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
