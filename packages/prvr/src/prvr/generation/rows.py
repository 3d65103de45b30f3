"""The score matrix of a split, some rows at a time, in either direction."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.evaluation.encode import EncodedSplit, TextVideoModel
from prvr.stages import Direction
from prvr.types import VideoEmbedding

__all__ = ["SplitScores"]


@dataclass(frozen=True)
class SplitScores:
    """What a retriever makes of a split's queries and videos; the matrix of all of them is never held.

    Call within `torch.no_grad()` and in evaluation mode of the retriever; `score` has no dropout in any of ours.

    Args:
        retriever: whose `score` is asked.
        encoded: the split's embeddings.
        split: for which videos answer which query.
        block: queries and videos compared at a time.
    """

    retriever: TextVideoModel
    encoded: EncodedSplit
    split: PackedSplit
    block: int = 256

    @cached_property
    def _gallery(self) -> VideoEmbedding:
        return VideoEmbedding.cat(self.encoded.videos)

    @property
    def queries(self) -> int:
        """How many queries."""
        return len(self.encoded.text)

    @property
    def videos(self) -> int:
        """How many videos."""
        return len(self._gallery)

    def asking(self, direction: Direction) -> int:
        """How many rows: queries in direction "t2v", videos in "v2t"."""
        return self.queries if direction == "t2v" else self.videos

    def gallery(self, direction: Direction) -> int:
        """How many columns."""
        return self.videos if direction == "t2v" else self.queries

    def blocks(self, direction: Direction, size: int) -> Iterator[slice]:
        """Consecutive slices of the rows."""
        total = self.asking(direction)
        return (slice(start, min(start + size, total)) for start in range(0, total, size))

    def rows(self, direction: Direction, rows: slice) -> Float[Tensor, "r n"]:
        """Scores of these rows with the whole gallery of the direction."""
        text = self.encoded.text
        if direction == "t2v":
            asked = text[rows]
            parts = [self.retriever.score(asked, part).total for part in self.encoded.videos]
            return torch.cat(parts, 1)
        asked = self._gallery[rows]
        starts = range(0, self.queries, self.block)
        parts = [self.retriever.score(text[start : start + self.block], asked).total for start in starts]
        return torch.cat(parts).mT.contiguous()

    def positives(self, direction: Direction, rows: slice) -> Bool[Tensor, "r n"]:
        """Which of the gallery are right for these rows, on the device of the scores."""
        asking, found = self._pairs[direction]
        first, last = torch.searchsorted(asking, torch.tensor([rows.start, rows.stop])).tolist()
        right = torch.zeros(rows.stop - rows.start, self.gallery(direction), dtype=torch.bool)
        right[asking[first:last] - rows.start, found[first:last]] = True
        return right.to(self.encoded.text.device)

    @cached_property
    def _pairs(self) -> dict[str, tuple[Int[Tensor, " n"], Int[Tensor, " n"]]]:
        """Relevant (asking, found) of both directions, sorted by who asks."""
        pairs = [(query, video) for query, videos in enumerate(self.split.relevant) for video in sorted(videos)]
        queries, videos = torch.tensor(pairs).T.contiguous()
        order = videos.argsort(stable=True)
        return {"t2v": (queries, videos), "v2t": (videos[order], queries[order])}
