"""The training of a retriever: a batch of videos with their captions, the losses between all of them."""

import itertools
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.config import LOSSES, Config, active_losses, load_config
from prvr.data import PackedSplit
from prvr.data.loader import BatchInfo, VideoLoader
from prvr.errors import TrainingError
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.encode import evaluation_mode
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.rank import report_from_scores
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import paired_test
from prvr.models import AnyRetriever, Retriever, project_bounds
from prvr.models.kernel_path import KernelPath
from prvr.models.layers import bounded_modules
from prvr.objective import Objective
from prvr.training.card import retriever_card
from prvr.training.checkpoint import Score, derived_seed, load_best, save_best
from prvr.training.gradients import backward_in_parts
from prvr.training.optimizer import build_optimizer
from prvr.training.record import keep_record
from prvr.training.run_folder import Run, RunOptions
from prvr.training.splits import Splits, run_data
from prvr.training.start import fit_start, start
from prvr.training.task import Selection
from prvr.training.trainer import Trainer
from prvr.types import Batch, Counts, Labels, TextEmbedding, tensors_of, with_tensors

logger = logging.getLogger(__name__)

_ONE_ERROR = 0.683
"""The level of an interval of one standard error to each side."""


@dataclass(frozen=True)
class RunResult:
    """The result of training a retriever.

    Args:
        output: the run folder.
        epochs: completed.
        best_epoch: the selected one, from 0; with `train.average` the last of those whose mean is saved.
        best_score: SumR of the saved model on the split that selects.
        stopped_early: by patience or `on_epoch`.
        history: the lines of `metrics.jsonl`.
        report: the report of the selected epoch on the reported split, as in `evaluation.json`.
    """

    output: Path
    epochs: int
    best_epoch: int
    best_score: float
    stopped_early: bool
    history: tuple[Mapping[str, Any], ...]
    report: EvaluationReport


