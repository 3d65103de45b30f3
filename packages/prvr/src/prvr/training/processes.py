"""What several processes of one run have to agree on, besides gradients."""

import signal
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from prvr.errors import TrainingError
from prvr.training.signals import StopRequest

__all__ = ["agree_to_stop", "from_main", "in_main"]

T = TypeVar("T")


def from_main(accelerator: Accelerator, make: Callable[[], T]) -> T:
    """What `make` gives in the main process, in all of them; it runs there alone."""
    if accelerator.num_processes == 1:
        return make()
    held: list[T | None] = [make() if accelerator.is_main_process else None]
    value: T = broadcast_object_list(held)[0]  # pyright: ignore[reportAssignmentType]
    return value


def in_main(accelerator: Accelerator, act: Callable[[], object]) -> None:
    """Lets the main process act, alone; what it cannot do, none of them can.

    Raises:
        TrainingError: in all of them, where the main process could not.
    """
    error = None
    if accelerator.is_main_process:
        try:
            act()
        except TrainingError as caught:
            error = caught
    said: str | None = from_main(accelerator, lambda: None if error is None else str(error))
    if said is not None:
        raise error or TrainingError(said)


def agree_to_stop(accelerator: Accelerator, stop: StopRequest) -> None:
    """A signal that one process received counts for all, from the same step on: none waits for another in vain."""
    if accelerator.num_processes == 1:
        return
    code = {None: 0, signal.SIGINT: 1}.get(stop.received, 2)
    worst = int(torch.as_tensor(accelerator.gather(torch.tensor([code], device=accelerator.device))).max())
    if worst and stop.received is None:
        stop.received = signal.SIGINT if worst == 1 else signal.SIGTERM
