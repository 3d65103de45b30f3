"""The index of videos on disk: made, brought up to date and searched through `VideoIndex`."""

import logging
import shutil
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import LOCK, PATIENCE, clear_half_written, is_real_folder, owned
from prvr.encoders import FeatureSpec, VideoEntry, VideoFeatures
from prvr.errors import DISK_FULL, DataError
from prvr_search.backends import BACKENDS_FOLDER, CandidateBackend, choose_backend, open_backend
from prvr_search.filters import SearchFilter
from prvr_search.lines import Match, checked_queries, hit_of, line_hit, matching_lines, searched_videos
from prvr_search.manifest import MANIFEST, ROWS, Manifest, StaleIndex, index_key
from prvr_search.model import SearchModel
from prvr_search.query import Query, query_vector, same_width
from prvr_search.ranking import ApproximateScores, Ranked, find_candidates, fuse, num_candidates, rank, usual_score
from prvr_search.results import SearchResult, fold
from prvr_search.snapshot import Snapshot
from prvr_search.sync import Progress, commit, sync
from prvr_search.video.lines import Lines

if TYPE_CHECKING:
    from prvr_search.rescoring import Rescorer  # brings the stages, which few searches have

logger = logging.getLogger(__name__)


class IndexUnwritable(DataError):
    """The folder of an index cannot be written."""


