"""SIGTERM and Ctrl-C as a request: the step is finished and saved before the run ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from prvr.training.errors import Terminated

__all__ = ["StopRequest", "listening"]


class StopRequest:
    """What the system has asked for since `listening` began."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._at_once = False

    def raise_if_received(self) -> None:
        """Ends the run in the way of the signal.

        Raises:
            KeyboardInterrupt: after SIGINT.
            Terminated: after SIGTERM.
        """
        if self.received is not None:
            raise KeyboardInterrupt if self.received == signal.SIGINT else Terminated

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal raises where it arrives: for work that may be broken off, such as an evaluation."""
        self._at_once = True  # before the question: no signal falls between the two
        try:
            self.raise_if_received()
            yield
        finally:
            self._at_once = False

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """The handler: notes the first signal; a second SIGINT is a user who does not want to wait."""
        again = self.received is not None
        if not again:
            self.received = number
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._at_once:
            self._at_once = False  # once is enough: what follows is the saving
            self.raise_if_received()


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Takes SIGTERM and SIGINT for the length of a run, and gives the handlers back afterwards.

    Only in the main thread, as Python has it, and only where the default handler stands: a program that handles a
    signal itself, or ignores it (nohup), goes on doing so.
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
