"""What a re-ranker is trained with: frozen embeddings, encoded once, and the candidates that go with them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from prvr.data import holdout
from prvr.data.packed import PackedSplit
from prvr.evaluation.encode import EncodedSplit, TextVideoModel, encode_split, evaluation_mode
from prvr.generation.candidates import CandidatePool, PairSource, candidate_pool
from prvr.generation.config import GenerationConfig
from prvr.generation.features import RerankerInputs, reranker_inputs
from prvr.generation.rows import SplitScores
from prvr.stages import CandidateReranker, Direction
from prvr.text import cat_texts
from prvr.training import Splits
from prvr.training.state import derived_seed

__all__ = ["Encode", "Material", "gathered", "learning_splits"]

Encode = Callable[..., EncodedSplit]
"""`encode_split`, or what remembers its results."""


@dataclass(frozen=True)
class Material:
    """The frozen side of a run.

    Args:
        sources: of each direction one source of pairs for each encoding of the split that is learned from.
        rows: queries that are learned from.
        selection: scores of the split that selects.
        inputs: embeddings of that split.
    """

    sources: dict[Direction, tuple[PairSource, ...]]
    rows: int
    selection: SplitScores
    inputs: RerankerInputs


def learning_splits(config: GenerationConfig, splits: Splits, fraction: float = 0.1) -> tuple[PackedSplit, PackedSplit]:
    """The split that is learned from and the one that selects; the reported split is neither.

    Where the retriever was selected on the reported split (protocol "paper"), training videos set aside select.

    Args:
        config: of stage 2.
        splits: of the retriever.
        fraction: of the training videos that are set aside where it is needed.
    """
    train, selection = splits.train, splits.selection
    if selection is splits.report:
        train, selection = holdout(train, fraction)
    return (train, selection) if config.candidates.learn_from == "train" else holdout(selection, 0.5)


def gathered(
    config: GenerationConfig,
    retriever: TextVideoModel,
    rerankers: dict[Direction, CandidateReranker],
    train: PackedSplit,
    selection: PackedSplit,
    device: torch.device,
    encode: Encode = encode_split,
) -> Material:
    """Encodes both splits once and finds the candidates.

    Raises:
        ValueError: another width than the re-rankers', embeddings that the retriever has not, or too few videos.
    """
    course, views = config.course, config.candidates.dropout_views
    if views:
        seeds = [derived_seed(course.seed, "view", view) for view in range(views)]
        encodings = [_with_dropout(retriever, train, seed, device) for seed in seeds]
    else:
        encodings = [encode(retriever, train, device=device, seed=course.seed)]
    encoded = encode(retriever, selection, device=device, seed=course.seed)
    first = next(iter(rerankers.values())).config
    sources: dict[Direction, tuple[PairSource, ...]] = {}
    with evaluation_mode(retriever, device, course.seed):
        pools = {
            direction: [
                candidate_pool(SplitScores(retriever, e, train), direction, config.candidates.pool) for e in encodings
            ]
            for direction in rerankers
        }
    inputs = [reranker_inputs(e, first) for e in encodings]
    each = course.cache_mib // (len(encodings) * len(rerankers))
    for direction, reranker in rerankers.items():
        sources[direction] = tuple(
            PairSource(reranker, i, _ordinary(pool), each) for i, pool in zip(inputs, pools[direction], strict=True)
        )
    return Material(
        sources,
        len(train.query_ids),
        SplitScores(retriever, encoded, selection),
        reranker_inputs(encoded, first),
    )


def _ordinary(pool: CandidatePool) -> CandidatePool:
    """Outside inference mode."""
    return replace(pool, asking=pool.asking.clone(), columns=pool.columns.clone())


def _with_dropout(retriever: TextVideoModel, split: PackedSplit, seed: int, device: torch.device) -> EncodedSplit:
    with evaluation_mode(retriever, device, seed):
        if isinstance(retriever, nn.Module):
            retriever.train()  # evaluation_mode puts the modes back
        videos = [retriever.encode_video(*(x.to(device) for x in batch[:3])) for batch in split.video_batches(64)]
        texts = [
            retriever.encode_text(batch.words.to(device), batch.word_mask.to(device))
            for batch in split.query_batches(256)
        ]
        return EncodedSplit(cat_texts(texts), tuple(videos))
