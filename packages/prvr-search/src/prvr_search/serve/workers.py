"""Threads for slow work, and the answers that clients wait for."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")


class Busy(HTTPException):
    """Too much work is waiting, or an answer took too long: 503, and clients are told when to ask again.

    Args:
        reason: shown to the client.
        retry_after: seconds.
    """

    def __init__(self, reason: str, retry_after: int = 2) -> None:
        super().__init__(503, reason, {"Retry-After": str(retry_after)})


class Workers:
    """Daemon threads that compute answers. Clients wait for an answer a limited time, and not beyond the server's end.

    Args:
        name: prefix of the names of the threads.
        threads: number of threads.
        seconds: how long a client waits for an answer. The work itself runs to its end and keeps its place until then.
        waiting: jobs that may wait for a thread.
    """

    def __init__(self, name: str, threads: int, seconds: float, waiting: int) -> None:
        self._seconds, self._ended, self._room = seconds, False, threads + waiting
        self._unfinished: set[Future[Any]] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """The number of answers that are not finished."""
        return len(self._unfinished)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Computes `work()` in a thread, unless nobody waits for the answer any more when its turn comes.

        Raises:
            Busy: too many jobs are waiting.
        """
        if self.pending >= self._room:
            raise Busy("the server is busy: too much work is waiting")
        answer: Future[T] = Future()
        self._unfinished.add(answer)
        answer.add_done_callback(self._unfinished.discard)
        self._jobs.put(lambda: _settle(answer, work))
        return answer

    async def wait(self, answer: Future[T]) -> T:
        """The result of an answer.

        Raises:
            Busy: it took too long, or the server is shutting down.
            Exception: what the computation raised.
        """
        if self._ended:
            answer.cancel()
            raise _ending()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._seconds)
        except TimeoutError as error:
            raise Busy(f"it took longer than {self._seconds:g} s", 10) from error

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`, computed in a thread.

        Raises:
            Busy: too many jobs are waiting, it took too long, or the server is shutting down.
        """
        return await self.wait(self.submit(work))

    def end(self) -> None:
        """Lets every pending answer fail with `Busy`, and all later ones too."""
        self._ended = True
        for answer in tuple(self._unfinished):
            with suppress(InvalidStateError):  # it was finished at this moment
                answer.set_exception(_ending())

    def close(self, seconds: float) -> bool:
        """Ends the threads after their current jobs; nobody waits for the others any more, so that they do nothing.

        Returns:
            whether all threads ended within this time.
        """
        self.end()
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _ending() -> Busy:
    return Busy("the server is shutting down", 10)


def _settle(answer: Future[T], compute: Callable[[], T]) -> None:
    """Computes an answer, unless nobody waits for it any more."""
    with suppress(InvalidStateError):  # it was given up meanwhile
        if answer.done() or not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(compute())
        except BaseException as error:
            answer.set_exception(error)
