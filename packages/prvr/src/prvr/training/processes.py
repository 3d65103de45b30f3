"""The process of a run, and several of them: signals, progress bar, device, and what all have to agree on."""

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, is_initialized
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import LoggerType, broadcast_object_list
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from prvr.errors import TrainingError, unknown_name

T = TypeVar("T")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of mallopt in <malloc.h>

ShowStep = Callable[[Mapping[str, float]], None]
"""Called after each step with the loss terms of that step."""

EpochProgress = Callable[[str, int], AbstractContextManager[ShowStep]]
"""Called at the start of each epoch with a title and the number of steps."""


@contextmanager
def no_progress(title: str, steps: int) -> Iterator[ShowStep]:
    """Shows nothing."""
    yield lambda terms: None


@contextmanager
def terminal_bar(title: str, steps: int) -> Iterator[ShowStep]:
    """A bar with the loss and its terms, largest first, on standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    loss = TextColumn("{task.fields[loss]}", markup=False)
    with Progress(*columns, loss, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=steps, loss="")

        def show(terms: Mapping[str, float]) -> None:
            parts = sorted((item for item in terms.items() if item[0] != "total"), key=lambda item: -item[1])
            text = " ".join(f"{name} {value:.2g}" for name, value in parts)
            bar.update(task, advance=1, loss=f"loss {terms.get('total', sum(terms.values())):.3g}: {text}")

        yield show


class Terminated(SystemExit):
    """Raised by `train` after SIGTERM, once the run is saved; uncaught, the process exits with code 143 (128 + 15)."""

    def __init__(self) -> None:
        super().__init__(143)


class StopRequest:
    """The signal that was received since `listening` began, if any."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = False

    def raise_if_received(self) -> None:
        """Raises the exception that belongs to the signal, if one was received.

        Raises:
            KeyboardInterrupt: after SIGINT.
            Terminated: after SIGTERM.
        """
        if self.received is not None:
            raise KeyboardInterrupt if self.received == signal.SIGINT else Terminated

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which a signal raises at once: for work that may be interrupted, such as an evaluation."""
        self._at_once = True  # before the check, so that no signal falls between the two
        try:
            self.raise_if_received()
            yield
        finally:
            self._at_once = False

    def receive(self, number: int, frame: object = None) -> None:
        """The signal handler: records the first signal; a second SIGINT raises at once."""
        again = self.received is not None
        if not again:
            self.received = number
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._at_once:
            self._at_once = False  # only once: saving follows
            self.raise_if_received()


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Handles SIGTERM and SIGINT during a run, and restores the previous handlers afterwards.

    This works in the main thread only, as Python requires, and only where the default handler is installed: a program
    that handles a signal itself, or ignores it (nohup), continues to do so.
    """
    request = StopRequest()
    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        before = {number: default for number, default in defaults.items() if signal.getsignal(number) == default}
    try:
        for number in before:
            signal.signal(number, request.receive)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]


@contextmanager
def make_accelerator(
    precision: str, folder: Path, device: torch.device | str | None, trackers: Sequence[Any]
) -> Iterator[Accelerator]:
    """The accelerator of a run, with its trackers; afterwards the next run may choose another device and precision.

    Args:
        precision: "no", "tf32" or "bf16".
        folder: where trackers write.
        device: the CPU, or None for accelerate's choice.
        trackers: names of accelerate's trackers, or trackers.

    Raises:
        TrainingError: "tf32" without an NVIDIA GPU; more processes than GPUs; or a tracker that is unknown, or whose
            package is not installed.
    """
    for name in {str(tracker) for tracker in trackers if isinstance(tracker, str)} - {"all"}:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise TrainingError(unknown_name("tracker", name, ["all", *LOGGER_TYPE_TO_CLASS]))
        if name in LoggerType and LoggerType(name) not in get_available_trackers():  # accelerate would train without it
            package = name.replace("_", "-")
            raise TrainingError(f"trackers: {name} needs the package {package}. Install it: pip install {package}")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if str(device) != "cpu" and torch.cuda.is_available() and here > gpus:
        raise TrainingError(f"{here} processes on {gpus} GPU: each needs its own. Start {gpus}, or pass --device cpu")
    is_first = not is_initialized()
    accelerator = Accelerator(
        cpu=str(device) == "cpu",
        mixed_precision="bf16" if precision == "bf16" else "no",
        log_with=list(trackers) or None,
        project_dir=str(folder),
    )
    try:
        if precision == "tf32" and accelerator.device.type != "cuda":
            raise TrainingError(
                "train.precision='tf32': only NVIDIA GPUs multiply in TF32, this run computes on "
                f"{accelerator.device}. Set it to 'no', or to 'bf16'"
            )
        yield accelerator
    finally:
        accelerator.end_training()
        if is_first:  # accelerate keeps device and precision for the whole process
            AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def kept_memory(on: bool = True) -> Iterator[None]:
    """Within the block, memory that is freed stays with the process: large tensors are not mapped again in each step.

    Large tensors then come from the heap, which does not shrink; at the end what is free goes back to the system.

    Args:
        on: False changes nothing. Nor does True where the C library is not glibc.
    """
    if not on or platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        # As glibc itself sets them in a process that has freed large tensors; it no longer does after such a call.
        library.mallopt(_MMAP_MAX, 65_536)
        library.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
        library.mallopt(_TRIM_THRESHOLD, 64 * 2**20)
        library.malloc_trim(0)


def from_main(accelerator: Accelerator, make: Callable[[], T]) -> T:
    """Calls `make` in the main process alone, and gives its result to all processes."""
    if accelerator.num_processes == 1:
        return make()
    held: list[T | None] = [make() if accelerator.is_main_process else None]
    value: T = broadcast_object_list(held)[0]  # pyright: ignore[reportAssignmentType]
    return value


def in_main(accelerator: Accelerator, act: Callable[[], object]) -> None:
    """Calls `act` in the main process alone; if it fails there, it fails in all processes.

    Raises:
        TrainingError: in every process, where `act` raised it in the main one.
    """

    def failure() -> TrainingError | None:
        try:
            act()
        except TrainingError as error:
            return error

    if (error := from_main(accelerator, failure)) is not None:
        raise error


def host_group() -> dist.ProcessGroup | None:
    """A group of all processes that exchange numbers of the host without their devices; None: the default one is."""
    if process_count() == 1 or dist.get_backend() == "gloo":
        return None
    group: Any = dist.new_group(backend="gloo")
    return group


def agree_to_stop(stop: StopRequest, group: dist.ProcessGroup | None) -> bool:
    """Whether any process has received a signal, which then counts for all of them: the same answer in each.

    Args:
        stop: the signal of this process.
        group: of `host_group`.
    """
    if process_count() == 1:
        return stop.received is not None
    number = torch.tensor(stop.received or 0)
    dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
    stop.received = stop.received or int(number) or None
    return bool(number)


def wait_for_all() -> None:
    """Waits until all processes are here. accelerate's own names a GPU by the rank, also where all use the CPU."""
    if process_count() > 1:
        dist.barrier()


def process_count() -> int:
    """The number of processes that torch.distributed runs; 1 without it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(tensors: Sequence[Tensor]) -> None:
    """Replaces tensors by their sums over all processes, with one exchange for each dtype."""
    if process_count() == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.all_reduce(flat)
        for tensor, total in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(total.view_as(tensor))
