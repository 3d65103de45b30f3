"""Threads for slow work, and the answers that clients wait for: media is made in parallel, searches in batches."""

import asyncio
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
        waiting: jobs that may wait for a thread; None: any number.
    """

    def __init__(self, name: str, threads: int, seconds: float, waiting: int | None = None) -> None:
        self._seconds, self._ended = seconds, False
        self._room = math.inf if waiting is None else threads + waiting
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

    def new_answer(self) -> Future[Any]:
        """An answer that counts as pending until it is finished, and that `end` lets fail."""
        answer: Future[Any] = Future()
        self._unfinished.add(answer)
        answer.add_done_callback(self._unfinished.discard)
        return answer

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Computes `work()` in a thread, unless nobody waits for the answer any more when its turn comes.

        Raises:
            Busy: too many jobs are waiting.
        """
        if self.pending >= self._room:
            raise Busy("the server is busy: too many pictures are being made")
        answer = self.new_answer()
        self._jobs.put(lambda: settle(answer, work))
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


def settle(answer: Future[T], compute: Callable[[], T]) -> None:
    """Computes an answer, unless nobody waits for it any more."""
    with suppress(InvalidStateError):  # it was given up meanwhile
        if answer.done() or not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(compute())
        except BaseException as error:
            answer.set_exception(error)


@dataclass(frozen=True, eq=False)
class Request:
    """Queries of one client that wait for a search.

    Args:
        queries: what is searched for.
        options: the further arguments of the search.
        answer: one result per query.
    """

    queries: tuple[Any, ...]
    options: tuple[Any, ...]
    answer: Future[Sequence[Any]]


class SearchQueue(Generic[T]):
    """Searches in one thread. Requests that wait during a search are searched together next.

    An index reads all of its vectors once for any number of queries.

    Args:
        search: maps queries and further arguments to one result per query.
        worker: has one thread.
        waiting: requests that may wait.
        batch: queries that are searched together.
    """

    def __init__(self, search: Callable[..., Sequence[T]], worker: Workers, waiting: int, batch: int) -> None:
        self._search, self._worker, self._room, self._batch = search, worker, waiting, batch
        self._waiting: deque[Request] = deque()

    @property
    def pending(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def submit(self, queries: Sequence[Any], *options: Any) -> Future[Sequence[T]]:
        """One result per query. Requests with equal options are searched together.

        Raises:
            Busy: too many requests are waiting.
        """
        if self.pending >= self._room:
            raise Busy("the server is busy: too many searches are waiting")
        request = Request(tuple(queries), options, self._worker.new_answer())
        self._waiting.append(request)
        self._worker.submit(self._search_next)  # finds nothing left to do where an earlier batch took the request along
        return request.answer

    async def ask(self, queries: Sequence[Any], *options: Any) -> Sequence[T]:
        """Waits for one result per query.

        Raises:
            Busy: too many requests are waiting, the search took too long, or the server is shutting down.
            Exception: what the search raised.
        """
        return await self._worker.wait(self.submit(queries, *options))

    def _search_next(self) -> None:
        """Searches what waits with the options of the first request, up to the size of a batch."""
        requests: list[Request] = []
        size = 0
        while self._waiting and size < self._batch:
            if requests and self._waiting[0].options != requests[0].options:
                break
            requests.append(self._waiting.popleft())
            size += len(requests[-1].queries)
        self._answer([request for request in requests if not request.answer.done()])

    def _answer(self, requests: Sequence[Request]) -> None:
        if len(requests) < 2:
            for request in requests:
                settle(request.answer, lambda alone=request: list(self._search(alone.queries, *alone.options)))
            return
        try:
            queries = [query for request in requests for query in request.queries]
            results = iter(self._search(queries, *requests[0].options))
        except Exception:  # one request cannot be searched: the others must not suffer for it
            for request in requests:
                self._answer([request])
            return
        for request in requests:
            own = [next(results) for _ in request.queries]
            settle(request.answer, lambda own=own: own)
