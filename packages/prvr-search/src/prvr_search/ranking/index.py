"""The index of videos on disk: made, brought up to date and searched through `VideoIndex`."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import ABANDONED_AFTER, clear_half_written
from prvr.encoders import FeatureSpec, VideoEntry, VideoFeatures
from prvr.errors import DISK_FULL, DataError
from prvr_search.ranking.backends import CandidateBackend, choose_backend, open_backend
from prvr_search.ranking.filters import SearchFilter
from prvr_search.ranking.lines import checked_queries, hit_of, line_hits, matching_lines, searched_videos
from prvr_search.ranking.query import Query, query_vector, same_width
from prvr_search.ranking.results import SearchResult, fold
from prvr_search.ranking.scores import (
    ApproximateScores,
    best_windows,
    find_candidates,
    fuse,
    num_candidates,
    rank,
    usual_score,
    window_timelines,
)
from prvr_search.ranking.snapshot import Snapshot
from prvr_search.store.lines import Lines
from prvr_search.vectors.embedding import cut_windows, embed, index_key
from prvr_search.vectors.files import (
    PACK_FROM,
    Content,
    VideoVectors,
    open_pack,
    read_vectors,
    row_sets,
    video_file,
    write_pack,
    write_vectors,
)
from prvr_search.vectors.model import Rescores, SearchModel

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with the id of a video, the number of videos that are done, and the number of all."""
_MOST_OPEN = 16_384  # files, or twice as many beside a large pack: a process may map 65,530
_SHARE = 10  # videos of a pack to a file beside it; where there are more files, a new pack is written
_RESCORED = 256  # windows whose stored rows are read at a time
_LIVE = 0.75  # a pack of which fewer videos are searched is written anew: a search compares all of it


class IndexUnwritable(DataError):
    """The folder of an index cannot be written."""


