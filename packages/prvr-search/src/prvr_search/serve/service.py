"""What the server does, without HTTP: it follows one library, searches it, and makes pictures and previews."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from importlib.util import find_spec
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import numpy as np
from cachetools import LRUCache, cached
from prometheus_client import CollectorRegistry, Gauge
from starlette.exceptions import HTTPException

from prvr import __version__
from prvr.data import DataError
from prvr.encoders import VideoEntry
from prvr.errors import InputError, PrvrError
from prvr_search import Library, Query, SearchFilter, SearchResult, VideoIndex
from prvr_search.films.picture import read_picture
from prvr_search.output.files import csv_table, timeline
from prvr_search.ranking.results import Moment, SearchHit
from prvr_search.serve.files import Catalogue, preview_kinds
from prvr_search.serve.schema import ExportRequest
from prvr_search.serve.settings import ServeSettings
from prvr_search.vectors.model import UNTRAINED, EncodesPictures

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_QUERY = "a video"  # every model can read it
_REFRESH_SECONDS = 2.0  # between two looks whether the index was changed
_REST = 9  # times as long as the last look at the folder took, before the next


class Busy(HTTPException):
    """Too much work is waiting, or an answer took too long: 503, and clients are told when to ask again.

    Args:
        reason: shown to the client.
        retry_after: seconds.
    """

    def __init__(self, reason: str, retry_after: int = 2) -> None:
        super().__init__(503, reason, {"Retry-After": str(retry_after)})


_ENDING = "the server is shutting down", 10


class Workers:
    """Threads that compute answers. Clients wait for an answer a limited time, and not beyond the server's end.

    Args:
        threads: number of threads.
        seconds: how long a client waits for an answer. The work itself runs to its end and keeps its place until then.
        waiting: jobs that may wait for a thread.
    """

    def __init__(self, threads: int, seconds: float, waiting: int) -> None:
        self._seconds, self._ended, self._room = seconds, False, threads + waiting
        self._pool = ThreadPoolExecutor(threads)
        self._jobs = dict[Future[Any], asyncio.Future[Any]]()  # and what clients wait for

    @property
    def pending(self) -> int:
        """The number of jobs that are not finished."""
        return len(self._jobs)

    async def run(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """The result of `work()`, computed in a thread.

        Args:
            work: is not begun if nobody waits for it any more when its turn comes.
            seconds: how long it is waited for, if that is another time.

        Raises:
            Busy: too many jobs are waiting, it took too long, or the server is shutting down.
        """
        if self._ended or self.pending >= self._room:
            raise Busy(*_ENDING) if self._ended else Busy("the server is busy: too much work is waiting")
        job = self._pool.submit(work)
        answer = self._jobs[job] = asyncio.wrap_future(job)
        job.add_done_callback(self._jobs.pop)
        try:
            return await asyncio.wait_for(answer, seconds or self._seconds)
        except TimeoutError as error:
            raise Busy(f"it took longer than {self._seconds:g} s", 10) from error
        except asyncio.CancelledError:
            if self._ended:
                raise Busy(*_ENDING) from None
            raise

    def end(self) -> None:
        """Lets every pending answer fail with `Busy`, and all later ones too."""
        self._ended = True
        for answer in tuple(self._jobs.values()):
            answer.cancel()

    def close(self, seconds: float) -> bool:
        """Ends the threads after their current jobs, and returns whether they ended within this time."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not wait(tuple(self._jobs), max(0.0, seconds)).not_done


class _Stopped(Exception):
    """The server ends."""


