"""A system that teaches: its scores of the training split, which `loss.distillation` learns from."""

import logging

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.config import TrainConfig
from prvr.data.pack import PackSettings, repack
from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.rank import ranked_rows
from prvr.pipeline import System

logger = logging.getLogger(__name__)


def teacher_scores(
    system: System, split: PackedSplit, train: TrainConfig, *, device: torch.device | str | None = None
) -> Float[Tensor, "q v"]:
    """The scores of a system, after all its stages, of every query of a split with every video.

    Queries and videos are those of the split, with frames sampled as the first stage of the system reads them.
    A stage over the best candidates alone leaves the others behind them, see `prvr.stages.merge_top_k`: give one that
    teaches `top_k=all`.

    Args:
        system: what teaches, moved to `device`; modes and the random state are as before afterwards.
        split: the split that is learned from, of a corpus with the features that the system reads.
        train: the seed, and how much is encoded at a time.
        device: where to compute; default: where the parameters of the system are.

    Returns:
        `(q, v)` float16 on the host: 2 bytes for each pair, 3 GB for TVR.

    Raises:
        DataError: the features have another width than the system reads, or the corpus of the split is not known.
        InputError: a score is not finite.
    """
    pipeline = system.pipeline
    where, model = device_of(pipeline.first, device), pipeline.first.config  # pyright: ignore[reportAttributeAccessIssue]
    settings = PackSettings.of(model, system.config is None or system.config.data.keep_last_frame)
    logger.info("%s teaches: it scores %d queries with %d videos", system.folder, len(split.query_ids), len(split))
    sampled = repack(split, settings, feature_dim=model.video_dim, query_dim=model.query_dim)
    encoded = encode_split(
        pipeline,
        sampled,
        device=where,
        video_batch=train.eval_videos,
        query_batch=train.eval_queries,
        seed=train.seed,
    )
    scores = torch.empty(len(split.query_ids), len(split), dtype=torch.float16)
    with evaluation_mode(pipeline, where, train.seed):
        for rows, some in ranked_rows(pipeline, encoded, "t2v", train.eval_queries):
            scores[rows] = some.to("cpu", torch.float16)
            if not bool(scores[rows].isfinite().all()):
                row = rows.start + int(scores[rows].isfinite().all(1).int().argmin())
                raise InputError(
                    f"{system.folder}: its scores of query {split.query_ids[row]!r} are not finite, or above 65504: "
                    "a system whose scores are a sum of cosines can teach, this one cannot"
                )
    return scores
