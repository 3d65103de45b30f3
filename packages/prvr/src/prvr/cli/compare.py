"""`prvr compare`: whether one run ranks better than another, or only by chance."""

from argparse import Namespace
from pathlib import Path

from prvr.cli.console import stdout
from prvr.cli.options import Parser


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "compare",
        run,
        "Test whether one run ranks better than another",
        "RUN_A RUN_B [OPTIONS]",
        "Compare two evaluations of the same queries with a paired test, whose resamples are drawn by video.",
    )
    parser.add_argument("run_a", metavar="RUN_A", help="the folder of a run, or its evaluation.json")
    parser.add_argument("run_b", metavar="RUN_B", help="the same of the other run")
    parser.option("--samples", default=10_000, help="the number of resamples and permutations")
    parser.shared("--seed")


def run(args: Namespace) -> None:
    """Prints the comparison."""
    from prvr.evaluation.compare import compare, comparison_table

    comparison = compare(Path(args.run_a), Path(args.run_b), samples=args.samples, seed=args.seed)
    stdout().print(comparison_table(comparison))
