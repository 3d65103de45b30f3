"""Training batches: a video with all its captions is one item."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prvr.data.on_device import AHEAD, DeviceRuns, read_ahead
from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.types import Batch, Counts, Labels


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
_OF_LABELS = "query_to_video", "relevant", "video_ids", "query_ids", "captions", "moments", "teacher", "teacher_frames"


@dataclass(frozen=True)
class BatchInfo:
    """What every process knows about a batch of which it reads only its own shard.

    Args:
        labels: the labels of all its videos and queries.
        first: where among the videos its own part begins.
        frames: number of frames of the longest video.
        words: number of words of the longest query.
        stream: number of rows of the longest second stream.
    """

    labels: Labels
    first: int
    frames: int
    words: int
    stream: int = 0


class VideoLoader:
    """Batches of the videos of a packed split with their captions, on a device, in an order of each epoch.

    Order and captions depend on (seed, epoch) alone: no global random state is read or moved. A pass that was broken
    off goes on where it was: `set_epoch` takes how many batches to leave out of the next pass, and these are never
    read. The length is that of a whole pass. A video is an item (index, epoch): the epoch decides which captions are
    drawn where their number is limited.

    Args:
        packed: the split.
        batch_size: videos per batch, of all processes together.
        shuffle: a new order each epoch; False: ascending.
        seed: the seed of the order and of the captions drawn.
        captions_per_video: most captions per video (None: all). More are drawn again each epoch, by seed, epoch and id.
        drop_last: leave out a last, smaller batch.
        shard: the part of each batch that is read, where several processes train.
        teacher: `(q, v)` scores of all queries with all videos, for `Batch.teacher`; None = no system teaches. See
            `prvr.Teacher.scores`.

    Attributes:
        teacher_frames: `(q, l)` its cosines of queries with the frames of their videos, see `Labels`; None at first.

    Examples:
        >>> loader = VideoLoader(packed, 128).to("cuda", resident=True)  # doctest: +SKIP
        >>> loader.set_epoch(0)  # doctest: +SKIP
        >>> next(iter(loader)).frames.device  # doctest: +SKIP
        device(type='cuda', index=0)
    """

    def __init__(
        self,
        packed: PackedSplit,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        captions_per_video: int | None = None,
        drop_last: bool = False,
        shard: Shard = _ALL,
        teacher: Float[Tensor, "q v"] | None = None,
    ) -> None:
        if captions_per_video is not None and captions_per_video < 1:
            raise InputError(f"captions_per_video must be at least 1 or None, got {captions_per_video}")
        self.packed, self.batch_size, self.shuffle, self.seed, self.shard = packed, batch_size, shuffle, seed, shard
        self.captions_per_video, self.teacher = captions_per_video, teacher
        self.teacher_frames: Tensor | None = None
        self.steps = len(packed) // batch_size if drop_last else -(-len(packed) // batch_size)
        self.epoch, self.first_batch = 0, 0
        self.to("cpu")

    def to(self, device: torch.device | str, *, resident: bool = False, ahead: int | None = None) -> "VideoLoader":
        """Chooses the device of the batches, in place; they are the same on each, and with each of the options.

        Args:
            device: where batches are given.
            resident: keep all features on the device and make the batches there.
            ahead: batches that a thread reads ahead; default: 2 for a GPU, where copies then do not wait, else none.
        """
        self.device = torch.device(device)
        self.resident = [DeviceRuns(runs, self.device) for runs in self.packed.runs] if resident else None
        self.ahead = (AHEAD if self.device.type == "cuda" and not resident else 0) if ahead is None else ahead
        return self

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Chooses the order, and the captions drawn, of the next pass.

        Args:
            epoch: from 0.
            first_batch: the pass begins with this batch of the epoch; those before it are not read.
        """
        self.epoch, self.first_batch = epoch, first_batch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        batches = (self.batch(items[self.shard.of(len(items))]) for items in self.items())
        pin = Batch.pin_memory if self.device.type == "cuda" and self.resident is None else None
        return (batch.to(self.device) for batch in read_ahead(batches, self.ahead, pin))

    def items(self) -> list[list[tuple[int, int]]]:
        """The videos (index, epoch) of each whole batch of the next pass, of all processes."""
        order = np.arange(len(self.packed))
        if self.shuffle:
            order = _generator(self.seed, self.epoch, "order").permutation(len(order))
        items = [(int(index), self.epoch) for index in order]
        return [items[i * self.batch_size : (i + 1) * self.batch_size] for i in range(self.first_batch, self.steps)]

    def batch_infos(self) -> Iterator[BatchInfo]:
        """The labels and sizes of each whole batch of the next pass, in the order of the batches."""
        packed = self.packed
        for items in self.items():
            videos = [index for index, _ in items]
            queries = [self.queries_of(*item) for item in items]
            parts = [Shard(rank, self.shard.count).of(len(items)) for rank in range(self.shard.count)]
            shares = tuple((len(videos[part]), sum(map(len, queries[part]))) for part in parts)
            yield BatchInfo(
                labels=replace(self._labels_of(queries, videos), shares=shares),
                first=self.shard.of(len(items)).start,
                frames=int(packed.frame_counts[videos].max()),
                words=int(packed.word_counts[np.concatenate(queries)].max()),
                stream=max((int(runs.counts[videos].max()) for runs in packed.runs[3:]), default=0),
            )

    def batch(self, items: Sequence[tuple[int, int]]) -> Batch:
        """The padded batch of some videos (index, epoch), with their captions in runs of one video.

        `query_to_video` is 0, 0, .., 1, ...; `relevant` is set where some caption matches another video of the batch.
        """
        packed, videos = self.packed, np.array([index for index, _ in items])
        queries = [self.queries_of(*item) for item in items]
        labels = self._labels_of(queries, videos.tolist())
        query_indices = np.concatenate(queries)
        of_clips, of_frames, of_words, *more = self.resident or packed.runs
        clips, (frames, frame_mask) = of_clips.padded(videos)[0], of_frames.padded(videos)
        words, word_mask = of_words.padded(query_indices)
        stream, stream_mask = more[0].padded(videos) if more else (None, None)
        counts = None
        if (device := clips.device).type != "cpu":
            labels = labels.pin_memory().to(device) if device.type == "cuda" else labels.to(device)
            frame_counts = packed.frame_counts[videos].tolist()
            word_counts = packed.word_counts[query_indices].tolist()
            counts = Counts(tuple(frame_counts), tuple(word_counts), tuple(map(len, queries)))
        return Batch(
            clips=clips,
            frames=frames,
            frame_mask=frame_mask,
            words=words,
            word_mask=word_mask,
            counts=counts,
            stream=stream,
            stream_mask=stream_mask,
            **{name: getattr(labels, name) for name in _OF_LABELS},
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
        frames, longest = self.teacher_frames, int(self.packed.frame_counts[videos].max())
        frames = None if frames is None else frames[query_indices, :longest].float()
        packed = self.packed
        return Labels(
            *(len(videos), owner, relevant if several else None),
            teacher=teacher,
            teacher_frames=frames,
            most_queries=max(map(len, queries)),
            video_ids=tuple(packed.video_ids[video] for video in videos),
            query_ids=tuple(packed.query_ids[query] for query in query_indices),
            captions=tuple(packed.captions[query] for query in query_indices),
            moments=torch.from_numpy(np.stack(packed.moments, 1)[query_indices]).float(),
        )

    def queries_of(self, index: int, epoch: int) -> np.ndarray:
        """Numbers of the queries that go with a video in this epoch."""
        queries = self.packed.queries_of(index)
        if self.captions_per_video is not None and len(queries) > self.captions_per_video:
            draw = _generator(self.seed, epoch, self.packed.video_ids[index])
            queries = np.sort(draw.choice(queries, self.captions_per_video, replace=False))
        return queries


def _generator(seed: int, epoch: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/{epoch}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
