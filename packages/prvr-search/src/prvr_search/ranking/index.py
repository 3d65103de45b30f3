"""The index of videos on disk: made, brought up to date and searched through `VideoIndex`."""

import logging
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from prvr.data.atomic import ABANDONED_AFTER, clear_half_written
from prvr.data.hashes import digest
from prvr.encoders import FeatureSpec, VideoEntry, VideoFeatures
from prvr.errors import DataError, InputError
from prvr_search.ranking.backends import CandidateBackend, ClipSource, open_backend
from prvr_search.ranking.filters import SearchFilter
from prvr_search.ranking.lines import Match, checked_queries, hit_of, line_hits, matching_lines, searched_videos
from prvr_search.ranking.query import Query, query_vector, same_width
from prvr_search.ranking.results import SearchHit, SearchResult, WindowTimeline, fold, one_after_the_other
from prvr_search.ranking.scores import (
    candidate_clips,
    find_candidates,
    fuse,
    nearly_best,
    num_candidates,
    rescored_timelines,
    stored_windows,
    video_scores,
    window_timelines,
)
from prvr_search.ranking.snapshot import Numbers, Snapshot, features_hash
from prvr_search.store.lines import Lines
from prvr_search.vectors.files import (
    CATALOGUE,
    Arrays,
    VectorsChanged,
    cut_windows,
    embed,
    index_key,
    join_vectors,
    open_vectors,
    places_of,
    windows_of,
    write_vectors,
)
from prvr_search.vectors.model import Queries, Rescores, SearchModel, Vector

logger = logging.getLogger(__name__)

_QUERIES = 32  # scored at a time: their scores of all videos are held
_WINDOWS = 256  # that a model re-scores at a time
_MANY = 2000  # videos whose vectors take seconds
_CANDIDATES = 200  # videos in which two sentences are looked for one after the other


