"""What commands print of an evaluation."""

from contextlib import closing
from typing import TYPE_CHECKING

from rich.console import Console

from prvr.config import Config
from prvr.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport
    from prvr.evaluation.zero_shot import Beside


def show_report(console: Console, report: "EvaluationReport", *, text_to_video: bool = False) -> None:
    """Prints the tables of an evaluation; `text_to_video` puts that of papers on text-to-video retrieval first."""
    from prvr.evaluation.tables import groups_table, metrics_table, tags_table, text_video_table

    first = text_video_table(report) if text_to_video else metrics_table(report)
    for table in (first, groups_table(report), tags_table(report)):
        if table is not None:
            console.print()
            console.print(table)


def show_baselines(
    console: Console,
    config: Config,
    report: "EvaluationReport",
    split: str | None = None,
    note: str | None = None,
) -> "Beside | None":
    """Prints a report beside chance and zero-shot, if the corpus names a joint encoder; the public ones do not.

    If the comparison cannot be made, the reason is printed instead of the table, and None is returned.

    Args:
        console: the console to print on.
        config: the configuration of the run, which says where the data are.
        report: the evaluation of the model.
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
            return None
        with closing(open_split(config, split or config.data.eval_split)) as packed:
            beside = beside_zero_shot(report, corpus, packed)
    except (DataError, MissingExtraError) as error:  # the report itself is complete without it
        console.print(f"\nno comparison with zero-shot: {error}", markup=False, soft_wrap=True)
        return None
    console.print()
    console.print(beside_table(beside, note))
    return beside
