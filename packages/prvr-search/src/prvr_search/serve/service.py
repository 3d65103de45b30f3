"""What the server does, without HTTP: searches, pictures and previews of one index."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache, cached
from prometheus_client import Gauge
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from prvr.data import DataError
from prvr.encoders import VideoEntry
from prvr.errors import InputError, PrvrError
from prvr_search import Library, Query, SearchFilter, SearchResult
from prvr_search.films import SubtitleLine
from prvr_search.films.picture import read_picture
from prvr_search.serve.catalogue import Catalogue, describe, key_of
from prvr_search.serve.growing import GrowingIndex
from prvr_search.serve.media import preview_kinds
from prvr_search.serve.middleware import Metrics
from prvr_search.serve.schema import InfoResponse, ProgressResponse, SearchResponse
from prvr_search.serve.settings import ServeLimits
from prvr_search.serve.workers import Busy, Workers
from prvr_search.vectors.model import UNTRAINED, EncodesPictures

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_QUERY = "a video"  # every model can read it
_SMALL = 1000  # bytes that a kept description of a file counts for
_REFRESH_SECONDS = 2.0  # between two looks whether the index was changed


class Service:
    """The index of a library, and the threads that work on it.

    Args:
        library: what is served; until `close`, only the search thread uses its index.
        limits: bounds on what clients may ask.
        update: whether new videos are encoded.

    Attributes:
        metrics: the counters of the server.
        failure: the error of the first search, that of `prepare`, if it failed.
    """

    def __init__(self, library: Library, limits: ServeLimits, update: bool) -> None:
        self.limits = limits
        self.source = GrowingIndex(library, update)
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self._damage: DataError | None = None
        self._storage = library.storage
        self._ready, self._receiving = threading.Event(), 0
        self.catalogue = Catalogue([])
        self._describe()
        self._searches = Workers("prvr-search", 1, limits.search_seconds, limits.search_waiting)
        self._media_workers = Workers("prvr-media", limits.media_threads, limits.media_seconds, limits.media_waiting)
        keep = cached(LRUCache(limits.cache_bytes, getsizeof=_size), key=lambda _, *what: what, lock=threading.Lock())
        self._make = keep(lambda path, _, make, *options: make(path, *options, limits))
        for name, help_, value in (
            ("prvr_ready", "Readiness: whether the server can search now.", lambda: self.ready),
            ("prvr_videos", "Videos of the index.", lambda: len(self.catalogue)),
            ("prvr_searches_pending", "Pending searches.", lambda: self._searches.pending),
            ("prvr_media_pending", "Pending pictures and previews.", lambda: self._media_workers.pending),
        ):
            Gauge(name, help_, registry=self.metrics.registry).set_function(value)

    @property
    def ready(self) -> bool:
        """Whether the server can search now: the model is loaded, and the backend knows the current index."""
        return self._ready.is_set()

    def prepare(self) -> None:
        """Starts to encode, and a first search, which loads the text encoder and builds what the backend needs."""
        self.source.start()
        self._searches.submit(lambda: self._search([_FIRST_QUERY], 1, 1, None)).add_done_callback(self._prepared)

    def _prepared(self, answer: Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, Exception) and not isinstance(error, Busy):  # the server may end before it is ready
            logger.error("cannot search: %s", error)
            self.failure = error

    async def follow(self) -> None:
        """Follows changes of the library, until it is cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self._searches.run(self._refresh)
            except Busy:  # a search takes longer, or the server ends
                pass
            except Exception:  # a bug, which must not keep the server from following later changes
                logger.exception("the index cannot be read again")

    def _refresh(self) -> None:
        try:
            if self.source.refresh(is_damaged=self._damage is not None):
                self._describe()
        except (PrvrError, OSError) as error:
            self._report_damage(DataError(str(error)))
        else:
            if self._damage is not None:
                self._damage = None
                self._ready.set()

    def _describe(self) -> None:
        """Reads from the index what clients are told of it."""
        index = self.source.index
        self._seconds = sum(index.video(video).duration for video in index.video_ids)
        self._model = index.model.identity  # a broken model is reported at the start
        self._reads_pictures = isinstance(index.model, EncodesPictures)
        self.catalogue.replace(map(index.video, index.video_ids))

    def _report_damage(self, error: DataError) -> None:
        if str(error) != str(self._damage):
            logger.error("%s", error)
        self._ready.clear()
        self._damage = error

    async def search(
        self, queries: Sequence[str | Query], k: int, moments: int, where: SearchFilter | None = None
    ) -> list[SearchResponse]:
        """One response per query.

        Raises:
            Busy: too many searches are waiting, or this one took too long.
            HTTPException: the model cannot read a query, or the index cannot be read.
        """
        try:
            results = await self._searches.run(lambda: self._search(queries, k, moments, where))
        except DataError as error:  # the index is damaged: nothing that the client could mend
            raise HTTPException(503, "the index cannot be read; see the server log") from error
        except InputError as error:  # the model cannot read a query
            raise HTTPException(400, str(error)) from error
        return [_response(result) for result in results]

    async def picture(self, receive: Callable[[], Awaitable[bytes]]) -> np.ndarray:
        """The pixels of a picture that a client sends, decoded beside the searches; the file itself is not kept.

        Args:
            receive: gives the content of its file.

        Raises:
            Busy: too many pictures are being received or made.
            HTTPException: it is no picture, too large, or the client has gone.
        """
        if self._receiving >= self.limits.pictures:
            raise Busy("the server is busy: too many pictures are being received")
        self._receiving += 1
        try:
            content = await receive()
            return await self._media_workers.run(lambda: read_picture(content))
        except InputError as error:
            raise HTTPException(415, str(error)) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the upload is incomplete") from error
        finally:
            self._receiving -= 1

    async def path(self, video: VideoEntry) -> Path:
        """The file of a video.

        Raises:
            Busy: too much work is waiting.
            HTTPException: the file is not served.
        """
        return await self._media_workers.run(lambda: self.catalogue.path(video))

    async def lines(self, video: VideoEntry) -> Sequence[SubtitleLine]:
        """The lines of the subtitles of a video, in order of time.

        Raises:
            Busy: too much work is waiting.
        """
        return await self._media_workers.run(lambda: self._storage.lines.of(video.sha256))

    async def media(self, video: VideoEntry, make: Callable[..., T], *options: Any) -> T:
        """What `make(path, *options, limits)` makes of the file of a video, in a thread.

        The file is checked every time, also where the result is kept.

        Raises:
            Busy: too much work is waiting.
            HTTPException: the file is not served, or nothing can be made of it.
        """
        key = key_of(video)
        return await self._media_workers.run(lambda: self._make(self.catalogue.path(video), key, make, *options))

    def info(self, version: str) -> InfoResponse:
        """The index, its model, and the limits that clients have to keep to."""
        done, total = self.source.progress
        return InfoResponse(
            videos=len(self.catalogue),
            progress=ProgressResponse(done=done, total=total, error=self.source.error),
            hours=self._seconds / 3600,
            model=self._model.name,
            pictures=self._reads_pictures,
            zero_shot=self._model.kind in UNTRAINED,
            encoder=self._model.frames.name,
            previews=preview_kinds(),
            query_characters=self.limits.query_characters,
            picture_bytes=self.limits.picture_bytes,
            results=self.limits.results,
            preview_seconds=self.limits.preview_seconds,
            version=version,
        )

    def end(self) -> None:
        """Tells every client that waits for a search or a picture that the server is shutting down."""
        self._searches.end()
        self._media_workers.end()

    def close(self, seconds: float) -> bool:
        """Ends the threads after their current work, then closes the index.

        The index is left open if a search is still running: on disk it is consistent at any time.

        Returns:
            whether all threads ended within this time.
        """
        until = time.monotonic() + seconds
        self.end()
        searched = self._searches.close(seconds)
        if searched:
            self.source.index.close()
        made = self._media_workers.close(max(0.0, until - time.monotonic()))
        return self.source.close(max(0.0, until - time.monotonic())) and made and searched

    def _search(
        self, queries: Sequence[str | Query], k: int, moments: int, where: SearchFilter | None
    ) -> Sequence[SearchResult]:
        try:
            if self._damage is not None:
                raise self._damage
            results = self.source.index.search_many(queries, k, moments=moments, where=where)
        except DataError as error:
            self._report_damage(error)
            raise
        self._ready.set()
        return results


def _size(content: object) -> int:
    """The bytes that something kept counts for."""
    return len(content) if isinstance(content, bytes) else _SMALL


def _response(result: SearchResult) -> SearchResponse:
    hits = [
        vars(hit)
        | {"rank": rank, "video": describe(hit.video)}
        | {"copies": [*map(describe, hit.copies)], "alike": [*map(describe, hit.alike)]}
        for rank, hit in enumerate(result.hits, start=1)
    ]
    return SearchResponse.model_validate(vars(result) | {"hits": hits})
