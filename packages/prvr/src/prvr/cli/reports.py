"""What commands print of an evaluation, and the names of its files."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.config import Config
from prvr.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console

    from prvr.evaluation.report import EvaluationReport

__all__ = ["QB_BETA", "report_file", "show_baselines", "show_report", "variant_parts"]

QB_BETA = 20.0
"""The default of `--qb-beta`."""


def show_report(console: "Console", report: "EvaluationReport", *, text_to_video: bool = False) -> None:
    """Prints the tables of an evaluation; `text_to_video` puts that of papers on text-to-video retrieval first."""
    from prvr.evaluation.tables import groups_table, metrics_table, tags_table, text_video_table

    first = text_video_table(report) if text_to_video else metrics_table(report)
    for table in (first, groups_table(report), tags_table(report)):
        if table is not None:
            console.print()
            console.print(table)


def show_baselines(
    console: "Console", config: Config, report: "EvaluationReport", split: str | None = None, note: str | None = None
) -> None:
    """Prints a report beside chance and zero-shot, if the corpus names a joint encoder; the public ones do not.

    If the comparison cannot be made, the reason is printed instead of the table.

    Args:
        console: where to print.
        config: of the run, says where the data are.
        report: of the model.
        split: the split of the report; by default, the one that the configuration reports.
        note: printed below the table.
    """
    from prvr.evaluation.tables import beside_table
    from prvr.evaluation.zero_shot import beside_zero_shot, has_zero_shot
    from prvr.training import open_split
    from prvr.training.data import run_corpus

    try:
        corpus = run_corpus(config)
        if not has_zero_shot(corpus):
            return
        with closing(open_split(config, split or config.data.eval_split)) as packed:
            table = beside_table(beside_zero_shot(report, corpus, packed), note)
    except (DataError, MissingExtraError) as error:  # the report itself is complete without it
        console.print(f"\nno comparison with zero-shot: {error}", markup=False, soft_wrap=True)
        return
    console.print()
    console.print(table)


def report_file(args: Namespace, trained: Config, asked: Config, split: str, of: Sequence[str] = ()) -> Path:
    """The file that `prvr evaluate` writes: `--json`, or one in the run, named after whatever is not the default.

    Args:
        args: `run`, `json` and `ties`.
        trained: the configuration of the run.
        asked: the same, with the data that were asked for.
        split: the split that was ranked.
        of: the parts of the name of a variant, see `variant_parts`.
    """
    if args.json is not None:
        target = Path(args.json)
    else:
        parts = ["evaluation", *of, *[asked.data.collection] * (asked.data.collection != trained.data.collection)]
        parts += [split] * (split != asked.data.eval_split) + [args.ties] * (args.ties != "worst")
        target = Path(args.run) / ("_".join(parts) + ".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def variant_parts(args: Namespace, name: str) -> list[str]:
    """The parts of the file name of a variant of ranking: its stages, the run of the re-ranker, the options given.

    Args:
        args: the options of `--rerank` and `--qb-norm`.
        name: of the variant: retriever, QB-Norm, re-ranked, or both.

    Example:
        >>> given = Namespace(rerank="runs/r-1/best", top=5, steps=None, weight=None, rerank_seed=0, qb_beta=20.0)
        >>> variant_parts(given, "QB-Norm, re-ranked"), variant_parts(given, "retriever")
        (['rerank', 'r-1', 'top5', 'qbnorm'], ['retriever'])
    """
    parts = []
    if "re-ranked" in name:
        run = Path(args.rerank).resolve()
        given = {"top": args.top, "steps": args.steps, "weight": args.weight, "seed": args.rerank_seed or None}
        parts += ["rerank", run.parent.name if run.name == "best" else run.name]
        parts += [f"{key}{value}" for key, value in given.items() if value is not None]
    if "QB-Norm" in name:
        parts += ["qbnorm", *[f"beta{args.qb_beta}"] * (args.qb_beta != QB_BETA)]
    return parts or ["retriever"]
