"""Searches of several clients as one: what waits while a search runs is searched together next."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from prvr.serve.limits import FOREVER, Answers, Busy, joined, settle

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
        self._search, self._batch, self._answers = search, batch, Answers(seconds)
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
            Busy: too many wait, it took too long, or the server ends.
            Exception: what the search raised.
        """
        return await self._answers.wait(self.submit(queries, k, moments))

    def submit(self, queries: Sequence[str], k: int, moments: int) -> "Future[Sequence[object]]":
        """The results of queries, in order, once they are there.

        Raises:
            Busy: too many wait.
        """
        wish = _Wish(tuple(queries), k, moments)
        try:
            self._wishes.put_nowait(wish)
        except queue.Full:
            raise Busy("the server is busy: too many searches are waiting") from None
        return wish.answer

    def end(self) -> None:
        """See `Answers.end`."""
        self._answers.end()

    def close(self, seconds: float = FOREVER) -> bool:
        """Ends the thread after the search that runs; whether it ended in this time."""
        self.end()
        while True:
            try:
                self._wishes.get_nowait()
            except queue.Empty:
                break
        self._wishes.put(None)
        return joined([self._thread], seconds)

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
        wishes = [wish for wish in wishes if not wish.answer.done()]
        if len(wishes) < 2:
            for wish in wishes:
                settle(wish.answer, lambda wish=wish: self._found(wish.queries, wish))
            return
        try:
            found = list(self._found([query for wish in wishes for query in wish.queries], wishes[0]))
        except Exception:  # one of them cannot be searched: not the fault of the others
            for wish in wishes:
                self._answer([wish])
            return
        for wish in wishes:
            own = [found.pop(0) for _ in wish.queries]
            settle(wish.answer, lambda own=own: own)

    def _found(self, queries: Sequence[str], wish: _Wish) -> Sequence[object]:
        return list(self._search(queries, wish.k, wish.moments))