class VideoIndex:
    """The vectors of videos on disk, searched by sentences or a `Query`; all of it can be computed again.

    It can be searched from several threads. It shows one state, which `update` brings up to date; other processes may
    change the index meanwhile. It is a context manager.

    Args:
        folder: the folder of the index; an empty index is made where there is none, or one that does not fit.
        model: a model of [open_model][prvr_search.open_model].
        features: what the features of the videos are: `VideoFeatures.spec`.
        window: seconds; longer videos are cut into windows of this length. None: no video is cut.
        stride: seconds from the start of one window to that of the next; None without a length.
        backend: the search backend: `exact`, `faiss`, `milvus`, `milvus:ADDRESS`; `auto`: `exact` up to 20,000 videos,
            above them `faiss` where it is installed.
        subtitles: the lines of the videos, `prvr_search.video.Storage.lines`; None: no lines are searched.

    Raises:
        DataError: the folder cannot be written, or the model reads features of another encoder.
        ValueError: an option is out of range.

    Examples:
        >>> with Library("films") as library:  # doctest: +SKIP
        ...     features = library.features()
        >>> model = open_model("zero-shot", features.spec)  # doctest: +SKIP
        >>> with VideoIndex("index", model, features.spec) as index:  # doctest: +SKIP
        ...     index.update(features)
        ...     hit = index.search("a red square rises").hits[0]
    """

    def __init__(
        self,
        folder: Path | str,
        model: SearchModel,
        features: FeatureSpec,
        *,
        window: float | None = 120.0,
        stride: float | None = 60.0,
        backend: str = "auto",
        subtitles: Lines | None = None,
    ) -> None:
        if model.identity.frames != features.encoder:
            raise DataError(f"the model reads features of {model.identity.frames}, these are of {features.encoder}.")
        self.folder, self.model, self.features = Path(folder).expanduser(), model, features
        self._wanted, self._subtitles = backend, subtitles
        self._backend: CandidateBackend | None = None  # also while every video is scored
        self._synced: Snapshot | None = None
        self._rescorer: "Rescorer | None" = None
        self._lock = threading.RLock()
        self._make = partial(Manifest.new, model, features, window, stride)
        self._key = index_key(model, features, window, stride)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with owned(self.folder, kind=IndexUnwritable, wait=PATIENCE):
                self._snapshot = self._opened()
        except OSError as error:
            raise IndexUnwritable(f"{self.folder}: cannot be written ({error}).") from error

    def _opened(self) -> Snapshot:
        """The current state; of a new index, if there is none, or one that is damaged or was made for another model.

        Raises:
            DataError: the folder holds something else.
        """
        if (self.folder / ROWS).is_symlink():  # what lies behind it may be somebody else's
            raise DataError(f"{self.folder / ROWS}: is a symbolic link, expected a folder. Remove the link.")
        clear_half_written(self.folder)
        try:
            snapshot = Snapshot.open(self.folder)
            if snapshot.manifest.key == self._key:
                return snapshot
            why = "it was made for another model, or by another version of prvr"
        except StaleIndex as error:
            why = str(error)
        others = {path.name for path in self.folder.iterdir()} - {MANIFEST, ROWS, BACKENDS_FOLDER, LOCK}
        if others or self.folder.is_symlink():
            raise DataError(
                f"{self.folder}: contains other files ({min(others, default='a link')}). Choose a new folder."
            )
        if (self.folder / MANIFEST).exists():
            logger.warning("rebuilding the index: %s", why)
        (self.folder / ROWS).mkdir(exist_ok=True)
        commit(self.folder, self._make())
        if is_real_folder(self.folder / BACKENDS_FOLDER):
            shutil.rmtree(self.folder / BACKENDS_FOLDER, ignore_errors=True)  # they notice another index themselves
        return Snapshot.open(self.folder)

    def update(self, features: VideoFeatures, progress: Progress | None = None) -> None:
        """Makes the index hold these videos: adds new ones, embeds changed ones again, removes the others.

        If the process is killed, the work on the last few videos is lost; run again to continue.

        Args:
            features: made by the encoder of the index.
            progress: called before each video that is embedded, and when all is done.

        Raises:
            DataError: the features are of another encoder, or the disk is full.
        """
        if features.spec != self.features:
            raise DataError(f"features of {features.encoder}; the index was made for {self.features.encoder}.")
        try:
            with owned(self.folder, kind=IndexUnwritable, wait=PATIENCE):
                self._snapshot = sync(self._opened(), self.model, features, progress)
        except OSError as error:
            why = "the disk is full" if error.errno in DISK_FULL else "it cannot be written"
            raise IndexUnwritable(f"{self.folder}: {why} ({error}). Free space or fix its permissions.") from error

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
    ) -> SearchResult:
        """The k best videos for a query, see `search_many`."""
        return self.search_many([query], k, moments=moments, where=where)[0]

    def search_many(
        self,
        queries: Sequence[str | Query],
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
    ) -> tuple[SearchResult, ...]:
        """The k best videos for each of some queries, by the exact score of the retriever, and after its stages.

        Videos whose files have the same content are one hit, see `SearchHit.copies`, and so are neighbours in the
        ranking that score alike at the same moment, see `prvr_search.results.fold`. Stages re-score what is found for
        one sentence; other queries have the order of the first stage.

        Where lines of subtitles match, the ranking of the videos by their pictures and that by their best lines are
        joined, see `prvr_search.ranking.fuse`. A line matches a sentence if it has all of its words, and
        `Query.subtitles` also if it has one of them where no line has all.

        Args:
            queries: sentences, or a `Query` where more is asked.
            k: how many videos; all where there are fewer.
            moments: the most moments of each video, each from another part of it.
            where: which videos are searched; default: all. Those that pass are all scored exactly, whatever the
                backend, and stages see no other video.

        Raises:
            ValueError: k or moments is not positive; a query has no word, or more than the model reads; as
                `query_vector`.
            DataError: the model cannot be loaded, or queries would be read by another model than that of the index.
        """
        asked = checked_queries(queries, k, moments)
        if not asked:
            return ()
        with self._lock:
            snapshot = self._snapshot
            text = {q: query_vector(query, self.model, snapshot) for q, query in enumerate(asked) if query.shows}
            backend, _ = self._in_step(snapshot)
        lines: list[dict[int, list[Match]]] = [{} for _ in asked]
        if self._subtitles is not None and (subtitled := self._subtitles.videos()):
            lines = [matching_lines(snapshot, self._subtitles, query, where, subtitled) for query in asked]
        hits = [tuple(line_hit(snapshot, *match, moments) for match in found.items()) for found in lines]
        depth, missing, approximate_scores = (
            num_candidates(k) if any(lines[q] for q in text) else k,
            [*text],
            ApproximateScores(),
        )
        while missing:
            rows = same_width([text[q] for q in missing])
            ranked = self._ranked(snapshot, [asked[q] for q in missing], rows, where, depth, approximate_scores)
            for q, row, found in zip(missing, rows, ranked, strict=True):
                joined = _joined(snapshot, row, found, [*lines[q]])
                of_words = asked[q].image is None and asked[q].passage is None  # all pictures are more alike
                usual = usual_score(snapshot, row) if of_words else np.inf
                hits[q] = fold([hit_of(snapshot, one, moments, lines[q].get(one.video, ()), usual) for one in joined])
            missing = [q for q, found in zip(missing, ranked, strict=True) if len(hits[q]) < k and len(found) == depth]
            depth *= 2
        return tuple(
            SearchResult(
                str(query),
                found[:k],
                len(snapshot.video_ids),
                "exact" if backend is None else backend.name,
            )
            for query, found in zip(asked, hits, strict=True)
        )

    def _ranked(
        self,
        snapshot: Snapshot,
        queries: Sequence[Query],
        text: Float32[np.ndarray, "q d"],
        where: SearchFilter | None,
        k: int,
        approximate_scores: ApproximateScores,
    ) -> list[list[Ranked]]:
        """The k best videos of each query, before any are folded."""
        with self._lock:
            backend, rescorer = self._in_step(snapshot)
            depth = k if rescorer is None else rescorer.depth(k)
            candidates = _candidates(backend, snapshot, queries, text, where, depth)
        if rescorer is None:
            return rank(snapshot, text, candidates, k, approximate_scores)
        each = candidates or [None] * len(queries)
        return [
            rank(snapshot, row[None], None if videos is None else [videos], k)[0]
            if query.sentence is None
            else rescorer.rank(query.sentence, row, videos, k)
            for query, row, videos in zip(queries, text, each, strict=True)
        ]

    def encode(self, query: str | Query) -> Float32[np.ndarray, " e"]:
        """The unit vector of a query, in the space of the index; two in one row, if its model has one for frames.

        Raises:
            ValueError, DataError: as `search_many`.
        """
        with self._lock:
            return query_vector(Query.of(query), self.model, self._snapshot)

    @property
    def source(self) -> Snapshot:
        """The snapshot that is shown, which is also what a backend reads (`prvr_search.backends.ClipSource`)."""
        return self._snapshot

    @property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order."""
        return self._snapshot.video_ids

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video.

        Raises:
            KeyError: it is not in the index.
        """
        return self._snapshot.video(video_id)

    def close(self) -> None:
        """Closes the backend. The index on disk is complete at any time, closed or not."""
        with self._lock:
            if self._backend is not None:
                self._backend.close()
            self._backend = self._synced = None

    def __len__(self) -> int:
        """Number of videos."""
        return len(self._snapshot.video_ids)

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._snapshot.videos

    def __enter__(self) -> "VideoIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_step(self, snapshot: Snapshot) -> "tuple[CandidateBackend | None, Rescorer | None]":
        if self._synced is None:
            self._backend = open_backend(choose_backend(self._wanted, len(snapshot.video_ids)))
        if self._synced is not snapshot:
            if self._backend is not None:
                self._backend.sync(snapshot)
            self._rescorer = self.model.rescorer(snapshot) if isinstance(self.model, HasStages) else None
            self._synced = snapshot
        return self._backend, self._rescorer


