"""One training step: the task's forward and backward pass, a look at the numbers, clipping and the update."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.training.nonfinite import StepMetrics
from prvr.training.optimizer import BertAdam
from prvr.training.task import Task


class TrainingStep:
    """Takes steps, and leaves out the update of those whose numbers are not finite, where it knows in time.

    The host needs a step's numbers for the log, for the progress bar, and to see that all is well. With
    `train.on_nonfinite="skip"`, and on the CPU, they are read between the backward pass and the update, so that the
    update can be left out: one transfer for all terms and the gradient's norm. With `"stop"` on a GPU nothing waits:
    the update is queued, the numbers travel meanwhile, and are read when the next step has been queued (`lag` 1).

    The norm is the one the global clip needs anyway (AdamW); BertAdam clips each tensor, and it is computed beside.

    Args:
        task: what is trained, on the device.
        accelerator: of the run.
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
            epoch: of the run.
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

    def _update(self, groups: list[list[nn.Parameter]], norms: list[torch.Tensor]) -> None:
        if self.scheduler is not None:  # BertAdam, which has no scheduler, clips each tensor itself
            for group, norm in zip(groups, norms, strict=True):
                torch.nn.utils.clip_grads_with_norm_(group, self.task.config.optim.max_grad_norm, norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
