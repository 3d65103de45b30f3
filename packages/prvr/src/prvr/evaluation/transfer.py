"""Evaluation out of domain: a model trained on one corpus (the source) is tested on others (the targets)."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from prvr.config import Config
from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS, CorpusEncoders, corpus_encoders
from prvr.data import Corpus, DataError, open_corpus
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.tables import metric_cells, new_table

logger = logging.getLogger(__name__)


def corpus_on_disk(config: Config) -> Corpus | None:
    """The corpus of a configuration; None if it is drawn into the cache, or does not exist."""
    root = config.data.root
    if root is None or not (Path(root).expanduser() / config.data.collection).is_dir():
        return None
    return open_corpus(root, config.data.collection, feature=config.data.feature)


def check_features(trained: Config, tested: Config) -> None:
    """Refuses features of another encoder than those of the training; warns if the encoder is unknown.

    Args:
        trained: the configuration of the run.
        tested: the same with other data.

    Raises:
        DataError: the features are of another encoder.
    """
    if trained.data == tested.data:
        return
    name = str(Path(tested.data.root or "") / tested.data.collection)
    source, target = encoders_of(trained), encoders_of(tested)
    if source is None or target is None:
        if trained.data.collection != tested.data.collection:
            logger.warning(
                "%s: the encoders of its features, or of the training, are unknown. Only widths are compared.", name
            )
        return
    for what, before, now in (("frames", source.frames, target.frames), ("texts", source.text, target.text)):
        if before != now:
            raise DataError(
                f"{name}: {what} encoded by {now}, but the model was trained on {what} encoded by {before}. "
                "Features of different encoders are not comparable. Create the corpus again with that encoder."
            )


def target_config(trained: Config, folder: Path, split: str | None) -> tuple[Config, str]:
    """The configuration of a run with a target corpus, and the split to report.

    Args:
        trained: the configuration of the run.
        folder: the folder of the target.
        split: None for test, or else val.

    Raises:
        DataError: the corpus or the split does not exist, or the features are of another encoder.
    """
    folder = folder.expanduser()
    corpus = open_corpus(folder.parent, folder.name)
    data = replace(trained.data, root=str(folder.parent), collection=folder.name, feature=None)
    check_features(trained, config := replace(trained, data=data))
    for name in (split,) if split else ("test", "val"):
        if name in corpus.splits:
            return config, name
    raise DataError(f"{corpus.folder}: no split {split or 'test or val'}, only {', '.join(corpus.splits)}.")


def encoders_of(config: Config) -> CorpusEncoders | None:
    """The encoders of the data of a configuration; None where its corpus does not say, or is gone."""
    root, name = config.data.root, config.data.collection
    if root is None:
        return DRAWN_COLLECTIONS[name].part.encoders() if name in DRAWN_COLLECTIONS else None  # without drawing it
    folder = Path(root).expanduser() / name
    return corpus_encoders(Corpus(folder, name, folder, folder))  # its features need not be there


def transfer_table(
    sources: Mapping[str, EvaluationReport | None], targets: Mapping[str, EvaluationReport | None]
) -> Table:
    """Text to video on the source and on each target, with the size of the gallery and SumR of chance.

    Galleries differ in size and difficulty: compare models on the same target, not one model across targets.

    Args:
        sources: reports by name on the corpus that the model was trained on; None if it is not on this machine.
        targets: reports by name on other corpora.
    """
    ties = {report.ties for report in (*sources.values(), *targets.values()) if report is not None}
    columns = ("videos", "R@1", "R@5", "R@10", "Rsum", "SumR", "chance", "MdR")
    caption = f"source: training corpus; target: another corpus\nties: {' or '.join(sorted(ties))}"
    table = new_table("out of domain, text to video", caption, ["", "corpus"], columns)
    for kind, reports in (("source", sources), ("target", targets)):
        for name, report in reports.items():
            cells = ["-"] * len(columns)
            if report is not None:
                others = {"videos": f"{len(report.video_ids):,}", "chance": f"{report.chance:.1f}"}
                cells = metric_cells(report.text_to_video, columns, others)
            # Text, not str: a path may hold square brackets, which rich would read as markup.
            table.add_row(kind, Text(name), *cells)
    return table
