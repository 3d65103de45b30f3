"""Training a re-ranker over a frozen retriever into a run folder."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from prvr.evaluation import evaluate
from prvr.evaluation.encode import TextVideoModel, device_of, encode_split
from prvr.evaluation.report import EvaluationReport
from prvr.generation.config import GenerationConfig
from prvr.generation.evaluation import evaluate_reranked
from prvr.generation.features import fingerprint
from prvr.generation.folder import write_config
from prvr.generation.job import GenerationJob, start_from_identity
from prvr.generation.material import Encode, gathered, learning_splits
from prvr.generation.result import GenerationResult
from prvr.stages import CandidateReranker, Direction
from prvr.training import EpochProgress, Splits, Terminated, no_progress
from prvr.training.run import RunFolder
from prvr.training.signals import StopRequest, listening
from prvr.training.state import derived_seed

__all__ = ["train_reranker"]

logger = logging.getLogger(__name__)


def train_reranker(
    config: GenerationConfig,
    retriever: TextVideoModel,
    splits: Splits,
    *,
    output: Path | str,
    resume: bool = False,
    device: torch.device | str | None = None,
    progress: EpochProgress = no_progress,
    encode: Encode = encode_split,
) -> GenerationResult:
    """Trains re-rankers on the embeddings of a frozen retriever, keeps the best of each direction, evaluates both.

    The retriever is not changed. Its embeddings of the training and the selecting split are computed once. The epoch
    and the weight of the probability are chosen on the split that selects, never on the reported one. On the CPU two
    runs agree bitwise, and so do a straight and a resumed one. SIGTERM and Ctrl-C let the current step finish and save
    the run before they end it.

    Args:
        config: everything that is chosen; `reranker.trained_on` is filled in.
        retriever: any that has one vector per query and several per video.
        splits: of the retriever.
        output: the run folder, new or empty: config.yaml, metrics.jsonl, curves.png, best/, last/, evaluation.json and
            evaluation_retriever.json.
        resume: go on with the run in `output`.
        device: where to compute; default: where the retriever is.
        progress: shows the steps of an epoch.
        encode: as `prvr.evaluation.encode_split`; one that remembers saves the work where several are trained over
            one retriever.

    Raises:
        prvr.training.TrainingError: `output` is not empty, cannot be resumed or not be written, another process trains
            there, or a loss is not finite.
        prvr.training.Terminated: SIGTERM arrived, and the run is saved.
        ValueError: the retriever's embeddings do not fit `config.reranker`, or there are too few videos.
    """
    run, where = RunFolder(Path(output)), device_of(retriever, device)
    known = fingerprint(retriever) if isinstance(retriever, torch.nn.Module) else None
    config = replace(config, reranker=replace(config.reranker, trained_on=known))
    with run.owned(resume), listening() as stop:
        state = run.open(config, resume)
        write_config(run.path, config)
        torch.manual_seed(derived_seed(config.course.seed, "weights"))
        rerankers: dict[Direction, CandidateReranker] = {}
        for direction in config.directions:
            rerankers[direction] = CandidateReranker(config.network, direction).to(where)
            if config.course.start == "identity":
                start_from_identity(rerankers[direction])
        train, selection = learning_splits(config, splits)
        with stop.at_once():
            material = gathered(config, retriever, rerankers, train, selection, where, encode)
        job = GenerationJob(config, run, rerankers, material, progress, stop)
        if state is not None:
            job.restore(state)
        try:
            job.run_epochs()
            plain, reranked = _reports(job, retriever, splits, where, stop, encode)
        except (KeyboardInterrupt, Terminated):
            logger.warning("%s: stopped in epoch %d; --resume goes on from there", run.path, job.epoch)
            raise
    return GenerationResult(run.path, job.epoch, job.best, tuple(job.history), plain, reranked)


def _reports(
    job: GenerationJob,
    retriever: TextVideoModel,
    splits: Splits,
    device: torch.device,
    stop: StopRequest,
    encode: Encode,
) -> tuple[EvaluationReport, EvaluationReport]:
    """The reported split without and with the selected re-rankers; both are written beside each other."""
    seed, alone = job.config.course.seed, job.run.path / "evaluation_retriever.json"
    with stop.at_once():
        encoded = encode(retriever, splits.report, device=device, seed=seed)
        plain = evaluate(retriever, splits.report, encoded=encoded, device=device, seed=seed)
        block = job.config.course.eval_queries
        reranked = evaluate_reranked(
            retriever, splits.report, job.selected(), encoded=encoded, device=device, block=block, seed=seed
        )
    plain.to_json(alone)
    job.run.save_report(reranked)
    return plain, reranked
