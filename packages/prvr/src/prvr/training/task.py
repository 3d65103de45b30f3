"""The protocol between the `Trainer` and what it trains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.config import Config
from prvr.training.reranker_run import RerankerRunConfig
from prvr.training.run import RunFolder
from prvr.training.signals import StopRequest

Report = TypeVar("Report", covariant=True)


RunConfig = Config | RerankerRunConfig
"""The configuration of a run."""


@dataclass(frozen=True)
class Selection:
    """The validation score of an epoch.

    Args:
        measure: the name of the score, "SumR" or "Rsum"; in lower case its key in `metrics.jsonl`.
        score: in percent.
        metrics: what the score was computed from; plain values, stored in `metrics.jsonl` under "selection".
        notes: further entries of the epoch's line in `metrics.jsonl`.
    """

    measure: str
    score: float
    metrics: Mapping[str, Any]
    notes: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol[Report]):
    """What a `Trainer` trains: the batches of an epoch, a step, a validation score, what is kept as best, its state.

    `len(task)` is the number of steps of an epoch.
    """

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, stored with its state."""
        ...

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The modules that are trained, on the device."""
        ...

    @property
    def best_epoch(self) -> int:
        """The last epoch (from 0) in which something was kept as best; -1 before the first."""
        ...

    def __len__(self) -> int:
        """Steps of an epoch."""
        ...

    def optimizer(self, total_steps: int, /) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The optimiser of all trained parameters, and its schedule where it has none of its own."""
        ...

    def clip_groups(self, optimizer: torch.optim.Optimizer, /) -> Sequence[Sequence[nn.Parameter]]:
        """The trained parameters in groups; the gradient of each group is clipped by its own norm."""
        ...

    def batches(self, epoch: int, first_step: int, /) -> Iterator[Any]:
        """The batches of an epoch, from `first_step` on."""
        ...

    def backward(self, batch: Any, epoch: int, step: int, generator: torch.Generator | None, /) -> dict[str, Tensor]:
        """Adds the gradients of a batch to `.grad`, the same in every process, and returns the named loss terms.

        One term is "total". `generator` is for draws that do not follow from epoch and step; its state is saved.
        """
        ...

    def describe(self, batch: Any, /) -> str:
        """The examples of a batch, for messages about it."""
        ...

    def select(self, epoch: int, /) -> Selection:
        """The validation score after an epoch. Called in the main process only."""
        ...

    def keep(self, epoch: int, selection: Selection, folder: Path | None, /) -> None:
        """Keeps what this epoch improved, and saves it to `folder`, which is None in all but the main process."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The state of the task, besides optimiser and progress: plain values and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], source: Path, /) -> None:
        """Restores what `state_dict` returned.

        Raises:
            TrainingError: it is the state of something else; the message names `source`.
        """
        ...

    def evaluate(self, run: RunFolder, stop: StopRequest, /) -> Report:
        """Evaluates what was kept on the reported split, and writes it to the run. Called in the main process only."""
        ...
