"""A packed split: random access to sampled videos and queries without touching the source files."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.data.corpus import Corpus
from prvr.data.packed_files import PackedFiles
from prvr.errors import DataError

Labels = Literal["original", "dense"]
_EQUAL = 1e-3
"""Entries of unit rows that differ by less are equal, but for rounding to float16 and means of equal rows."""


class Moments(NamedTuple):
    """Start and end of each query's moment and the length of its video, in seconds; NaN where unknown."""

    start: Float[np.ndarray, " q"]
    end: Float[np.ndarray, " q"]
    duration: Float[np.ndarray, " q"]


@dataclass(frozen=True)
class Runs:
    """Runs of rows in a mapped matrix: run i is rows `start[i]` to `stop[i]`, of a video or a query."""

    files: PackedFiles
    name: str
    start: Int[np.ndarray, " n"]
    stop: Int[np.ndarray, " n"]

    @property
    def matrix(self) -> np.ndarray:
        """The mapped matrix, as stored; no view may outlive `PackedSplit.close`."""
        return self.files.matrix(self.name)

    @property
    def counts(self) -> Int[np.ndarray, " n"]:
        """The number of rows of each run."""
        return self.stop - self.start

    def padded(self, indices: Int[np.ndarray, " b"]) -> tuple[Float[Tensor, "b l f"], Bool[Tensor, "b l"]]:
        """Some runs, at least one, with zeros up to the longest, float32, and their mask; each row is copied once."""
        matrix, counts = self.matrix, self.counts[indices]
        longest = max(1, int(counts.max()))  # runs of a second stream may be empty
        padded = np.zeros((len(indices), longest, matrix.shape[1]), np.float32)  # empty pages are never touched
        for rows, first, count in zip(padded, self.start[indices].tolist(), counts.tolist(), strict=True):
            rows[:count] = matrix[first : first + count]
        return torch.from_numpy(padded), torch.arange(longest) < torch.from_numpy(counts)[:, None]


@dataclass(frozen=True)
class PackSource:
    """Where a packed split comes from, so that it can be sampled in another way too.

    Args:
        corpus: that was packed.
        split: `train`, `val` or `test`.
        cache_dir: folder of packed stores.
        skip_missing: whether videos without features were left out.
    """

    corpus: Corpus
    split: str
    cache_dir: Path
    skip_missing: bool = False


