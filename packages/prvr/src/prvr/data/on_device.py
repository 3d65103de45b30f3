"""A packed split in the memory of a device, where batches are assembled; the host sends only row numbers."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.data.packed import PackedSplit, Runs
from prvr.errors import InputError

T = TypeVar("T")

AHEAD = 2
"""Batches that are read ahead for a GPU."""
BLOCK = 2**26
"""Bytes of a split that are sent to a device at once, on average."""


def choose_device(name: torch.device | str) -> torch.device:
    """The torch device that a name stands for; of `auto`, a GPU where there is one.

    Raises:
        InputError: there is no CUDA device.

    Examples:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device. Use --device cpu or auto.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(name)


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """With "tf32", a GPU computes matrix products and recurrent layers of float32 in TF32 inside; else in float32."""
    before, in_cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = in_cudnn


def read_ahead(source: Iterable[T], ahead: int, prepare: Callable[[T], T] | None = None) -> Generator[T, None, None]:
    """The same items in the same order, read by a thread before they are asked for.

    Args:
        source: is read in the thread; what it raises is raised here.
        ahead: items read ahead; 0 reads each when it is asked for.
        prepare: applied to each item where it is read.

    Examples:
        >>> list(read_ahead("abc", 2, str.upper))
        ['A', 'B', 'C']
    """
    items = iter(source if prepare is None else map(prepare, source))
    if not ahead:
        yield from items
        return
    end = object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="prvr-ahead")
    try:
        waiting: deque[Future[T | object]] = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # pyright: ignore[reportReturnType]
    finally:
        thread.shutdown(cancel_futures=True)


def batches_on(device: torch.device, batches: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of batches on a device; for a GPU a thread reads two batches ahead into page-locked memory."""
    gpu = device.type == "cuda"
    pinned = (lambda batch: tuple(tensor.pin_memory() for tensor in batch)) if gpu else None
    read = read_ahead(batches, AHEAD if gpu else 0, pinned)
    return (tuple(tensor.to(device, non_blocking=gpu) for tensor in batch) for batch in read)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy on a device, through page-locked memory where that keeps the host from waiting."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def split_bytes(packed: PackedSplit) -> int:
    """Bytes that the features of a split take on a device, in the type that they are stored in.

    Examples:
        >>> split_bytes(PackedSplit.open("cache/tvr-train-0123456789abcdef"))  # doctest: +SKIP
        24830115840
    """
    return sum(int(runs.counts.sum()) * runs.matrix.shape[1] * runs.matrix.itemsize for runs in packed.runs)


class DeviceRuns:
    """Runs of rows on a device, in the type of the store: run i is `rows[offsets[i]:offsets[i + 1]]`.

    Args:
        runs: those of a packed split; of its files only what belongs to them is read, once.
        device: where its features are kept.
    """

    def __init__(self, runs: Runs, device: torch.device) -> None:
        matrix = runs.matrix
        self.offsets = np.concatenate([[0], np.cumsum(runs.counts)])
        native = matrix.dtype.newbyteorder("=")
        kind = torch.from_numpy(np.empty(0, native)).dtype
        self.rows = torch.empty(int(self.offsets[-1]), matrix.shape[1], dtype=kind, device=device)
        spans = [slice(*span) for span in zip(runs.start.tolist(), runs.stop.tolist(), strict=True)]
        many = max(1, len(spans) * BLOCK // max(1, self.rows.nbytes))  # runs that are read and sent together
        for first in range(0, len(spans), many):
            target = self.rows[self.offsets[first] : self.offsets[min(first + many, len(spans))]]
            block = target.numpy() if device.type == "cpu" else np.empty(tuple(target.shape), native)
            np.concatenate([matrix[span] for span in spans[first : first + many]], out=block)
            if device.type != "cpu":
                target.copy_(sent(torch.from_numpy(block), device))

    def padded(self, indices: Int[np.ndarray, " b"]) -> tuple[Float[Tensor, "b l f"], Bool[Tensor, "b l"]]:
        """As `prvr.data.packed.Runs.padded`."""
        device, counts = self.rows.device, self.offsets[indices + 1] - self.offsets[indices]
        start, count = sent(torch.from_numpy(np.stack([self.offsets[indices], counts])), device)[..., None]
        position = torch.arange(max(1, int(counts.max())), device=device)
        mask = position < count
        index = (start + position).masked_fill(~mask, 0)  # any row: what it brings is overwritten
        rows = self.rows.index_select(0, index.flatten()).float()
        return rows.unflatten(0, mask.shape).masked_fill_(~mask[..., None], 0.0), mask
