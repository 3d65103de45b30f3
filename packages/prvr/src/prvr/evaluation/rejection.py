"""Queries that no video answers (generalised moment retrieval, arXiv 2605.02623): told apart by their best score."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float

from prvr.errors import InputError
from prvr.evaluation.encode import evaluation_mode
from prvr.evaluation.lists import ranked_rows
from prvr.evaluation.report import Rejection
from prvr.evaluation.significance import Interval
from prvr.stages.matrix import EncodedSplit
from prvr.stages.pipelines import Pipeline


def rejection(pipeline: Pipeline, encoded: EncodedSplit, unanswered: EncodedSplit, seed: int = 0) -> Rejection:
    """How well the best score in a gallery tells its queries from others that none of its videos answers.

    Args:
        pipeline: ranks the gallery.
        encoded: the gallery with its own queries, see `encode_split`.
        unanswered: a split whose queries are the others; its videos are not read.
        seed: the seed of samples that the model draws.

    Raises:
        InputError: fewer than two queries of a kind, or a score that is not finite.
    """
    pairs = zip(encoded.stages, unanswered.stages, strict=True)
    stages = tuple(None if a is None or b is None else replace(a, text=b.text) for a, b in pairs)
    others = replace(encoded, text=unanswered.text, query_ids=unanswered.query_ids, stages=stages)
    with evaluation_mode(pipeline, encoded.text.device, seed):
        own, other = (
            torch.cat([scores.amax(1) for _, scores in ranked_rows(pipeline, each, "t2v")]).double().cpu().numpy()
            for each in (encoded, others)
        )
    return Rejection(*rejection_auroc(own, other), len(other))


def rejection_auroc(answered: Float[np.ndarray, " q"], unanswered: Float[np.ndarray, " u"]) -> tuple[float, Interval]:
    """The area under the ROC curve of the best scores of queries, with its 95 % interval (DeLong et al. 1988).

    It is the share of pairs of a query that some video answers and one that none does in which the first has the higher
    score, pairs of equal scores by half: 0.5 by chance, 1 where one threshold rejects all of the second and none of the
    first. Queries count as drawn independently of each other.

    Args:
        answered: the best score of each query that a video answers.
        unanswered: that of each other query.

    Raises:
        InputError: fewer than two scores of a kind, or one that is not finite.

    Examples:
        >>> area, interval = rejection_auroc(np.array([0.9, 0.8, 0.4]), np.array([0.5, 0.3]))
        >>> round(area, 3), round(interval.low, 3), interval.high
        (0.833, 0.371, 1.0)
    """
    if min(len(answered), len(unanswered)) < 2 or not np.isfinite([*answered, *unanswered]).all():
        raise InputError(
            f"rejection: {len(answered)} and {len(unanswered)} scores, expected at least two finite ones of each kind"
        )

    def places(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The share of others that each score is above."""
        ordered = np.sort(others)
        return (np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, "right")) / (2 * len(others))

    above, below = places(answered, unanswered), places(unanswered, answered)
    area = float(above.mean())
    error = NormalDist().inv_cdf(0.975) * np.sqrt(sum(x.var(ddof=1) / len(x) for x in (above, below)))
    return area, Interval(max(0.0, float(area - error)), min(1.0, float(area + error)))
