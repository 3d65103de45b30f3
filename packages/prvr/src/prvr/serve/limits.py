"""What a server lets be asked of it: sizes, rates, times, and how much work may wait."""

import asyncio
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from prvr.errors import InputError
from prvr.video import Limits

__all__ = ["FOREVER", "Answers", "Busy", "ServeLimits", "TokenBuckets", "Workers", "joined", "settle"]

T = TypeVar("T")
FOREVER = threading.TIMEOUT_MAX / 2
"""Seconds."""


_BOUNDS: dict[str, tuple[float, float]] = {
    "query_characters": (1, 1000),  # as an address: twelve bytes each, and the head of a request has 16 KiB
    "results": (1, 10**6),
    "moments": (1, 10**6),
    "batch": (1, 10**6),
    "body_bytes": (1, 2**31),
    "rate": (0, 10**6),
    "burst": (1, 10**6),
    "connections": (1, 10**5),
    "client_connections": (0, 10**5),
    "head_seconds": (0.1, 86400),
    "body_seconds": (0.1, 86400),
    "stalled_seconds": (0.1, 86400),
    "grace_seconds": (0.1, 86400),
    "search_seconds": (0.001, 86400),
    "search_waiting": (1, 10**6),
    "media_threads": (1, 256),
    "media_waiting": (1, 10**6),
    "media_seconds": (0.001, 86400),
    "preview_seconds": (0.1, 3600),
    "preview_pixels": (16, 8192),
    "cache_bytes": (0, 2**50),
}
"""The least and the most of each limit."""


@dataclass(frozen=True)
class ServeLimits:
    """Bounds of one server. The page asks the server for those that it has to keep to.

    Args:
        query_characters: length of a query, at most 1,000.
        results: videos in one answer.
        moments: of one video in an answer.
        batch: queries in one request.
        body_bytes: of a request.
        rate: requests per second of one client in the long run; 0: as many as it likes. The page itself is not counted.
        burst: requests of one client that need not wait. The page asks for up to 20 pictures at once.
        connections: that may be open. The one that has kept the server waiting for longest is closed for another one.
        client_connections: of them, from one address; 0: all. A reverse proxy is one address.
        head_seconds: that a client has for the head of a request, and that an unused connection is kept open.
        body_seconds: that a client has for the body of a request.
        stalled_seconds: that a client may take nothing of an answer. A paused player does so, and asks again later.
        grace_seconds: from SIGTERM or Ctrl-C until the process ends, whatever clients do.
        search_seconds: until a search is given up.
        search_waiting: searches that may wait; more are told to come back.
        media_threads: pictures and previews that are made at the same time.
        media_waiting: those that may wait.
        media_seconds: until a picture or a preview is given up.
        preview_seconds: length of a preview.
        preview_pixels: of the longer side of its picture.
        cache_bytes: of pictures and previews that are kept in memory.
        video: what a file may ask for before it is decoded.

    Raises:
        InputError: a limit is no number, or out of range; says what was expected.
    """

    query_characters: int = 500
    results: int = 100
    moments: int = 10
    batch: int = 32
    body_bytes: int = 128 * 1024
    rate: float = 40.0
    burst: int = 200
    connections: int = 256
    client_connections: int = 64
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    stalled_seconds: float = 120.0
    grace_seconds: float = 15.0
    search_seconds: float = 30.0
    search_waiting: int = 64
    media_threads: int = 2
    media_waiting: int = 64
    media_seconds: float = 30.0
    preview_seconds: float = 60.0
    preview_pixels: int = 640
    cache_bytes: int = 64 * 1024 * 1024
    video: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name == "video":
                continue
            value, (least, most) = getattr(self, one.name), _BOUNDS[one.name]
            whole = isinstance(one.default, int)
            number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not number or not least <= value <= most:
                kind = "a whole number" if whole else "a number"
                raise InputError(f"ServeLimits: {one.name}={value!r}; expected {kind} from {least:,} to {most:,}")


