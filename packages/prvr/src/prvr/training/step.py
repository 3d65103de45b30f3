"""One step: forward pass, losses, backward pass, a look at the numbers, update."""

import dataclasses
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.config import Config
from prvr.data.dataset import BatchInfo
from prvr.losses import Negatives
from prvr.models import AnyRetriever
from prvr.objective import Objective
from prvr.training.gradients import backward_in_parts
from prvr.training.nonfinite import StepMetrics
from prvr.training.optimizer import BertAdam
from prvr.training.state import derived_seed
from prvr.types import Batch, Labels

__all__ = ["TrainingStep"]


class TrainingStep:
    """Takes steps, and leaves out those whose numbers are not finite, where it knows in time.

    The host needs a step's numbers for the log, for the progress bar, and to see that all is well. With
    `train.on_nonfinite="skip"`, and on the CPU, they are read between the backward pass and the update, so that the
    update can be left out: one transfer for all terms and the gradient's norm. With `"stop"` on a GPU nothing waits:
    the update is queued, the numbers travel meanwhile, and are read when the next step has been queued (`lag` 1).

    The norm is the one the global clip needs anyway (AdamW); BertAdam clips each tensor, and it is computed beside.

    Args:
        config: of the run.
        accelerator: of the run.
        retriever, objective: the model, on the device.
        optimizer, scheduler: as `build_optimizer` gives them.
    """

    def __init__(
        self,
        config: Config,
        accelerator: Accelerator,
        retriever: AnyRetriever,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None,
    ) -> None:
        self.config, self.accelerator = config, accelerator
        self.retriever, self.objective = retriever, objective
        self.optimizer, self.scheduler = optimizer, scheduler
        self.lag = int(config.train.on_nonfinite == "stop" and accelerator.device.type == "cuda")
        """How many steps behind the numbers are read."""
        named: list[tuple[str, nn.Parameter]] = list(retriever.named_parameters())
        named += [(f"objective.{name}", p) for name, p in objective.named_parameters()]
        self._names = {p: name for name, p in named}

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        if isinstance(self.optimizer, BertAdam):
            return self.optimizer.scheduled_lr()
        return self.optimizer.param_groups[0]["lr"]

    @property
    def in_parts(self) -> bool:
        """Whether a batch is encoded in parts: chunk after chunk, or by several processes."""
        return self.config.train.chunk_videos is not None or self.accelerator.num_processes > 1

    def __call__(
        self,
        epoch: int,
        step: int,
        batch: Batch,
        negatives: Negatives,
        generator: torch.Generator | None,
        whole: BatchInfo | None = None,
    ) -> StepMetrics:
        """Takes one step; without an update if its numbers are read in time and not finite.

        Args:
            epoch: of the run.
            step: in its epoch.
            batch: on the device.
            negatives: of the triplet terms.
            generator: of the objective's draws; None = the global one.
            whole: what `batch` is a part of, where `in_parts`.
        """
        if whole is not None:
            terms = self._backward_in_parts(epoch, step, batch, negatives, generator, whole)
        else:
            self.optimizer.zero_grad(set_to_none=True)
            with self.accelerator.autocast():
                output = self.retriever(batch)
            if self.config.train.precision != "no":
                output = _in_float32(output)  # losses exponentiate: they are computed in full precision
            terms = self.objective(output, batch, negatives=negatives, generator=generator)
            self.accelerator.backward(terms["total"])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = torch.stack(torch._foreach_norm([p.grad for p in parameters]))
        total = torch.linalg.vector_norm(norms)
        names = [self._names[p] for p in parameters]
        numbers = StepMetrics.send(step, tuple(batch.video_ids), terms, names, norms, total, wait=self.lag == 0)
        if self.lag or numbers.finite:
            self._update(parameters, total)
        return numbers

    def _backward_in_parts(
        self,
        epoch: int,
        step: int,
        batch: Batch,
        negatives: Negatives,
        generator: torch.Generator | None,
        whole: BatchInfo,
    ) -> dict[str, Tensor]:
        config = self.config
        # As long as in one process: dropout draws for padding too, and some released parts average over it.
        batch = batch.padded(whole.frames, whole.words)
        chunks = batch.split(config.train.chunk_videos or len(batch.clips))
        firsts = range(whole.first, whole.first + len(batch.clips), config.train.chunk_videos or len(batch.clips))
        # Each chunk has seeds of its own, by its place in the batch: whoever encodes it, and when, it draws the same.
        seeds = [derived_seed(config.train.seed, epoch, step, first, "dropout") for first in firsts]
        return backward_in_parts(
            self.retriever,
            self.objective,
            chunks,
            self._labels(batch, whole),
            negatives=negatives,
            generator=generator,
            seeds=seeds,
            autocast=lambda: self.accelerator.autocast(),
        )

    def _labels(self, batch: Batch, whole: BatchInfo) -> Labels:
        """Of the whole batch, on the device; a process that is alone has them there already."""
        if self.accelerator.num_processes == 1:
            return batch.labels
        device = self.accelerator.device
        return (whole.labels.pin_memory() if device.type == "cuda" else whole.labels).to(device)

    def _update(self, parameters: list[nn.Parameter], total_norm: Tensor) -> None:
        if self.scheduler is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.optim.max_grad_norm, total_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.retriever.project_bounds()
        self.objective.project_bounds()


def _in_float32(value: Any) -> Any:
    """Copy of a record with its floating tensors in float32."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _in_float32(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    return value
