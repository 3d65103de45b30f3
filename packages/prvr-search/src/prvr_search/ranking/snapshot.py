"""A snapshot of an index: some videos and their vectors, which no writer changes."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from prvr.encoders import VideoEntry, VideoFeatures
from prvr_search.vectors.files import Arrays, VectorFile, places_of
from prvr_search.vectors.model import Rows, SearchModel, Vector

Numbers = Int64[np.ndarray, " _"]
"""Of videos, or of windows."""


@dataclass(frozen=True)
class Videos:
    """Videos, of which lines of subtitles are searched; the number of a video is its position.

    Args:
        entries: the videos, in order of ids.
    """

    entries: Sequence[VideoEntry]

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The numbers of the videos by id."""
        return {entry.id: number for number, entry in enumerate(self.entries)}

    @cached_property
    def originals(self) -> Numbers:
        """For each video the number of the first one whose file has the same content: its own, if it is no copy."""
        first = dict[str, int]()
        numbers = (first.setdefault(entry.sha256, number) for number, entry in enumerate(self.entries))
        return np.fromiter(numbers, np.int64, len(self.entries))


@dataclass(frozen=True)
class Snapshot(Videos):
    """Videos and their vectors, for the scoring.

    Args:
        entries: the videos, in order of ids.
        model: the model of the vectors.
        files: the vectors, of these videos and others perhaps.
        features: what the vectors were made from; None without videos.
    """

    model: SearchModel
    files: Sequence[VectorFile] = field(default=(), repr=False)
    features: VideoFeatures | None = field(default=None, repr=False)

    @cached_property
    def _places(self) -> Mapping[str, tuple[VectorFile, int]]:
        return places_of(self.files)

    @cached_property
    def owners(self) -> Mapping[Path, Numbers]:
        """For each file the numbers of its videos, of copies the first; -1 where it is another one."""
        owners = {file.path: np.full(len(file.videos), -1, np.int64) for file in self.files}
        for number in np.unique(self.originals).tolist():
            file, place = self._places[features_hash(self.entries[number])]
            owners[file.path][place] = number
        return owners

    @cached_property
    def pack(self) -> Sequence[VectorFile]:
        """The first files, whose clips a backend has; so many that they seldom become more, and others are few."""
        count, more = 1, 3
        while more <= len(self.files):
            count, more = more, more + max(2, more // 4)
        return self.files[:count]

    @cached_property
    def clip_owners(self) -> Numbers:
        """For each window of the pack the number of its video; -1 for those that do not count."""
        return np.concatenate([np.repeat(self.owners[file.path], file.windows) for file in self.pack])

    def blocks(self) -> Iterator[tuple[Numbers, Numbers, Arrays]]:
        """The vectors of all videos, about a megabyte at a time.

        Yields:
            `(v)` numbers of the videos, -1 for another one, or a copy of one that stands elsewhere; `(v)` the first
            window of each; and their vectors.

        Raises:
            VectorsChanged: a file is not there any more.
        """
        total = np.zeros(self.model.dim)
        for file in self.files:
            owners = self.owners[file.path]
            if (owners >= 0).any():
                arrays = file.read()
                if self.model.frame_means:  # of the last row of each window
                    rows = arrays["frames"][np.cumsum(arrays["frames.counts"]) - 1].astype(np.float32)
                    total += np.repeat((owners >= 0) / file.windows, file.windows) @ rows
                yield owners, file.starts[:-1], arrays
        if self.model.frame_means:  # so that they need not be read again for it
            self.__dict__["mean_frame"] = (total / max(1, len(np.unique(self.originals)))).astype(np.float32)

    def vectors(self, video: int) -> Arrays:
        """The vectors of a video; errors as of `blocks`."""
        file, place = self._places[features_hash(self.entries[video])]
        return file.of(place)

    @cached_property
    def mean_frame(self) -> Vector:
        """The mean over videos of the mean of their frames, where windows store it, see `SearchModel.frame_means`."""
        for _ in self.blocks():
            pass
        return self.__dict__["mean_frame"]


def features_hash(entry: VideoEntry) -> str:
    """What the vectors of a video depend on beside the model: the hash of its features, as far as they have one."""
    return entry.features or hashlib.sha256(f"{entry.sha256} {entry.frames} {entry.duration}".encode()).hexdigest()


def unpacked(arrays: Arrays, name: str, *, raw: bool = False) -> Rows:
    """The rows of a set in float32.

    Args:
        arrays: the vectors.
        name: of the set.
        raw: with the lengths that they had before they were scaled to unit length, which the set has to keep.
    """
    rows = torch.from_numpy(arrays[name]).float()  # ten times as fast as numpy
    return (rows * torch.from_numpy(arrays[f"{name}.lengths"])[:, None] if raw else rows).numpy()
