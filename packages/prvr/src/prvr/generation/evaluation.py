"""A split ranked by a retriever and a re-ranker together: blocks of rows, best candidates only, both directions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation import RATIO_EDGES, Progress, report_from_counts
from prvr.evaluation.encode import EncodedSplit, TextVideoModel, device_of, encode_split, evaluation_mode
from prvr.evaluation.metrics import RankCounts, RetrievalMetrics, Ties, count_ranks, text_to_text_ranks
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.streaming import stream_set_counts
from prvr.generation.features import RerankerInputs, fingerprint, reranker_inputs
from prvr.generation.rows import SplitScores
from prvr.stages import CandidateReranker, Direction, QueryBank
from prvr.stages.merge import expect_top_k, placed
from prvr.text import sentences

__all__ = ["evaluate_reranked", "expect_fits", "ranked_counts", "ranked_rows", "training_banks"]


@torch.no_grad()
def ranked_rows(
    scores: SplitScores,
    direction: Direction,
    reranker: CandidateReranker | None = None,
    inputs: RerankerInputs | None = None,
    weights: Sequence[float] = (0.0,),
    *,
    bank: QueryBank | None = None,
    top_k: int | None = None,
    num_steps: int | None = None,
    seed: int = 0,
    block: int = 256,
) -> Iterator[tuple[slice, list[Float[Tensor, "r n"]]]]:
    """The score matrix, some rows at a time, after all that is put on top of the retriever.

    What is held at a time is `block` rows of scores; the candidates are denoised once, whatever the number of weights.

    Args:
        scores: of the split.
        direction: who asks.
        reranker: in the same direction; None = the retriever alone.
        inputs: embeddings for the re-ranker.
        weights: of the generated probability.
        bank: takes the scores through QB-Norm first.
        top_k: how many are re-ranked; None = `config.candidates`, or all of a smaller gallery.
        num_steps: of the sampler; None = as configured.
        seed: of the noise, the same for every row.
        block: rows at a time.

    Yields:
        which rows, and their scores with the whole gallery, once for each weight.

    Raises:
        ValueError: `top_k` beyond the gallery, more steps than trained, or a NaN.
    """
    if reranker is not None and top_k is None:
        top_k = min(reranker.config.candidates, scores.gallery(direction))
    for rows in scores.blocks(direction, block):
        values = scores.rows(direction, rows)
        if bank is not None:
            values = bank.normalise(values)
        if reranker is None or inputs is None or top_k is None:
            yield rows, [values] * len(weights)
            continue
        expect_top_k(top_k, values.shape[1])
        chosen = values.topk(top_k, dim=1).indices
        pairs = reranker.view.gather(reranker.pool, inputs.text, inputs.frames, inputs.mask, rows, chosen)
        likely = reranker.probabilities(pairs, num_steps=num_steps, seed=seed)
        yield rows, [placed(values, chosen, likely, weight, reranker.config.combine) for weight in weights]


def ranked_counts(
    scores: SplitScores,
    direction: Direction,
    reranker: CandidateReranker | None = None,
    inputs: RerankerInputs | None = None,
    weights: Sequence[float] = (0.0,),
    **options: Any,
) -> list[RankCounts]:
    """Ranks of every row that has something right, once for each weight of the generated probability.

    Args:
        scores, direction, reranker, inputs, weights: as in `ranked_rows`.
        options: the others of `ranked_rows`.

    Raises:
        ValueError: as there.
    """
    found: list[list[RankCounts]] = [[] for _ in weights]
    for rows, matrices in ranked_rows(scores, direction, reranker, inputs, weights, **options):
        for counts, matrix in zip(found, matrices, strict=True):
            counts.append(_counted(scores, direction, rows, matrix))
    return [RankCounts.cat(part) for part in found]


def _counted(scores: SplitScores, direction: Direction, rows: slice, matrix: Tensor) -> RankCounts:
    right = scores.positives(direction, rows)
    kept = right.any(1)  # a video without a query asks nothing
    return count_ranks(matrix[kept], right[kept])


@torch.no_grad()
def training_banks(
    retriever: TextVideoModel, training: EncodedSplit, scores: SplitScores, *, beta: float = 20.0, block: int = 256
) -> dict[Direction, QueryBank]:
    """The banks of QB-Norm for both directions of a split: training queries with its videos, training videos with its
    queries.

    Args:
        retriever: the model.
        training: embeddings of the training split.
        scores: of the split that is ranked.
        beta: inverse temperature, see `prvr.stages.qb_norm`.
        block: queries scored at a time.
    """
    texts = [
        torch.cat(
            [retriever.score(training.text[start : start + block], part).total for part in scores.encoded.videos], 1
        )
        for start in range(0, len(training.text), block)
    ]
    videos = []
    for part in training.videos:
        rows = range(0, scores.queries, block)
        asked = [retriever.score(scores.encoded.text[start : start + block], part).total for start in rows]
        videos.append(torch.cat(asked).mT)
    return {"t2v": _bank(texts, beta), "v2t": _bank(videos, beta)}


def _bank(blocks: Sequence[Tensor], beta: float) -> QueryBank:
    first, *rest = (QueryBank.of(block, beta) for block in blocks)
    return sum(rest, start=first)


def expect_fits(
    retriever: TextVideoModel,
    split: PackedSplit,
    rerankers: Mapping[Direction, CandidateReranker],
    top_k: int | None = None,
    num_steps: int | None = None,
) -> None:
    """Refuse, before anything is computed, what `evaluate_reranked` cannot do.

    Raises:
        ValueError: a re-ranker of another retriever or direction, `top_k` beyond the gallery, or more steps than
            trained.
    """
    name = fingerprint(retriever) if rerankers and isinstance(retriever, torch.nn.Module) else None
    for direction, reranker in rerankers.items():
        if reranker.direction != direction:
            raise InputError(f"rerankers[{direction!r}] is of direction {reranker.direction!r}")
        if name is not None:
            reranker.expect_trained_on(name)
        if top_k is not None:
            expect_top_k(top_k, len(split) if direction == "t2v" else len(split.query_ids))
        if num_steps is not None and not 1 <= num_steps <= reranker.config.steps:
            raise InputError(
                f"num_steps: got {num_steps}, expected 1 to {reranker.config.steps}, the steps that this re-ranker was "
                "trained for: a step that was never trained has no meaning"
            )


def evaluate_reranked(
    retriever: TextVideoModel,
    split: PackedSplit,
    rerankers: Mapping[Direction, CandidateReranker],
    *,
    banks: Mapping[Direction, QueryBank] | None = None,
    encoded: EncodedSplit | None = None,
    weight: float | None = None,
    top_k: int | None = None,
    num_steps: int | None = None,
    device: torch.device | str | None = None,
    block: int = 256,
    ties: Ties = "worst",
    bootstrap: int = 1000,
    seed: int = 0,
    caption_sets: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """What `prvr.evaluation.evaluate` reports, with the best candidates of every row re-ranked.

    Everything is deterministic: every row starts from the same noise of `seed`.

    Args:
        retriever: the model whose embeddings the re-rankers were trained on.
        split: a packed split.
        rerankers: of one direction or both; a direction without one keeps the retriever's order.
        banks: of one direction or both, what `training_banks` gave: those scores go through QB-Norm first.
        encoded: what `encode_split` gave for this split; default: encode it now.
        weight: of the probability; None = each re-ranker's own.
        top_k, num_steps: as in `CandidateReranker.rerank`.
        device: where to compute; default: where the retriever is.
        block: rows at a time; memory and speed only.
        ties, bootstrap, seed, caption_sets: as in `prvr.evaluation.evaluate`.
        progress: called with ("t2v" or "v2t", 0 or 1, 1), and by `encode_split`.

    Raises:
        ValueError: a re-ranker of another retriever, width or direction, `top_k` beyond the gallery, more steps than
            trained, or an embedding that is not finite (names the query).
    """
    expect_fits(retriever, split, rerankers, top_k, num_steps)
    where = device_of(retriever, device)
    encoded = encode_split(retriever, split, device=where, seed=seed, progress=progress) if encoded is None else encoded
    finite = sentences(encoded.text).isfinite().all(1)
    if not bool(finite.all()):
        query = split.query_ids[int(finite.int().argmin())]
        raise InputError(f"the embedding of query {query!r} is not finite: a query without a valid word? Leave it out")
    scores = SplitScores(retriever, encoded, split)
    owner, counts, sets = torch.from_numpy(split.query_to_video), dict[Direction, RankCounts](), list[RankCounts]()
    directions: tuple[Direction, ...] = ("t2v", "v2t")
    queries = [slice(0, len(owner))]
    with evaluation_mode(retriever, where, seed):
        for direction in directions:
            reranker, inputs = rerankers.get(direction), None
            if progress is not None:
                progress(direction, 0, 1)
            if reranker is not None:
                inputs = reranker_inputs(encoded, reranker.config)
                reranker.to(where)
            chosen = 0.0 if reranker is None else reranker.config.weight if weight is None else weight
            parts = []
            for rows, (matrix,) in ranked_rows(
                scores,
                direction,
                reranker,
                inputs,
                (chosen,),
                bank=None if banks is None else banks.get(direction),
                top_k=top_k,
                num_steps=num_steps,
                seed=seed,
                block=block,
            ):
                parts.append(_counted(scores, direction, rows, matrix))
                if caption_sets and direction == "v2t":
                    sets.append(stream_set_counts(lambda q, _, of=matrix: of.mT[q], owner, queries, [rows]))
            counts[direction] = RankCounts.cat(parts).cpu()
            if progress is not None:
                progress(direction, 1, 1)
        siblings = text_to_text_ranks(sentences(encoded.text), owner.to(where), ties).cpu()
    misses = len(owner) - len(siblings)
    return report_from_counts(
        split,
        counts["t2v"],
        counts["v2t"],
        RetrievalMetrics.from_ranks(siblings, misses=misses) if len(siblings) else None,
        RankCounts.cat(sets).cpu() if sets else None,
        ties=ties,
        bootstrap=bootstrap,
        seed=seed,
        ratio_edges=RATIO_EDGES,
    )
