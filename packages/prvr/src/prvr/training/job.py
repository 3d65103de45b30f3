"""One run: epochs of steps, a selection score after each, the best kept, early stopping, the final evaluation."""

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from accelerate import Accelerator

from prvr.config import Config, config_to_dict
from prvr.data import PackedSplit, make_loader
from prvr.data.dataset import Shard
from prvr.errors import TrainingError
from prvr.evaluation import evaluate
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.report import EvaluationReport
from prvr.losses import Negatives
from prvr.models import AnyRetriever
from prvr.objective import Objective, state_of_version_0_1
from prvr.reading import parse_record
from prvr.training.card import model_card
from prvr.training.checkpoint import check_state, load_best, load_weights, restore_optimizer, save_best
from prvr.training.compiling import compile_blocks
from prvr.training.data import Splits, training_batches
from prvr.training.nonfinite import NonFinitePolicy, StepMetrics
from prvr.training.optimizer import build_optimizer
from prvr.training.processes import agree_to_stop, from_main
from prvr.training.progress import EpochProgress, Report
from prvr.training.result import RunResult
from prvr.training.run import RunFolder
from prvr.training.signals import StopRequest, Terminated
from prvr.training.state import TrainerState, derived_seed, random_states, restore_random_states
from prvr.training.step import TrainingStep

__all__ = ["Job"]

logger = logging.getLogger(__name__)