class VideoIndex:
    """The vectors of videos, searched by sentences or a `Query`; they are kept on disk and can be computed again.

    It shows the videos of the last `update`, none before. It can be searched from several threads, and several
    processes may use the same folder. It is a context manager.

    Args:
        folder: where the vectors of videos are kept, in a folder for each model; several indexes may share it. Where it
            cannot be written, a temporary folder is used, until the index is closed.
        model: a model of [open_model][prvr_search.open_model].
        features: what the features of the videos are: `VideoFeatures.spec`.
        window: seconds; longer videos are cut into windows of this length. None: no video is cut.
        stride: seconds from the start of one window to that of the next; None without a length.
        backend: the search backend: `exact`, `milvus`, `milvus:ADDRESS`; `auto` is `exact`.
        subtitles: the lines of the videos, `prvr_search.store.Store.lines`; None: no lines are searched.

    Attributes:
        snapshot: the videos that are shown and their vectors.

    Raises:
        DataError: the model reads features of another encoder.
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
        self.model, self.features = model, features
        self._wanted, self._subtitles = backend, subtitles
        self._backend: CandidateBackend | None = None  # also while every video is scored
        self._synced: Snapshot | None = None
        self._lock, self._scratch = threading.RLock(), ExitStack()
        self._cut = partial(cut_windows, rate=features.rate, window=window, stride=stride)
        self.folder = Path(folder).expanduser() / index_key(model, features, window, stride)[:16]
        self.snapshot = Snapshot((), model)

    def update(self, features: VideoFeatures) -> None:
        """Makes the index show these videos, whose vectors are read, or computed and kept.

        If the process is killed, the work on the last video is lost; run again to continue.

        Args:
            features: made by the encoder of the index.

        Raises:
            DataError: the features are of another encoder, or the disk is full.
        """
        if features.spec != self.features:
            specs = features.spec, self.features
            got, expected = (f"{spec.encoder}, {spec.rate:g} frames per second" for spec in specs)
            raise DataError(f"features of {got}; the index was made for {expected}.")
        try:
            self.snapshot = self._updated(features)
        except OSError as error:
            logger.info("%s: cannot be written, so the index is a temporary one (%s)", self.folder, error)
            self.folder = (
                Path(self._scratch.enter_context(tempfile.TemporaryDirectory(prefix="prvr-"))) / self.folder.name
            )
            try:
                self.snapshot = self._updated(features)
            except OSError as again:
                raise DataError(f"{self.folder}: cannot be written ({again}). Free space.") from error

    def _updated(self, features: VideoFeatures) -> Snapshot:
        before = self.snapshot
        self.folder.mkdir(parents=True, exist_ok=True)
        entries_of = {features_hash(entry): entry for entry in reversed(features.entries.values())}
        files = open_vectors(self.folder)
        if todo := entries_of.keys() - places_of(files):
            if len(todo) > _MANY:
                logger.info("computing the vectors of %s videos, once", f"{len(todo):,}")
            clear_half_written(self.folder, older_than=ABANDONED_AFTER)  # newer files may be those of another process
            write_vectors(self.folder, self._embedded(features, {video: entries_of[video] for video in sorted(todo)}))
            files = join_vectors(self.folder, open_vectors(self.folder))
        places = places_of(files)
        entries = tuple(entry for entry in features.entries.values() if features_hash(entry) in places)
        is_same = (entries, files) == (before.entries, before.files)
        return before if is_same else Snapshot(entries, self.model, files, features)

    def _embedded(self, features: VideoFeatures, todo: Mapping[str, VideoEntry]) -> Iterator[tuple[str, Arrays]]:
        """The vectors of videos, by the hashes of their features."""
        for video, entry in todo.items():
            try:
                rows = features.read(entry.id)
            except DataError as error:
                logger.warning("%s", error)  # the next update encodes it again
                continue
            yield video, embed(self.model, self._cut, entry, rows)

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
        """The k best videos for each of some queries, by the exact score of the retriever.

        Videos whose files have the same content are one hit, see `SearchHit.copies`, and so are neighbours in the
        ranking that score alike at the same moment, see `prvr_search.ranking.results.fold`. What the vectors of a model
        find for one sentence, its whole score orders where it is another one, see `Rescores`; other queries have the
        order of the vectors.

        Where lines of subtitles match, the ranking of the videos by their pictures and that by their best lines are
        joined, see `prvr_search.ranking.scores.fuse`. A line matches a sentence if it has all of its words, and
        `Query.subtitles` also if it has one of them where no line has all.

        Args:
            queries: sentences, or a `Query` where more is asked.
            k: how many videos; all where there are fewer.
            moments: the most moments of each video, each from another part of it.
            where: which videos are searched; default: all. Those that pass are all scored exactly, whatever the
                backend.

        Raises:
            ValueError: k or moments is not positive; a query has no word, or more than the model reads; as
                `query_vector`.
            DataError: the model cannot be loaded, or queries would be read by another model than that of the index.
        """
        asked = checked_queries(queries, k, moments)
        try:
            return self._ranked(asked, k, moments, where)
        except VectorsChanged as error:
            logger.info("%s", error)
            with suppress(OSError):  # all files are compared with their hashes again
                (self.folder / CATALOGUE).unlink()
            if (features := self.snapshot.features) is not None:
                self.update(features)
            return self._ranked(asked, k, moments, where)

    def _ranked(
        self, asked: Sequence[Query], k: int, moments: int, where: SearchFilter | None
    ) -> tuple[SearchResult, ...]:
        with self._lock:
            snapshot = self.snapshot
            vectors = {
                q: [query_vector(part, snapshot) for part in (query, query.then and Query(query.then)) if part]
                for q, query in enumerate(asked)
                if query.shows
            }
            backend = self._in_step(snapshot)
        searched = {passage: searched_videos(snapshot, where, passage) for passage in {q.passage for q in asked}}
        lines = [matching_lines(snapshot, self._subtitles, query, searched[query.passage]) for query in asked]
        hits = [
            () if query.shows else line_hits(snapshot, matches, moments)
            for query, matches in zip(asked, lines, strict=True)
        ]
        depth = max(k, self.model.candidates) if isinstance(self.model, Rescores) else k
        for first in range(0, len(vectors), _QUERIES):
            group = [*vectors][first : first + _QUERIES]
            text = same_width([vector for q in group for vector in vectors[q]])
            owners = np.repeat(group, [len(vectors[q]) for q in group])
            # The video that a query asks for is one of its nearest.
            count = depth + any(asked[q].passage for q in group)
            is_exact = where or any(asked[q].then for q in group)  # of all videos, without candidates
            near = None if is_exact else find_candidates(backend, snapshot, text, count)
            scores = video_scores(snapshot, text) if near is None else None
            for number, q in enumerate(group):
                own = owners == q
                videos = searched[asked[q].passage]
                if near is not None:
                    videos = np.intersect1d(near[number], videos)
                row = None if scores is None else scores[own].sum(0)
                hits[q] = _hits(snapshot, asked[q], text[own], videos, row, k, moments, lines[q])
        name, videos = "exact" if backend is None else backend.name, len(snapshot.entries)
        return tuple(SearchResult(str(query), best[:k], videos, name) for query, best in zip(asked, hits, strict=True))

    @property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order."""
        return tuple(self.snapshot.numbers)

    def close(self) -> None:
        """Closes the backend. The index on disk is complete at any time, closed or not."""
        with self._lock:
            if self._backend is not None:
                self._backend.close()
            self._backend = self._synced = None
            self._scratch.close()

    def __enter__(self) -> "VideoIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_step(self, snapshot: Snapshot) -> CandidateBackend | None:
        if self._synced is not snapshot:
            self._backend = backend = self._backend or open_backend(self._wanted)
            if backend is not None and snapshot.files:
                backend.sync(
                    ClipSource(
                        digest({"files": [file.path.stem for file in snapshot.pack]}),
                        self.model.dim,
                        self.model.clips,
                        len(snapshot.clip_owners),
                        lambda: (candidate_clips(self.model, file.read()) for file in snapshot.pack),
                    )
                )
            self._synced = snapshot
        return self._backend


