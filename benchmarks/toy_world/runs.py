"""The runs of an audit: trained or taken over, and what they find."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.config import Config, ConfigError, config_to_dict, load_config
from prvr.data import Corpus, DataError, PackedSplit
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.evaluation.encode import encode_split, evaluation_mode
from prvr.models import AnyRetriever, build_retriever, project_bounds
from prvr.stages import ScoreMatrix
from prvr.training import EpochProgress, TrainingError, open_split, train
from prvr.training.checkpoint import load_best
from prvr.training.run import config_differences
from prvr.types import FirstStage

logger = logging.getLogger(__name__)

TEST = "test"
SAME_SUMR = 0.5  # another machine rounds otherwise


@dataclass(frozen=True)
class Trained:
    """A finished run and what it finds in the test split."""

    config: Config
    folder: Path
    retriever: AnyRetriever
    report: EvaluationReport

    @property
    def r1(self) -> float:
        """Its R@1, in percent."""
        return self.report.text_to_video.r1


def adapted(config: Config, corpus: Corpus, cache: Path, seed: int) -> Config:
    """The same configuration, for a corpus and a seed."""
    where = replace(
        config.data, root=str(corpus.folder.parent), collection=corpus.name, cache_dir=str(cache), eval_split=TEST
    )
    return replace(config, data=where, train=replace(config.train, seed=seed))


def finish(config: Config, corpus: Corpus, output: Path, device: str | None, epochs: EpochProgress) -> Path:
    """Trains a run, goes on with it, or leaves it as it is where it has ended.

    Args:
        config: adapted to the corpus that it learns from.
        corpus: the original, which names the run together with the configuration.
        output: folder of runs.
        device: as in `prvr.training.train`.
        epochs: shows the steps of an epoch.

    Returns:
        the run folder.
    """
    run = output / f"{config.name}-{config.train.seed}-{_digest(config, corpus)}"
    if not (run / "evaluation.json").is_file():
        train(config, output=run, resume=(run / "last" / "state.pt").is_file(), device=device, progress=epochs)
    return run


def trained(config: Config, run: Path, split: PackedSplit, device: str | None) -> Trained:
    """Opens a finished run and evaluates it."""
    retriever = build_retriever(config.model)
    load_best(run / "best", retriever)
    project_bounds(retriever)
    return Trained(config, run, retriever, measure(retriever, config, split, device))


def measure(retriever: AnyRetriever, config: Config, split: PackedSplit, device: str | None) -> EvaluationReport:
    """Evaluates as a run does, without intervals."""
    return evaluate(retriever, split, EvaluationConfig.of_run(config.train, bootstrap=0), device=device)


def take_over(folders: Sequence[Path | str], corpus: Corpus, cache: Path, device: str | None) -> list[Trained]:
    """Opens those of some run folders that were trained on this corpus; says in the log why others are left out.

    A configuration does not tell whether the corpus was the same. So each run must find what it found when it ended.
    """
    runs = []
    for folder in map(Path, folders):
        try:
            runs.append(_taken_over(folder, corpus, cache, device))
        except (ConfigError, DataError, TrainingError, OSError) as error:
            logger.warning("%s: not used in the audit of %s: %s", folder, corpus.name, error)
    return runs


def same_but_for_places(run: Trained, config: Config) -> bool:
    """Whether a run was configured like this, wherever its files lay."""
    return not config_differences(config_to_dict(run.config), config_to_dict(config))


def score_matrix(run: Trained, split: PackedSplit, device: str | None) -> Float[Tensor, "q v"]:
    """The scores of all sentences with all videos of a split."""
    train = run.config.train
    retriever = cast(FirstStage, run.retriever)
    encoded = encode_split(retriever, split, device=device, seed=train.seed)
    with evaluation_mode(retriever, encoded.text.device, train.seed):
        matrix = ScoreMatrix(retriever, encoded)
        rows = [matrix.rows("t2v", some).cpu() for some in matrix.blocks("t2v", train.eval_queries)]
    return torch.cat(rows)


def fair_recall(scores: Float[Tensor, "q v"], relevant: Bool[Tensor, "q v"]) -> float:
    """Expected R@1 in percent where equal scores are put in any order, each as likely.

    Videos of which only the length is left are often the same; against us, their ties would hide what length tells.

    Example:
        >>> fair_recall(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[True, False, False]]))
        50.0
    """
    first = scores == scores.amax(1, keepdim=True)
    return 100 * float(((first & relevant).sum(1) / first.sum(1)).mean())


def _taken_over(folder: Path, corpus: Corpus, cache: Path, device: str | None) -> Trained:
    path = folder / "config.yaml"
    given = load_config(path)
    if (given.data.collection, given.data.eval_split) != (corpus.name, TEST):
        raise DataError(f"{path}: trained on {given.data.collection}, reported on {given.data.eval_split}")
    stored = EvaluationReport.from_json(folder / "evaluation.json")
    config = adapted(given, corpus, cache, given.train.seed)
    with open_split(config, TEST) as split:
        if (stored.query_ids, stored.video_ids) != (split.query_ids, split.video_ids):
            raise DataError(f"{folder}: was evaluated on other sentences or videos")
        run = trained(config, folder, split, device)
    found, before = run.report.text_to_video.sumr, stored.text_to_video.sumr
    if abs(found - before) > SAME_SUMR:
        raise DataError(f"{folder}: SumR was {before:.1f} and is {found:.1f} here; the corpus was another one")
    return run


def _digest(config: Config, corpus: Corpus) -> str:
    """A digest of all that decides how a run ends."""
    moved = replace(config, data=replace(config.data, root=None, cache_dir=None))
    digest = hashlib.sha256(json.dumps(config_to_dict(moved), sort_keys=True).encode())
    for path in (corpus.folder / "corpus.json", corpus.text_file("relevance")):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:8]
