"""`prvr compare`: is run B better than run A, or would chance do?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from prvr.cli.console import leaf, stdout

NAME = "compare"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr compare RUN_A RUN_B",
        "The paired test of two evaluations of the same queries, resampled by video.",
    )
    parser.add_argument("run_a", metavar="RUN_A", help="a run folder, or an evaluation.json")
    parser.add_argument("run_b", metavar="RUN_B", help="the same of the other run")
    parser.add_argument("--samples", type=int, default=10_000, help="resamples and permutations")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    subcommands.add_subcommand(NAME, parser, help="paired test of two runs")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    from prvr.evaluation.compare import compare, comparison_table

    comparison = compare(Path(args.run_a), Path(args.run_b), samples=args.samples, seed=args.seed)
    stdout().print(comparison_table(comparison))