def train(
    config: Config,
    *,
    output: Path | str,
    splits: Splits | None = None,
    retriever: AnyRetriever | None = None,
    objective: Objective | None = None,
    teacher: Any = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Trains a retriever, keeps the best epoch, and evaluates it on the reported split.

    Protocol "paper" selects the epoch on the reported split itself, as the published numbers did; "holdout" selects on
    training videos set aside and scores the reported split once, at the end. All draws follow from `config.train.seed`:
    on the CPU two runs agree bitwise, and so do a straight and a resumed one. Torch's global generator is reseeded.

    SIGTERM and Ctrl-C let the current step finish and save the run before they end it, a second Ctrl-C ends it at once;
    in the main thread only, and only where the program has no handler of its own.

    Args:
        config: the configuration of the run.
        output: the run folder, new or empty; see `prvr.training.run_folder` for what it holds.
        splits: the data; None = what `config.data` names.
        retriever, objective: the model, which is trained in place; None = what `config` describes.
        teacher: the [system][prvr.published.dl_dkd.teacher.Teacher] that `loss.distillation` learns from; None = the
            one that `train.teacher` names.
        options: `resume` (continue the run in `output` from its last checkpoint, or start it), `device` ("cpu", or None
            for accelerate's choice), `progress`, `trackers`, and `on_epoch`, which may end the training after an epoch:
            the best epoch up to there is evaluated. See [RunOptions][prvr.training.RunOptions].

    Raises:
        TrainingError: `output` is not empty and not resumed, cannot be resumed or not be written, another process
            trains there, or a loss or gradient is not finite.
        Terminated: SIGTERM arrived, and the run is saved; a SystemExit with code 143.
        KeyboardInterrupt: Ctrl-C; after the first one the run is saved.
        prvr.ConfigError: the configuration cannot be read back from its own `config.yaml`.
        prvr.data.DataError: bad data.
    """
    with run_data(config, output, splits, teacher, **options) as data:
        config, run = data.config, data.run
        if splits is None:
            keep_record(run, config.train.precision, config)
        if retriever is None:
            fit_start(config, run, data.splits)
        retriever, objective = start(config, run, retriever, objective)
        task = RetrievalTask(config, run.accelerator, retriever, objective, data.batches, data.splits.selection)
        steps = len(data.batches)
        optimizer, scheduler = task.optimizer(max(1, steps * config.train.epochs))
        trainer = Trainer(config, task, run, optimizer, scheduler, steps, data.constants)
        report = trainer.train(partial(task.evaluate, data.splits.report, run))
    return RunResult(
        output=run.folder.path,
        epochs=trainer.epoch,
        best_epoch=trainer.best_epoch,
        best_score=trainer.best["model"].value,
        stopped_early=trainer.stopped_early,
        history=tuple(trainer.history),
        report=report,
    )


def resume(output: Path | str, **options: Any) -> RunResult:
    """Continues the run in `output` with its own configuration; `options` as in `train`."""
    path = Path(output) / "config.yaml"
    if not path.is_file():
        raise TrainingError(f"{path}: no such file, there is no run to resume. Start one with `prvr train`.")
    return train(load_config(path), output=output, resume=True, **options)


def eager_reason(config: Config, accelerator: Accelerator) -> str:
    """Why the steps of a run cannot be captured as CUDA graphs; empty if they can."""
    on_host = {"video_ids", "query_ids", "captions"}
    reasons = {
        f"the run computes on {accelerator.device}": accelerator.device.type != "cuda",
        "several processes train": accelerator.num_processes > 1,
        "train.chunk_videos is set, and each chunk draws by a seed of its own": config.train.chunk_videos,
        "batches have many shapes without model.padded_rows='fixed'": getattr(config.model, "padded_rows", "")
        != "fixed",
    } | {
        f"the host computes a part of loss.{name}": name == "matching" or on_host.intersection(LOSSES[name].needs)
        for name in active_losses(config.loss, config.model)
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class RetrievalTask:
    """A retriever and its objective, trained on videos with their captions; a `prvr.training.Task`.

    Args:
        config: the configuration of the run.
        accelerator: device, precision and processes.
        retriever, objective: the model, moved to the device and trained in place.
        batches: the batches of the training split, on the device.
        selection: the split that selects the epoch.
    """

    def __init__(
        self,
        config: Config,
        accelerator: Accelerator,
        retriever: AnyRetriever,
        objective: Objective,
        batches: VideoLoader,
        selection: PackedSplit,
    ) -> None:
        self.config, self.accelerator, self.loader, self.selection = config, accelerator, batches, selection
        self.retriever = retriever.to(accelerator.device)
        self.objective = objective.to(accelerator.device)
        self.networks = {"model": nn.ModuleDict({"retriever": retriever, "objective": objective})}
        project_bounds(retriever, objective)
        self.in_parts = config.train.chunk_videos is not None or accelerator.num_processes > 1
        """Whether a batch is encoded in parts: chunk after chunk, or by several processes."""
        reason, graphs = eager_reason(config, accelerator), config.train.cuda_graph
        if reason and graphs == "on":
            raise TrainingError(f"train.cuda_graph='on': {reason}. Change that, or set train.cuda_graph to 'auto'")
        if reason and graphs == "auto" and accelerator.device.type == "cuda":
            logger.info("train.cuda_graph: steps are not captured: %s", reason)
        self.captures = not reason and graphs != "off"
        # The weight of one decays with the epoch, and those of others may read it.
        self.reads_epoch = any(LOSSES[name].is_own or name == "frame_distillation" for name in objective.active)

    def optimizer(self, total_steps: int) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The configured optimiser; after each of its steps bounded parameters are put back into their bounds."""
        optimizer, scheduler = build_optimizer(
            self.config.optim, self.retriever, self.objective, total_steps, self.retriever.backbone
        )
        bounded = bounded_modules(self.retriever, self.objective)

        def keep_bounds(*_: object) -> None:
            for module in bounded:
                module.project_bounds()

        optimizer.register_step_post_hook(keep_bounds)
        return optimizer, scheduler

    def batches(self, epoch: int, first_step: int) -> Iterator[tuple[tuple[Batch, BatchInfo | None], str]]:
        """Batches on the device, with what the process knows of the whole batch where it is encoded in parts."""
        self.loader.set_epoch(epoch, first_batch=first_step)
        self.objective.epoch = epoch
        infos = self.loader.batch_infos() if self.in_parts else itertools.repeat(None)
        for batch, info in zip(self.loader, infos, strict=False):
            yield (batch, info), f"Videos of this batch: {', '.join(batch.video_ids)}"

    def backward(
        self, batch: tuple[Batch, BatchInfo | None], epoch: int, step: int, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """Adds the gradients of a batch, and returns the terms of the objective."""
        videos, info = batch
        if info is not None:
            return self._backward_in_parts(videos, info, epoch, step, generator)
        with self.accelerator.autocast():
            output = self.retriever(videos)
        if self.config.train.precision == "bf16":
            output = in_float32(output)  # losses exponentiate: they are computed in full precision
        terms = self.objective(output, videos, generator=generator, **self._loss_options(epoch))
        self.accelerator.backward(terms["total"])
        return terms

    def fixed(self, batch: tuple[Batch, BatchInfo | None], epoch: int) -> tuple[tuple[Any, ...], Batch]:
        """What a graph repeats of an epoch, and a batch in one of few shapes, without ids and texts."""
        assert isinstance(self.retriever, Retriever)
        videos = self.retriever.padded(batch[0])
        most = videos.labels.most_queries
        counts = None if most is None else Counts((), (), (most,))
        plain = replace(videos, video_ids=(), query_ids=(), captions=(), counts=counts)
        return (*self._loss_options(epoch).values(), epoch if self.reads_epoch else None), plain

    def _loss_options(self, epoch: int) -> dict[str, Any]:
        """The negatives of an epoch, and whether it is one of the warm-up."""
        train = self.config.train
        return {
            "negatives": "hard" if epoch >= train.hard_negatives_from else "random",
            "warm_up": epoch < train.warm_up_epochs,
        }

    def _backward_in_parts(
        self,
        batch: Batch,
        info: BatchInfo,
        epoch: int,
        step: int,
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        train = self.config.train
        # As long as in one process: dropout draws for padding too, and some released parts average over it.
        batch = batch.padded(info.frames, info.words, info.stream)
        size = train.chunk_videos or len(batch.clips)
        # Each chunk has seeds of its own, by its place in the batch: whichever process encodes it draws the same.
        firsts = range(info.first, info.first + len(batch.clips), size)
        return backward_in_parts(
            self.retriever,
            self.objective,
            batch.split(size),
            self._labels(batch, info),
            generator=generator,
            seeds=[derived_seed(train.seed, epoch, step, first, "dropout") for first in firsts],
            autocast=lambda: self.accelerator.autocast(),
            **self._loss_options(epoch),
        )

    def _labels(self, batch: Batch, info: BatchInfo) -> Labels:
        """The labels of the whole batch on the device; a single process has them there already."""
        if self.accelerator.num_processes == 1:
            return batch.labels
        device = self.accelerator.device
        return (info.labels.pin_memory() if device.type == "cuda" else info.labels).to(device)

    def select(self, epoch: int) -> Selection:
        """SumR, text to video, on the split that selects: of the blocks alone, where there is a path beside them."""
        if self._path is not None:
            self._path.gate.fill_(float(epoch >= 0))
        report = self._evaluate(self.selection, bootstrap=0, lists=False)
        metrics = asdict(report.text_to_video)
        notes = {"negatives": self._loss_options(epoch)["negatives"], "chance": report.chance}
        return Selection("SumR", {"model": Score(epoch, metrics["sumr"], metrics)}, metrics, notes)

    @property
    def _path(self) -> KernelPath | None:
        """The path beside the blocks."""
        return self.retriever.path if isinstance(self.retriever, Retriever) and self.retriever.has_blocks else None

    def _choose_gate(self, path: KernelPath, best: Path) -> None:
        """The share of the trained blocks in the score: 0 unless another one leads by more than its standard error."""
        path.gate.zero_()
        blocks, alone = self._scores_of_both(path)
        config = EvaluationConfig.of_run(self.config.train, bootstrap=0, lists=False)
        gates = (0.0, *self.config.fit.gates)
        reports = {gate: report_from_scores(alone.lerp(blocks, gate), self.selection, config) for gate in gates}
        sumr = {gate: report.text_to_video.sumr for gate, report in reports.items()}
        gate = max(gates, key=sumr.__getitem__)  # of equal ones the first
        own = self.selection.query_to_video
        lead = paired_test(reports[0.0].ranks, reports[gate].ranks, own, level=_ONE_ERROR)["sumr"]
        share = gate if lead.interval.low > 0 else 0.0
        table = ", ".join(f"{gate:g} {value:.1f}" for gate, value in sumr.items())
        logger.info("gate: SumR on %s by the share of the blocks: %s", self.selection.name, table)
        text = f"{gate:g} leads the kernel path alone by {lead.value:.1f}, {lead.interval.low:+.1f} to "
        text += f"{lead.interval.high:+.1f} (one standard error), so the share of the blocks in the score is {share:g}"
        logger.info("gate: %s", text)
        path.gate.fill_(share)
        if self.objective.state_dict():
            load_best(best, self.objective, "objective.safetensors")
        save_best(best, self.retriever, self.objective, f"{(best / 'README.md').read_text('utf-8')}\nGate: {text}.\n")

    def _scores_of_both(self, path: KernelPath) -> tuple[Tensor, Tensor]:
        """Scores `(q, v)` of the blocks and of the path on the split that selects, each computed once for all gates."""
        retriever, device, train = self.retriever, self.accelerator.device, self.config.train
        encoded = EvaluationConfig.of_run(train).encode(retriever, self.selection, device)
        texts = encoded.text
        assert isinstance(texts, TextEmbedding)
        columns = []
        with evaluation_mode(retriever, device, train.seed):
            for part in encoded.videos:
                video = retriever.for_scoring(part)
                alone, mapped = replace(video, path=None), video.path
                assert mapped is not None
                rows = [
                    (retriever.score(text, alone).total, path.score(text.path, mapped))
                    for text in texts.split(train.eval_queries)
                ]
                columns.append([torch.cat(scores) for scores in zip(*rows, strict=True)])
        blocks, alone = (torch.cat(scores, 1) for scores in zip(*columns, strict=True))
        return blocks, alone

    def save(self, folder: Path, best: Mapping[str, Score], improved: Collection[str]) -> None:
        """Saves the retriever of the best epoch, or of the mean of epochs."""
        score = best["model"]
        config = replace(self.config, model=self.retriever.config)  # with the path that was fitted
        card = retriever_card(config, RetrievalMetrics(**score.details), self.selection.name, score.epoch)
        save_best(folder, self.retriever, self.objective, card)

    def evaluate(self, split: PackedSplit, run: Run) -> EvaluationReport:
        """Evaluates what is saved as best on the reported split; the report of a finished run is read."""
        load_best(run.folder.best, self.retriever)
        project_bounds(self.retriever)
        if run.folder.evaluation.exists():
            return EvaluationReport.from_json(run.folder.evaluation)
        with run.stop.at_once():  # all training is saved: a resumed run comes back here
            if self._path is not None and self._path.gate == 1:  # as an epoch is saved
                self._choose_gate(self._path, run.folder.best)
            report = self._evaluate(split)
        run.folder.save_report(report)
        logger.info("SumR %.1f on %s", report.text_to_video.sumr, split.name)
        return report

    def _evaluate(self, split: PackedSplit, **changes: Any) -> EvaluationReport:
        config = EvaluationConfig.of_run(self.config.train, **changes)
        return evaluate(self.retriever, split, config, device=self.accelerator.device)


def in_float32(record: Any) -> Any:
    """Copy of a record with its floating tensors in float32."""
    return with_tensors(record, {name: t.float() for name, t in tensors_of(record).items() if t.is_floating_point()})
