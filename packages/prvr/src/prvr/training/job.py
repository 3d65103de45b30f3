"""One run: epochs of steps, a selection score after each, the best kept, early stopping, the final evaluation."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from prvr.config import Config, config_to_dict
from prvr.data import PackedSplit, make_loader
from prvr.evaluation import evaluate
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.results import EvaluationReport
from prvr.training.card import model_card
from prvr.training.checkpoint import load_best, load_weights, save_best
from prvr.training.errors import TrainingError
from prvr.training.optimizer import BertAdam, build_optimizer
from prvr.training.progress import EpochProgress
from prvr.training.run import RunFolder
from prvr.training.seeds import derived_seed
from prvr.training.splits import Splits
from prvr.types import Batch

__all__ = ["Job", "RunResult"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Args:
        output: the run folder.
        epochs: completed.
        best_epoch: the selected one, from 0.
        best_score: its SumR on the split that selects.
        stopped_early: by patience.
        history: the lines of `metrics.jsonl`.
        report: of the selected epoch on the reported split, as in `evaluation.json`.
    """

    output: Path
    epochs: int
    best_epoch: int
    best_score: float
    stopped_early: bool
    history: tuple[Mapping[str, Any], ...]
    report: EvaluationReport


class Job:
    """The parts of a run and how far it has come."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        splits: Splits,
        accelerator: Accelerator,
        retriever: Retriever,
        objective: Objective,
        progress: EpochProgress,
    ) -> None:
        self.config, self.run, self.splits, self.accelerator = config, run, splits, accelerator
        self.retriever, self.objective, self.progress = retriever, objective, progress
        for module in (retriever, objective):
            module.to(accelerator.device)
            module.project_bounds()
        size, videos = config.train.batch_size, len(splits.train)
        # A video alone has no negatives: a last batch of one is left out. (Splits has at least two videos.)
        self.loader = make_loader(
            splits.train,
            size,
            seed=config.train.seed,
            captions_per_video=config.data.captions_per_video,
            drop_last=videos > size and videos % size == 1,
            workers=config.train.workers,
        )
        steps = len(self.loader) * config.train.epochs
        self.optimizer, self.scheduler = build_optimizer(config, retriever, objective, steps)
        self.epoch = 0
        self.best_epoch, self.best_score = -1, -math.inf
        self.history: list[dict[str, Any]] = []

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `_save` wrote."""
        load_weights(self.retriever, state["retriever"], self.run.state)
        load_weights(self.objective, state["objective"], self.run.state)
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except ValueError as error:
            raise TrainingError(
                f"{self.run.state}: the optimiser's state does not fit these parameters ({error})"
            ) from error
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.epoch, self.history = state["epoch"], state["history"]
        self.best_epoch, self.best_score = state["best_epoch"], state["best_score"]
        for module in (self.retriever, self.objective):
            module.project_bounds()
        logger.info("%s: going on after %d epochs", self.run.path, self.epoch)

    @property
    def _patience_spent(self) -> bool:
        return self.epoch - 1 - self.best_epoch >= self.config.train.patience

    def run_epochs(self) -> RunResult:
        """Trains to the end, then evaluates the best epoch on the reported split."""
        while self.epoch < self.config.train.epochs and not (self.epoch and self._patience_spent):
            self._run_epoch()
        load_best(self.run.best, self.retriever)
        self.retriever.project_bounds()
        if self.run.evaluation.exists():  # resumed after its end
            report = EvaluationReport.from_json(self.run.evaluation)
        else:
            report = self._evaluate(self.splits.report, bootstrap=1000)
            self.run.save_report(report)
        logger.info(
            "best epoch %d: SumR %.1f on %s", self.best_epoch, report.text_to_video.sumr, self.splits.report.name
        )
        return RunResult(
            output=self.run.path,
            epochs=self.epoch,
            best_epoch=self.best_epoch,
            best_score=self.best_score,
            stopped_early=self.epoch < self.config.train.epochs,
            history=tuple(self.history),
            report=report,
        )

    def _run_epoch(self) -> None:
        epoch, started = self.epoch, time.perf_counter()
        losses, rate = self._train_epoch()
        trained = time.perf_counter()
        metrics = self._evaluate(self.splits.selection, bootstrap=0).text_to_video
        scores = asdict(metrics)
        line = {
            "epoch": epoch,
            "loss": losses,
            "negatives": self._negatives,
            "lr": rate,
            "sumr": scores["sumr"],
            "selection": scores,
            "seconds": {"train": trained - started, "evaluate": time.perf_counter() - trained},
        }
        self.history.append(line)
        self.epoch += 1
        if scores["sumr"] > self.best_score:
            self.best_epoch, self.best_score = epoch, scores["sumr"]
            card = model_card(self.config, metrics, self.splits.selection.name, epoch)
            save_best(self.run.best, self.retriever, self.objective, card)
        self._save()
        if self.accelerator.trackers:
            named = {f"loss/{name}": value for name, value in losses.items()} | {"lr": line["lr"]}
            self.accelerator.log(named | {f"selection/{name}": value for name, value in scores.items()}, step=epoch)
        logger.info(
            "epoch %d: loss %.4f, SumR %.1f (best %.1f, epoch %d), lr %.2e, %.1f + %.1f s",
            epoch,
            losses["total"],
            scores["sumr"],
            self.best_score,
            self.best_epoch,
            line["lr"],
            *line["seconds"].values(),
        )

    def _save(self) -> None:
        state = {
            "config": config_to_dict(self.config),
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "history": self.history,
            "retriever": self.retriever.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }
        self.run.save_epoch(state, self.history, self.config.name)

    @property
    def _negatives(self) -> str:
        return "hard" if self.epoch >= self.config.train.hard_negatives_from else "random"

    def _learning_rate(self) -> float:
        if isinstance(self.optimizer, BertAdam):
            return self.optimizer.scheduled_lr()
        return self.optimizer.param_groups[0]["lr"]

    def _evaluate(self, split: PackedSplit, bootstrap: int) -> EvaluationReport:
        train = self.config.train
        return evaluate(
            self.retriever,
            split,
            device=self.accelerator.device,
            video_batch=train.eval_videos,
            query_batch=train.eval_queries,
            bootstrap=bootstrap,
            seed=train.seed,
        )

    def _train_epoch(self) -> tuple[dict[str, float], float]:
        """One pass over the training videos: the mean of each loss term, and the learning rate of the last step."""
        seed, steps = self.config.train.seed, len(self.loader)
        self.loader.set_epoch(self.epoch)
        torch.manual_seed(derived_seed(seed, self.epoch, "dropout"))  # dropout can only draw from the global generator
        generator = torch.Generator(self.accelerator.device)
        generator.manual_seed(derived_seed(seed, self.epoch, "objective"))
        self.retriever.train()
        self.objective.train()
        sums: dict[str, float] = {}
        rate = 0.0
        title = f"epoch {self.epoch + 1}/{self.config.train.epochs}"
        with self.progress(title, steps) as report:
            for step, batch in enumerate(self.loader):
                rate = self._learning_rate()
                terms = self._step(batch.to(self.accelerator.device), generator, step)
                for name, value in terms.items():
                    sums[name] = sums.get(name, 0.0) + value
                report(terms)
        return {name: value / steps for name, value in sums.items()}, rate

    def _step(self, batch: Batch, generator: torch.Generator, step: int) -> dict[str, float]:
        self.optimizer.zero_grad(set_to_none=True)
        with self.accelerator.autocast():
            output = self.retriever(batch)
        if self.config.train.precision != "no":
            output = _in_float32(output)  # losses exponentiate: they are computed in full precision, outside autocast
        terms = self.objective(output, batch, negatives=self._negatives, generator=generator)
        # One transfer for all terms; it also waits for the forward pass, so the check below is no further stall.
        values = dict(zip(terms, torch.stack([t.detach().float() for t in terms.values()]).tolist(), strict=True))
        self._require_finite(values, batch, step)
        self.accelerator.backward(terms["total"])
        if self.scheduler is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.accelerator.clip_grad_norm_(parameters, self.config.optim.max_grad_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.retriever.project_bounds()
        self.objective.project_bounds()
        return values

    def _require_finite(self, values: Mapping[str, float], batch: Batch, step: int) -> None:
        bad = [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise TrainingError(
                f"{self.run.path}: epoch {self.epoch}, step {step} of {len(self.loader)}: the loss is not finite "
                f"({', '.join(bad)}). Videos of this batch: {', '.join(batch.video_ids)}. Look for NaN in their "
                f"features, or lower optim.lr={self.config.optim.lr}; every complete epoch is saved."
            )


def _in_float32(value: Any) -> Any:
    """The same record with its floating tensors in float32, those bound in a partial included."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _in_float32(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    if isinstance(value, partial):
        return partial(
            value.func, *map(_in_float32, value.args), **{k: _in_float32(v) for k, v in value.keywords.items()}
        )
    return value