class Busy(Exception):
    """There is more work than may wait, or it took too long.

    Args:
        reason: for the client.
        retry_after: seconds.
    """

    def __init__(self, reason: str, retry_after: int = 2) -> None:
        super().__init__(reason)
        self.reason, self.retry_after = reason, retry_after


class TokenBuckets:
    """How often each client may ask: `burst` requests at once, then `rate` per second.

    The clients that asked last are remembered, so that memory is bounded.

    Args:
        rate: per second; 0: no limit.
        burst: at once.
        clients: how many are remembered.
        clock: seconds.
    """

    def __init__(
        self, rate: float, burst: int, clients: int = 4096, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self.clients, self._clock = rate, burst, clients, clock
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was

    def wait(self, client: str) -> float:
        """Seconds until this client may ask; 0: now, and it is counted.

        Example:
            >>> buckets = TokenBuckets(rate=2.0, burst=1, clock=lambda: 0.0)
            >>> buckets.wait("a"), buckets.wait("a"), buckets.wait("b")
            (0.0, 0.5, 0.0)
        """
        if not self.rate:
            return 0.0
        now = self._clock()
        left, then = self._known.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._known[client] = (left if wait else left - 1, now)
        if len(self._known) > self.clients:
            self._known.popitem(last=False)
        return wait


class Answers:
    """What threads compute and clients wait for: no longer than so many seconds, and not beyond the end of the server.

    Args:
        seconds: until an answer is given up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._awaited, self._ended = seconds, set[Future[Any]](), False

    async def wait(self, answer: Future[T]) -> T:
        """The answer, once it is there.

        Raises:
            Busy: it took too long, or the server ends.
            Exception: what the computation raised.
        """
        if self._ended:
            answer.cancel()
            raise _leaving()
        self._awaited.add(answer)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._seconds)
        except TimeoutError as error:
            raise Busy(f"it took longer than {self._seconds:g} s", 10) from error
        finally:
            self._awaited.discard(answer)

    def end(self) -> None:
        """Whoever waits is told that the server ends, and so is whoever asks from here on."""
        self._ended = True
        for answer in tuple(self._awaited):
            with suppress(InvalidStateError):  # it came at this moment
                answer.set_exception(_leaving())


def _leaving() -> Busy:
    return Busy("the server is ending", 10)


def settle(answer: Future[T], compute: Callable[[], T]) -> None:
    """Computes an answer, unless nobody waits for it any more."""
    with suppress(InvalidStateError):  # it was given up meanwhile
        if answer.done() or not answer.set_running_or_notify_cancel():
            return
        try:
            found = compute()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(found)


class Workers:
    """Threads for heavy work, and a queue that has an end.

    Args:
        name: of the threads.
        threads: how many.
        waiting: how much work may wait for one.
        seconds: until an answer is given up. The work itself goes on to its own end and keeps its place until then.
    """

    def __init__(self, name: str, threads: int, waiting: int, seconds: float) -> None:
        self._most, self._answers = threads + waiting, Answers(seconds)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self.pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, computed in a thread.

        Raises:
            Busy: too much waits, it took too long, or the server ends.
        """
        if self.pending >= self._most:
            raise Busy("the server is busy: too many pictures are being made")
        self.pending += 1
        answer: Future[T] = Future()
        loop = asyncio.get_running_loop()
        answer.add_done_callback(lambda _: _later(loop, self._done))
        self._queue.put(lambda: settle(answer, work))
        return await self._answers.wait(answer)

    def end(self) -> None:
        """See `Answers.end`."""
        self._answers.end()

    def close(self, seconds: float = FOREVER) -> bool:
        """Ends the threads once they have done what they do; what waits is dropped. Whether they ended in this time."""
        self.end()
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        return joined(self._threads, seconds)

    def _done(self) -> None:
        self.pending -= 1

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def joined(threads: Sequence[threading.Thread], seconds: float) -> bool:
    """Waits for threads to end; whether they did in this time."""
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _later(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Calls back in the loop, unless the server has ended meanwhile."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
