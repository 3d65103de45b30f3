"""What a server lets be asked of it: sizes, rates, times, and how much work may wait."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prvr.errors import InputError
from prvr.video import Limits

__all__ = ["Busy", "ServeLimits", "TokenBuckets", "Workers"]

T = TypeVar("T")


@dataclass(frozen=True)
class ServeLimits:
    """Bounds of one server.

    Args:
        query_characters: length of a query.
        results: videos in one answer.
        moments: of one video in an answer.
        batch: queries in one request.
        body_bytes: of a request.
        rate: requests per second of one client in the long run; 0: as many as it likes.
        burst: requests of one client that need not wait.
        search_seconds: until a search is given up.
        search_waiting: searches that may wait; more are told to come back.
        media_threads: pictures and previews that are made at the same time.
        media_waiting: those that may wait.
        media_seconds: until a picture or a preview is given up.
        preview_seconds: length of a preview.
        preview_pixels: of the longer side of its picture.
        cache_bytes: of pictures and previews that are kept in memory.
        video: what a file may ask for before it is decoded.
    """

    query_characters: int = 500
    results: int = 100
    moments: int = 10
    batch: int = 32
    body_bytes: int = 128 * 1024
    rate: float = 40.0
    burst: int = 200
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
        for name, value in vars(self).items():
            if name != "video" and (value < 0 or (value == 0 and name not in ("rate", "cache_bytes"))):
                raise InputError(f"ServeLimits: {name}={value}; expected a positive number")


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


class Workers:
    """Threads for heavy work, and a queue that has an end.

    Args:
        name: of the threads.
        threads: how many.
        waiting: how much work may wait for one.
        seconds: until an answer is given up. The work itself goes on to its own end and keeps its place until then.
    """

    def __init__(self, name: str, threads: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._seconds = threads + waiting, seconds
        self.pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, computed in a thread.

        Raises:
            Busy: too much waits, or it took too long.
        """
        if self.pending >= self._most:
            raise Busy("the server is busy: too many pictures are being made")
        self.pending += 1
        future: Future[T] = self._pool.submit(work)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _later(loop, self._done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError as error:
            raise Busy(f"took longer than {self._seconds:g} s", 10) from error

    def _done(self) -> None:
        self.pending -= 1

    def close(self) -> None:
        """Ends the threads once they have done what they do; what waits is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _later(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Calls back in the loop, unless the server has ended meanwhile."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
