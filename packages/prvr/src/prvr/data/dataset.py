"""Training batches: a video with all its captions is one item."""

import hashlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.types import Batch, Counts, Labels


@runtime_checkable
class PaddedRows(Protocol):
    """Where the rows of a split are read: a `PackedSplit`, or a `DeviceSplit` of it."""

    def padded_videos(self, indices: np.ndarray, /) -> tuple[Tensor, Tensor, Tensor]:
        """Clips `(b, c, f)` of some videos, their frames `(b, l, f)` with zeros up to the longest, and their mask."""
        ...

    def padded_queries(self, indices: np.ndarray, /) -> tuple[Tensor, Tensor]:
        """Words `(k, w, e)` of some queries, with zeros up to the longest, and their mask."""
        ...


class VideoDataset(Dataset[Batch]):
    """The videos of a packed split, each with its captions, as a `DataLoader` reads them: a batch at a time.

    A video is named by (index, epoch), as the loader's sampler gives it: the epoch decides which captions are drawn
    where their number is limited.

    Args:
        packed: the split.
        captions_per_video: most captions per item (None: all). More are drawn anew each epoch, by seed, epoch and id.
        seed: the seed of that draw.
        teacher: `(q, v)` scores of all queries with all videos, for `Batch.teacher`, see
            `prvr.training.Teacher.scores`; None = no system teaches.
    """

    def __init__(
        self,
        packed: PackedSplit,
        captions_per_video: int | None = None,
        seed: int = 0,
        teacher: Float[Tensor, "q v"] | None = None,
    ) -> None:
        if captions_per_video is not None and captions_per_video < 1:
            raise InputError(f"captions_per_video must be at least 1 or None, got {captions_per_video}")
        self.packed = packed
        self.captions_per_video = captions_per_video
        self.seed = seed
        self.teacher = teacher

    def __len__(self) -> int:
        return len(self.packed)

    def batch(self, items: Sequence[tuple[int, int]], rows: PaddedRows | None = None) -> Batch:
        """The padded batch of some videos (index, epoch), with their captions in runs of one video.

        `query_to_video` is 0, 0, .., 1, ...; `relevant` is set where some caption matches another video of the batch.

        Args:
            items: the videos, each with its epoch.
            rows: where their rows are read, on whatever device; default: the packed split.
        """
        packed, videos = self.packed, np.array([index for index, _ in items])
        queries = [self.queries_of(*item) for item in items]
        labels, query_indices = self._labels_of(queries, videos.tolist()), np.concatenate(queries)
        clips, frames, frame_mask = (rows or packed).padded_videos(videos)
        words, word_mask = (rows or packed).padded_queries(query_indices)
        counts = None
        if (device := clips.device).type != "cpu":
            labels = labels.pin_memory().to(device) if device.type == "cuda" else labels.to(device)
            frame_counts, word_counts = packed.frame_counts[videos].tolist(), packed.word_counts[query_indices].tolist()
            counts = Counts(tuple(frame_counts), tuple(word_counts), tuple(map(len, queries)))
        return Batch(
            clips=clips,
            frames=frames,
            frame_mask=frame_mask,
            words=words,
            word_mask=word_mask,
            query_to_video=labels.query_to_video,
            relevant=labels.relevant,
            video_ids=tuple(packed.video_ids[video] for video in videos),
            query_ids=tuple(packed.query_ids[query] for query in query_indices),
            teacher=labels.teacher,
            counts=counts,
        )

    def __getitems__(self, items: list[tuple[int, int]]) -> Batch:
        return self.batch(items)

    def info(self, items: Sequence[tuple[int, int]], first: int = 0) -> "BatchInfo":
        """Labels and sizes of the `batch` of some videos (index, epoch), known without reading any features."""
        packed, videos = self.packed, [index for index, _ in items]
        queries = [self.queries_of(*item) for item in items]
        return BatchInfo(
            labels=self._labels_of(queries, videos),
            first=first,
            frames=int(packed.frame_counts[videos].max()),
            words=int(packed.word_counts[np.concatenate(queries)].max()),
        )

    def _labels_of(self, queries: Sequence[np.ndarray], videos: Sequence[int]) -> Labels:
        column = {video: i for i, video in enumerate(videos)}
        owner = torch.repeat_interleave(torch.arange(len(videos)), torch.tensor([len(group) for group in queries]))
        relevant = torch.nn.functional.one_hot(owner, len(videos)).bool()
        query_indices = np.concatenate(queries)
        for row, query in enumerate(query_indices):
            matching = self.packed.relevant[query]
            if len(matching) > 1:
                relevant[row, [column[video] for video in matching if video in column]] = True
        several = int(relevant.sum()) > len(owner)
        teacher = None if self.teacher is None else self.teacher[query_indices[:, None], list(videos)].float()
        return Labels(len(videos), owner, relevant if several else None, teacher=teacher)

    def queries_of(self, index: int, epoch: int) -> np.ndarray:
        """Numbers of the queries that go with a video in this epoch."""
        packed = self.packed
        if not 0 <= index < len(packed):
            raise IndexError(f"video {index} of {len(packed)}")
        queries = packed.queries_of(index)
        if self.captions_per_video is not None and len(queries) > self.captions_per_video:
            draw = _generator(self.seed, epoch, packed.video_ids[index])
            queries = np.sort(draw.choice(queries, self.captions_per_video, replace=False))
        return queries


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one process reads: the `rank`-th of `count` consecutive runs."""

    rank: int = 0
    count: int = 1

    def of(self, length: int) -> slice:
        """The slice of this shard among `length` items.

        Examples:
            >>> [Shard(rank, 3).of(8) for rank in range(3)]
            [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        small, more = divmod(length, self.count)
        first = self.rank * small + min(self.rank, more)
        return slice(first, first + small + (self.rank < more))


_ALL = Shard()


@dataclass(frozen=True)
class BatchInfo:
    """What every process knows about a batch of which it reads only its own shard.

    Args:
        labels: the labels of all its videos and queries.
        first: where among the videos its own part begins.
        frames: number of frames of the longest video.
        words: number of words of the longest query.
    """

    labels: Labels
    first: int
    frames: int
    words: int


class EpochBatches(Sampler[list[tuple[int, int]]]):
    """Batches of numbers of videos, each with the epoch, in an order that depends on (seed, epoch) alone.

    A pass that was broken off goes on where it was: `set_epoch` takes how many batches to leave out of the next pass,
    and these are never read. The length is that of a whole pass.

    Args:
        length: number of videos.
        batch_size: videos per batch, of all processes together.
        shuffle: a new order each epoch; False: ascending.
        seed: the seed of the order.
        drop_last: leave out a last, smaller batch.
        shard: the part of each batch that is given.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        shard: Shard = _ALL,
    ) -> None:
        self.length, self.batch_size, self.shuffle, self.seed, self.shard = length, batch_size, shuffle, seed, shard
        self.batches = length // batch_size if drop_last else -(-length // batch_size)
        self.epoch, self.first_batch = 0, 0

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Chooses the order of the next pass, and how many batches at its start are left out."""
        self.epoch, self.first_batch = epoch, first_batch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for batch in self.whole()[self.first_batch :]:
            yield batch[self.shard.of(len(batch))]

    def whole(self) -> list[list[tuple[int, int]]]:
        """All batches of the epoch, of all processes."""
        order = np.arange(self.length)
        if self.shuffle:
            order = _generator(self.seed, self.epoch, "order").permutation(self.length)
        items = [(int(number), self.epoch) for number in order]
        return [items[i * self.batch_size : (i + 1) * self.batch_size] for i in range(self.batches)]


class VideoLoader(DataLoader[Batch]):
    """A DataLoader of batches with ``set_epoch``; made by [make_loader][prvr.data.dataset.make_loader]."""

    dataset: VideoDataset
    batch_sampler: EpochBatches  # pyright: ignore[reportIncompatibleVariableOverride]

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Chooses the order, and the captions drawn, of the next pass.

        Args:
            epoch: from 0.
            first_batch: the pass begins with this batch of the epoch; those before it are not read.
        """
        self.batch_sampler.set_epoch(epoch, first_batch)

    def batch_infos(self) -> Iterator[BatchInfo]:
        """The labels and sizes of each whole batch of the next pass, in the order of the batches."""
        batches = self.batch_sampler
        for numbers in batches.whole()[batches.first_batch :]:
            yield self.dataset.info(numbers, batches.shard.of(len(numbers)).start)


def make_loader(
    packed: PackedSplit,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    captions_per_video: int | None = None,
    drop_last: bool = False,
    workers: int = 0,
    shard: Shard = _ALL,
    teacher: Float[Tensor, "q v"] | None = None,
) -> VideoLoader:
    """Batches of videos with their captions; call ``set_epoch`` before each pass.

    The order depends on (seed, epoch) alone: no global random state is read or moved.

    Args:
        packed: the split.
        batch_size: videos per batch.
        shuffle: a new order each epoch.
        seed: the seed of the order and of the captions drawn.
        captions_per_video: see [VideoDataset][prvr.data.dataset.VideoDataset].
        drop_last: leave out a last, smaller batch.
        workers: processes that read ahead (spawned); a packed split rarely needs one.
        shard: the part of each batch that is read, where several processes train.
        teacher: see [VideoDataset][prvr.data.dataset.VideoDataset].
    """
    return VideoLoader(
        VideoDataset(packed, captions_per_video, seed, teacher),
        batch_sampler=EpochBatches(len(packed), batch_size, shuffle, seed, drop_last, shard),
        collate_fn=_as_it_is,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_leave_signals_to_the_parent if workers else None,
        generator=torch.Generator().manual_seed(seed),  # the loader draws a number from it; else from the global one
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_signals_to_the_parent(worker: int) -> None:
    # Ctrl-C and batch systems signal the whole process group. A worker that died of it would take the step that the
    # parent finishes before it saves along; it ends with its parent anyway.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _generator(seed: int, epoch: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/{epoch}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
