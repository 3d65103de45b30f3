"""A training step: the task's forward and backward pass, a look at the numbers, clipping and the update.

`NonFinitePolicy` decides about steps whose loss or gradient is not finite.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.errors import DivergedError
from prvr.training.optimizer import BertAdam
from prvr.training.task import RunConfig, Task

logger = logging.getLogger(__name__)

_SHOWN = 8


class StepMetrics:
    """The numbers of one step, in transfer from the device to the host from the start.

    Args:
        step: in its epoch, from 0.
        examples: the examples of its batch, for messages.
        terms: the loss terms by name, on the device.
        parameters: names of the tensors that have a gradient.
        norms: the norms of the gradient of each parameter, on the device: fetched only if something is wrong.
        total_norm: the norm of the whole gradient.
        wait: until the numbers are on the host; False: continue at once, and reading `values` waits for this transfer
            alone, not for what was queued behind it.
    """

    def __init__(
        self,
        step: int,
        examples: str,
        terms: Mapping[str, Float[Tensor, ""]],
        parameters: Sequence[str],
        norms: Float[Tensor, " p"],
        total_norm: Float[Tensor, ""],
        wait: bool,
    ) -> None:
        self.step, self.examples, self.terms = step, examples, tuple(terms)
        self.parameters, self.norms, self._arrived = parameters, norms, None
        self.sent = torch.stack([*(term.detach().float() for term in terms.values()), total_norm.float()])
        """Loss terms, in order, and the norm of the whole gradient."""
        if not wait and self.sent.is_cuda:
            self.sent = self.sent.to("cpu", non_blocking=True)  # into pinned memory
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    @cached_property
    def _numbers(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
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
        task: what is trained, on the device.
        accelerator: the accelerator of the run.
        optimizer, scheduler: as `build_optimizer` gives them.
    """

    def __init__(
        self,
        task: Task[Any],
        accelerator: Accelerator,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
    ) -> None:
        self.task, self.optimizer, self.scheduler = task, optimizer, scheduler
        train = task.config.train
        self.lag = int(train.on_nonfinite == "stop" and accelerator.device.type == "cuda")
        """How many steps later the numbers are read."""
        self._names = {p: name for module in task.networks for name, p in module.named_parameters()}

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        if isinstance(self.optimizer, BertAdam):
            return self.optimizer.scheduled_lr()
        return self.optimizer.param_groups[0]["lr"]

    def __call__(self, batch: Any, epoch: int, step: int, generator: torch.Generator | None) -> StepMetrics:
        """Takes one step; without an update if its numbers are read in time and not finite.

        Args:
            batch: one of the task's batches.
            epoch: the epoch of the run.
            step: in its epoch.
            generator: for draws that do not follow from epoch and step; None = the global one.
        """
        self.optimizer.zero_grad(set_to_none=True)
        terms = self.task.backward(batch, epoch, step, generator)
        groups = [[p for p in group if p.grad is not None] for group in self.task.clip_groups(self.optimizer)]
        norms = [torch.stack(torch._foreach_norm([p.grad for p in group if p.grad is not None])) for group in groups]
        totals = [torch.linalg.vector_norm(some) for some in norms]
        metrics = StepMetrics(
            step,
            self.task.describe(batch),
            terms,
            [self._names[p] for group in groups for p in group],
            torch.cat(norms),
            torch.linalg.vector_norm(torch.stack(totals)) if len(totals) > 1 else totals[0],
            wait=self.lag == 0,
        )
        if self.lag or metrics.finite:
            self._update(groups, totals)
        return metrics

    def _update(self, groups: list[list[nn.Parameter]], norms: list[Tensor]) -> None:
        optim = self.task.config.optim
        if self.scheduler is not None or optim.clip == "whole":  # BertAdam, which has no scheduler, clips each tensor
            for group, norm in zip(groups, norms, strict=True):
                torch.nn.utils.clip_grads_with_norm_(group, optim.max_grad_norm, norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


class NonFinitePolicy:
    """Decides about steps whose loss or gradient is not finite, by `train.on_nonfinite` and `train.max_skipped`.

    Args:
        config: the configuration of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.in_row = 0
        """Steps skipped one after the other so far."""

    def accepts(self, metrics: StepMetrics, where: str, saved: str) -> bool:
        """Whether a step counts; one that does not is logged with its examples.

        Args:
            metrics: the metrics of the step.
            where: run, epoch and step, for messages.
            saved: how far the run is saved, for messages.

        Raises:
            DivergedError: it is not finite, and `stop` is chosen, or it is one too many in a row.
        """
        if metrics.finite:
            self.in_row = 0
            return True
        train, rate = self.config.train, self.config.optim.lr
        message = f"{where}: {metrics.problem()}. {metrics.examples}."
        if train.on_nonfinite == "stop":
            raise DivergedError(
                f"{message} Look for NaN in their features, lower optim.lr={rate}, or leave such steps out with "
                f"train.on_nonfinite=skip; {saved}."
            )
        self.in_row += 1
        if self.in_row > train.max_skipped:
            raise DivergedError(
                f"{message} These are {self.in_row} such steps in a row, more than train.max_skipped="
                f"{train.max_skipped}. Look for NaN in the features, or lower optim.lr={rate}; {saved}."
            )
        logger.warning("%s Step skipped, %d in a row.", message, self.in_row)
        return False
