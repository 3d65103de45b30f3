"""The candidates that re-rankers are trained on."""

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.metrics import reject_nan
from prvr.stages import Direction, ScoreMatrix


class Candidates:
    """The candidates of training rows: the right one, and wrong ones of which some are drawn in each step. On the CPU.

    In direction "t2v" row i is query i, its own video and wrong videos; in "v2t" it is the video of query i, that query
    and wrong queries.

    Args:
        direction: "t2v" or "v2t".
        owner: `(q,)` index of the video of each query.
        hardest: `(r, p)` indices in the gallery of the wrong ones of each query ("t2v") or video ("v2t"), hardest
            first; None: the wrong ones are the right ones of the other rows of the step, as in DiffusionRet's code.
            Rows of the same video are not wrong for each other.

    Attributes:
        asks: `(q,)` index of the query ("t2v") or video ("v2t") of each row.
        columns: `(q, 1 + p)` indices in the gallery, the right one first; None without `hardest`.
    """

    def __init__(
        self, direction: Direction, owner: Int[Tensor, " q"], hardest: Int[Tensor, "r p"] | None = None
    ) -> None:
        queries = torch.arange(len(owner))
        self.asks, self.right = (queries, owner) if direction == "t2v" else (owner, queries)
        self.owner = owner
        self.columns = None if hardest is None else torch.cat([self.right[:, None], hardest[self.asks]], 1)

    def draw(self, rows: Int[Tensor, " b"], num: int, generator: torch.Generator) -> Int[Tensor, "b n"]:
        """Indices in the gallery for some rows, the right one first.

        Args:
            rows: the rows of the whole step.
            num: n, of which n - 1 are wrong; fewer where a row has fewer.
            generator: source of the draws.
        """
        if self.columns is not None:
            order = torch.rand(len(rows), self.columns.shape[1] - 1, generator=generator)
            places = F.pad(order, (1, 0), value=-1.0).argsort(1)[:, :num]
            return self.columns[rows].gather(1, places)
        owner = self.owner[rows]
        wrong = owner[:, None] != owner
        order = torch.rand(wrong.shape, generator=generator).masked_fill(~wrong, 2.0).fill_diagonal_(-1.0).argsort(1)
        return self.right[rows][order[:, : min(num, 1 + int(wrong.sum(1).min()))]]


def hard_candidates(
    scores: ScoreMatrix, split: PackedSplit, direction: Direction, size: int, block: int = 256
) -> Candidates:
    """The right candidate of each row and the `size` wrong ones that the retriever scores highest, block by block.

    Args:
        scores: the scores of the split that is learned from, with what is relevant.
        split: that split.
        direction: "t2v" or "v2t".
        size: p; capped by the row that has the fewest wrong candidates.
        block: rows scored at a time.

    Raises:
        ValueError: a row has no wrong candidate, or a score is NaN.
    """
    owner, parts = torch.from_numpy(split.query_to_video), []
    for rows in scores.blocks(direction, block):
        positives = scores.positives(direction, rows)
        values = scores.rows(direction, rows)
        queries, videos = (rows, slice(None)) if direction == "t2v" else (slice(None), rows)
        nan = (values if direction == "t2v" else values.mT).isnan()
        reject_nan(nan.any(1), nan.any(0), split.query_ids[queries], split.video_ids[videos])
        size = min(size, int((~positives).sum(1).min()))
        if size < 1:
            raise InputError(
                f"{split.name}: a row of direction {direction!r} has no wrong candidate to learn from. More videos are "
                "needed."
            )
        parts.append(values.masked_fill(positives, -torch.inf).topk(size, dim=1).indices.cpu())
    return Candidates(direction, owner, torch.cat([part[:, :size] for part in parts]))
