"""Out of domain: a model that has learned from one corpus (the source), tested on others (the targets)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.corpora.encoders import CorpusEncoders
from prvr.data import Corpus, DataError
from prvr.evaluation.report import EvaluationReport

__all__ = ["Domain", "expect_same_features", "target_split", "transfer_table"]


@dataclass(frozen=True)
class Domain:
    """A corpus that a model was tested on.

    Args:
        name: for people.
        report: text to video and back; None where the corpus is not at hand.
    """

    name: str
    report: EvaluationReport | None


def expect_same_features(source: CorpusEncoders | None, target: CorpusEncoders | None, name: str) -> bool:
    """Refuses a target whose features are of other encoders than those a model has learned from.

    Args:
        source: what `prvr.corpora.encoders.corpus_encoders` says of the corpus that the model was trained on.
        target: the same of the corpus that it is to be tested on.
        name: of the target, for the message.

    Returns:
        whether both are known; otherwise only widths can be compared, which the packing of a split does.

    Raises:
        DataError: frames or texts were encoded by another model, or prepared in another way.
    """
    if source is None or target is None:
        return False
    for what, learned, found in (("frames", source.frames, target.frames), ("texts", source.text, target.text)):
        if learned != found:
            raise DataError(
                f"{name}: {what} encoded by {found}, but the model was trained on {what} encoded by {learned}: their "
                "numbers mean something else, whatever their width. Make the corpus again with that encoder."
            )
    return True


def target_split(corpus: Corpus, wanted: str | None = None) -> str:
    """The split of a target that is reported: the one that is asked for, else test, else val.

    Raises:
        DataError: there is no such split.
    """
    found = next((name for name in ((wanted,) if wanted else ("test", "val")) if name in corpus.splits), None)
    if found is None:
        raise DataError(f"{corpus.folder}: no split {wanted or 'test or val'}, it has {', '.join(corpus.splits)}.")
    return found


def transfer_table(sources: Sequence[Domain], targets: Sequence[Domain], title: str | None = None) -> Table:
    """Text to video on the source and on each target, a row for each or for each variant of the model.

    How large the gallery is and what chance gives stand beside.

    Galleries differ in size and difficulty: rows of one model say how it fares where, and only rows of two models on
    the same target say which of them carries over better.

    Args:
        sources: the corpus that the model was trained on.
        targets: those it has not seen.
        title: above the table.
    """
    ties = {domain.report.ties for domain in (*sources, *targets) if domain.report is not None}
    table = Table(
        title=title or "out of domain, text to video",
        caption=f"source: trained on it; target: never seen\nties count {' or '.join(sorted(ties))}",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    table.add_column("corpus", overflow="fold")
    for name in ("videos", "R@1", "R@5", "R@10", "Rsum", "SumR", "chance", "MdR"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind, domain in (*(("source", source) for source in sources), *(("target", target) for target in targets)):
        # Text, not str: a path may hold square brackets, which rich would read as markup.
        table.add_row(kind, Text(domain.name), *_cells(domain.report))
    return table


def _cells(report: EvaluationReport | None) -> list[str]:
    if report is None:
        return ["-"] * 8
    found = report.text_to_video
    values = (found.r1, found.r5, found.r10, found.rsum, found.sumr, report.chance)
    return [f"{len(report.video_ids):,}", *(f"{value:.1f}" for value in values), f"{found.mdr:g}"]
