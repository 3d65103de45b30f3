"""Similarity of queries with videos: the maximum over a video's clips and frames, and where in time it lies.

Evaluation and search call the same functions, so that the metric and the ranked list cannot disagree.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["at_least_float32", "best_moment", "clip_scores", "max_scores"]


def at_least_float32(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Half-precision input as float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def max_scores(
    text: Float[Tensor, "q d"],
    tokens: Float[Tensor, "v l d"],
    mask: Bool[Tensor, "v l"] | None = None,
    dots: bool = True,
) -> tuple[Float[Tensor, "q v"], Float[Tensor, "q v"] | None]:
    r"""$\max_j \cos(q, v_j)$ and $\max_j q \cdot v_j$ over a video's valid rows (HLFormer eq. 8-9).

    Args:
        text: `(q, d)` query embeddings.
        tokens: `(v, l, d)` clip or frame embeddings.
        mask: `(v, l)` True = valid; None = every row counts.
        dots: also give the maxima of the plain dot products.

    Example:
        >>> text = torch.tensor([[1.0, 0.0]])
        >>> tokens = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        >>> [s.tolist() for s in max_scores(text, tokens)]
        [[[1.0]], [[2.0]]]
    """
    # Never below float32, autocast or not: InfoNCE takes the exponential of these dot products.
    with torch.autocast(text.device.type, enabled=False):
        text, tokens = at_least_float32(text), at_least_float32(tokens)
        if not dots:
            return _max_cosine(text, tokens, mask), None
        dot = torch.einsum("qd,vld->qvl", text, tokens)
    # A query's own length does not move its maximum: it is divided out of the (q, v) result, not of every row.
    cosine = dot * tokens.norm(dim=-1).clamp_min(1e-12).reciprocal()
    if mask is not None:
        cosine, dot = cosine.masked_fill(~mask, -torch.inf), dot.masked_fill(~mask, -torch.inf)
    return cosine.amax(-1) / text.norm(dim=-1).clamp_min(1e-12)[:, None], dot.amax(-1)


def _max_cosine(
    text: Float[Tensor, "q d"], tokens: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"] | None
) -> Float[Tensor, "q v"]:
    """Maximum cosine alone, as one matrix product that carries the mask in its bias."""
    rows = F.normalize(tokens, dim=-1, eps=1e-12).flatten(0, 1)
    unit = F.normalize(text, dim=-1, eps=1e-12)
    if mask is None:
        cosine = unit @ rows.mT
    else:
        bias = torch.zeros_like(mask, dtype=rows.dtype).masked_fill(~mask, -torch.inf)
        cosine = torch.addmm(bias.flatten(), unit, rows.mT)
    return cosine.unflatten(1, tokens.shape[:2]).amax(-1)


def clip_scores(text: Float[Tensor, "q d"], clips: Float[Tensor, "v c d"]) -> Float[Tensor, "q v c"]:
    """Cosine of every query with every clip."""
    return torch.einsum("qd,vcd->qvc", F.normalize(text, dim=-1), F.normalize(clips, dim=-1))


def best_moment(scores: Float[Tensor, " c"], duration: float) -> tuple[float, float]:
    """The moment that answers best, in seconds: the run of clips (or frames) around the highest score.

    Scores are first averaged over a sixteenth of the video, because neighbours see nearly the same. From the best one
    the run then grows both ways while the score stays above half way between the median and the best.
    Clip i of c covers [i, i + 1) / c of the video.

    Args:
        scores: `(c,)` cosine of one query with each clip or frame of one video, in time order.
        duration: length of the video in seconds.

    Example:
        >>> best_moment(torch.tensor([0.1, 0.9, 0.8, 0.1]), duration=40.0)
        (10.0, 30.0)
    """
    reach = round(len(scores) / 32)
    if reach:
        padded = F.pad(scores[None, None], (reach, reach), mode="replicate")
        scores = F.avg_pool1d(padded, 2 * reach + 1, stride=1)[0, 0]
    peak = int(scores.argmax())
    level = 0.5 * (scores[peak] + scores.median())
    keep = (scores >= level).tolist()
    first = last = peak
    while first > 0 and keep[first - 1]:
        first -= 1
    while last < len(keep) - 1 and keep[last + 1]:
        last += 1
    unit = duration / len(keep)
    return first * unit, (last + 1) * unit