class Job:
    """The parts of a run and how far it has come."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        splits: Splits,
        accelerator: Accelerator,
        retriever: AnyRetriever,
        objective: Objective,
        progress: EpochProgress,
        stop: StopRequest,
    ) -> None:
        self.config, self.run, self.splits, self.accelerator = config, run, splits, accelerator
        self.retriever, self.objective, self.progress, self.stop = retriever, objective, progress, stop
        for module in (retriever, objective):
            module.to(accelerator.device)
            module.project_bounds()
        if config.train.compile:
            compile_blocks(retriever)
        size, videos, processes = config.train.batch_size, len(splits.train), accelerator.num_processes
        if min(size, videos) < processes:
            raise TrainingError(
                f"{processes} processes share batches of {min(size, videos)} videos: each needs one. Start fewer, or "
                f"raise train.batch_size={size}"
            )
        # A video alone has no negatives: a last batch of one is left out, as is one with a process idle.
        loader = make_loader(
            splits.train,
            size,
            seed=config.train.seed,
            captions_per_video=config.data.captions_per_video,
            drop_last=videos > size and 0 < videos % size < max(2, processes),
            workers=config.train.workers,
            shard=Shard(accelerator.process_index, processes),
        )
        self.loader = training_batches(loader, accelerator.device, config.train.data_on_device)
        steps = len(self.loader) * config.train.epochs
        self.optimizer, self.scheduler = build_optimizer(config, retriever, objective, steps)
        self.stepper = TrainingStep(config, accelerator, retriever, objective, self.optimizer, self.scheduler)
        self.generator = torch.Generator(accelerator.device)
        self.epoch, self.position = 0, TrainerState()
        self.random: Mapping[str, Any] | None = None  # of a run that goes on inside an epoch, until it does
        self.tolerance = NonFinitePolicy(config)
        self.best_epoch, self.best_score = -1, -math.inf
        self.history: list[dict[str, Any]] = []
        self.saved = "nothing is saved yet, --resume starts over"

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `_save` wrote."""
        kinds = {"retriever": dict, "objective": dict, "best_epoch": int, "best_score": float | int}
        inside = state.get("position") is not None
        check_state(state, kinds | ({"position": dict, "random": dict} if inside else {}), self.run.state)
        load_weights(self.retriever, state["retriever"], self.run.state)
        load_weights(self.objective, state_of_version_0_1(state["objective"]), self.run.state)
        restore_optimizer(self.optimizer, self.scheduler, state, self.run.state)
        self.epoch, self.history = state["epoch"], state["history"]
        self.best_epoch, self.best_score = state["best_epoch"], state["best_score"]
        self.tolerance.in_row = state.get("skipped_in_row", 0)
        if inside:
            self.position = parse_record(TrainerState, state["position"], f"{self.run.state}: position")
            self.random = state["random"]
        for module in (self.retriever, self.objective):
            module.project_bounds()
        self.saved = self._where
        self._tell("%s: going on (%s)", self.run.path, self.saved)

    def _tell(self, message: str, *values: object) -> None:
        """Of several processes the main one speaks."""
        logger.log(logging.INFO if self.accelerator.is_main_process else logging.DEBUG, message, *values)

    @property
    def _where(self) -> str:
        step, steps = self.position.step, len(self.loader)
        where = f"step {step} of {steps} of epoch {self.epoch}" if step else f"the end of epoch {self.epoch - 1}"
        return f"saved up to {where}, --resume goes on from there"

    @property
    def _patience_spent(self) -> bool:
        return self.epoch - 1 - self.best_epoch > self.config.train.patience

    def run_epochs(self) -> RunResult:
        """Trains to the end, then evaluates the best epoch on the reported split."""
        while self.epoch < self.config.train.epochs and not (self.epoch and self._patience_spent):
            self._run_epoch()
            self.stop.raise_if_received()
        report = from_main(self.accelerator, self._final_report)
        self._tell(
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

    def _final_report(self) -> EvaluationReport:
        load_best(self.run.best, self.retriever)
        self.retriever.project_bounds()
        if self.run.evaluation.exists():  # resumed after its end
            return EvaluationReport.from_json(self.run.evaluation)
        with self.stop.at_once():  # all training is saved: a resumed run comes back here
            report = self._evaluate(self.splits.report, bootstrap=1000)
        self.run.save_report(report)
        return report

    def _run_epoch(self) -> None:
        epoch = self.epoch
        self._train_epoch()
        trained, losses, rate = time.perf_counter(), self.position.means(), self.position.rate
        if not losses:
            raise TrainingError(
                f"{self.run.path}: epoch {epoch}: no step had a finite loss and gradient, all were skipped. Look for "
                f"NaN in the features, or lower optim.lr={self.config.optim.lr}; {self.saved}."
            )
        metrics = from_main(self.accelerator, self._select)
        scores = asdict(metrics)
        line = {
            "epoch": epoch,
            "loss": losses,
            "negatives": self._negatives,
            "lr": rate,
            "sumr": scores["sumr"],
            "selection": scores,
            "seconds": {"train": self.position.seconds, "evaluate": time.perf_counter() - trained},
        }
        if self.config.train.on_nonfinite == "skip":
            line["skipped"] = self.position.skipped
        self.history.append(line)
        self.epoch, self.position = epoch + 1, TrainerState()
        if scores["sumr"] > self.best_score:
            self.best_epoch, self.best_score = epoch, scores["sumr"]
            if self.accelerator.is_main_process:
                card = model_card(self.config, metrics, self.splits.selection.name, epoch)
                save_best(self.run.best, self.retriever, self.objective, card)
        self._save()
        if self.accelerator.trackers:
            named = {f"loss/{name}": value for name, value in losses.items()} | {"lr": line["lr"]}
            self.accelerator.log(named | {f"selection/{name}": value for name, value in scores.items()}, step=epoch)
        self._tell(
            "epoch %d: loss %.4f, SumR %.1f (best %.1f, epoch %d), lr %.2e, %.1f + %.1f s",
            epoch,
            losses["total"],
            scores["sumr"],
            self.best_score,
            self.best_epoch,
            line["lr"],
            *line["seconds"].values(),
        )

    def _select(self) -> RetrievalMetrics:
        """The scores that choose the epoch."""
        if self.accelerator.num_processes > 1:  # the others wait: breaking it off would leave them waiting
            return self._evaluate(self.splits.selection, bootstrap=0).text_to_video
        try:
            with self.stop.at_once():
                return self._evaluate(self.splits.selection, bootstrap=0).text_to_video
        except (KeyboardInterrupt, Terminated):
            self._save_position()  # the epoch's training is not lost for an evaluation that was broken off
            raise

    def _state(self) -> dict[str, Any]:
        return {
            "config": config_to_dict(self.config),
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "history": self.history,
            "retriever": self.retriever.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "skipped_in_row": self.tolerance.in_row,
            "position": None,  # between two epochs
        }

    def _save(self) -> None:
        if self.accelerator.is_main_process:
            self.run.save_epoch(self._state(), self.history, self.config.name)
        self.saved = self._where

    def _save_position(self) -> None:
        if self.accelerator.is_main_process:
            self.run.save_state(
                self._state() | {"position": asdict(self.position), "random": random_states(self.generator)}
            )
        self.accelerator.wait_for_everyone()  # whoever ends now must not take the writer along
        self.saved = self._where

    @property
    def _negatives(self) -> Negatives:
        return "hard" if self.epoch >= self.config.train.hard_negatives_from else "random"

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

    def _train_epoch(self) -> None:
        """One pass over the training videos, or what is left of it; `position` holds what came of it."""
        position, steps, every = self.position, len(self.loader), self.config.train.checkpoint_every
        self._seed_epoch()
        self.retriever.train()
        self.objective.train()
        began = time.perf_counter() - position.seconds
        waiting: deque[StepMetrics] = deque()
        title = f"epoch {self.epoch + 1}/{self.config.train.epochs}"
        with self.progress(title, steps - position.step) as report:

            def settle(keep: int) -> None:
                while len(waiting) > keep:
                    self._account(waiting.popleft(), report)

            wholes = self.loader.batch_infos() if self.stepper.in_parts else itertools.repeat(None)
            for step, (batch, whole) in enumerate(zip(self.loader, wholes, strict=False), position.step):
                position.rate = self.stepper.learning_rate
                waiting.append(self.stepper(self.epoch, step, batch, self._negatives, self.generator, whole))
                position.step, position.seconds = step + 1, time.perf_counter() - began
                settle(self.stepper.lag)
                agree_to_stop(self.accelerator, self.stop)
                due = every is not None and (self.epoch * steps + position.step) % every == 0
                if due or self.stop.received is not None:
                    settle(0)  # nothing is saved that has not been looked at
                    self._save_position()
                    self.stop.raise_if_received()
            settle(0)
        position.seconds = time.perf_counter() - began

    def _seed_epoch(self) -> None:
        """Brings loader and random states to the start of the epoch, or to where the run was stopped inside it."""
        seed, step, states = self.config.train.seed, self.position.step, self.random
        self.random = None
        self.loader.set_epoch(self.epoch, first_batch=step)
        if states is not None and restore_random_states(states, self.generator):
            return
        if states is not None:
            logger.warning("%s: saved on another kind of device, the draws of this epoch differ", self.run.path)
        where = (seed, self.epoch) if step == 0 else (seed, self.epoch, step)
        torch.manual_seed(derived_seed(*where, "dropout"))  # dropout can only draw from the global generator
        self.generator.manual_seed(derived_seed(*where, "objective"))

    def _account(self, numbers: StepMetrics, report: Report) -> None:
        """Reads what a step has left, and counts it."""
        where = f"{self.run.path}: epoch {self.epoch}, step {numbers.step} of {len(self.loader)}"
        if self.tolerance.accepts(numbers, where, self.saved):
            self.position.add(numbers.values)
        else:
            self.position.skipped += 1
        report(numbers.values)