class PackedSplit:
    """The videos and queries of a split, or of a part of it; what `prvr.data.pack` returns.

    Videos and queries are numbered from 0, in the order of the caption file.

    Args:
        files: the open files.
        videos: rows of the files that take part, in ascending order (None: all).
        source: where it comes from; None where it was opened by its folder.
    """

    def __init__(
        self, files: PackedFiles, videos: Int[np.ndarray, " v"] | None = None, source: PackSource | None = None
    ) -> None:
        self.files, self._source = files, source
        self.labels: Labels = "original"
        """Which labels say what matches: those that captions were written with, or dense ones."""
        self.levels: tuple[dict[int, int], ...] | None = None
        """How well each relevant video of a query matches, where labels have levels."""
        total = len(files.text["video_ids"])
        self._videos = np.arange(total) if videos is None else videos
        self._positions = np.full(total, -1)  # of the videos of the files among these
        self._positions[self._videos] = np.arange(len(self._videos))
        self._queries = np.flatnonzero(self._positions[files.index["query_to_video"]] >= 0)

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool | None = None) -> "PackedSplit":
        """Opens a packed split by its folder, without its sources.

        Args:
            folder: a folder under ``cache_dir``.
            verify: compute all hashes now; default: if the files have at most 512 MiB.

        Raises:
            DataError: the folder is missing or damaged; the message names the folder to delete.
        """
        return cls(PackedFiles(Path(folder), verify))

    def close(self) -> None:
        """Closes the files, also for all subsets."""
        self.files.close()

    def __enter__(self) -> "PackedSplit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of videos."""
        return len(self._videos)

    def __repr__(self) -> str:
        return f"PackedSplit({self.name}: {len(self)} videos, {len(self._queries)} queries)"

    @property
    def name(self) -> str:
        """Collection and split, for messages."""
        return f"{self.files.about['collection']} {self.files.about['split']}"

    @property
    def feature_dim(self) -> int:
        """Width of frame features."""
        return self.files.matrix("frames").shape[1]

    @property
    def query_dim(self) -> int:
        """Width of word features."""
        return self.files.matrix("words").shape[1]

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos: the gallery."""
        return tuple(self.files.text["video_ids"][i] for i in self._videos)

    @cached_property
    def query_ids(self) -> tuple[str, ...]:
        """Ids of the queries."""
        return tuple(self.files.text["query_ids"][j] for j in self._queries)

    @cached_property
    def query_names(self) -> tuple[str, ...]:
        """The ids by which others know the queries: those of the table they come from, else `query_ids`.

        An id of several queries, or one with white space, which lists of others cannot hold, is left out.
        """
        texts = self.files.text
        own = texts.get("own_ids") or [""] * len(texts["query_ids"])
        counts = Counter(own)
        return tuple(
            own[j] if counts[own[j]] == 1 and not re.search(r"\s", own[j]) else query
            for j, query in zip(self._queries, self.query_ids, strict=True)
        )

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """Texts of the queries."""
        return tuple(self.files.text["captions"][j] for j in self._queries)

    @cached_property
    def query_to_video(self) -> Int[np.ndarray, " q"]:
        """The video that each query was written for."""
        return self._positions[self.files.index["query_to_video"][self._queries]]

    @cached_property
    def relevant(self) -> tuple[frozenset[int], ...]:
        """The videos that match each query; its own is among them, but not always under dense labels."""
        relevant: list[list[int]] = self.files.text["relevant"]
        return tuple(frozenset(self._positions[relevant[j]].tolist()) - {-1} for j in self._queries)

    def with_dense_labels(self) -> "PackedSplit | None":
        """The same split under the dense labels of its corpus, see `Corpus.dense_labels`; None where it has none.

        A query without such a label keeps the videos that match it now. Features and their order stay, so embeddings of
        one of the two splits are those of the other.

        Raises:
            DataError: it is not known which corpus it was packed from, or its labels cannot be read.
        """
        labels = self.source.corpus.dense_labels()
        index_of = {video: i for i, video in enumerate(self.video_ids)}
        if labels.keys().isdisjoint(self.query_ids):
            return None
        split = PackedSplit(self.files, self._videos, self._source)
        split.labels = "dense"
        levels = tuple(
            {index_of[video]: level for video, level in labels.get(query, {}).items() if video in index_of}
            or dict.fromkeys(original, 1)
            for query, original in zip(self.query_ids, self.relevant, strict=True)
        )
        split.relevant = tuple(map(frozenset, levels))
        split.levels = levels if any(level > 1 for videos in levels for level in videos.values()) else None
        return split

    @cached_property
    def relevant_matrix(self) -> Bool[np.ndarray, "q v"]:
        """The same as a boolean matrix."""
        matrix = np.zeros((len(self._queries), len(self)), bool)
        for row, videos in zip(matrix, self.relevant, strict=True):
            row[list(videos)] = True
        return matrix

    @cached_property
    def tags(self) -> tuple[frozenset[str], ...]:
        """The tags of each query; empty where none is known."""
        return tuple(frozenset(self.files.text["tags"][j]) for j in self._queries)

    @cached_property
    def moments(self) -> Moments:
        """The moment of each query."""
        return Moments(*self.files.index["moments"][self._queries].T)

    @cached_property
    def windows(self) -> Float[np.ndarray, "w q 2"]:
        """Start and end of every moment of each query, as many as any has; one with fewer repeats its first."""
        first = np.stack(self.moments[:2], 1)
        more = self.files.index.get("more_moments", np.zeros((0, 3)))
        place = {query: i for i, query in enumerate(self._queries.tolist())}
        windows, counts = [first], Counter[int]()
        for query, start, end in more.tolist():
            if (row := place.get(int(query))) is not None:
                counts[row] += 1
                if len(windows) == counts[row]:
                    windows.append(first.copy())
                windows[counts[row]][row] = start, end
        return np.stack(windows)

    @cached_property
    def durations(self) -> Float[np.ndarray, " v"]:
        """Length of each video in seconds: the longest that its queries state, NaN where none does."""
        return longest_durations(self.query_to_video, self.moments.duration, len(self))

    @cached_property
    def frame_counts(self) -> Int[np.ndarray, " v"]:
        """Number of sampled frames of each video."""
        return self.runs[1].counts

    @cached_property
    def word_counts(self) -> Int[np.ndarray, " q"]:
        """Number of words of each query."""
        return self.runs[2].counts

    @cached_property
    def constant(self) -> tuple[str, ...]:
        """Sentences on features that tell nothing apart: all rows of all videos, or of all queries, are the same."""
        frames, words = self.runs[1:3]
        return tuple(
            f"All {name} features of {self.name} are {'equal' if first.any() else 'zero'}: {what} cannot be told apart."
            for name, what, runs in (("frame", "videos", frames), ("word", "queries", words))
            for matrix, first in [(runs.matrix, np.array(runs.matrix[runs.start[0]], np.float32))]
            if len(runs.start) > 1
            and all(
                np.abs(np.asarray(matrix[start:stop], np.float32) - first).max() < _EQUAL
                for start, stop in zip(runs.start, runs.stop, strict=True)
            )
        )

    @cached_property
    def _queries_by_video(self) -> list[np.ndarray]:
        order = np.argsort(self.query_to_video, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.query_to_video, minlength=len(self)))[:-1])

    @cached_property
    def runs(self) -> tuple[Runs, ...]:
        """Clips, frames and words as stored, and a second stream, if any: of words a run per query, else per video."""
        files = self.files

        def runs(name: str, offsets: np.ndarray, which: np.ndarray) -> Runs:
            return Runs(files, name, offsets[which], offsets[which + 1])

        clips = np.arange(len(files.text["video_ids"]) + 1) * int(files.about["settings"]["clips"])
        stream = files.index.get("stream_offsets")
        return (
            runs("clips", clips, self._videos),
            runs("frames", files.index["frame_offsets"], self._videos),
            runs("words", files.index["word_offsets"], self._queries),
            *([] if stream is None else [runs("stream", stream, self._videos)]),
        )

    def queries_of(self, video: int) -> Int[np.ndarray, " k"]:
        """Numbers of the queries written for a video, in file order; at least one."""
        return self._queries_by_video[video]

    def video(self, index: int) -> tuple[Float[Tensor, "c f"], Float[Tensor, "l f"]]:
        """Clips (c f) and frames (l f) of one video, rows of unit norm, float32."""
        clips, frames = (runs.padded(np.array([index]))[0][0] for runs in self.runs[:2])
        return clips, frames

    def query(self, index: int) -> Float[Tensor, "w e"]:
        """Words (w e) of one query, rows of unit norm, float32."""
        return self.runs[2].padded(np.array([index]))[0][0]

    def video_batches(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All videos in order, ``size`` at a time (the last batch may be smaller).

        Each is its clips (b c f), padded frames (b l f) and their mask (b l), of a second stream the padded rows
        (b s g) and their mask (b s), and the numbers of the videos (b).
        """
        for start in range(0, len(self), size):
            indices = np.arange(start, min(start + size, len(self)))
            clips, frames, _, *stream = self.runs
            rows = [tensor for runs in (frames, *stream) for tensor in runs.padded(indices)]
            yield clips.padded(indices)[0], *rows, torch.from_numpy(indices)

    def query_batches(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """All queries in order, ``size`` at a time: padded words (b w e), their mask (b w), and their numbers (b)."""
        for start in range(0, len(self._queries), size):
            indices = np.arange(start, min(start + size, len(self._queries)))
            yield *self.runs[2].padded(indices), torch.from_numpy(indices)

    @property
    def source(self) -> PackSource:
        """Where it comes from.

        Raises:
            DataError: it is not known: the split was opened by its folder.
        """
        if self._source is None:
            raise DataError(f"{self.name}: its corpus is unknown. Open it with prvr.data.pack.")
        return self._source

    def subset(self, videos: Sequence[int] | Int[np.ndarray, " k"]) -> "PackedSplit":
        """A part of the videos with the queries written for them; shares the files.

        Args:
            videos: their numbers; order does not matter, the gallery keeps its order.

        Raises:
            DataError: no video, one out of range, or one named twice.
        """
        chosen = np.unique(np.asarray(videos, np.int64))
        if not len(chosen) or len(chosen) != len(videos) or chosen[0] < 0 or chosen[-1] >= len(self):
            raise DataError(
                f"subset of {self.name}: expected different numbers in [0, {len(self)}), at least one; "
                f"got {len(videos)} numbers, {len(chosen)} different."
            )
        return PackedSplit(self.files, self._videos[chosen], self._source)


def longest_durations(
    query_to_video: Int[np.ndarray, " q"], durations: Float[np.ndarray, " q"], videos: int
) -> Float[np.ndarray, " v"]:
    """The longest of the lengths that the queries of each video state; NaN where none of them is a length.

    Examples:
        >>> longest_durations(np.array([0, 0, 1]), np.array([30.0, np.nan, np.nan]), 2).tolist()
        [30.0, nan]
    """
    longest = np.full(videos, np.nan)
    np.fmax.at(longest, query_to_video, np.where(np.isfinite(durations) & (durations > 0), durations, np.nan))
    return longest
