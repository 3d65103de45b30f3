"""Evaluation out of domain: a model that was trained on one corpus (the source) is tested on others (the targets)."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from prvr.config import Config
from prvr.corpora.corpus_encoders import CorpusEncoders, corpus_encoders
from prvr.data import COLLECTIONS, Corpus, DataError, open_corpus
from prvr.data.synthetic.encoder import DIM, WORD_DIM
from prvr.data.synthetic.world import FPS
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.tables import metric_cells, new_table
from prvr.video.encoders.toy import ToyEncoder, ToyText

logger = logging.getLogger(__name__)


def expect_same_features(source: CorpusEncoders | None, target: CorpusEncoders | None, name: str) -> bool:
    """Refuses a target whose features are of other encoders than those a model has learned from.

    Args:
        source: what `prvr.corpora.corpus_encoders.corpus_encoders` says of the corpus that the model was trained on.
        target: the same of the corpus that it is to be tested on.
        name: the name of the target, for the message.

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


def corpus_on_disk(config: Config) -> Corpus | None:
    """The corpus of a configuration; None if it is a toy one in the cache, or does not exist."""
    root = config.data.root
    if root is None or not (Path(root).expanduser() / config.data.collection).is_dir():
        return None
    return open_corpus(root, config.data.collection, feature=config.data.feature)


def check_features(trained: Config, asked: Config) -> None:
    """Refuses features of another encoder than those of the training; warns if the encoder is not known.

    Args:
        trained: the configuration of the run.
        asked: the same, with the data that are asked for.

    Raises:
        DataError: the features are of another encoder.
    """
    if trained.data == asked.data:
        return
    name = str(Path(asked.data.root or "") / asked.data.collection)
    known = expect_same_features(_encoders(trained), _encoders(asked), name)
    if not known and trained.data.collection != asked.data.collection:
        logger.warning(
            "%s: it is not known whether its features are of the encoders that the model was trained with; only their "
            "widths are compared.",
            name,
        )


def target_config(trained: Config, folder: Path, split: str | None) -> tuple[Config, str]:
    """The configuration of a run with another corpus, on which it is tested, and the split to report.

    Args:
        trained: the configuration of the run.
        folder: the folder of the corpus.
        split: the one that is asked for; by default test, or val.

    Raises:
        DataError: there is no such corpus or split, or its features are of another encoder.
    """
    folder = folder.expanduser()
    corpus = open_corpus(folder.parent, folder.name)
    data = replace(trained.data, root=str(folder.parent), collection=folder.name, feature=None)
    check_features(trained, config := replace(trained, data=data))
    return config, target_split(corpus, split)


def _encoders(config: Config) -> CorpusEncoders | None:
    if config.data.root is None and config.data.collection in COLLECTIONS:  # without making it
        return CorpusEncoders(ToyEncoder().identity, ToyText().identity, FPS, 2 * DIM, WORD_DIM, DIM)
    corpus = corpus_on_disk(config)
    return None if corpus is None else corpus_encoders(corpus)


def transfer_table(
    sources: Mapping[str, EvaluationReport | None], targets: Mapping[str, EvaluationReport | None]
) -> Table:
    """Text to video on the source and on each target, a row for each or for each variant of the model.

    How large the gallery is and what chance gives stand beside.

    Galleries differ in size and difficulty: rows of one model say how it fares where, and only rows of two models on
    the same target say which of them carries over better.

    Args:
        sources: reports by name on the corpus that the model was trained on; None where it is not on this machine.
        targets: those on corpora that it has not seen.
    """
    ties = {report.ties for report in (*sources.values(), *targets.values()) if report is not None}
    columns = ("videos", "R@1", "R@5", "R@10", "Rsum", "SumR", "chance", "MdR")
    caption = f"source: trained on it; target: never seen\nties count {' or '.join(sorted(ties))}"
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
