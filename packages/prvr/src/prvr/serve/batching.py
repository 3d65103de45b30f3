"""Searches of several clients as one: what waits while a search runs is searched together next."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from prvr.serve.limits import Busy

__all__ = ["SearchQueue"]

logger = logging.getLogger(__name__)

Search = Callable[[Sequence[str], int, int], Sequence[object]]


@dataclass
class _Wish:
    queries: tuple[str, ...]
    k: int
    moments: int
    answer: "Future[Sequence[object]]" = field(default_factory=Future)


class SearchQueue:
    """One thread that searches. An index reads all of its vectors for one query or for several alike.

    Args:
        search: (queries, k, moments) to one result per query.
        waiting: requests that may wait.
        batch: queries that are searched together.
        seconds: until an answer is given up.
    """

    def __init__(self, search: Search, waiting: int, batch: int, seconds: float) -> None:
        self._search, self._batch, self._seconds = search, batch, seconds
        self._wishes: queue.Queue[_Wish | None] = queue.Queue(waiting)
        self._held: _Wish | None = None
        self._thread = threading.Thread(target=self._work, name="prvr-search", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Requests that wait."""
        return self._wishes.qsize()

    async def ask(self, queries: Sequence[str], k: int, moments: int) -> Sequence[object]:
        """The results of queries, in order.

        Raises:
            Busy: too many wait, or it took too long.
            Exception: what the search raised.
        """
        wish = _Wish(tuple(queries), k, moments)
        try:
            self._wishes.put_nowait(wish)
        except queue.Full:
            raise Busy("the server is busy: too many searches are waiting") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(wish.answer), self._seconds)
        except TimeoutError as error:
            raise Busy(f"the search took longer than {self._seconds:g} s", 10) from error

    def close(self) -> None:
        """Ends the thread after the search that runs."""
        while True:
            try:
                self._wishes.get_nowait()
            except queue.Empty:
                break
        self._wishes.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._held or self._wishes.get()) is not None:
            self._held = None
            wishes, size = [first], len(first.queries)
            while size < self._batch:
                try:
                    wish = self._wishes.get_nowait()
                except queue.Empty:
                    break
                if wish is None:
                    self._answer(wishes)
                    return
                if (wish.k, wish.moments) != (first.k, first.moments):
                    self._held = wish
                    break
                wishes.append(wish)
                size += len(wish.queries)
            self._answer(wishes)

    def _answer(self, wishes: Sequence[_Wish]) -> None:
        wishes = [wish for wish in wishes if wish.answer.set_running_or_notify_cancel()]
        if not wishes:
            return
        k, moments = wishes[0].k, wishes[0].moments
        try:
            found = list(self._search([query for wish in wishes for query in wish.queries], k, moments))
        except Exception as error:
            if len(wishes) == 1:
                wishes[0].answer.set_exception(error)
                return
            for wish in wishes:  # one of them cannot be searched: not the fault of the others
                self._alone(wish)
            return
        for wish in wishes:
            wish.answer.set_result([found.pop(0) for _ in wish.queries])

    def _alone(self, wish: _Wish) -> None:
        try:
            wish.answer.set_result(list(self._search(wish.queries, wish.k, wish.moments)))
        except Exception as error:
            wish.answer.set_exception(error)
