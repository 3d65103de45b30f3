"""A snapshot of an index: some videos and their vectors, which no writer changes."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from prvr.encoders import VideoEntry
from prvr_search.vectors.files import Arrays, VectorFile
from prvr_search.vectors.model import SearchModel


class Block(NamedTuple):
    """The vectors of some videos that are read together.

    Args:
        videos: `(v)` numbers of the videos; -1: another one, or a copy of one that stands elsewhere.
        starts: `(v)` the first window of each.
        arrays: their vectors.
    """

    videos: Int64[np.ndarray, " v"]
    starts: Int64[np.ndarray, " v"]
    arrays: Arrays


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
    def originals(self) -> Int64[np.ndarray, " v"]:
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
        files: the vectors, of these videos and others perhaps; the largest first.
    """

    model: SearchModel
    files: Sequence[VectorFile] = field(default=(), repr=False)

    @cached_property
    def _places(self) -> Mapping[str, tuple[int, int]]:
        """The file and the number in it of each video, by the hash of its features."""
        return {
            video: (number, place)
            for number, file in reversed([*enumerate(self.files)])
            for place, video in enumerate(file.videos)
        }

    @cached_property
    def owners(self) -> list[Int64[np.ndarray, " v"]]:
        """For each file the numbers of its videos, of copies the first; -1 where it is another one."""
        owners = [np.full(len(file.videos), -1, np.int64) for file in self.files]
        for number in np.unique(self.originals).tolist():
            file, place = self._places[features_hash(self.entries[number])]
            owners[file][place] = number
        return owners

    def blocks(self) -> Iterator[Block]:
        """The vectors of all videos, about a megabyte at a time.

        Raises:
            DataError: a file was changed or cut short.
        """
        total, needs_mean = np.zeros(self.model.dim), self.model.frame_means and "mean_frame" not in self.__dict__
        for file, owners in zip(self.files, self.owners, strict=True):
            file.expect_unchanged()
            for first, stop in file.blocks():
                if (owners[first:stop] >= 0).any():
                    starts = file.ends["windows"][first:stop] - file.ends["windows"][first]
                    block = Block(owners[first:stop], starts, file.read(first, stop))
                    if needs_mean:
                        total += _mean_sum(block)
                    yield block
        if needs_mean:  # so that they need not be read again for it
            self.__dict__["mean_frame"] = (total / max(1, len(np.unique(self.originals)))).astype(np.float32)

    def vectors(self, video: int) -> Arrays:
        """The vectors of a video.

        Raises:
            DataError: its file was changed or cut short.
        """
        number, place = self._places[features_hash(self.entries[video])]
        self.files[number].expect_unchanged()
        return self.files[number].read(place, place + 1)

    @cached_property
    def mean_frame(self) -> Float32[np.ndarray, " d"]:
        """The mean over videos of the mean of their frames, where windows store it, see `SearchModel.frame_means`."""
        for _ in self.blocks():
            pass
        return self.__dict__["mean_frame"]


def features_hash(entry: VideoEntry) -> str:
    """What the vectors of a video depend on beside the model: the hash of its features, as far as they have one."""
    facts = f"{entry.sha256} {entry.frames} {entry.duration}"
    return entry.features or hashlib.sha256(facts.encode()).hexdigest()


def _mean_sum(block: Block) -> Float[np.ndarray, " d"]:
    """The sum over the videos of a block of the mean of their frames: of the last row of each window."""
    rows = unpacked(block.arrays, "frames")[np.cumsum(block.arrays["frames.counts"]) - 1]
    windows = np.diff(np.append(block.starts, len(rows)))
    shares = np.repeat((block.videos >= 0) / windows, windows)
    return shares @ rows


def unpacked(arrays: Arrays, name: str, *, raw: bool = False) -> Float32[np.ndarray, "n d"]:
    """The rows of a set in float32.

    Args:
        arrays: the vectors.
        name: of the set.
        raw: with the lengths that they had before they were scaled to unit length, which the set has to keep.
    """
    rows = torch.from_numpy(arrays[name]).float()  # ten times as fast as numpy
    return (rows * torch.from_numpy(arrays[f"{name}.lengths"])[:, None] if raw else rows).numpy()
