"""What is trained, and a step of it: forward and backward pass, a look at the numbers, clipping and the update."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.config import RunConfig
from prvr.training.captured import Graphs, Recorder
from prvr.training.checkpoint import Score
from prvr.training.optimizer import BertAdam

_SHOWN = 8


@dataclass(frozen=True)
class Selection:
    """The validation of an epoch.

    Args:
        measure: the name of the score, "SumR" or "Rsum"; in lower case its key in `metrics.jsonl`.
        scores: by the name of the network.
        metrics: what the scores were computed from; plain values, stored in `metrics.jsonl` under "selection".
        notes: further entries of the epoch's line in `metrics.jsonl`.
    """

    measure: str
    scores: Mapping[str, Score]
    metrics: Mapping[str, Any]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The sum of the scores, in percent."""
        return sum(score.value for score in self.scores.values())


@runtime_checkable
class Task(Protocol):
    """What a `Trainer` trains: batches, a step, a validation score, and how the best is saved."""

    @property
    def networks(self) -> Mapping[Any, nn.Module]:
        """The trained modules by name, on the device: each is clipped by its own norm and kept by its own score."""
        ...

    def batches(self, epoch: int, first_step: int, /) -> Iterable[tuple[Any, str]]:
        """The batches of an epoch from `first_step` on, each with its examples for messages, "Videos: a, b"."""
        ...

    def backward(self, batch: Any, epoch: int, step: int, generator: torch.Generator | None, /) -> dict[str, Tensor]:
        """Adds the gradients of a batch to `.grad`, the same in every process, and returns the named loss terms.

        One term is "total". `generator` is for draws on the device; it is seeded for each step.
        """
        ...

    def select(self, epoch: int, /) -> Selection:
        """The validation after an epoch. Called in the main process only."""
        ...

    def save(self, folder: Path, best: Mapping[str, Score], improved: Collection[str], /) -> None:
        """Saves the networks named by `improved` as they are; the others stay in `folder` as they were saved.

        Called in the main process only.
        """
        ...


