"""The candidates that re-rankers are trained on, and the ranks that select their epoch and weight."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.metrics import RankCounts, reject_nan
from prvr.evaluation.rank import count_rows
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.network import RerankerInputs
from prvr.stages import Direction, ScoreMatrix, best_columns, merge_top_k


class Candidates:
    """The candidates of training rows: the right one, and wrong ones of which some are drawn in each step. On the CPU.

    In direction "t2v" row i is query i, its own video and wrong videos; in "v2t" it is the video of query i, that query
    and wrong queries.

    Args:
        direction: "t2v" or "v2t".
        owner: `(q,)` index of the video of each query.
        hardest: `(q, p)` indices of the wrong ones of each row in the gallery, hardest first; None: the wrong ones are
            the right ones of the other rows of the step, as in DiffusionRet's code. Rows of the same video are not
            wrong for each other.

    Attributes:
        asks: `(q,)` index of the query ("t2v") or video ("v2t") of each row.
        columns: `(q, 1 + p)` indices in the gallery, the right one first; None without `hardest`.
    """

    def __init__(
        self, direction: Direction, owner: Int[Tensor, " q"], hardest: Int[Tensor, "q p"] | None = None
    ) -> None:
        queries = torch.arange(len(owner))
        self.asks, self.right = (queries, owner) if direction == "t2v" else (owner, queries)
        self.owner = owner
        self.columns = None if hardest is None else torch.cat([self.right[:, None], hardest], 1)

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
        if direction == "t2v":
            reject_nan(values.isnan().any(1), values.isnan().any(0), split.query_ids[rows], split.video_ids)
        else:
            reject_nan(values.isnan().any(0), values.isnan().any(1), split.query_ids, split.video_ids[rows])
        size = min(size, int((~positives).sum(1).min()))
        if size < 1:
            raise InputError(
                f"{split.name}: a row of direction {direction!r} has no wrong candidate to learn from. More videos are "
                "needed."
            )
        parts.append(values.masked_fill(positives, -torch.inf).topk(size, dim=1).indices.cpu())
    hardest = torch.cat([part[:, :size] for part in parts])
    return Candidates(direction, owner, hardest if direction == "t2v" else hardest[owner])


@torch.no_grad()
def counts_by_weight(
    matrix: ScoreMatrix,
    direction: Direction,
    reranker: CandidateReranker,
    inputs: RerankerInputs,
    weights: Sequence[float],
    *,
    seed: int = 0,
    block: int = 256,
) -> list[RankCounts]:
    """Ranks of every row that has something right, once for each weight; candidates are denoised once.

    Args:
        matrix: scores of the first stage.
        direction: "t2v" or "v2t".
        reranker: the re-ranker of that direction.
        inputs: embeddings that it reads.
        weights: the weights of the generated probability.
        seed: the seed of the noise, the same for every row.
        block: rows at a time.
    """
    counts: list[list[RankCounts]] = []
    for rows in matrix.blocks(direction, block):
        scores = matrix.rows(direction, rows)
        columns = best_columns(scores, min(reranker.config.candidates, scores.shape[1]))
        likely = reranker.probabilities(inputs, rows, columns, seed=seed)
        best = scores.gather(1, columns)
        new = (reranker.combined(best, likely, weight) for weight in weights)
        counts.append([count_rows(matrix, direction, rows, merge_top_k(scores, columns, each)) for each in new])
    return [RankCounts.cat(part) for part in zip(*counts, strict=True)]
