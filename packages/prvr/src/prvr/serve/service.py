"""What the server does, without HTTP: searches, pictures and previews of one index."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, Literal

from prvr.data import DataError
from prvr.search import SearchHit, SearchResult, VideoIndex
from prvr.search.thumbnails import thumbnail
from prvr.serve.batching import SearchQueue
from prvr.serve.catalogue import Catalogue, FileRefused, Listed
from prvr.serve.limits import FOREVER, Busy, ServeLimits, Workers
from prvr.serve.media import ByteCache, encode_preview, preview_kinds
from prvr.serve.metrics import Metrics
from prvr.serve.schema import HitAnswer, InfoAnswer, MomentAnswer, SearchAnswer, VideoAnswer
from prvr.video import VideoError

__all__ = ["QueryRefused", "Service", "describe"]

logger = logging.getLogger(__name__)

_FIRST = "a video"  # any query that every model reads
_LOOK = 2.0  # seconds after which a search first looks whether the index was changed


class QueryRefused(Exception):
    """A query that the model cannot read; the message is for who asked."""


class Service:
    """An index and the threads that work on it.

    Args:
        index: open; only the thread that searches uses it from here on, until `close`.
        limits: bounds.

    Attributes:
        metrics: what is counted.
        failure: why the first search, that of `prepare`, came to nothing.
    """

    def __init__(self, index: VideoIndex, limits: ServeLimits) -> None:
        self.limits, self._index, self.metrics = limits, index, Metrics()
        self.failure: Exception | None = None
        self._ready = threading.Event()
        self._model = index.model.identity  # loaded now: what is wrong with it is told at the start
        self.catalogue = Catalogue(map(index.source.entry, index.video_ids))
        self._about, self._looked = index.info(), time.monotonic()
        self._cache = ByteCache(limits.cache_bytes)
        self._workers = Workers("prvr-media", limits.media_threads, limits.media_waiting, limits.media_seconds)
        self._searches = SearchQueue(self._search, limits.search_waiting, limits.batch, limits.search_seconds)

    @property
    def ready(self) -> bool:
        """Whether a search would be answered now: the model is loaded, the backend knows the index as it is."""
        return self._ready.is_set()

    def prepare(self) -> None:
        """Begins the first search, which loads the text encoder and builds what the backend needs."""
        self._searches.submit([_FIRST], 1, 1).add_done_callback(self._prepared)

    def _prepared(self, answer: "Future[Any]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, Exception) and not isinstance(error, Busy):  # the server may end before it is ready
            logger.error("no search is possible: %s", error)
            self.failure = error

    async def search(self, queries: Sequence[str], k: int, moments: int) -> list[SearchAnswer]:
        """One answer per query.

        Raises:
            Busy: too many searches wait, or it took too long.
            QueryRefused: the model cannot read a query.
            DataError: the index cannot be read.
        """
        found = await self._searches.ask(queries, k, moments)
        return [self._answer(one) for one in found if isinstance(one, SearchResult)]

    async def file(self, listed: Listed) -> BinaryIO:
        """The file of a video, open and checked.

        Raises:
            Busy: too much waits.
            FileRefused: the file is not given out.
        """
        return await self._workers.run(lambda: self.catalogue.open(listed))

    async def thumbnail(self, listed: Listed, at: float, width: int) -> bytes:
        """A JPEG of what a video shows at a time.

        Raises:
            Busy: too much waits.
            FileRefused: the file is not given out, or has no picture.
        """
        at = round(at, 2)

        def make() -> bytes:
            path = self.catalogue.path(listed)
            try:
                return self._cache.get(
                    (listed.key, at, width), lambda: thumbnail(path, at, width=width, limits=self.limits.video)
                )
            except VideoError as error:
                raise FileRefused(415, f"no picture can be made: {error.reason}") from error

        return await self._workers.run(make)

    async def preview(self, listed: Listed, start: float, end: float, kind: Literal["mp4", "webm"]) -> bytes:
        """A part of a video as a small file that browsers play.

        Raises:
            Busy: too much waits.
            FileRefused: the file is not given out, or no preview can be made of it.
        """
        end = min(end, max(listed.video.duration, start + 0.1))

        def make() -> bytes:
            path = self.catalogue.path(listed)
            return self._cache.get(
                (listed.key, start, end, kind), lambda: encode_preview(path, start, end, kind, self.limits)
            )

        return await self._workers.run(make)

    def info(self, version: str) -> InfoAnswer:
        """What is searched."""
        about = self._about
        return InfoAnswer(
            videos=len(self.catalogue),
            windows=about.windows,
            hours=about.seconds / 3600,
            model=self._model.name,
            zero_shot=self._model.kind == "zero-shot",
            encoder=self._model.frames.name,
            previews=[kind for kind in ("mp4", "webm") if kind in preview_kinds()],
            query_characters=self.limits.query_characters,
            results=self.limits.results,
            preview_seconds=self.limits.preview_seconds,
            version=version,
        )

    def measured(self) -> str:
        """All that was counted, as text that Prometheus reads."""
        return self.metrics.text(
            {
                "prvr_ready": float(self.ready),
                "prvr_videos": float(len(self.catalogue)),
                "prvr_searches_waiting": float(self._searches.pending),
                "prvr_media_pending": float(self._workers.pending),
            }
        )

    def end(self) -> None:
        """Whoever waits for a search or a picture is told that the server ends."""
        self._searches.end()
        self._workers.end()

    def close(self, seconds: float = FOREVER) -> bool:
        """Ends the threads after what they do, then closes the index; whether all of them ended in this time.

        The index is left open if a search goes on: on disk it is whole at any time.
        """
        until = time.monotonic() + seconds
        self.end()
        searched = self._searches.close(seconds)
        if searched:
            self._index.close()
        return self._workers.close(max(0.0, until - time.monotonic())) and searched

    def _search(self, queries: Sequence[str], k: int, moments: int) -> Sequence[SearchResult]:
        try:
            if time.monotonic() - self._looked > _LOOK:
                if self._index.refresh():
                    self._ready.clear()
                    self.catalogue.replace(map(self._index.source.entry, self._index.video_ids))
                    self._about, self._model = self._index.info(), self._index.source.manifest.model
                self._looked = time.monotonic()
            found = self._index.search_many(queries, k, moments=moments)
        except DataError:
            self._ready.clear()
            raise
        except ValueError:
            self._check(queries)
            raise  # not the fault of a query
        self._ready.set()
        return found

    def _check(self, queries: Sequence[str]) -> None:
        for query in queries:
            try:
                self._index.model.encode_text(query)
            except DataError:
                raise
            except ValueError as error:
                raise QueryRefused(str(error)) from error

    def _answer(self, result: SearchResult) -> SearchAnswer:
        found = [(hit, self.catalogue.of(hit.video_id)) for hit in result.hits]
        hits = [(hit, listed) for hit, listed in found if listed is not None]
        return SearchAnswer(
            query=result.query,
            videos=result.videos,
            backend=result.backend,
            hits=[_hit(rank, hit, listed) for rank, (hit, listed) in enumerate(hits, start=1)],
        )


def describe(listed: Listed) -> VideoAnswer:
    """A video as clients see it: not where it lies."""
    video = listed.video
    return VideoAnswer(
        key=listed.key,
        name=listed.name,
        duration=video.duration,
        width=video.width,
        height=video.height,
        codec=video.codec,
        type=listed.type,
        plays=listed.plays,
    )


def _hit(rank: int, hit: SearchHit, listed: Listed) -> HitAnswer:
    return HitAnswer(
        rank=rank,
        score=hit.score,
        start=hit.start,
        end=hit.end,
        moments=[MomentAnswer(start=one.start, end=one.end, score=one.score) for one in hit.moments],
        strip=list(hit.strip),
        video=describe(listed),
    )