@dataclass
class StepMetrics:
    """The numbers of one step.

    Args:
        step: in its epoch, from 0.
        examples: the examples of its batch, for messages.
        terms: names of the loss terms.
        parameters: names of the tensors that have a gradient.
        norms: the norm of the gradient of each parameter, on the device: fetched only if something is wrong.
        sent: the loss terms and the norm of the whole gradient, on the host or on their way to it.
        totals: the norms of the gradients of each network, on the device.
        arrived: when `sent` is on the host; None = already, or reading waits for it.
    """

    step: int
    examples: str
    terms: Sequence[str]
    parameters: Sequence[str]
    norms: Float[Tensor, " p"]
    sent: Float[Tensor, " t"]
    totals: Sequence[Float[Tensor, ""]] = ()
    arrived: torch.cuda.Event | None = None

    @cached_property
    def _numbers(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.sent.tolist()

    @property
    def values(self) -> dict[str, float]:
        """The loss terms by name."""
        return dict(zip(self.terms, self._numbers, strict=False))

    @property
    def finite(self) -> bool:
        """Whether every loss term and the gradient are finite."""
        return all(map(math.isfinite, self._numbers))

    def problem(self) -> str:
        """Describes what is not finite: the loss terms, or else the parameters whose gradient is not."""
        terms = [f"{name}={value}" for name, value in self.values.items() if not math.isfinite(value)]
        if terms:
            return f"the loss is not finite ({', '.join(terms)})"
        norms = self.norms.tolist()
        bad = [name for name, norm in zip(self.parameters, norms, strict=True) if not math.isfinite(norm)]
        if not bad:
            return f"the norm of the gradient is not finite ({self._numbers[-1]}), though each of its parts is"
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        return f"the loss is finite, its gradient is not (in {', '.join(bad[:_SHOWN])}{more})"


class TrainingStep:
    """Takes steps, and leaves out the update of those whose numbers are not finite, where it knows in time.

    The host needs a step's numbers for the log, for the progress bar, and to see that all is well. With
    `train.on_nonfinite="skip"`, and on the CPU, they are read between the backward pass and the update, so that the
    update can be left out: one transfer for all terms and the gradient's norm. With `"stop"` on a GPU nothing waits:
    the update is queued, the numbers travel meanwhile, and are read when the next step has been queued (`lag` 1).

    The norm is the one the global clip needs anyway (AdamW); BertAdam clips each tensor, and it is computed beside.

    Args:
        config: the configuration of the run.
        task: what is trained, on the device.
        optimizer, scheduler: as `build_optimizer` gives them.
        device: where its networks are.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
        device: torch.device,
    ) -> None:
        self.config, self.task, self.optimizer, self.scheduler = config, task, optimizer, scheduler
        self.lag = int(config.train.on_nonfinite == "stop" and device.type == "cuda")
        """How many steps later the numbers are read."""
        self.graphs = Graphs(self, Recorder()) if getattr(task, "captures", False) else None
        networks = task.networks.values()
        self._names = {p: name for network in networks for name, p in network.named_parameters()}
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._groups = [[p for p in trained if p in own] for own in (set(network.parameters()) for network in networks)]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        if isinstance(self.optimizer, BertAdam):
            return self.optimizer.scheduled_lr()
        return self.optimizer.param_groups[0]["lr"]

    def __call__(
        self, batch: Any, examples: str, epoch: int, step: int, generator: torch.Generator | None
    ) -> StepMetrics:
        """Takes one step; without an update if its numbers are read in time and not finite.

        Args:
            batch: one of the task's batches.
            examples: what it holds, for messages.
            epoch: the epoch of the run.
            step: in its epoch.
            generator: for draws on the device, seeded for this step; None = the global one.
        """
        if self.graphs is None:
            compute, update = partial(self.compute, batch, epoch, step, generator), self.update
        else:
            compute, update = self.graphs(batch, epoch, step, generator)
        metrics = replace(compute(), step=step, examples=examples)
        if self.lag and metrics.sent.is_cuda:
            metrics.sent = metrics.sent.to("cpu", non_blocking=True)  # into pinned memory
            metrics.arrived = torch.cuda.Event()
            metrics.arrived.record()
        if self.lag or metrics.finite:
            update(metrics)
            if self.scheduler is not None:
                self.scheduler.step()
        return metrics

    def compute(self, batch: Any, epoch: int, step: int, generator: torch.Generator | None) -> StepMetrics:
        """The loss terms and gradients of a batch; arguments as of a call."""
        self.optimizer.zero_grad(set_to_none=True)
        terms = self.task.backward(batch, epoch, step, generator)
        groups = self._with_gradient()
        norms = [torch.stack(torch._foreach_norm([p.grad for p in group if p.grad is not None])) for group in groups]
        totals = [torch.linalg.vector_norm(part) for part in norms]
        total = totals[0] if len(totals) == 1 else torch.linalg.vector_norm(torch.stack(totals))
        sent = torch.stack([*(term.detach().float() for term in terms.values()), total.float()])
        names = [self._names[p] for group in groups for p in group]
        return StepMetrics(step, "", tuple(terms), names, torch.cat(norms), sent, totals)

    def update(self, metrics: StepMetrics) -> None:
        """Clips the gradients of a step and updates the parameters, by the learning rate as it stands."""
        optim = self.config.optim
        if self.scheduler is not None or optim.clip == "whole":  # BertAdam, which has no scheduler, clips each tensor
            for group, norm in zip(self._with_gradient(), metrics.totals, strict=True):
                torch.nn.utils.clip_grads_with_norm_(group, optim.max_grad_norm, norm)
        self.optimizer.step()

    def _with_gradient(self) -> list[list[nn.Parameter]]:
        return [[p for p in group if p.grad is not None] for group in self._groups]
