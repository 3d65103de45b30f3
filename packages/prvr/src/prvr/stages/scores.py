"""The score matrix of a set of texts with a gallery of videos, some rows at a time, in either direction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError
from prvr.text import Texts
from prvr.types import Direction, Scorer, VideoEmbedding


@dataclass(frozen=True)
class EncodedSplit:
    """Embeddings of all texts, and of a gallery of videos in parts, in order, as they were encoded.

    Args:
        text: `(q, d)`, or a `prvr.TextEmbedding`.
        videos: parts of the gallery, one after the other; they may be read when they are asked for.
        stages: embeddings that the stages of a pipeline read, one for each stage; None for a stage that reads these.
    """

    text: Texts
    videos: Sequence[VideoEmbedding]
    stages: "tuple[EncodedSplit | None, ...]" = ()

    @property
    def slices(self) -> list[slice]:
        """Which videos each part holds."""
        stops = list(accumulate(len(part) for part in self.videos))
        return [slice(start, stop) for start, stop in pairwise([0, *stops])]


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of texts with videos, computed when they are asked for; the whole matrix is never held.

    Rows are texts in direction "t2v" and videos in direction "v2t"; the columns are the gallery of that direction. Use
    it within `torch.no_grad()` and in evaluation mode of the retriever.

    Args:
        retriever: gives the scores.
        encoded: embeddings that the retriever, or the encoder of a stage, gave.
        relevant: for each text the numbers of the videos that answer it; needed by `positives` alone.
        numbers: `(v,)` numbers of these videos in a larger gallery that they were taken from; None = they are all.
        block: texts compared at a time.
    """

    retriever: Scorer
    encoded: EncodedSplit
    relevant: Sequence[frozenset[int]] | None = None
    numbers: Int[Tensor, " v"] | None = None
    block: int = 256

    @cached_property
    def gallery(self) -> VideoEmbedding:
        """All videos as one record."""
        return VideoEmbedding.cat(self.encoded.videos)

    @property
    def texts(self) -> int:
        """How many texts."""
        return len(self.encoded.text)

    @property
    def videos(self) -> int:
        """How many videos."""
        return sum(len(part) for part in self.encoded.videos)

    def shape(self, direction: Direction) -> tuple[int, int]:
        """How many rows and columns."""
        return (self.texts, self.videos) if direction == "t2v" else (self.videos, self.texts)

    def blocks(self, direction: Direction, size: int) -> Iterator[slice]:
        """Consecutive slices of the rows, `size` at a time."""
        rows, _ = self.shape(direction)
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))

    def rows(self, direction: Direction, rows: slice) -> Float[Tensor, "r n"]:
        """Scores of some rows with the whole gallery of the direction."""
        asking = self.encoded.text[rows] if direction == "t2v" else self.gallery[rows]
        return self._scores(direction, asking).contiguous()

    def with_bank(self, direction: Direction, bank: Any) -> Float[Tensor, "b n"]:
        """Scores of other texts with all videos ("t2v"), or of other videos with all texts ("v2t").

        Args:
            direction: says which.
            bank: embeddings of the texts or videos.
        """
        return self._scores(direction, bank.to(self.encoded.text.device))

    def _scores(self, direction: Direction, asking: Any) -> Float[Tensor, "r n"]:
        """Scores of any texts or videos with the whole gallery of the direction."""
        text = self.encoded.text
        if direction == "t2v":
            return torch.cat([self.retriever.score(asking, part).total for part in self.encoded.videos], 1)
        starts = range(0, self.texts, self.block)
        return torch.cat([self.retriever.score(text[i : i + self.block], asking).total for i in starts]).mT

    def pairs(self, direction: Direction, rows: slice, columns: Int[Tensor, "r k"]) -> Float[Tensor, "r k"]:
        """Scores of each row with some columns of its own."""
        text, found = self.encoded.text, []
        for row, some in zip(range(rows.start, rows.stop), columns, strict=True):
            if direction == "t2v":
                found.append(self.retriever.score(text[row : row + 1], self.gallery[some]).total[0])
            else:
                found.append(self.retriever.score(text[some], self.gallery[row : row + 1]).total[:, 0])
        return torch.stack(found)

    def positives(self, direction: Direction, rows: slice) -> Bool[Tensor, "r n"]:
        """Which columns are right for some rows, on the device of the scores.

        Raises:
            InputError: it is not known which videos answer which text.
        """
        if self.relevant is None:
            raise InputError("this ScoreMatrix was made without `relevant`: give the videos that answer each text")
        asking, found = self._relevant_pairs[direction]
        first, last = torch.searchsorted(asking, torch.tensor([rows.start, rows.stop])).tolist()
        right = torch.zeros(rows.stop - rows.start, self.shape(direction)[1], dtype=torch.bool)
        right[asking[first:last] - rows.start, found[first:last]] = True
        return right.to(self.encoded.text.device)

    @cached_property
    def _relevant_pairs(self) -> dict[str, tuple[Int[Tensor, " n"], Int[Tensor, " n"]]]:
        """Relevant (row, column) of both directions, sorted by row."""
        pairs = [(text, video) for text, videos in enumerate(self.relevant or ()) for video in sorted(videos)]
        texts, videos = torch.tensor(pairs).T.contiguous()
        order = videos.argsort(stable=True)
        return {"t2v": (texts, videos), "v2t": (videos[order], texts[order])}
