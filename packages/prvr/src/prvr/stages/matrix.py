"""The score matrix of texts and videos, computed block by block, and its best columns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError
from prvr.types import Direction, Scorer, Texts, VideoEmbedding


@dataclass(frozen=True)
class EncodedSplit:
    """Embeddings of all texts, and of a gallery of videos in parts, in the order in which they were encoded.

    Args:
        text: `(q, d)`, or a `prvr.TextEmbedding`.
        videos: parts of the gallery, in order; a part may be read from disk when it is used.
        stages: for each stage of a pipeline, the embeddings that it reads; None for those of the first stage.
        query_ids: ids of the texts; empty if unknown.
        video_ids: ids of the videos; empty if unknown.
    """

    text: Texts
    videos: Sequence[VideoEmbedding]
    stages: "tuple[EncodedSplit | None, ...]" = ()
    query_ids: Sequence[str] = ()
    video_ids: Sequence[str] = ()

    @property
    def slices(self) -> list[slice]:
        """The videos of each part."""
        stops = list(accumulate(len(part) for part in self.videos))
        return [slice(start, stop) for start, stop in pairwise([0, *stops])]


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of texts with videos, computed on demand; the whole matrix is never in memory.

    Rows are texts in direction "t2v" and videos in direction "v2t"; the columns are the gallery of that direction. Use
    it within `torch.no_grad()` and in evaluation mode of the retriever.

    Args:
        retriever: computes the scores.
        encoded: embeddings of the retriever, or of the encoder of a stage.
        relevant: for each text, the indices of the relevant videos; only `positives` needs it.
        indices: `(v,)` indices of these videos in the larger gallery that they are part of; None for the whole gallery.
        block: number of texts that are compared at a time.
    """

    retriever: Scorer
    encoded: EncodedSplit
    relevant: Sequence[frozenset[int]] | None = None
    indices: Int[Tensor, " v"] | None = None
    block: int = 256

    @cached_property
    def gallery(self) -> VideoEmbedding:
        """All videos as one record."""
        return VideoEmbedding.cat(self.encoded.videos)

    def shape(self, direction: Direction) -> tuple[int, int]:
        """Number of rows and of columns."""
        texts = len(self.encoded.text)
        videos = sum(len(part) for part in self.encoded.videos)
        return (texts, videos) if direction == "t2v" else (videos, texts)

    def blocks(self, direction: Direction, size: int) -> Iterator[slice]:
        """Consecutive slices of `size` rows."""
        rows, _ = self.shape(direction)
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))

    def rows(self, direction: Direction, rows: slice) -> Float[Tensor, "r n"]:
        """Scores of some rows with the whole gallery of the direction."""
        queries = self.encoded.text[rows] if direction == "t2v" else self.gallery[rows]
        return self.with_bank(direction, queries).contiguous()

    def with_bank(self, direction: Direction, bank: Any) -> Float[Tensor, "b n"]:
        """Scores of other texts with all videos ("t2v"), or of other videos with all texts ("v2t").

        Args:
            direction: the direction.
            bank: embeddings of the other texts or videos.
        """
        text = self.encoded.text
        bank = bank.to(text.device)
        if direction == "t2v":
            return torch.cat([self.retriever.score(bank, part).total for part in self.encoded.videos], 1)
        return torch.cat([self.retriever.score(part, bank).total for part in text.split(self.block)]).mT

    def pairs(self, direction: Direction, rows: slice, columns: Int[Tensor, "r k"]) -> Float[Tensor, "r k"]:
        """Scores of each row with k columns of its own."""
        text, gallery, scores = self.encoded.text, self.gallery, []
        for row, some in zip(range(rows.start, rows.stop), columns, strict=True):
            if direction == "t2v":
                scores.append(self.retriever.score(text[row : row + 1], gallery[some]).total[0])
            else:
                scores.append(self.retriever.score(text[some], gallery[row : row + 1]).total[:, 0])
        return torch.stack(scores)

    def positives(self, direction: Direction, rows: slice) -> Bool[Tensor, "r n"]:
        """The relevant columns of some rows, on the device of the scores.

        Raises:
            InputError: the matrix has no `relevant`.
        """
        if self.relevant is None:
            raise InputError("this ScoreMatrix has no `relevant`: pass the relevant videos of each text")
        row, column = self._relevant_pairs[direction]
        first, last = torch.searchsorted(row, torch.tensor([rows.start, rows.stop])).tolist()
        positives = torch.zeros(rows.stop - rows.start, self.shape(direction)[1], dtype=torch.bool)
        positives[row[first:last] - rows.start, column[first:last]] = True
        return positives.to(self.encoded.text.device)

    @cached_property
    def _relevant_pairs(self) -> dict[str, tuple[Int[Tensor, " n"], Int[Tensor, " n"]]]:
        """Relevant (row, column) of both directions, sorted by row."""
        pairs = [(text, video) for text, videos in enumerate(self.relevant or ()) for video in sorted(videos)]
        texts, videos = torch.tensor(pairs).T.contiguous()
        order = videos.argsort(stable=True)
        return {"t2v": (texts, videos), "v2t": (videos[order], texts[order])}


