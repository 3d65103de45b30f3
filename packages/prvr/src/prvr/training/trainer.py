"""The trainer: epochs of steps, a score after each, what is kept of them, early stopping, the final evaluation."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import torch
from accelerate import Accelerator

from prvr.config import config_to_dict
from prvr.errors import TrainingError
from prvr.reading import parse_record
from prvr.training.average import WeightAverage
from prvr.training.checkpoint import check_state, restore_optimizer
from prvr.training.processes import (
    agree_to_stop,
    from_main,
    in_main,
    kept_memory,
    make_accelerator,
    matrix_products,
)
from prvr.training.progress import EpochProgress, ShowStep, no_progress
from prvr.training.run import RunFolder, flat
from prvr.training.signals import StopRequest, Terminated, listening
from prvr.training.state import TrainerState, derived_seed, random_states, restore_random_states
from prvr.training.step import NonFinitePolicy, StepMetrics, TrainingStep
from prvr.training.task import RunConfig, Selection, Task

logger = logging.getLogger(__name__)

CURVES_EVERY = 10.0
"""Seconds between two drawings of the curves, which take a few tenths of a second: more than an epoch of a tiny run."""

Report = TypeVar("Report")
MakeTask = Callable[[Accelerator, StopRequest], Task[Report]]


class RunOptions(TypedDict, total=False):
    """What is chosen for every run, beside its configuration: keywords of `train`, `resume` and `train_reranker`."""

    resume: bool
    """Continue the run in `output` from its last checkpoint: the end of an epoch, or a step inside one."""
    device: torch.device | str | None
    """Where to compute: "cpu", or None for accelerate's choice."""
    progress: EpochProgress
    """Shows the steps of an epoch, for example `terminal_bar`."""
    trackers: Sequence[Any]
    """Trackers of accelerate, for example ["tensorboard"]."""


def train_task(
    config: RunConfig, make_task: MakeTask[Report], *, output: Path | str, **options: Unpack[RunOptions]
) -> "tuple[Trainer[Report], Report]":
    """Trains a task into a run folder, from its start or from its last checkpoint, and evaluates what was kept.

    `prvr.training.train` and `prvr.training.train_reranker` are this function with their tasks; see `train` for what
    signals, seeds and several processes mean.

    Args:
        config: the configuration of the run; stored in `config.yaml` and in every state.
        make_task: opens the data and makes the task, once the folder is found to be free.
        output: the run folder, new or empty.
        options: see `RunOptions`.

    Returns:
        The trainer at the end of its run, and what `Task.evaluate` returned.

    Raises:
        TrainingError, Terminated, KeyboardInterrupt: see `train`.
    """
    run = RunFolder(Path(output))
    resume, trackers = options.get("resume", False), options.get("trackers", ())
    with ExitStack() as stack:
        accelerator = stack.enter_context(
            make_accelerator(config.train.precision, run.path, options.get("device"), trackers)
        )
        in_main(accelerator, lambda: stack.enter_context(run.owned(resume)))
        state = run.open(config, resume)
        stop = stack.enter_context(listening())
        stack.enter_context(kept_memory(config.train.keep_memory))
        task = make_task(accelerator, stop)
        accelerator.wait_for_everyone()  # all have looked into the folder before anything is written there
        if accelerator.is_main_process:
            run.write_config(config)
        if trackers:
            accelerator.init_trackers(config.name)
        progress = options.get("progress", no_progress) if accelerator.is_main_process else no_progress
        trainer = Trainer(task, run, accelerator, stop, progress)
        if state is not None:
            trainer.restore(state)
        return trainer, trainer.train()


