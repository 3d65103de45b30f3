"""Training batches: a video with all its captions is one item."""

import hashlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from prvr.data.packed import PackedSplit
from prvr.data.ragged import pad
from prvr.types import Batch

Sort = Literal["length"] | None


@dataclass(frozen=True)
class VideoItem:
    """A video and its captions; ``relevant`` holds, per caption, the ids of all videos that match it."""

    video_id: str
    clips: Float[Tensor, "c f"]
    frames: Float[Tensor, "l f"]
    words: tuple[Tensor, ...]
    query_ids: tuple[str, ...]
    relevant: tuple[frozenset[str], ...]


class VideoDataset(Dataset[VideoItem]):
    """The videos of a packed split, each with its captions.

    An index is a number, or (number, epoch) as the loader's sampler gives it: the epoch decides which captions are
    drawn where their number is limited.

    Args:
        packed: the split.
        captions_per_video: most captions per item (None: all). More are drawn anew each epoch, by seed, epoch and id.
        seed: of that draw.
    """

    def __init__(self, packed: PackedSplit, captions_per_video: int | None = None, seed: int = 0) -> None:
        if captions_per_video is not None and captions_per_video < 1:
            raise ValueError(f"captions_per_video must be at least 1 or None, got {captions_per_video}")
        self.packed = packed
        self.captions_per_video = captions_per_video
        self.seed = seed

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int | tuple[int, int]) -> VideoItem:
        number, epoch = index if isinstance(index, tuple) else (index, 0)
        packed = self.packed
        if not 0 <= number < len(packed):
            raise IndexError(f"video {number} of {len(packed)}")
        queries = packed.queries_of(number)
        if self.captions_per_video is not None and len(queries) > self.captions_per_video:
            draw = _generator(self.seed, epoch, packed.video_ids[number])
            queries = np.sort(draw.choice(queries, self.captions_per_video, replace=False))
        clips, frames = packed.video(number)
        return VideoItem(
            video_id=packed.video_ids[number],
            clips=clips,
            frames=frames,
            words=packed.queries(queries),
            query_ids=tuple(packed.query_ids[q] for q in queries),
            relevant=tuple(frozenset(packed.video_ids[v] for v in packed.relevant[q]) for q in queries),
        )


def collate(items: Sequence[VideoItem], sort: Sort = None) -> Batch:
    """Puts items into a padded batch, captions in runs of one video: ``query_to_video`` = 0, 0, .., 1, ...

    Args:
        items: at least one.
        sort: ``"length"`` orders videos by their number of frames, longest first, as the released collation does
            (equal ones keep their order).

    Returns:
        a batch; ``relevant`` is set where some caption matches another video of the batch.
    """
    if sort == "length":
        items = sorted(items, key=lambda item: -len(item.frames))
    frames, frame_mask = pad([item.frames.float() for item in items])
    words, word_mask = pad([words.float() for item in items for words in item.words])
    owner = torch.repeat_interleave(torch.arange(len(items)), torch.tensor([len(item.words) for item in items]))
    video_ids = tuple(item.video_id for item in items)
    relevant = torch.nn.functional.one_hot(owner, len(items)).bool()
    column = {video_id: i for i, video_id in enumerate(video_ids)}
    for row, videos in enumerate(videos for item in items for videos in item.relevant):
        if len(videos) > 1:
            relevant[row, [column[video] for video in videos if video in column]] = True
    return Batch(
        clips=torch.stack([item.clips for item in items]).float(),
        frames=frames,
        frame_mask=frame_mask,
        words=words,
        word_mask=word_mask,
        query_to_video=owner,
        relevant=relevant if int(relevant.sum()) > len(owner) else None,
        video_ids=video_ids,
        query_ids=tuple(query_id for item in items for query_id in item.query_ids),
    )


class EpochSampler(Sampler[tuple[int, int]]):
    """Numbers of videos in an order that depends on (seed, epoch) alone, each with the epoch.

    A pass that was broken off goes on where it was: `set_epoch` takes how many videos to leave out of the next pass,
    and these are never read. The length is that of a whole pass.

    Args:
        length: number of videos.
        shuffle: a new order each epoch; False: ascending.
        seed: of the order.
    """

    def __init__(self, length: int, shuffle: bool = True, seed: int = 0) -> None:
        self.length, self.shuffle, self.seed, self.epoch, self.skip = length, shuffle, seed, 0, 0

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Chooses the order of the next pass, and how many videos at its start are left out."""
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.arange(self.length)
        if self.shuffle:
            order = _generator(self.seed, self.epoch, "order").permutation(self.length)
        return iter([(int(number), self.epoch) for number in order[self.skip :]])


class VideoLoader(DataLoader[VideoItem]):
    """A DataLoader of batches with ``set_epoch``; made by [make_loader][prvr.data.dataset.make_loader]."""

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Chooses the order, and the captions drawn, of the next pass.

        Args:
            epoch: from 0.
            first_batch: the pass begins with this batch of the epoch; those before it are not read.
        """
        if isinstance(self.sampler, EpochSampler):
            self.sampler.set_epoch(epoch, first_batch * (self.batch_size or 1))


def make_loader(
    packed: PackedSplit,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    captions_per_video: int | None = None,
    sort: Sort = None,
    drop_last: bool = False,
    workers: int = 0,
) -> VideoLoader:
    """Batches of videos with their captions; call ``set_epoch`` before each pass.

    The order depends on (seed, epoch) alone: no global random state is read or moved.

    Args:
        packed: the split.
        batch_size: videos per batch.
        shuffle: a new order each epoch.
        seed: of the order and of the captions drawn.
        captions_per_video: see [VideoDataset][prvr.data.dataset.VideoDataset].
        sort: see [collate][prvr.data.dataset.collate].
        drop_last: leave out a last, smaller batch.
        workers: processes that read ahead (spawned); a packed split rarely needs one.
    """
    return VideoLoader(
        VideoDataset(packed, captions_per_video, seed),
        batch_size=batch_size,
        sampler=EpochSampler(len(packed), shuffle, seed),
        collate_fn=partial(collate, sort=sort),
        drop_last=drop_last,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_leave_signals_to_the_parent if workers else None,
        generator=torch.Generator().manual_seed(seed),  # the loader draws a number from it; else from the global one
    )


def _leave_signals_to_the_parent(worker: int) -> None:
    # Ctrl-C and batch systems signal the whole process group. A worker that died of it would take the step that the
    # parent finishes before it saves along; it ends with its parent anyway.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _generator(seed: int, epoch: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/{epoch}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