def best_columns(scores: Float[Tensor, "r n"], top_k: int) -> Int[Tensor, "r k"]:
    """The columns with the highest scores of each row, best first; of equal scores the smaller column comes first.

    Args:
        scores: higher is better.
        top_k: number of columns.

    Raises:
        InputError: `top_k` is out of range.

    Examples:
        >>> import torch
        >>> best_columns(torch.tensor([[0.5, 0.9, 0.5, 0.5]]), 3).tolist()
        [[1, 0, 2]]
    """
    if not 1 <= top_k <= scores.shape[1]:
        raise InputError(f"top_k: got {top_k}, expected 1 to {scores.shape[1]}, the size of the gallery")
    values, indices = scores.topk(top_k, dim=1)
    # torch.topk takes any of equal scores: only rows with a tie at the border, or within, are sorted as a whole.
    last = values[:, -1:]
    tied = (scores == last).sum(1) > (values == last).sum(1)
    columns = indices.sort(dim=1).values
    order = scores.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    if bool(tied.any()):
        columns[tied] = scores[tied].argsort(dim=1, descending=True, stable=True)[:, :top_k]
    return columns


def merge_top_k(
    scores: Float[Tensor, "r n"], columns: Int[Tensor, "r k"], new: Float[Tensor, "r k"]
) -> Float[Tensor, "r n"]:
    """A copy of the scores with new ones for the candidates, which stay ahead of all other columns.

    If a new score is not above those of all other columns, all new scores of the row are raised by one constant: the
    order among the candidates is that of their new scores, and the other columns keep their scores. So recall beyond k
    is defined.

    Args:
        scores: higher is better.
        columns: the result of `best_columns`.
        new: scores of these columns.

    Examples:
        >>> import torch
        >>> scores, best = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([[1, 2]])
        >>> merge_top_k(scores, best, torch.tensor([[0.8, 0.9]]))
        tensor([[0.1000, 0.8000, 0.9000]])
        >>> merge_top_k(scores, best, torch.tensor([[-0.5, 0.0]])).argsort(descending=True)
        tensor([[2, 1, 0]])
    """
    if columns.shape[1] == scores.shape[1]:
        return scores.scatter(1, columns, new.to(scores))
    new = new.to(scores)
    rest = scores.scatter(1, columns, -float("inf")).amax(1, keepdim=True)
    gap = rest - new.amin(1, keepdim=True)
    below = (gap > 0) | ((gap == 0) & (scores.gather(1, columns).amin(1, keepdim=True) > rest))
    return scores.scatter(1, columns, new + (gap + 1).where(below, 0))


def rescore_best(
    scores: Float[Tensor, "r n"], top_k: int, rescore: Callable[[Tensor, Tensor], Tensor]
) -> Float[Tensor, "r n"]:
    """The scores with new ones for the best columns of each row, see `merge_top_k`.

    Args:
        scores: higher is better.
        top_k: number of columns of each row.
        rescore: `(scores (r, k), columns (r, k)) -> new scores (r, k)`.
    """
    columns = best_columns(scores, top_k)
    return merge_top_k(scores, columns, rescore(scores.gather(1, columns), columns))
