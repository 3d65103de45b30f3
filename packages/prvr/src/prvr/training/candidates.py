"""The candidates that re-rankers are trained on, and the ranks that select their epoch and weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.metrics import RankCounts
from prvr.evaluation.rank import count_rows
from prvr.stages import CandidateReranker, Direction, RerankerInputs, ScoreMatrix, best_columns, merge_top_k
from prvr.stages.diffusion.pooling import Pairs


@dataclass(frozen=True)
class CandidatePool:
    """Who asks and what there is to be found, one row for each query of the split, in either direction.

    In direction "t2v" row i is query i, its own video and wrong videos; in "v2t" it is the video of query i, that query
    and wrong queries. The video (query) that is right stands in column 0; the network knows no order.

    Args:
        asking: `(q,)` number of the query ("t2v") or video ("v2t") that asks.
        columns: `(q, 1 + p)` numbers in the gallery, the right one first, then the hardest wrong ones, hardest first.
    """

    asking: Int[Tensor, " q"]
    columns: Int[Tensor, "q c"]

    def __len__(self) -> int:
        return len(self.asking)

    def draw(self, rows: int, num: int, generator: torch.Generator) -> Int[Tensor, "r n"]:
        """Places in `columns` for some rows: the right one and `num - 1` different wrong ones each.

        Args:
            rows: r.
            num: n; fewer where the pool is smaller.
            generator: source of the draws, on the CPU.
        """
        wrong = self.columns.shape[1] - 1
        order = torch.rand(rows, wrong, generator=generator).argsort(1)[:, : num - 1] + 1
        return torch.cat([torch.zeros(rows, 1, dtype=order.dtype), order], 1).to(self.columns.device)


def candidate_pool(
    scores: ScoreMatrix, split: PackedSplit, direction: Direction, size: int, block: int = 256
) -> CandidatePool:
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
    owner = torch.from_numpy(split.query_to_video).to(scores.encoded.text.device)
    found = []
    for rows in scores.blocks(direction, block):
        positives = scores.positives(direction, rows)
        values = scores.rows(direction, rows)
        if bool(values.isnan().any()):
            row = rows.start + int(values.isnan().any(1).int().argmax())
            what = "query" if direction == "t2v" else "video"
            raise InputError(f"scores are NaN for {what} {row} of {split.name}: a {what} without valid features?")
        wrong = int((~positives).sum(1).min())
        if wrong < 1:
            raise InputError(
                f"{split.name}: a row of direction {direction!r} has no wrong candidate to learn from: more "
                "videos are needed"
            )
        size = min(size, wrong)
        found.append(values.masked_fill(positives, -torch.inf).topk(size, dim=1).indices)
    hardest = torch.cat([part[:, :size] for part in found])
    queries = torch.arange(len(owner), device=owner.device)
    if direction == "t2v":
        return CandidatePool(queries, torch.cat([owner[:, None], hardest], 1))
    return CandidatePool(owner, torch.cat([queries[:, None], hardest[owner]], 1))


class BatchSource:
    """Pairs of a training step whose wrong candidates are the right ones of its other rows (DiffusionRet's code).

    Rows of the same video are not wrong for each other.

    Args:
        reranker: whose pooling is meant.
        inputs: embeddings of the split.
        owner: `(q,)` number of the video of each query, on the CPU.
    """

    def __init__(self, reranker: CandidateReranker, inputs: RerankerInputs, owner: Int[Tensor, " q"]) -> None:
        self.view, self.attention, self.inputs, self.owner = reranker.view, reranker.pool, inputs, owner
        queries = torch.arange(len(owner))
        self.asking = (queries if self.view.name == "t2v" else owner).to(inputs.text.device)

    def draw(self, rows: Int[Tensor, " b"], num: int, generator: torch.Generator) -> Int[Tensor, "b n"]:
        """Numbers in the gallery, the right one of each row first; fewer where a row has fewer wrong ones.

        Args:
            rows: the rows of the whole step, on the CPU.
            num: n.
            generator: source of the draws, on the CPU.
        """
        owner = self.owner[rows]
        wrong = owner[:, None] != owner
        order = torch.rand(wrong.shape, generator=generator).masked_fill(~wrong, 2.0).fill_diagonal_(-1.0).argsort(1)
        right = owner if self.view.name == "t2v" else rows
        return right[order[:, : min(num, 1 + int(wrong.sum(1).min()))]].to(self.inputs.text.device)

    def pairs(self, rows: Int[Tensor, " r"], picked: Int[Tensor, "r n"]) -> Pairs:
        """Queries and candidates of some rows, as `draw` gave them."""
        inputs = self.inputs
        return self.view.gather(self.attention, inputs.text, inputs.frames, inputs.mask, self.asking[rows], picked)

    def target(self, picked: Int[Tensor, "r n"]) -> Bool[Tensor, "r n"]:
        """Which of them is right: the first."""
        return (torch.arange(picked.shape[1], device=picked.device) == 0).expand_as(picked)


class PairSource:
    """Pooled queries and candidates of training rows: pooled once and kept where they fit, else in each step.

    The text-frame attention has no parameters and the embeddings are frozen: what it gives never changes.

    Args:
        reranker: whose pooling is meant.
        inputs: embeddings of the split.
        pool: rows and their candidates.
        cache_mib: most memory to keep pooled vectors in.
    """

    def __init__(
        self, reranker: CandidateReranker, inputs: RerankerInputs, pool: CandidatePool, cache_mib: int
    ) -> None:
        self.view, self.attention, self.inputs, self.pool = reranker.view, reranker.pool, inputs, pool
        size = pool.columns.numel() * inputs.text.shape[-1] * inputs.text.element_size()
        self.kept: Float[Tensor, "q c d"] | None = None
        if size <= cache_mib * 2**20:
            parts = [self._pooled(rows) for rows in torch.arange(len(pool), device=pool.asking.device).split(128)]
            self.kept = torch.cat(parts)

    def _gather(self, rows: Tensor, columns: Tensor) -> Pairs:
        text, frames, mask = self.inputs.text, self.inputs.frames, self.inputs.mask
        return self.view.gather(self.attention, text, frames, mask, self.pool.asking[rows], columns)

    def _pooled(self, rows: Tensor) -> Tensor:
        pairs = self._gather(rows, self.pool.columns[rows])
        return pairs.candidates if self.view.name == "t2v" else pairs.queries

    def draw(self, rows: Int[Tensor, " b"], num: int, generator: torch.Generator) -> Int[Tensor, "b n"]:
        """Places in `pool.columns`, see `CandidatePool.draw`."""
        return self.pool.draw(len(rows), num, generator)

    def pairs(self, rows: Int[Tensor, " r"], picked: Int[Tensor, "r n"]) -> Pairs:
        """Queries and candidates of some rows.

        Args:
            rows: numbers of the rows.
            picked: as `draw` gives them.
        """
        columns = self.pool.columns[rows].gather(1, picked)
        if self.kept is None:
            return self._gather(rows, columns)
        pooled = self.kept[rows[:, None], picked]
        if self.view.name == "t2v":
            return Pairs(self.inputs.text[self.pool.asking[rows]][:, None], pooled)
        return Pairs(pooled, self.inputs.text[columns])

    def target(self, picked: Int[Tensor, "r n"]) -> Bool[Tensor, "r n"]:
        """Which of them is right."""
        return picked == 0


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
    found: list[list[RankCounts]] = [[] for _ in weights]
    for rows in matrix.blocks(direction, block):
        scores = matrix.rows(direction, rows)
        columns = best_columns(scores, min(reranker.config.candidates, scores.shape[1]))
        pairs = reranker.view.gather(reranker.pool, inputs.text, inputs.frames, inputs.mask, rows, columns)
        likely, best = reranker.probabilities(pairs, seed=seed), scores.gather(1, columns)
        for counts, weight in zip(found, weights, strict=True):
            reranked = merge_top_k(scores, columns, reranker.combined(best, likely, weight))
            counts.append(count_rows(matrix, direction, rows, reranked))
    return [RankCounts.cat(part) for part in found]