class VideoIndex:
    """The vectors of videos, searched by sentences or a `Query`; they are kept on disk and can be computed again.

    It shows the videos of the last `update`, none before. It can be searched from several threads, and several
    processes may use the same folder. It is a context manager.

    Args:
        folder: where the vectors of videos are kept, in a folder for each model; several indexes may share it.
        model: a model of [open_model][prvr_search.open_model].
        features: what the features of the videos are: `VideoFeatures.spec`.
        window: seconds; longer videos are cut into windows of this length. None: no video is cut.
        stride: seconds from the start of one window to that of the next; None without a length.
        backend: the search backend: `exact`, `faiss`, `milvus`, `milvus:ADDRESS`; `auto`: `exact` up to 20,000 videos,
            above them `faiss` where it is installed.
        subtitles: the lines of the videos, `prvr_search.films.Storage.lines`; None: no lines are searched.

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
        self._lock = threading.RLock()
        self._cut = partial(cut_windows, rate=features.rate, window=window, stride=stride)
        self.folder = Path(folder).expanduser() / index_key(model, features, window, stride)[:16]
        self._snapshot = Snapshot({}, model, folder=self.folder)

    def update(self, features: VideoFeatures, progress: Progress | None = None) -> None:
        """Makes the index show these videos, whose vectors are read, or computed and kept.

        If the process is killed, the work on the last video is lost; run again to continue.

        Args:
            features: made by the encoder of the index.
            progress: called before each video that is encoded, and when all is done.

        Raises:
            DataError: the features are of another encoder, or the disk is full.
        """
        if features.spec != self.features:
            specs = features.spec, self.features
            got, expected = (f"{spec.encoder}, {spec.rate:g} frames per second" for spec in specs)
            raise DataError(f"features of {got}; the index was made for {expected}.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._snapshot = self._updated(features, progress)
        except OSError as error:
            why = "the disk is full" if error.errno in DISK_FULL else "it cannot be written"
            raise IndexUnwritable(f"{self.folder}: {why} ({error}). Free space or fix its permissions.") from error

    def _updated(self, features: VideoFeatures, progress: Progress | None) -> Snapshot:
        sets, before = row_sets(self.model), self._snapshot
        wanted = {Content.of(entry): video for video, entry in reversed(features.entries.items())}
        parts = [part for part in before.parts if not part.videos.keys().isdisjoint(wanted)]
        contents = {video for part in parts for video in part.videos}
        if len(wanted.keys() - contents) >= PACK_FROM and (pack := open_pack(self.folder, wanted, sets)) is not None:
            parts = [pack, *(part for part in parts if not part.name and not part.videos.keys() <= pack.videos.keys())]
            contents = {video for part in parts for video in part.videos}

        def opened(video: Content) -> bool:
            """Whether the file of a video is there; all are mapped, and packed before they are too many."""
            part = read_vectors(video_file(self.folder, video), sets)
            if part is None or video not in part.videos:
                return False
            parts.append(part)
            if len(parts) > _MOST_OPEN + min(len(parts[0].videos), _MOST_OPEN):
                parts[:] = self._packed(parts, wanted)
            return True

        todo = [video for video in wanted.keys() - contents if not opened(video)]
        if todo:
            clear_half_written(self.folder, older_than=ABANDONED_AFTER)  # newer files may be those of another process
        todo.sort(key=lambda video: wanted[video])
        for done, video in enumerate(todo):
            if progress is not None:
                progress(wanted[video], done, len(todo))
            try:
                rows = features.read(wanted[video])
            except DataError as error:
                logger.warning("%s", error)  # the next update encodes it again
                continue
            vectors = embed(self.model, self._cut, features.entries[wanted[video]], rows)
            write_vectors(video_file(self.folder, video), [vectors.arrays], vectors)
        for video in todo:
            opened(video)
        if progress is not None and todo:
            progress(wanted[todo[-1]], len(todo), len(todo))
        contents = {video for part in parts for video in part.videos}
        pack = parts[0].videos.keys() if parts and parts[0].name else set[Content]()
        many = len(parts) - bool(pack) >= max(PACK_FROM, len(pack) // _SHARE)
        if many or len(pack & wanted.keys()) < _LIVE * len(pack):
            parts = self._packed(parts, wanted)
        entries = {video: entry for video, entry in sorted(features.entries.items()) if Content.of(entry) in contents}
        if entries == before.entries and [*before.parts] == parts:
            return before
        return Snapshot(entries, self.model, parts, self.folder)

    def _packed(self, parts: Sequence[VideoVectors], wanted: Collection[Content]) -> list[VideoVectors]:
        """A pack of what is wanted of some parts; the parts, where it cannot be written."""
        try:
            pack = read_vectors(write_pack(self.folder, parts, wanted), row_sets(self.model))
        except OSError as error:
            logger.info("%s: videos are not packed (%s)", self.folder, error)
            return [*parts]
        return [*parts] if pack is None else [pack]

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
        if not asked:
            return ()
        with self._lock:
            snapshot = self._snapshot
            vectors = {q: query_vector(query, self.model, snapshot) for q, query in enumerate(asked) if query.shows}
            backend = self._in_step(snapshot)
        lines = matching_lines(snapshot, self._subtitles, asked, where)
        hits = [line_hits(snapshot, matches, moments) for matches in lines]
        missing, approximate_scores = [*vectors], ApproximateScores()
        depth = num_candidates(k) if any(lines[q] for q in missing) else k
        while missing:  # fewer hits than k may be left of k videos
            text = same_width([vectors[q] for q in missing])
            ranked = self._ranked(snapshot, [asked[q] for q in missing], text, where, depth, approximate_scores)
            for q, row, scores in zip(missing, text, ranked, strict=True):
                of_words = asked[q].image is None and asked[q].passage is None  # all pictures are more alike
                usual = usual_score(snapshot, row) if of_words else np.inf
                best = []
                for video, score in _joined(snapshot, row, scores, lines[q]).items():
                    windows = window_timelines(snapshot, video, row)
                    best.append(hit_of(snapshot, video, score, windows, moments, lines[q].get(video, ()), usual))
                hits[q] = fold(best)
            missing = [
                q for q, scores in zip(missing, ranked, strict=True) if len(hits[q]) < k and len(scores) == depth
            ]
            depth *= 2
        name, videos = "exact" if backend is None else backend.name, len(snapshot.video_ids)
        return tuple(SearchResult(str(query), best[:k], videos, name) for query, best in zip(asked, hits, strict=True))

    def _ranked(
        self,
        snapshot: Snapshot,
        queries: Sequence[Query],
        text: Float32[np.ndarray, "q d"],
        where: SearchFilter | None,
        k: int,
        approximate_scores: ApproximateScores,
    ) -> list[dict[int, float]]:
        """The numbers and scores of the k best videos of each query, before any are folded."""
        model = self.model if isinstance(self.model, Rescores) else None
        depth = k if model is None else max(k, model.candidates)
        with self._lock:
            candidates = _candidates(self._in_step(snapshot), snapshot, queries, text, where, depth)
        found = rank(snapshot, text, candidates, depth, approximate_scores)
        if model is None:
            return found
        for number, query in enumerate(queries):
            if query.sentence is not None:
                found[number] = _rescored(snapshot, model, query.sentence, text[number], found[number])
        return [dict([*scores.items()][:k]) for scores in found]

    def encode(self, query: str | Query) -> Float32[np.ndarray, " e"]:
        """The unit vector of a query, in the space of the index; two in one row, if its model has one for frames.

        Raises:
            ValueError, DataError: as `search_many`.
        """
        with self._lock:
            return query_vector(Query.of(query), self.model, self._snapshot)

    @property
    def snapshot(self) -> Snapshot:
        """The state that is shown."""
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
        return video_id in self._snapshot.entries

    def __enter__(self) -> "VideoIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_step(self, snapshot: Snapshot) -> CandidateBackend | None:
        if self._synced is None:
            self._backend = open_backend(choose_backend(self._wanted, len(snapshot.video_ids)))
        if self._synced is not snapshot:
            if self._backend is not None and snapshot.packed:
                self._backend.sync(snapshot.clip_source())
            self._synced = snapshot
        return self._backend


def _rescored(
    snapshot: Snapshot, model: Rescores, sentence: str, text: Float32[np.ndarray, " e"], found: Collection[int]
) -> dict[int, float]:
    """The scores of the best window of each of some videos by `Rescores.rescore`, best first, then by id."""
    numbers, _, windows = best_windows(snapshot, text, np.array(sorted(found), np.int64))
    scores: list[float] = []
    for part in (windows[first : first + _RESCORED] for first in range(0, len(windows), _RESCORED)):
        rows = zip(*(snapshot.stored_rows(name, part, raw=True) for name in model.stored), strict=True)
        scores += model.rescore(sentence, [dict(zip(model.stored, each, strict=True)) for each in rows]).tolist()
    return dict(sorted(zip(numbers.tolist(), scores, strict=True), key=lambda item: (-item[1], item[0])))


def _candidates(
    backend: CandidateBackend | None,
    snapshot: Snapshot,
    queries: Sequence[Query],
    text: Float32[np.ndarray, "q d"],
    where: SearchFilter | None,
    k: int,
) -> list[Int64[np.ndarray, " _"]] | None:
    """For each query the videos that are scored, None for all: of copies only the first, and never the video that is
    asked for.
    """
    passages = [query.passage for query in queries]
    candidates = None
    if where is None:
        depth = k + any(passages)  # the video that a query asks for is among its own nearest
        candidates = find_candidates(backend, snapshot, text, depth)
        if candidates is None and not any(passages):
            return None
    if candidates is None:
        candidates = [searched_videos(snapshot, where)] * len(queries)
    originals = snapshot.originals
    for q, passage in enumerate(passages):
        if passage is not None:
            own = originals[snapshot.video_ids.index(passage.video)]
            candidates[q] = candidates[q][originals[candidates[q]] != own]
    return candidates


def _joined(
    snapshot: Snapshot, text: Float32[np.ndarray, " d"], scores: dict[int, float], lines: Collection[int]
) -> dict[int, float]:
    """Joins the ranking by frames with that by lines; videos that only lines match are scored by their vectors."""
    if not lines:
        return scores
    others = sorted(set(lines) - scores.keys())
    each = scores | rank(snapshot, text[None], [np.array(others, np.int64)], len(others))[0] if others else scores
    return {video: each[video] for video in fuse([*scores], [*lines])}