def _hits(
    snapshot: Snapshot,
    query: Query,
    texts: Queries,
    videos: Numbers,
    scores: Vector | None,
    k: int,
    moments: int,
    lines: Mapping[int, Sequence[Match]],
) -> tuple[SearchHit, ...]:
    """The hits of a query among some videos, whose scores may be known up to rounding, best first: at least k, where
    there are as many.

    Of two texts, one is to follow the other: the videos whose scores for the two have the highest sum are ordered by
    the sum of two places on their time lines.
    """
    model, usual = snapshot.model, np.inf
    rescores = model if query.sentence is not None and isinstance(model, Rescores) else None
    fewest = _CANDIDATES if query.then else 0 if rescores is None else rescores.candidates
    if model.frame_means and snapshot.entries and query.image is None and query.passage is None:
        usual = float(texts[0, -model.dim :] @ snapshot.mean_frame)  # all pictures are more alike

    @cache
    def timelines(video: int) -> Sequence[WindowTimeline]:
        first, *then = (window_timelines(model, snapshot.vectors(video), text) for text in texts)
        return one_after_the_other(first, then[0], query.within) if then else first

    def exact(videos: Iterable[int]) -> dict[int, float]:
        """The scores of videos, each by itself: to the last bit, they do not depend on what it was compared with."""
        candidates = ((video, timelines(video)) for video in videos)
        return _best_first({video: max(window.score for window in windows) for video, windows in candidates if windows})

    def best(k: int) -> dict[int, float]:
        """The scores of the k best videos, best first; of those that the model re-scores, by that score."""
        depth = max(k, fewest)
        results = dict(islice(exact(nearly_best(videos, scores, depth)).items(), depth))
        if rescores is not None:
            rows = list[dict[str, np.ndarray]]()
            for video, score in results.items():
                window = [window.score for window in timelines(video)].index(score)
                rows += stored_windows(model, windows_of(snapshot.vectors(video), window, window + 1))
            parts = (rescores.rescore(query.texts[0], rows[i : i + _WINDOWS]) for i in range(0, len(rows), _WINDOWS))
            rescored = chain.from_iterable(part.tolist() for part in parts)
            results = _best_first(dict(zip(results, rescored, strict=True)))
        return dict(islice(results.items(), k))

    def hit(video: int, score: float) -> SearchHit:
        windows = timelines(video)
        if rescores is not None:
            windows = rescored_timelines(rescores, snapshot.vectors(video), query.texts[0], windows)
        return hit_of(snapshot, video, score, windows, moments, lines.get(video, ()), usual)

    depth = num_candidates(k) if lines else k
    while True:
        ranked = best(depth)
        each = ranked | exact(sorted(lines.keys() - ranked.keys()))
        order = fuse([*ranked], [*lines]) if lines else [*ranked]
        hits = fold([hit(video, each[video]) for video in order])
        if query.then and not hits and model.clips == 1 and not model.frame_weight:
            raise InputError(
                f"{model.identity.name}: compares sentences with a single row of each window, so it does not see "
                "what follows what. Leave out `then`, or search with a model of several clips or of frames."
            )
        if len(hits) >= k or len(ranked) < depth:  # fewer hits than k may be left of k videos
            return hits
        depth *= 2


def _best_first(scores: Mapping[int, float]) -> dict[int, float]:
    """Scores of videos in order; of equal ones, the first video is the first."""
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
