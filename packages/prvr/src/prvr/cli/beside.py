"""A trained model beside zero-shot and chance, wherever the corpus allows it."""

from contextlib import closing
from typing import TYPE_CHECKING

from prvr.config import Config
from prvr.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console

    from prvr.data import Corpus
    from prvr.evaluation.report import EvaluationReport

__all__ = ["show_beside"]


def show_beside(
    console: "Console", config: Config, report: "EvaluationReport", split: str | None = None, note: str | None = None
) -> None:
    """Prints the table, or why there is none; nothing for a corpus that names no joint encoder, as the public ones.

    Args:
        console: where to.
        config: of the run: says where the data are.
        report: of the model.
        split: that it is of; default: the one that the configuration reports.
        note: below the table.
    """
    from prvr.data import DataError
    from prvr.evaluation.tables import beside_table
    from prvr.evaluation.zero_shot import beside_zero_shot, has_zero_shot
    from prvr.training import open_split

    try:
        corpus = _corpus_of(config)
        if not has_zero_shot(corpus):
            return
        with closing(open_split(config, split or config.data.eval_split)) as packed:
            table = beside_table(beside_zero_shot(report, corpus, packed), note)
    except (DataError, MissingExtraError) as error:  # what was trained stands whole beside it
        console.print(f"\nno comparison with zero-shot: {error}", markup=False, soft_wrap=True)
        return
    console.print()
    console.print(table)


def _corpus_of(config: Config) -> "Corpus":
    from prvr.data import open_corpus
    from prvr.training.data import embedded_corpus

    data = config.data
    if data.root is None:
        return embedded_corpus(config)
    return open_corpus(data.root, data.collection, feature=data.feature)
