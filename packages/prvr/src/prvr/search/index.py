"""The index of videos on disk: it is created, changed, verified and searched through `VideoIndex`."""

import threading
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import DataError, InputError
from prvr.reading import printable
from prvr.search.backends import CandidateBackend, choose_backend, open_backend
from prvr.search.confidence import confidence, read_bank, score_to_pass
from prvr.search.manifest import MANIFEST, MEND, MODEL, Manifest, WindowLength
from prvr.search.model import Score, SearchModel
from prvr.search.opening import load_model
from prvr.search.query import Query, SearchFilter, alike, query_vector
from prvr.search.ranking import Ranked, find_candidates, rank
from prvr.search.rescoring import Rescorer
from prvr.search.results import (
    WEAKER_BELOW,
    IndexInfo,
    IndexReport,
    SearchHit,
    SearchResult,
    merged_moments,
    relevance_curve,
)
from prvr.search.segments import check_files
from prvr.search.snapshot import Snapshot
from prvr.search.sync import Progress, sync
from prvr.search.vectors import Dtype
from prvr.search.verifying import verify_index
from prvr.search.writing import make_index, opened_for_writing
from prvr.video import StoreHeader, TextFeaturizer, VideoEntry, VideoStore


class VideoIndex:
    """The vectors of videos on disk, searched by sentences or a `Query`.

    Use `create` or `open`; it is a context manager. It can be searched from several threads. It shows one state, which
    `refresh` and its own changes bring up to date; other processes may change the index meanwhile.

    Examples:
        >>> store = VideoStore("store")  # doctest: +SKIP
        >>> with VideoIndex.create("index", open_model("zero-shot", store.header), store.header) as index:
        ...     index.add(store)  # doctest: +SKIP
        >>> with VideoIndex.open("index") as index:  # doctest: +SKIP
        ...     hit = index.search("a red square rises").hits[0]
        >>> hit.video_id, hit.start, hit.end  # doctest: +SKIP
        ('beach.mp4', 12.0, 17.5)
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: Any = "cpu",
        text: TextFeaturizer | None = None,
        backend: str = "auto",
        model: SearchModel | None = None,
    ) -> None:
        self.folder, self._snapshot = folder, Snapshot.open(folder)
        self._device, self._text, self._model = device, text, model
        self._wanted = backend
        self._backend: CandidateBackend | None = None  # also while every video is scored
        self._synced: Snapshot | None = None
        self._rescorer: Rescorer | None = None
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls,
        folder: Path | str,
        model: SearchModel,
        encoder: StoreHeader,
        *,
        dtype: Dtype = "float16",
        window: WindowLength = 120.0,
        stride: float | None = 60.0,
    ) -> "VideoIndex":
        """Makes an empty index, with a copy of the model.

        Args:
            folder: new, or empty.
            model: a model of [open_model][prvr.search.open_model].
            encoder: header of the stores that will be added: `VideoStore.header`.
            dtype: the type of vectors on disk: `float16`, `float32`, or `int8` with one scale for each vector.
            window: seconds; longer videos are cut into windows of this length, which overlap. None: no video is cut.
                `shots`: every video is cut where its picture changes.
            stride: seconds from the start of one window to that of the next; None without a length.

        Raises:
            DataError: the folder holds something, or cannot be written; the model is of another encoder.
            ValueError: an option is out of range.
        """
        target = Path(folder).expanduser()
        make_index(target, model, encoder, dtype, window, stride)
        return cls(target, model=model)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        device: Any = "cpu",
        text: TextFeaturizer | None = None,
        backend: str = "auto",
    ) -> "VideoIndex":
        """Opens an index. Nothing is written, so the folder may be read-only.

        Args:
            folder: the folder of the index.
            device: the torch device of the model.
            text: encodes queries; default: the text model of the index, opened when it is first needed.
            backend: finds candidates: `exact`, `faiss`, `milvus`, `milvus:ADDRESS`; `auto`: `exact` up to
                20,000 videos, above them `faiss` where it is installed.

        Raises:
            DataError: there is no index, or it is damaged; the message names the file.
        """
        return cls(Path(folder).expanduser(), device=device, text=text, backend=backend)

    def add(self, store: VideoStore, progress: Progress | None = None) -> IndexReport:
        """Adds the videos of a store that are not in the index; the others stay as they are.

        If the process is killed, the work on the last few videos is lost; run again to continue.

        Raises:
            DataError: the store is of another encoder or rate, another process is writing, or the disk is full.
        """
        return self._sync(store, False, progress)

    def update(self, store: VideoStore, progress: Progress | None = None) -> IndexReport:
        """Synchronises the index with a store: adds new videos, embeds changed ones again, removes those that are gone.

        Raises:
            DataError: as `add`.
        """
        return self._sync(store, True, progress)

    def remove(self, video_ids: Iterable[str]) -> IndexReport:
        """Removes videos.

        Raises:
            DataError: one of them is not in the index; then none is removed.
        """
        wanted = tuple(dict.fromkeys(video_ids))
        with opened_for_writing(self.folder) as writer:
            unknown = [video for video in wanted if video not in writer.places]
            if unknown:
                close = get_close_matches(unknown[0], writer.places, n=3)
                raise DataError(
                    f"{self.folder}: {len(unknown)} of {len(wanted)} videos are not in the index, among them "
                    f"{unknown[0]!r}{f'; close: {close}' if close else ''}. Nothing was removed."
                )
            if wanted:
                writer.drop(wanted)
        self.refresh()
        return IndexReport(removed=wanted)

    def refresh(self) -> bool:
        """Reads the index again if it was changed on disk, and returns whether it was.

        If another index has replaced it, the model and the backend of that index are opened when they are needed.

        Raises:
            DataError: there is no index any more, or it is damaged; then the shown state stays.
        """
        if Manifest.read(self.folder) == self._snapshot.manifest:
            return False
        found = Snapshot.open(self.folder)
        with self._lock:
            if found.index_id != self._snapshot.index_id:
                self.close()
                self._model = None
            self._snapshot = found
        return True

    def verify(self) -> tuple[str, ...]:
        """Reads the whole index and compares hashes; returns the problems, see `verify_index`."""
        return verify_index(self.folder)

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
        min_confidence: float = 0.0,
    ) -> SearchResult:
        """The k best videos for a query, see `search_many`."""
        return self.search_many([query], k, moments=moments, where=where, min_confidence=min_confidence)[0]

    def search_many(
        self,
        queries: Sequence[str | Query],
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
        min_confidence: float = 0.0,
    ) -> tuple[SearchResult, ...]:
        """The k best videos for each of some queries, by the exact score of the retriever, and after its stages.

        Videos whose files have the same content are one hit, see `SearchHit.copies`. Stages re-score what is found for
        one sentence; other queries have the order of the first stage, and no confidences.

        Args:
            queries: sentences, or a `Query` where more is asked.
            k: how many videos; all where there are fewer.
            moments: the most moments of each video, each from another part of it.
            where: which videos are searched; default: all. Those that pass are all scored exactly, whatever the
                backend, and stages see no other video.
            min_confidence: a confidence from 0 to 1; hits below it are left out. 0 keeps all of them.

        Raises:
            ValueError: k or moments is not positive, or min_confidence is out of range, or it is asked for of a query
                that is not one sentence; a query has no word, or more than the model reads; as `query_vector`.
            DataError: the model cannot be loaded, or queries would be read by another model than that of the index; a
                confidence is asked for, and the index has none.
        """
        if k < 1 or moments < 1:
            raise InputError(f"k={k}, moments={moments}: expected positive numbers")
        if not 0 <= min_confidence <= 1:
            raise InputError(f"min_confidence={min_confidence}: expected a number from 0 to 1")
        asked = [Query.of(query) for query in queries]
        if not asked:
            return ()
        if min_confidence and (other := next((one for one in asked if one.sentence is None), None)):
            raise InputError(
                f"{printable(str(other))}: only hits for a single sentence have a confidence. Search without a minimum."
            )
        with self._lock:
            snapshot = self._snapshot
            if min_confidence and not snapshot.manifest.bank:
                raise DataError(
                    f"{self.folder}: this index has no confidences, because it was made by an older version or its "
                    "model cannot read long sentences. Rebuild the index, or search without a minimum confidence."
                )
            text = alike([query_vector(query, self.model, snapshot) for query in asked])
            backend, rescorer = self._in_step(snapshot)
            depth = k if rescorer is None else rescorer.depth(k)
            candidates = _candidates(backend, snapshot, asked, text, where, depth)
        if rescorer is None:
            ranked = rank(snapshot, text, candidates, k)
        else:
            each = candidates or [None] * len(asked)
            ranked = [
                rank(snapshot, row[None], None if videos is None else [videos], k)[0]
                if query.sentence is None
                else rescorer.rank(query.sentence, row, videos, k)
                for query, row, videos in zip(asked, text, each, strict=True)
            ]
        hits = [
            [_hit(snapshot, one, moments, query.sentence is not None) for one in found]
            for query, found in zip(asked, ranked, strict=True)
        ]
        return tuple(
            SearchResult(
                str(query),
                tuple(hit for hit in found if hit.confidence is None or hit.confidence >= min_confidence),
                len(snapshot.video_ids),
                "exact" if backend is None else backend.name,
                None if query.sentence is None else score_to_pass(snapshot.bank_best, WEAKER_BELOW),
            )
            for query, found in zip(asked, hits, strict=True)
        )

    def encode(self, query: str | Query) -> Float32[np.ndarray, " e"]:
        """The unit vector of a query, in the space of the index; two in one row, if its model has one for frames.

        Raises:
            ValueError, DataError: as `search_many`.
        """
        with self._lock:
            return query_vector(Query.of(query), self.model, self._snapshot)

    @property
    def model(self) -> SearchModel:
        """The model that made the vectors; loaded from the index when it is first needed."""
        with self._lock:
            if self._model is None:
                self._model = self._loaded(self._snapshot.manifest)
            return self._model

    @property
    def source(self) -> Snapshot:
        """The snapshot that is shown, which is also what a backend reads (`prvr.search.backends.ClipSource`)."""
        return self._snapshot

    @property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order."""
        return self._snapshot.video_ids

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video, as it stands in the store.

        Raises:
            KeyError: it is not in the index.
        """
        return self._snapshot.video(video_id)

    def info(self) -> IndexInfo:
        """The size of the index; `index.source.manifest` says what it is."""
        snapshot, segments = self._snapshot, self._snapshot.manifest.segments
        return IndexInfo(
            videos=len(snapshot.video_ids),
            windows=len(snapshot.live_keys()),
            removed=sum(len(one.removed) for one in segments),
            seconds=sum((snapshot.video(video).duration for video in snapshot.video_ids), 0.0),
            clips=snapshot.clips * sum(one.windows for one in segments),
            frames=sum(one.frames for one in segments),
            bytes=sum(one.bytes for one in segments),
            segments=len(segments),
        )

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
        return video_id in self._snapshot.places

    def __enter__(self) -> "VideoIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self, manifest: Manifest) -> SearchModel:
        problems = check_files(self.folder / MODEL, manifest.model_files)
        if problems and Manifest.read(self.folder).index_id != manifest.index_id:
            raise DataError(f"{self.folder}: the index was replaced after it was opened. Open it again.")
        if problems:
            raise DataError(f"{problems[0]}. {MEND}")
        found = load_model(self.folder / MODEL, manifest.model, manifest.encoder, self._device, self._text)
        score = Score(found.dim, found.clips, found.clip_weight, found.frame_weight)
        for name, ours, its in (("score", manifest.score, score), ("stored", manifest.stored, dict(found.stored))):
            if ours != its:
                raise DataError(f"{self.folder / MANIFEST}: has {name}={ours}, its model has {its}. {MEND}")
        return found

    def _sync(self, store: VideoStore, prune: bool, progress: Progress | None) -> IndexReport:
        self.refresh()
        manifest = self._snapshot.manifest
        if store.header != manifest.encoder:
            raise DataError(
                f"{store.folder}: features of {store.encoder} at {store.rate:g} frames per second; {self.folder} was "
                f"made for {manifest.encoder.encoder} at {manifest.encoder.rate:g}. Extract with the same, or "
                "make another index."
            )
        model = self.model
        with opened_for_writing(self.folder) as writer:
            if writer.manifest.index_id != manifest.index_id:
                raise DataError(f"{self.folder}: the index was replaced in the meantime. Run the command again.")
            bank = read_bank(self.folder / MODEL, manifest)
            report = sync(writer, model, bank, store, prune, progress)
        self.refresh()
        return report

    def _in_step(self, snapshot: Snapshot) -> "tuple[CandidateBackend | None, Rescorer | None]":
        if self._synced is None:
            self._backend = open_backend(choose_backend(self._wanted, len(snapshot.video_ids)))
        if self._synced is not snapshot:
            if self._backend is not None:
                self._backend.sync(snapshot)
            self._rescorer = self.model.rescorer(snapshot)
            self._synced = snapshot
        return self._backend, self._rescorer


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
        videos = [snapshot.video(one) for one in snapshot.video_ids]
        numbers = np.arange(len(videos)) if where is None else where.numbers(videos)
        numbers = numbers[np.sort(np.unique(originals[numbers], return_index=True)[1])]
        found = [numbers] * len(queries)
    left_out = [None if one is None else originals[snapshot.video_ids.index(one.video)] for one in passages]
    return [some if own is None else some[originals[some] != own] for some, own in zip(found, left_out, strict=True)]


def _hit(snapshot: Snapshot, found: Ranked, moments: int, calibrated: bool) -> SearchHit:
    """The hit of a video that was found; confidences hold for scores of sentences, which are those calibrated."""
    video = snapshot.video(snapshot.video_ids[found.video])
    best = merged_moments(found.windows, moments)
    curve = relevance_curve(found.windows, video.duration)
    sure = confidence(max(window.score for window in found.windows), snapshot.bank_best) if calibrated else None
    same = np.flatnonzero(snapshot.originals == snapshot.originals[found.video]).tolist()
    copies = tuple(snapshot.video(snapshot.video_ids[number]) for number in same if number != found.video)
    return SearchHit(video, found.score, best[0].start, best[0].end, best, curve, sure, copies)