class Trainer(Generic[Report]):
    """Trains a task: epochs of steps, checkpoints, selection, early stopping, and the evaluation at the end.

    Args:
        task: what is trained, on the accelerator's device.
        run: the folder that the run is written to.
        accelerator: device, precision, processes and trackers.
        stop: requests of the system to stop.
        progress: shows the steps of an epoch.
    """

    def __init__(
        self,
        task: Task[Report],
        run: RunFolder,
        accelerator: Accelerator,
        stop: StopRequest,
        progress: EpochProgress = no_progress,
    ) -> None:
        self.task, self.run, self.accelerator, self.stop, self.progress = task, run, accelerator, stop, progress
        self.config = task.config
        self.average = WeightAverage(task.config, task.networks)
        self.optimizer, self.scheduler = task.optimizer(max(1, len(task) * self.config.train.epochs))
        self.step = TrainingStep(task, accelerator, self.optimizer, self.scheduler)
        self.nonfinite = NonFinitePolicy(self.config)
        self.generator = torch.Generator(accelerator.device)
        self.epoch, self.state = 0, TrainerState()
        self.history: list[dict[str, Any]] = []
        self._random: Mapping[str, Any] | None = None  # of a run that is resumed inside an epoch, until it continues
        self._saved = "nothing is saved yet, --resume starts over"
        self._drawn = time.monotonic()

    @property
    def stopped_early(self) -> bool:
        """Whether patience ran out before the last epoch."""
        return self.epoch < self.config.train.epochs

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `RunFolder.open` returned.

        Raises:
            TrainingError: it is the state of another task or model.
        """
        source = self.run.state
        self.task.load_state_dict(state, source)
        self.average.restore(state, source)
        restore_optimizer(self.optimizer, self.scheduler, state, source)
        self.epoch, self.history = state["epoch"], state["history"]
        self.nonfinite.in_row = state.get("skipped_in_row", 0)
        if state.get("position") is not None:
            # a re-ranker's run of version 0.1 has no random states: its draws follow from epoch and step
            check_state({"random": None} | dict(state), {"position": dict, "random": dict | None}, source)
            self.state = parse_record(TrainerState, state["position"], f"{source}: position")
            self._random = state.get("random")
        self._saved = self._where
        self._log("%s: resuming (%s)", self.run.path, self._saved)

    def train(self) -> Report:
        """Trains to the end, then evaluates what was kept.

        Raises:
            TrainingError: the run cannot be written, or a loss or gradient is not finite.
            Terminated, KeyboardInterrupt: a signal arrived; the run is saved.
        """
        train = self.config.train
        try:
            if not train.epochs:
                self._keep_untrained()
            while self.epoch < train.epochs and not (
                self.epoch and self.epoch - 1 - self.task.best_epoch > train.patience
            ):
                self._train_epoch()
                self._finish_epoch()
                self.stop.raise_if_received()
            if self.accelerator.is_main_process:
                self._draw_curves()
            report = from_main(self.accelerator, lambda: self.task.evaluate(self.run, self.stop))
            self.stop.raise_if_received()  # all is done, but whoever asked to stop should not see the program continue
            return report
        except (KeyboardInterrupt, Terminated) as error:
            what = "terminated" if isinstance(error, Terminated) else "interrupted"
            logger.warning("%s: %s; %s", self.run.path, what, self._saved)
            raise

    def _draw_curves(self) -> None:
        self.run.save_curves(self.history, self.config.name)
        self._drawn = time.monotonic()

    def _keep_untrained(self) -> None:
        """Keeps and saves what is to be trained as it starts, in a run of no epoch."""
        selection, main = from_main(self.accelerator, self._select), self.accelerator.is_main_process
        self.task.keep(-1, selection, self.run.best if main else None)
        if main:
            self.run.save_epoch(self._state_dict(), self.history)

    def _train_epoch(self) -> None:
        """One pass over the batches of an epoch, or what is left of it; `state` holds its result."""
        state, train, steps = self.state, self.config.train, len(self.task)
        self._seed_epoch()
        for network in self.task.networks:
            network.train()
        began, busy = time.perf_counter() - state.seconds, time.process_time() - state.processor
        waiting: deque[StepMetrics] = deque()
        with (
            matrix_products(train.precision),  # of the steps alone: scores that select or are reported are float32
            self.progress(f"epoch {self.epoch + 1}/{train.epochs}", steps - state.step) as show,
        ):
            for step, batch in enumerate(self.task.batches(self.epoch, state.step), state.step):
                state.rate = self.step.learning_rate
                waiting.append(self.step(batch, self.epoch, step, self.generator))
                state.step, state.seconds = step + 1, time.perf_counter() - began
                state.processor = time.process_time() - busy
                self._account(waiting, show, keep=self.step.lag)
                agree_to_stop(self.accelerator, self.stop)
                every = train.checkpoint_every
                due = every is not None and (self.epoch * steps + state.step) % every == 0
                if due or self.stop.received is not None:
                    self._account(waiting, show)  # nothing is saved that has not been checked
                    self._save_inside_epoch()
                    self.stop.raise_if_received()
            self._account(waiting, show)
        state.seconds, state.processor = time.perf_counter() - began, time.process_time() - busy

    def _seed_epoch(self) -> None:
        """Brings the random states to the start of the epoch, or to where the run was stopped inside it."""
        states, self._random = self._random, None
        if states is not None and restore_random_states(states, self.generator):
            return
        if states is not None:
            logger.warning("%s: saved on another kind of device, the draws of this epoch differ", self.run.path)
        where = (self.config.train.seed, self.epoch) + ((self.state.step,) if self.state.step else ())
        torch.manual_seed(derived_seed(*where, "dropout"))  # dropout can only draw from the global generator
        self.generator.manual_seed(derived_seed(*where, "objective"))

    def _account(self, waiting: deque[StepMetrics], show: ShowStep, keep: int = 0) -> None:
        """Reads and counts the metrics of steps, all but the last `keep`."""
        while len(waiting) > keep:
            metrics = waiting.popleft()
            where = f"{self.run.path}: epoch {self.epoch}, step {metrics.step} of {len(self.task)}"
            if self.nonfinite.accepts(metrics, where, self._saved):
                self.state.add(metrics.values)
            else:
                self.state.skipped += 1
            show(metrics.values)

    def _finish_epoch(self) -> None:
        """Scores the epoch, keeps what is better, and saves the state between two epochs."""
        epoch, state, train = self.epoch, self.state, self.config.train
        trained, losses = time.perf_counter(), state.means()
        if not losses:
            raise TrainingError(
                f"{self.run.path}: epoch {epoch}: no step had a finite loss and gradient, all were skipped. Look for "
                f"NaN in the features, or lower optim.lr={self.config.optim.lr}; {self._saved}."
            )
        selection = self._keep()
        line = {
            "epoch": epoch,
            "loss": losses,
            **selection.notes,
            "lr": state.rate,
            selection.measure.lower(): selection.score,
            "selection": selection.metrics,
            "steps": state.step,
            "seconds": {
                "train": state.seconds,
                "evaluate": time.perf_counter() - trained,
                "processor": state.processor,
            },
        }
        if train.average:
            line["averaged"] = list(train.kept_epochs(epoch))
        if train.on_nonfinite == "skip":
            line["skipped"] = state.skipped
        self.history.append(line)
        self.epoch, self.state = epoch + 1, TrainerState()
        if self.accelerator.is_main_process:
            self.run.save_epoch(self._state_dict(), self.history)
        self._saved = self._where
        if self.accelerator.is_main_process and time.monotonic() > self._drawn + CURVES_EVERY:
            self._draw_curves()
        if self.accelerator.trackers:
            shown = {"loss": losses, "lr": state.rate, "selection": selection.metrics}
            self.accelerator.log(flat(shown, "/"), step=epoch)
        self._log(
            "epoch %d: loss %.4f, %s %.1f (%s), lr %.2e, %.1f + %.1f s",
            *(epoch, losses["total"], selection.measure, selection.score),
            *(train.kept_text(self.task.best_epoch), state.rate),
            *(line["seconds"][what] for what in ("train", "evaluate")),
        )

    def _keep(self) -> Selection:
        """Scores the epoch, or the mean of the weights up to it, and hands it to the task to be kept."""
        mean, main = self.average.of(self.epoch), self.accelerator.is_main_process
        with self.average.applied(mean):
            try:
                selection = from_main(self.accelerator, self._select)
            except (KeyboardInterrupt, Terminated) as error:
                selection = error
            else:
                self.task.keep(self.epoch, selection, self.run.best if main else None)
        if not isinstance(selection, Selection):
            if self.accelerator.num_processes == 1:
                self._save_inside_epoch()  # the epoch's training is not lost with the evaluation
            raise selection
        self.average.mean = mean
        return selection

    def _select(self) -> Selection:
        if self.accelerator.num_processes > 1:  # the others wait: interrupting it would leave them waiting
            return self.task.select(self.epoch)
        with self.stop.at_once():
            return self.task.select(self.epoch)

    def _state_dict(self) -> dict[str, Any]:
        """The state between two epochs."""
        return self.task.state_dict() | {
            "config": config_to_dict(self.config),
            "epoch": self.epoch,
            "history": self.history,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "skipped_in_row": self.nonfinite.in_row,
            "position": None,
            "average": self.average.mean,
        }

    def _save_inside_epoch(self) -> None:
        if self.accelerator.is_main_process:
            inside = {"position": asdict(self.state), "random": random_states(self.generator)}
            self.run.save_state(self._state_dict() | inside)
        self.accelerator.wait_for_everyone()  # a process that ends now must not take the writing one along
        self._saved = self._where

    @property
    def _where(self) -> str:
        epoch, step = self.epoch, self.state.step
        where = f"step {step} of {len(self.task)} of epoch {epoch}" if step else f"the end of epoch {epoch - 1}"
        return f"saved up to {where}, --resume goes on from there"

    def _log(self, message: str, *values: object) -> None:
        """Logs for the user in the main process, and for debugging in the others."""
        logger.log(logging.INFO if self.accelerator.is_main_process else logging.DEBUG, message, *values)