class Service:
    """The index of a library, and the threads that work on it.

    Args:
        library: what is served; until `close`, only the search thread uses its index.
        settings: bounds on what clients may ask, and how often the folder is looked at.
        update: whether new videos are encoded; otherwise only those appear that other processes encode.

    Attributes:
        registry: the counters of the server.
        catalogue: the videos of the index as it was last read.
        lines: the lines of subtitles of all videos.
        ready: whether the server can search now: the model is loaded, and the backend knows the current index.
        problem: why the other videos cannot be encoded now; None if they are, or if there are none.
        failure: the error of the first search, if it failed.

    Raises:
        DataError: as `Library.prepare`; without `update`, no video is encoded yet.
    """

    def __init__(self, library: Library, settings: ServeSettings, update: bool) -> None:
        if update and library.spec is None:
            library.prepare()
        limits = self.limits = settings.limits
        self._library, self._update, self._rescan = library, update, settings.rescan_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow_folder, name="prvr-encode", daemon=True)
        self.problem: str | None = None
        self.failure: Exception | None = None
        self.ready, self._damage, self._unreadable = False, "", 0
        self.catalogue, self.lines = Catalogue(library.store.folders.stamp), library.store.lines
        self._show(library.encoded() if update else library.index)
        self._searches = Workers(1, limits.search_seconds, limits.search_waiting)
        self._pictures = asyncio.Semaphore(limits.pictures)
        self._media = Workers(limits.media_threads, limits.media_seconds, limits.media_waiting)
        keep = cached(LRUCache(limits.cache_bytes, getsizeof=len), key=lambda _, *what: what, lock=threading.Lock())
        self._make = keep(lambda file, _, make, *options: make(file, *options))
        self.registry = CollectorRegistry()
        for name, help_, value in (
            ("prvr_ready", "Readiness: whether the server can search now.", lambda: self.ready),
            ("prvr_videos", "Videos of the index.", lambda: len(self.catalogue)),
            ("prvr_searches_pending", "Pending searches.", lambda: self._searches.pending),
            ("prvr_media_pending", "Pending pictures and previews.", lambda: self._media.pending),
        ):
            Gauge(name, help_, registry=self.registry).set_function(value)

    async def follow(self) -> None:
        """Follows changes of the library until it is cancelled, after a first search, which loads the text encoder."""
        self._thread.start()
        try:
            await self._searches.run(lambda: self._index.search_many([_FIRST_QUERY], 1), threading.TIMEOUT_MAX)
            self.ready = True
        except Busy:  # the server ends before
            return
        except Exception as error:
            logger.error("cannot search: %s", error)
            self.failure = error
            return
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self._searches.run(self._refresh)
            except Busy:  # a search takes longer, or the server ends
                pass
            except Exception:  # a bug, which must not keep the server from following later changes
                logger.exception("the index cannot be read again")

    def _refresh(self) -> None:
        """Reads what was encoded since; an index that cannot be searched is opened again."""
        if self._damage:
            self._library.close()
        try:
            index = self._library.encoded()
            if index.snapshot is not self._shown:
                self._show(index)
        except (PrvrError, OSError) as error:
            self._note_damage(str(error))
        else:
            self.ready, self._damage = True, ""

    def _show(self, index: VideoIndex) -> None:
        """Lets clients see the videos of an index, and search it."""
        self._index, self._shown = index, index.snapshot
        self._identity = index.model.identity  # a broken model is reported at the start
        self.catalogue.replace(index.snapshot.entries)

    def _note_damage(self, problem: str) -> None:
        if problem != self._damage:
            logger.error("%s", problem)
        self.ready, self._damage = False, problem

    def _follow_folder(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if self._update:
                    report = self._library.update(self._expect_more)
                    self.problem, self._unreadable = report.problem or None, len(report.unreadable)
                else:
                    self._library.list_videos()
            except _Stopped:
                return
            except (PrvrError, OSError) as error:
                self.problem = str(error)
            self._stop.wait(max(self._rescan, _REST * (time.monotonic() - began)))

    def _expect_more(self, *_: object) -> None:
        if self._stop.is_set():
            raise _Stopped

    async def search(
        self, queries: Sequence[Query], k: int, moments: int, where: SearchFilter
    ) -> Sequence[SearchResult]:
        """One result per query.

        Raises:
            Busy: too many searches are waiting, or this one took too long.
            HTTPException: the index cannot be read.
            InputError: the model cannot read a query.
        """

        def searched() -> Sequence[SearchResult]:
            if self._damage:
                raise DataError(self._damage)
            return self._index.search_many(queries, k, moments=moments, where=where)

        try:
            return await self._searches.run(searched)
        except DataError as error:  # nothing that the client could mend
            self._note_damage(str(error))
            raise HTTPException(503, "the index cannot be read; see the server log") from error

    async def picture(self, receive: Callable[[], Awaitable[bytes]]) -> np.ndarray:
        """The pixels of a picture that a client sends, decoded beside the searches; the file itself is not kept.

        Args:
            receive: gives the content of its file.

        Raises:
            Busy: too many pictures are being received or made.
            HTTPException: it is no picture, or too large.
        """
        if self._pictures.locked():
            raise Busy("the server is busy: too many pictures are being received")
        async with self._pictures:
            content = await receive()
            try:
                return await self._media.run(partial(read_picture, content))
            except InputError as error:
                raise HTTPException(415, str(error)) from error

    async def of_video(self, key: str, find: Callable[[VideoEntry], T]) -> T:
        """What a function finds of the video of a key, in a thread.

        Raises:
            Busy: too much work is waiting.
            HTTPException: there is no such video.
        """
        return await self._media.run(partial(find, self.catalogue.get(key)))

    async def of_file(self, key: str, make: Callable[[BinaryIO], T]) -> T:
        """What a function makes of the open file of a video, in a thread.

        Raises:
            Busy: too much work is waiting.
            HTTPException: the file is not served, or nothing can be made of it.
        """

        def made(video: VideoEntry) -> T:
            with self.catalogue.opened(video) as file:
                return make(file)

        return await self.of_video(key, made)

    async def media(self, key: str, make: Callable[..., bytes], *options: Any) -> bytes:
        """What `make(file, *options)` makes, maybe earlier; the file is checked now. Errors as of `of_file`."""
        return await self.of_file(key, lambda file: self._make(file, key, make, *options))

    async def exported(self, request: ExportRequest) -> str:
        """Hits that a client shows as the content of a file; errors as of `media`, and where the extra is missing."""

        def write() -> str:
            videos = [self.catalogue.get(hit.key) for hit in request.hits]
            hits = [
                SearchHit(video, hit.score, (Moment(hit.start, hit.end, hit.score),), (), lines=tuple(hit.lines))
                for video, hit in zip(videos, request.hits, strict=True)
            ]
            results = [SearchResult(request.query, tuple(hits), len(self.catalogue), "exact")]
            if request.kind == "csv":
                return csv_table(results, lambda video: video.id)
            return timeline(results, ".otio", lambda video: quote(video.id))

        return await self._media.run(write)

    @property
    def progress(self) -> dict[str, int]:
        """How many videos can be searched, `done`, and how many there are in all, `total`."""
        done, listed = len(self.catalogue), self._library.listed
        return {"done": done, "total": max(done, len(listed.videos) - self._unreadable if listed else 0)}

    @property
    def info(self) -> dict[str, Any]:
        """The index, its model, and the limits that clients have to keep to, see `InfoResponse`."""
        model = self._identity
        return vars(self.limits) | {
            "videos": len(self.catalogue),
            "progress": {**self.progress, "error": self.problem},
            "hours": sum(video.duration for video in self.catalogue.listed()) / 3600,
            "model": model.name,
            "pictures": isinstance(self._index.model, EncodesPictures),
            "zero_shot": model.kind in UNTRAINED,
            "encoder": model.frames.name,
            "previews": preview_kinds(),
            "exports": ["csv", *["otio"] * (find_spec("opentimelineio") is not None)],
            "version": __version__,
        }

    def end(self) -> None:
        """Tells every client that waits for a search or a picture that the server is shutting down."""
        self._searches.end()
        self._media.end()

    def close(self, seconds: float) -> bool:
        """Ends the threads after their current work, then closes the index.

        The index is left open if a search is still running: on disk it is consistent at any time.

        Returns:
            whether all threads ended within this time.
        """
        until = time.monotonic() + seconds
        self._stop.set()
        searched = self._searches.close(seconds)
        if searched:
            self._index.close()
        made = self._media.close(until - time.monotonic())
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))
        return searched and made and not self._thread.is_alive()
