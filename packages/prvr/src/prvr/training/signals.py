"""SIGTERM and Ctrl-C as requests to stop: the current step is finished and saved before the run ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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

    def receive(self, number: int, frame: FrameType | None = None) -> None:
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