@runtime_checkable
class HasStages(Protocol):
    """A `SearchModel` whose stages re-score the candidates of the first stage."""

    def rescorer(self, snapshot: Snapshot) -> "Rescorer":
        """The stages over one state of an index."""
        ...


def _candidates(
    backend: CandidateBackend | None,
    snapshot: Snapshot,
    queries: Sequence[Query],
    text: Float32[np.ndarray, "q d"],
    where: SearchFilter | None,
    k: int,
) -> list[Int64[np.ndarray, " _"]] | None:
    """For each query the videos that are scored: of copies only the first, and never the video that is asked for."""
    found, passages = None, [query.passage for query in queries]
    originals = snapshot.originals
    if where is None:
        found = find_candidates(backend, snapshot, text, k + any(passages))  # the video that is asked for is found too
        if found is None and passages == [None] * len(queries) and (originals == np.arange(len(originals))).all():
            return None
    if found is None:
        found = [searched_videos(snapshot, where)] * len(queries)
    left_out = [None if one is None else originals[snapshot.video_ids.index(one.video)] for one in passages]
    return [some if own is None else some[originals[some] != own] for some, own in zip(found, left_out, strict=True)]


def _joined(
    snapshot: Snapshot, text: Float32[np.ndarray, " d"], found: list[Ranked], lines: Sequence[int]
) -> list[Ranked]:
    """Joins the ranking by frames with that by lines; videos that only lines match are scored without the stages."""
    ranked = {one.video: one for one in found}
    if others := sorted(set(lines) - ranked.keys()):
        ranked |= {one.video: one for one in rank(snapshot, text[None], [np.array(others)], len(others))[0]}
    return [ranked[video] for video in fuse([*ranked][: len(found)], lines)] if lines else found
