"""The trainer: epochs of steps, a score after each, what is saved as best, early stopping."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.config import RunConfig, config_to_dict, flat
from prvr.data.on_device import matrix_products
from prvr.errors import DivergedError, TrainingError
from prvr.reading import short
from prvr.training.checkpoint import (
    Score,
    TrainerState,
    damaged,
    derived_seed,
    expect_like,
    load_weights,
    plain_state,
)
from prvr.training.processes import ShowStep, Terminated, agree_to_stop, from_main, host_group, wait_for_all
from prvr.training.run_folder import Run, differences
from prvr.training.task import Selection, StepMetrics, Task, TrainingStep

logger = logging.getLogger(__name__)

CURVES_EVERY = 10.0
"""Seconds between two drawings of the curves, which take a few tenths of a second: more than an epoch of a tiny run."""

Report = TypeVar("Report")


class WeightAverage:
    """The running mean of weights over epochs (Izmailov et al., 2018, "Averaging weights leads to wider optima").

    After the n-th of its epochs it is m_n = m_{n-1} + (w_n - m_{n-1}) / n, in the type of the weights, so that a saved
    run holds one copy more, however many epochs are averaged. Buffers of whole numbers are those of the last epoch.
    `torch.optim.swa_utils.AveragedModel` averages these as well, and needs a copy of the networks.

    Every parameter of a retriever, a re-ranker or a loss is a free number or one bounded to
    an interval: none is a point of hyperbolic space. Curvatures, scales and temperatures are averaged as they are
    trained, by their logarithm or logit, and so stay within their bounds.

    Args:
        config: the configuration of the run, which says which epochs are averaged.
        networks: the modules that are trained, by name.
    """

    def __init__(self, config: RunConfig, networks: Mapping[str, nn.Module]) -> None:
        self.train, self.networks = config.train, nn.ModuleDict(networks)
        self.mean: dict[str, Tensor] = {}
        """Of the epochs up to now; empty before the first that is averaged."""

    def of(self, epoch: int) -> dict[str, Tensor]:
        """The mean over the epochs that are averaged up to the end of `epoch`, whose weights the networks hold.

        Empty where the run averages nothing.
        """
        if not self.train.average:
            return {}
        share = 1 / len(self.train.kept_epochs(epoch))
        return {
            name: self.mean[name].to(now).lerp(now, share)
            if share < 1 and now.is_floating_point()
            else now.detach().clone()
            for name, now in self.networks.state_dict().items()
        }

    @contextmanager
    def applied(self, mean: Mapping[str, Tensor]) -> Iterator[None]:
        """The networks with the mean as their weights, for the length of the `with` statement; as they are if empty."""
        if not mean:
            yield
            return
        trained = {name: tensor.detach().clone() for name, tensor in self.networks.state_dict().items()}
        load_weights(self.networks, mean, "the mean of the weights")
        try:
            yield
        finally:
            self.networks.load_state_dict(trained)


class Trainer:
    """Trains a task: epochs of steps, checkpoints, selection, early stopping.

    Args:
        config: the configuration of the run.
        task: what is trained, on the device of the run.
        run: the folder, device, processes and signals of the run, and the state that it continues from.
        optimizer, scheduler: as `build_optimizer` gives them.
        steps: steps of an epoch.
        constants: plain values and tensors that are saved in every state.

    Raises:
        TrainingError: `run.state` is the state of another task or model.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        run: Run,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
        steps: int,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.task, self.run, self.steps = config, task, run, steps
        self.optimizer, self.scheduler, self.constants = optimizer, scheduler, dict(constants or {})
        self.average = WeightAverage(config, task.networks)
        self.step = TrainingStep(config, task, optimizer, scheduler, run.accelerator.device)
        self.generator = torch.Generator(run.accelerator.device)
        self.group = host_group()
        self.epoch, self.state, self.skipped_in_row, self.stopped = 0, TrainerState(), 0, False
        self.best = dict.fromkeys(task.networks, Score())
        self.history: list[dict[str, Any]] = []
        self._saved = "nothing is saved yet, --resume starts over"
        self._drawn = time.monotonic()
        if run.state is not None:
            self._restore(run.state)

    @property
    def best_epoch(self) -> int:
        """The last epoch, from 0, in which a network was saved as best; -1 before the first."""
        return max(score.epoch for score in self.best.values())

    @property
    def stopped_early(self) -> bool:
        """Whether patience or `on_epoch` ended the training before the last epoch."""
        return self.epoch < self.config.train.epochs

    def _restore(self, state: Mapping[str, Any]) -> None:
        source, networks = self.run.folder.state, self.task.networks
        plain = plain_state(state, source)
        if changes := differences(plain.parts, part_names(networks)):
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise TrainingError(
                f"{source}: a checkpoint of other parts: {'; '.join(changes[:3])}{more}. Resume with the model, losses "
                "and stages that the run began with."
            )
        if problem := plain.problem(self.steps, self.config.train.epochs):
            raise damaged(source, problem)
        ended = plain.epoch
        try:
            for name, network in networks.items():
                load_weights(network, state["networks"][name], source)
            self._load_optimizer(state["optimizer"], state["scheduler"])
            expect_like(dict(self.best), {name: Score() for name in plain.best}, "best")
            is_averaged = state["average"] or len(self.config.train.kept_epochs(ended)) > 1
            expect_like(self.average.networks.state_dict() if is_averaged else {}, state["average"], "average")
        except TrainingError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise damaged(source, f"{type(error).__name__}: {short(error, 200)}.") from error
        self.best, self.epoch, self.history = plain.best, ended, plain.history
        self.average.mean, self.skipped_in_row = state["average"], plain.skipped_in_row
        self.stopped, self.state = plain.stopped, plain.position or TrainerState()
        self._saved = self._where
        self._log("%s: resuming, %s", self.run.folder.path, self._saved.partition(";")[0])

    def _load_optimizer(self, optimizer: dict[str, Any], scheduler: dict[str, Any] | None) -> None:
        """Loads what fits the optimizer and the schedule of this run.

        Raises:
            ValueError: it does not.
        """
        expect_like(self.optimizer.state_dict()["param_groups"], optimizer["param_groups"], "optimizer.param_groups")
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, moments in optimizer["state"].items():
            expect_like(
                {"step": 0.0} | dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[number].detach().cpu()),
                moments | {"step": float(moments["step"])},
                f"optimizer.state.{number}",
            )
        self.optimizer.load_state_dict(optimizer)
        if self.scheduler is not None:
            own, saved = self.scheduler.state_dict(), scheduler or {}
            shared = {name: saved[name] for name in own if name in saved}  # other versions of torch have others
            expect_like({name: own[name] for name in shared}, shared, "scheduler")
            self.scheduler.load_state_dict(shared)

    def train(self, evaluate: Callable[[], Report]) -> Report:
        """Trains to the end.

        Args:
            evaluate: what is done last, in the main process: it evaluates what was saved as best.

        Returns:
            What `evaluate` returned, in all processes.

        Raises:
            TrainingError: the run cannot be written, or a loss or gradient is not finite.
            Terminated, KeyboardInterrupt: a signal arrived; the run is saved.
        """
        train, accelerator, stop = self.config.train, self.run.accelerator, self.run.stop
        wait_for_all()  # all have looked into the folder before anything is written there
        if self._is_main:
            self.run.folder.write_config(self.config)
        if accelerator.log_with:
            accelerator.init_trackers(self.config.name)
        try:
            if not train.epochs and not any(score.details for score in self.best.values()):
                selection = from_main(accelerator, lambda: self._select(-1))
                self._save_best(selection)
                self._save_epoch()
                self._log("start: %s %.1f", selection.measure, selection.score)
            while self.epoch < train.epochs and not (self.stopped or self.epoch - 1 - self.best_epoch > train.patience):
                self._train_epoch()
                self._finish_epoch()
                self._call_on_epoch()
                if agree_to_stop(stop, self.group):
                    stop.raise_if_received()
            self._draw_curves()
            report = from_main(accelerator, evaluate)
            stop.raise_if_received()  # all is done, but whoever asked to stop should not see the program continue
            return report
        except (KeyboardInterrupt, Terminated) as error:
            what = "terminated" if isinstance(error, Terminated) else "interrupted"
            logger.warning("%s: %s; %s", self.run.folder.path, what, self._saved)
            raise

    def _call_on_epoch(self) -> None:
        """Lets `on_epoch` end the training; a run that it ended is finished, also for `--resume`."""
        on_epoch = self.run.on_epoch
        if on_epoch is not None and from_main(self.run.accelerator, lambda: bool(on_epoch(self.history[-1]))):
            self.stopped = True
            self._log("epoch %d: on_epoch ends the training", self.epoch - 1)
            self._save_epoch()

    @property
    def _is_main(self) -> bool:
        return self.run.accelerator.is_main_process

    def _draw_curves(self) -> None:
        if self._is_main:
            self.run.folder.save_curves(self.history, self.config.name)
            self._drawn = time.monotonic()

    def _train_epoch(self) -> None:
        """One pass over the batches of an epoch, or what is left of it; `state` holds its result."""
        state, train, stop = self.state, self.config.train, self.run.stop
        for network in self.task.networks.values():
            network.train()
        began = time.perf_counter() - state.seconds
        busy = time.process_time() - state.processor
        waiting: deque[StepMetrics] = deque()
        with (
            matrix_products(train.precision),  # of the steps alone: scores that select or are reported are float32
            self.run.progress(f"epoch {self.epoch + 1}/{train.epochs}", self.steps - state.step) as show,
        ):
            for step, (batch, examples) in enumerate(self.task.batches(self.epoch, state.step), state.step):
                state.rate = self.step.learning_rate
                place = (train.seed, self.epoch, step)  # a resumed run draws the same in this step, on any device
                torch.manual_seed(derived_seed(*place, "dropout"))  # dropout can only draw from the global generator
                self.generator.manual_seed(derived_seed(*place, "objective"))
                waiting.append(self.step(batch, examples, self.epoch, step, self.generator))
                state.step, state.seconds = step + 1, time.perf_counter() - began
                state.processor = time.process_time() - busy
                self._account(waiting, show, keep=self.step.lag)
                stopping = agree_to_stop(stop, self.group)
                interval = train.checkpoint_every
                due = interval is not None and (self.epoch * self.steps + state.step) % interval == 0
                if due or stopping:
                    self._account(waiting, show)  # nothing is saved that has not been checked
                    self._save_inside_epoch()
                    if stopping:
                        stop.raise_if_received()
            self._account(waiting, show)
        state.seconds = time.perf_counter() - began
        state.processor = time.process_time() - busy

    def _account(self, waiting: deque[StepMetrics], show: ShowStep, keep: int = 0) -> None:
        """Reads and counts the metrics of steps, all but the last `keep`."""
        while len(waiting) > keep:
            metrics = waiting.popleft()
            if metrics.finite:
                self.skipped_in_row = 0
                self.state.add(metrics.values)
            else:
                self._skip(metrics)
            show(metrics.values)

    def _skip(self, metrics: StepMetrics) -> None:
        """Counts and logs a step whose loss or gradient is not finite, with its examples.

        Raises:
            DivergedError: `train.on_nonfinite=stop`, or one step too many in a row.
        """
        train = self.config.train
        where = f"{self.run.folder.path}: epoch {self.epoch}, step {metrics.step} of {self.steps}"
        message = f"{where}: {metrics.problem()}. {metrics.examples}."
        remedy = f"Look for NaN in the features, or lower optim.lr={self.config.optim.lr}"
        if train.on_nonfinite == "stop":
            raise DivergedError(f"{message} {remedy}, or skip such steps with train.on_nonfinite=skip; {self._saved}.")
        self.skipped_in_row += 1
        self.state.skipped += 1
        if self.skipped_in_row > train.max_skipped:
            many = f"{self.skipped_in_row} such steps in a row, more than train.max_skipped={train.max_skipped}"
            raise DivergedError(f"{message} These are {many}. {remedy}; {self._saved}.")
        logger.warning("%s Step skipped, %d in a row.", message, self.skipped_in_row)

    def _finish_epoch(self) -> None:
        """Scores the epoch, saves what is better, and saves the state between two epochs."""
        epoch, state, train = self.epoch, self.state, self.config.train
        trained, losses = time.perf_counter(), state.means()
        if not losses:
            raise TrainingError(
                f"{self.run.folder.path}: epoch {epoch}: no step had a finite loss and gradient, all were skipped. "
                f"Look for NaN in the features, or lower optim.lr={self.config.optim.lr}; {self._saved}."
            )
        selection = self._score_epoch()
        evaluated = time.perf_counter() - trained
        line = {
            "epoch": epoch,
            "loss": losses,
            **selection.notes,
            "lr": state.rate,
            selection.measure.lower(): selection.score,
            "selection": selection.metrics,
            "steps": state.step,
            "seconds": {"train": state.seconds, "evaluate": evaluated, "processor": state.processor},
        }
        if train.average:
            line["averaged"] = list(train.kept_epochs(epoch))
        if train.on_nonfinite == "skip":
            line["skipped"] = state.skipped
        self.history.append(line)
        self.epoch, self.state = epoch + 1, TrainerState()
        self._save_epoch()
        if time.monotonic() > self._drawn + CURVES_EVERY:
            self._draw_curves()
        if self.run.accelerator.trackers:
            shown = {"loss": losses, "lr": state.rate, "selection": selection.metrics}
            self.run.accelerator.log(flat(shown, "/"), step=epoch)
        self._log(
            "epoch %d: loss %.4f, %s %.1f (%s), lr %.2e, %.1f + %.1f s",
            *(epoch, losses["total"], selection.measure, selection.score),
            *(train.kept_text(self.best_epoch), state.rate, state.seconds, evaluated),
        )

    def _score_epoch(self) -> Selection:
        """Scores the epoch, or the mean of the weights up to it, and saves it where it is better."""
        mean = self.average.of(self.epoch)
        try:
            with self.average.applied(mean):
                selection = from_main(self.run.accelerator, lambda: self._select(self.epoch))
                self._save_best(selection)
        except (KeyboardInterrupt, Terminated):
            if self.run.accelerator.num_processes == 1:
                self._save_inside_epoch()  # the epoch's training is not lost with the evaluation
            raise
        self.average.mean = mean
        return selection

    def _select(self, epoch: int) -> Selection:
        if self.run.accelerator.num_processes > 1:  # the others wait: interrupting it would leave them waiting
            return self.task.select(epoch)
        with self.run.stop.at_once():
            return self.task.select(epoch)

    def _save_best(self, selection: Selection) -> None:
        scores, average = selection.scores, self.config.train.average
        improved = [name for name, score in scores.items() if average or score.value > self.best[name].value]
        self.best |= {name: scores[name] for name in improved}
        if improved and self._is_main:
            self.task.save(self.run.folder.best, self.best, improved)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run continues from; `position` is that of a step inside an epoch, None between two."""
        return {
            "config": config_to_dict(self.config),
            "parts": part_names(self.task.networks),
            "networks": {name: network.state_dict() for name, network in self.task.networks.items()},
            "best": {name: asdict(score) for name, score in self.best.items()},
            "epoch": self.epoch,
            "history": self.history,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "average": self.average.mean,
            "skipped_in_row": self.skipped_in_row,
            "stopped": self.stopped,
            "position": None,
            "constants": self.constants,
        }

    def _save_epoch(self) -> None:
        if self._is_main:
            self.run.folder.save_epoch(self.state_dict(), self.history)
        self._saved = self._where

    def _save_inside_epoch(self) -> None:
        if self._is_main:
            self.run.folder.save_state(self.state_dict() | {"position": asdict(self.state)})
        wait_for_all()  # a process that ends now must not take the writing one along
        self._saved = self._where

    @property
    def _where(self) -> str:
        epoch, step = self.epoch, self.state.step
        where = f"step {step} of {self.steps} of epoch {epoch}" if step else f"the end of epoch {epoch - 1}"
        return f"saved up to {where}; continue with --resume"

    def _log(self, message: str, *values: object) -> None:
        """Logs for the user in the main process, and for debugging in the others."""
        logger.log(logging.INFO if self._is_main else logging.DEBUG, message, *values)


def part_names(networks: Mapping[str, nn.Module]) -> dict[str, str]:
    """The classes of networks, their parts and the parts of these, loss terms among them, by path."""
    return {
        f"{name}.{path}".strip("."): type(module).__name__
        for name, network in networks.items()
        for path, module in network.named_modules()
        if path.count(".") < 2
    }
