"""`prvr demo`: train a small model on the embedded corpus, see what it finds."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from prvr.cli.console import CommandError, leaf, show_report, stdout, threads
from prvr.cli.folders import fresh_folder, load_retriever
from prvr.cli.train import show_folder, train
from prvr.config import Config, load_config

if TYPE_CHECKING:
    from rich.table import Table

    from prvr.data import PackedSplit
    from prvr.results import EvaluationReport

NAME = "demo"
_QUICK = {"train.epochs": 6}
_EXAMPLES = (0.1, 0.5, 0.9)  # where in the order of ranks


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr demo [--quick] [--preset hybrid-embedded] [--output runs/demo]",
        "Train a small model on a simulated corpus (nothing is downloaded) and let it find videos from sentences.",
    )
    parser.add_argument("--quick", action="store_true", help="a few epochs only: shows that it works, not how well")
    parser.add_argument("--preset", default="hybrid-embedded", metavar="NAME", help="one that ends in -embedded")
    parser.add_argument(
        "--output", default="runs/demo", metavar="RUN", help="run folder; where it is taken, RUN-1, RUN-2, ..."
    )
    subcommands.add_subcommand(NAME, parser, help="train a small model and search with it, in minutes")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    config = load_config(args.preset, _QUICK if args.quick else {})
    if config.data.collection != "embedded":
        raise CommandError(
            f"--preset {args.preset}: reads {config.data.collection}. The demo takes a preset of the embedded corpus, "
            f"such as hybrid-embedded; for this one: prvr train --preset {args.preset} --data-root ROOT."
        )
    from prvr.data import write_corpus
    from prvr.training import cache_folder, open_split

    console, stem = stdout(), Path(args.output)
    with fresh_folder(stem, first=stem) as output:
        corpus = write_corpus(cache_folder(config))
        with closing(open_split(config, "train")) as split:
            size = f"{len(split)} training videos and {len(split.query_ids)} sentences, simulated"
            console.print(
                f"corpus: {corpus.folder}: {size}\nmodel:  {config.name}, {config.train.epochs} epochs, into {output}",
                markup=False,
                soft_wrap=True,
            )
        with threads(1):  # its matrices are small: threads would wait for each other, on a busy machine for long
            result = train(config, output, "cpu", quiet=args.quiet)
    with closing(open_split(config, config.data.eval_split)) as split:
        console.print()
        console.print(_against_chance(result.report, split))
        show_report(console, result.report)
        table, ranks = _examples(config, output, split, result.report)
        console.print()
        console.print(table)
        console.print(
            f"One of the best, the middle and one of the worst: a right video has rank {ranks}.", markup=False
        )
    show_folder(console, result)
    console.print(
        f'\nA sentence of your own: python examples/own_sentence.py {output} "a small red circle rises"\n'
        "Features of this corpus are simulated: it shows how the parts work together, not how well on natural video.",
        markup=False,
        soft_wrap=True,
    )


def _against_chance(report: "EvaluationReport", split: "PackedSplit") -> "Table":
    import torch
    from rich import box
    from rich.table import Table

    from prvr.metrics import RECALLS, chance_recall

    sizes = torch.tensor([len(videos) for videos in split.relevant])
    chance = [chance_recall(len(split), sizes, k) for k in RECALLS]
    found = report.text_to_video
    table = Table(title="% of sentences with a right video among the first k", box=box.SIMPLE_HEAD)
    table.add_column("")
    for k in RECALLS:
        table.add_column(f"R@{k}", justify="right")
    table.add_column("SumR", justify="right")
    table.add_row("chance", *(f"{value:.1f}" for value in chance), f"{sum(chance):.1f}")
    table.add_row("this model", *(f"{v:.1f}" for v in (found.r1, found.r5, found.r10, found.r100, found.sumr)))
    return table


def _examples(
    config: Config, output: Path, split: "PackedSplit", report: "EvaluationReport"
) -> "tuple[Table, list[int]]":
    """Three sentences and what is found for them; which ones follows from their ranks alone, good and bad alike."""
    from prvr.moments import find_moments
    from prvr.report import examples_table

    order = report.ranks.argsort(kind="stable")
    queries = [int(order[int(share * len(order))]) for share in _EXAMPLES]
    found = find_moments(load_retriever(output / "best"), split, queries, seed=config.train.seed)
    return examples_table(found), [int(report.ranks[query]) for query in queries]
