"""Runs on variants of a toy corpus, and their scores."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.config import Config, config_to_dict
from prvr.data import Corpus, PackedSplit
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.evaluation.encode import encode_split, evaluation_mode
from prvr.models import AnyRetriever, build_retriever, project_bounds
from prvr.stages import ScoreMatrix
from prvr.training import EpochProgress, train
from prvr.training.checkpoint import load_best
from prvr.types import FirstStage

TEST = "test"


@dataclass(frozen=True)
class Trained:
    """A finished run and its report on the test split."""

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


def score_matrix(run: Trained, split: PackedSplit, device: str | None) -> Float[Tensor, "q v"]:
    """The scores of all sentences with all videos of a split."""
    train = run.config.train
    retriever = cast(FirstStage, run.retriever)
    encoded = encode_split(retriever, split, device=device, seed=train.seed)
    with evaluation_mode(retriever, encoded.text.device, train.seed):
        matrix = ScoreMatrix(retriever, encoded)
        rows = [matrix.rows("t2v", block).cpu() for block in matrix.blocks("t2v", train.eval_queries)]
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


def _digest(config: Config, corpus: Corpus) -> str:
    """A digest of all that decides how a run ends."""
    moved = replace(config, data=replace(config.data, root=None, cache_dir=None))
    digest = hashlib.sha256(json.dumps(config_to_dict(moved), sort_keys=True).encode())
    for path in (corpus.folder / "corpus.json", corpus.text_file("relevance")):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:8]
