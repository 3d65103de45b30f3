"""Where training batches come from: features kept on the device, or a loader that reads ahead of it."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol, runtime_checkable

import torch

from prvr.data.dataset import VideoLoader, WholeBatch
from prvr.data.resident import ResidentLoader, resident_bytes
from prvr.training.errors import TrainingError
from prvr.types import Batch

__all__ = ["Batches", "StreamedLoader", "training_batches"]

logger = logging.getLogger(__name__)

_SHARE = 0.5
"""Most of a GPU's free memory that features may take on their own account; the rest is for the step."""
_AHEAD = 2


@runtime_checkable
class Batches(Protocol):
    """Batches on a device, epoch after epoch."""

    def __len__(self) -> int:
        """Of a whole pass."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """One pass, or what is left of it."""
        ...

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """See [VideoLoader][prvr.data.dataset.VideoLoader]."""
        ...

    def whole_batches(self) -> Iterator[WholeBatch]:
        """See [VideoLoader][prvr.data.dataset.VideoLoader]."""
        ...


class StreamedLoader:
    """The batches of a loader, sent to a device.

    For a GPU a thread reads two batches ahead into page-locked memory, and copies do not wait. Elsewhere a batch is
    read when it is asked for.

    Args:
        loader: of batches on the host.
        device: where they go.
        ahead: batches read ahead; 0 reads none. Default: by the device.
    """

    def __init__(self, loader: VideoLoader, device: torch.device, ahead: int | None = None) -> None:
        self.loader, self.device = loader, device
        self.ahead = (_AHEAD if device.type == "cuda" else 0) if ahead is None else ahead

    def __len__(self) -> int:
        """Batches of a whole pass."""
        return len(self.loader)

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """See [VideoLoader][prvr.data.dataset.VideoLoader]."""
        self.loader.set_epoch(epoch, first_batch)

    def whole_batches(self) -> Iterator[WholeBatch]:
        """See [VideoLoader][prvr.data.dataset.VideoLoader]."""
        return self.loader.whole_batches()

    def __iter__(self) -> Iterator[Batch]:
        source = iter(self.loader)
        if not self.ahead:
            yield from (batch.to(self.device) for batch in source)
            return

        def read() -> Batch | None:
            batch = next(source, None)
            return batch if batch is None or self.device.type != "cuda" else batch.pin_memory()

        with ThreadPoolExecutor(1, thread_name_prefix="prvr-batches") as thread:
            waiting: deque[Future[Batch | None]] = deque(thread.submit(read) for _ in range(self.ahead))
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(read))
                yield batch.to(self.device)


def training_batches(
    loader: VideoLoader, device: torch.device, on_device: Literal["auto", "always", "never"] = "auto"
) -> Batches:
    """The batches of a loader on a device, its features kept there or not: the same batches either way.

    Args:
        loader: which videos and queries, in which order.
        device: of the training.
        on_device: `train.data_on_device`.

    Raises:
        TrainingError: "always", and the features are larger than what is free on the GPU.
    """
    if on_device == "never" or (on_device == "auto" and device.type != "cuda"):
        return StreamedLoader(loader, device)
    size = resident_bytes(loader.dataset.packed)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    if on_device == "auto" and free is not None and size > _SHARE * free:
        logger.info("features of %.1f GB are read as training goes, %.1f GB are free", size / 1e9, free / 1e9)
        return StreamedLoader(loader, device)
    if free is not None and size > free:
        raise TrainingError(
            f"train.data_on_device='always': the features take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on "
            f"{device}. Set it to 'auto' or 'never'"
        )
    return ResidentLoader(loader, device)
