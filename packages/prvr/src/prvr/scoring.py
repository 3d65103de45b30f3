"""Similarity of queries with videos: the maximum over clips and frames and where in time it lies, or token by token.

Evaluation and search call the same functions, so that the metric and the ranked list cannot disagree.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from prvr.errors import InputError
from prvr.types import Scorer, TextEmbedding, Texts, VideoEmbedding, expect_mask

#: Cosines of words with frames held at a time: 64 MB of float32.
_BLOCK = 2**24
#: Best frames of words in videos that are kept for gradients, 100 MB; of more, blocks are computed again.
_KEPT = 2**23


def at_least_float32(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Converts half precision to float32; float32 and float64 are returned unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast, which meta tensors, on which shapes alone are computed, do not know."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def unit_rows(x: Float[Tensor, "*s d"]) -> Float[Tensor, "*s d"]:
    """Rows scaled to unit length, float32 at least; rows of zeros stay zero."""
    return F.normalize(at_least_float32(x), dim=-1, eps=1e-12)


def normalised(video: VideoEmbedding) -> VideoEmbedding:
    """Copy whose clips and frames have unit length, scaled once for all queries that they are compared with.

    Cosines stay bit for bit the same; dot products do not.

    Examples:
        >>> video = normalised(VideoEmbedding(clips=torch.tensor([[[3.0, 4.0]]])))
        >>> video.unit, [round(x, 2) for x in video.clips.flatten().tolist()]
        (True, [0.6, 0.8])
    """
    if video.unit:
        return video
    clips, frames = (None if t is None else unit_rows(t) for t in (video.clips, video.frames))
    path, stream = (None if part is None else normalised(part) for part in (video.path, video.stream))
    return replace(video, clips=clips, frames=frames, path=path, stream=stream, unit=True)


def max_scores(
    text: Float[Tensor, "q d"],
    tokens: Float[Tensor, "v l d"],
    mask: Bool[Tensor, "v l"] | None = None,
    dots: bool = True,
    *,
    unit: bool = False,
) -> tuple[Float[Tensor, "q v"], Float[Tensor, "q v"] | None]:
    r"""$\max_j \cos(q, v_j)$ and $\max_j q \cdot v_j$ over a video's valid rows (HLFormer eq. 8-9).

    Args:
        text: `(q, d)` query embeddings.
        tokens: `(v, l, d)` clip or frame embeddings.
        mask: `(v, l)` True = valid; None = every row counts.
        dots: also give the maxima of the plain dot products.
        unit: the rows already have unit length; excludes `dots`, which need the original rows.

    Raises:
        ValueError: `unit` with `dots`.

    Examples:
        >>> text = torch.tensor([[1.0, 0.0]])
        >>> tokens = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        >>> [s.tolist() for s in max_scores(text, tokens)]
        [[[1.0]], [[2.0]]]
    """
    if unit and dots:
        raise InputError("max_scores: unit=True with dots=True: dot products need the rows as they were encoded")
    # Never below float32, autocast or not: InfoNCE takes the exponential of these dot products.
    with full_precision(text.device):
        if not dots:
            return _max_cosine(unit_rows(text), tokens, mask, unit), None
        text, tokens = at_least_float32(text), at_least_float32(tokens)
        dot = torch.einsum("qd,vld->qvl", text, tokens)
    # The norm of a query does not move its maximum, so it is divided out of the (q, v) result instead of every row.
    cosine = dot * tokens.norm(dim=-1).clamp_min(1e-12).reciprocal()
    if mask is not None:
        cosine = cosine.masked_fill(~mask, -torch.inf)
        dot = dot.masked_fill(~mask, -torch.inf)
    return cosine.amax(-1) / text.norm(dim=-1).clamp_min(1e-12)[:, None], dot.amax(-1)


def _max_cosine(
    text: Float[Tensor, "q d"], tokens: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"] | None, unit: bool
) -> Float[Tensor, "q v"]:
    """Maximum cosine with unit queries, by matrix products that carry the mask in their bias."""
    videos = max(1, _rows_at_a_time(text, tokens, unit) // max(1, tokens.shape[1]))
    parts = []
    for part in _slices(max(1, len(tokens)), videos):
        rows, bias = tokens[part], None
        if mask is not None:
            invalid = ~mask[part].flatten()
            bias = torch.zeros_like(invalid, dtype=text.dtype).masked_fill(invalid, -torch.inf)
        cosine = _cosines(text, rows.flatten(0, 1), unit, bias)
        parts.append(cosine.unflatten(1, rows.shape[:2]).amax(-1))
    return torch.cat(parts, 1)


def _in_half(text: Tensor, rows: Tensor, unit: bool) -> bool:
    """Whether products take the rows as they are stored; torch has the operator, without a gradient, for CUDA alone."""
    half = unit and rows.is_cuda and (text.dtype, rows.dtype) == (torch.float32, torch.float16)
    needs_gradient = torch.is_grad_enabled() and (text.requires_grad or rows.requires_grad)
    return half and not needs_gradient and "dtype" in torch.ops.aten.mm.overloads()


def _rows_at_a_time(text: Tensor, rows: Tensor, unit: bool) -> int:
    """So many that their scores, and a copy in float32 where products need one, fit into a block."""
    copied = not (unit and (rows.itemsize >= 4 or _in_half(text, rows, unit)))
    return max(1, _BLOCK // max(1, 2 * len(text), rows.shape[-1] * copied))


def _cosines(text: Tensor, rows: Tensor, unit: bool, bias: Tensor | None) -> Tensor:
    """Cosines of unit queries with rows, in float32 at least."""
    if _in_half(text, rows, unit):
        # Two numbers of 11 bits and their signs hold the 24 of a float32; what is read once is multiplied with both.
        high = text.half()
        text = torch.cat([high, ((text - high) * 2.0**11).half()])
        cosine = torch.add(*torch.mm(text, rows.mT, out_dtype=torch.float32).chunk(2), alpha=2.0**-11)
        return cosine if bias is None else cosine.add_(bias)
    rows = at_least_float32(rows) if unit else unit_rows(rows)
    return torch.mm(text, rows.mT) if bias is None else torch.addmm(bias, text, rows.mT)


def clip_scores(text: Float[Tensor, "q d"], clips: Float[Tensor, "v c d"]) -> Float[Tensor, "q v c"]:
    """Cosine of every query with every clip."""
    return torch.einsum("qd,vcd->qvc", F.normalize(text, dim=-1), F.normalize(clips, dim=-1))


def row_scores(
    scorer: Scorer, text: Texts, video: VideoEmbedding
) -> tuple[Float[Tensor, "q t"], Float[Tensor, "t 2"] | None] | None:
    """The score of each row of a video in order of time, as `scorer` gives it to a video of this row alone.

    Rows are frames, with the clip at the time of each; or clips, where they say which part of the video they are, or
    where frames are pooled to one. Beside blocks the rows of a kernel path are scored, by their cosines.

    Args:
        scorer: what ranks videos.
        text: the queries.
        video: one video; frames that `frame_mask` leaves out are no rows.

    Returns:
        The scores, and where each row begins and ends as shares of the video, or None for equal parts; None in place of
        both for a video of one row, or of one clip beside frames that are not read, which says nothing of when.

    Examples:
        >>> from prvr.models import Retriever
        >>> from prvr.config import ModelConfig
        >>> retriever = Retriever(ModelConfig(video_dim=16, query_dim=12, hidden=2, heads=2))
        >>> video = VideoEmbedding(torch.tensor([[[3.0, 0.0], [0.0, 2.0]]]))
        >>> row_scores(retriever, torch.tensor([[1.0, 0.0]]), video)
        (tensor([[1., 0.]]), None)
    """
    clips, frames, spans = video.clips, video.frames, video.clip_spans
    if video.path is not None and isinstance(text, TextEmbedding) and text.path is not None:
        path = video.path  # whose rows an index holds; what the blocks re-rank keeps its moments
        assert path.frames is not None
        rows = path.frames if path.frame_mask is None else path.frames[path.frame_mask][None]
        return clip_scores(text.path, rows)[:, 0], None
    if clips is not None and (spans is not None or frames is None or frames.shape[1] == 1):
        if clips.shape[1] == 1 and spans is None:
            return None
        steps = VideoEmbedding(clips[0, :, None], unit=video.unit)
    elif frames is not None and frames.shape[1] > 1:
        rows = frames[0] if video.frame_mask is None else frames[video.frame_mask]
        every = torch.ones(len(rows), 1, dtype=torch.bool, device=rows.device)
        beside = None if clips is None else at_steps(clips[0], len(rows))[:, None]
        steps = VideoEmbedding(beside, rows[:, None], every, unit=video.unit)
    else:
        return None
    if video.registers is not None:
        steps = replace(steps, registers=video.registers.expand(len(steps), -1, -1))
    if frames is not None and clips is not None and clips.shape[1] == 1 and spans is None:
        one, other = steps[:1], replace(steps[:1], frames=frames[:, :1] + 1)
        if torch.equal(scorer.score(text, one).total, scorer.score(text, other).total):
            return None
    return scorer.score(text, steps).total, None if spans is None or clips is None else spans[0]


def at_steps(clips: Float[Tensor, "c *d"], steps: int) -> Float[Tensor, "t *d"]:
    """The clip in the middle of each of t equal steps of time; clips share the time evenly too.

    Examples:
        >>> at_steps(torch.tensor([0.0, 1.0]), 4).tolist()
        [0.0, 0.0, 1.0, 1.0]
    """
    return clips[(2 * torch.arange(steps, device=clips.device) + 1) * len(clips) // (2 * steps)]


def best_moment(scores: Float[Tensor, " t"], duration: float, median: float | None = None) -> tuple[float, float]:
    """The best moment in seconds: the highest score of a video and its neighbours on both sides that reach
    [moment_level][prvr.scoring.moment_level].

    Score i of t covers [i, i + 1) / t of the video. Nothing is averaged: on the toy world averages over a 32nd of the
    video and more cost precision, and moved the moment away from the highest score.

    Args:
        scores: `(t,)` of one query with each clip or frame of one video in order of time, or the sum of both at the
            time of each frame.
        duration: length of the video in seconds.
        median: the median score of the video; default: that of `scores`.

    Examples:
        >>> best_moment(torch.tensor([0.1, 0.9, 0.8, 0.1]), duration=40.0)
        (10.0, 30.0)
    """
    level = moment_level(float(scores.max()), float(scores.median()) if median is None else median)
    start = int(scores.argmax())  # neighbours are few: a loop costs less than operators over all
    line, stop = (scores < level).tolist(), start + 1
    while start and not line[start - 1]:
        start -= 1
    while stop < len(line) and not line[stop]:
        stop += 1
    unit = duration / len(line)
    return start * unit, stop * unit


def _run_around(
    scores: Float[Tensor, "n t"], place: Int[Tensor, " n"], level: Float[Tensor, " n"]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """The first of the neighbours around a place that reach the level, and the one after the last."""
    steps, below = torch.arange(scores.shape[1], device=scores.device), scores < level[:, None]
    start = torch.where(below & (steps < place[:, None]), steps + 1, 0).amax(1)
    return start, torch.where(below & (steps > place[:, None]), steps, len(steps)).amin(1)


@dataclass(frozen=True)
class MomentLists:
    """Moments of one video for each of n queries, the best one first.

    Args:
        start, stop: `(n, m)` where each begins and ends, in a video from 0 to `length`.
        score: `(n, m)` the highest score in it.
        valid: `(n, m)` True = a moment; the first of each query is one.
        length: of the video.
    """

    start: Float[Tensor, "n m"]
    stop: Float[Tensor, "n m"]
    score: Float[Tensor, "n m"]
    valid: Bool[Tensor, "n m"]
    length: float


def ranked_moments(scores: Float[Tensor, "n t"], overlap: float = 0.5) -> MomentLists:
    """Several moments of a video: the best one, then that around the highest score outside of all before, and so on.

    Each is bounded as [best_moment][prvr.scoring.best_moment] bounds the first, by a third of the way from the median
    to its own highest score; only steps above the median begin one. A moment whose intersection over union with a
    better one is above `overlap` is left out (non-maximum suppression).

    Args:
        scores: `(n, t)` of n queries with each step of one video in order of time.
        overlap: in [0, 1].

    Returns:
        times in steps, from 0 to t.

    Examples:
        >>> found = ranked_moments(torch.tensor([[0.1, 0.9, 0.8, 0.1, 0.1, 0.5, 0.1]]))
        >>> [part.tolist() for part in (found.start, found.stop, found.valid)]
        [[[1.0, 5.0]], [[3.0, 6.0]], [[True, True]]]
    """
    places = torch.arange(scores.shape[1], device=scores.device)
    median = scores.median(1).values
    rest = scores
    start = stop = score = scores[:, :0]
    valid = torch.zeros_like(score, dtype=torch.bool)
    while True:
        highest, place = rest.max(1)
        is_moment = highest > median if score.shape[1] else torch.ones_like(highest, dtype=torch.bool)
        if not bool(is_moment.any()):
            return MomentLists(start, stop, score, valid, float(scores.shape[1]))
        first, end = (x[:, None].to(scores) for x in _run_around(scores, place, (highest + 2 * median) / 3))
        rest = rest.masked_fill((places >= first) & (places < end), -torch.inf)
        covered = (valid & (overlaps(first, end, start, stop) > overlap)).any(1)
        start, stop = torch.cat([start, first], 1), torch.cat([stop, end], 1)
        score = torch.cat([score, highest[:, None]], 1)
        valid = torch.cat([valid, (is_moment & ~covered)[:, None]], 1)


def ranked_spans(scores: Float[Tensor, "n c"], spans: Float[Tensor, "c 2"], overlap: float = 0.5) -> MomentLists:
    """The clips of a video as its moments, where clips say which part of it they are, after non-maximum suppression.

    Args:
        scores: `(n, c)` of n queries with each clip.
        spans: `(c, 2)` where each begins and ends, as shares of the video.
        overlap: a clip whose intersection over union with a better one is above it is left out.

    Returns:
        times as shares of the video.

    Examples:
        >>> spans = torch.tensor([[0.0, 0.5], [0.0, 0.75], [0.5, 1.0]])
        >>> found = ranked_spans(torch.tensor([[0.8, 0.9, 0.1]]), spans)
        >>> found.stop.tolist(), found.valid.tolist()
        ([[0.75, 1.0]], [[True, True]])
    """
    (first, last), rest = spans.T, scores
    near = (overlaps(first[:, None], last[:, None], first[None], last[None]) > overlap).fill_diagonal_(True)
    clips, score = torch.zeros_like(scores[:, :0], dtype=torch.int64), scores[:, :0]
    while bool((rest > -torch.inf).any()):
        highest, clip = rest.max(1, keepdim=True)
        rest = rest.masked_fill(near[clip[:, 0]], -torch.inf)
        clips = torch.cat([clips, clip], 1)
        score = torch.cat([score, highest], 1)
    return MomentLists(first[clips], last[clips], score, score > -torch.inf, 1.0)


def own_moments(times: Float[Tensor, "q m 2"], scores: Float[Tensor, "q m"], source: str) -> MomentLists:
    """Moments that a part of a model gives, the best first.

    Args:
        times: where each begins and ends, as shares of the video.
        scores: higher is better; -inf is no moment.
        source: the part and the video, for messages.

    Returns:
        times as shares of the video.

    Raises:
        InputError: other shapes; a time is NaN or outside the video, or ends before it begins; a score is no number, or
            all of a query are -inf.

    Examples:
        >>> found = own_moments(torch.tensor([[[0.0, 0.5], [0.25, 1.0]]]), torch.tensor([[1.0, 2.0]]), "head, video v")
        >>> found.start.tolist(), found.stop.tolist()
        ([[0.25, 0.0]], [[1.0, 0.5]])
    """
    if times.shape != (*scores.shape, 2) or scores.ndim != 2 or not scores.shape[1]:
        shapes = f"times {tuple(times.shape)}, scores {tuple(scores.shape)}"
        raise InputError(f"moments of {source}: {shapes}, expected (queries, moments, 2) and (queries, moments)")
    times, scores = times.double().cpu(), scores.double().cpu()
    is_moment = scores != -torch.inf
    start, stop = times.masked_fill(~is_moment[..., None], 0).unbind(2)
    checks = {
        "is NaN": start.isnan() | stop.isnan(),
        "is reversed": start > stop,
        "lies outside the video": (start < 0) | (stop > 1),
        "has a score that is no number": scores.isnan() | (scores == torch.inf),
    }
    for problem, wrong in checks.items():
        if bool(wrong.any()):
            query, moment = wrong.nonzero()[0].tolist()
            first, last = times[query, moment].tolist()
            raise InputError(
                f"moments of {source}: moment {moment} of query {query}, {first:g} to {last:g}, {problem}; expected "
                "0 <= start <= end <= 1, shares of the video, and a score"
            )
    order = scores.argsort(dim=1, descending=True, stable=True)
    start, stop, scores = (part.gather(1, order) for part in (start, stop, scores))
    if bool((scores[:, 0] == -torch.inf).any()):
        raise InputError(f"moments of {source}: a query has none, its scores are all -inf; expected one at least")
    return MomentLists(start, stop, scores, scores > -torch.inf, 1.0)


def overlaps(
    start: Float[Tensor, "#n #m"],
    stop: Float[Tensor, "#n #m"],
    other_start: Float[Tensor, "#n #m"],
    other_stop: Float[Tensor, "#n #m"],
) -> Float[Tensor, "n m"]:
    """Intersection over union of moments with others, in [0, 1]; shapes are broadcast.

    Examples:
        >>> overlaps(*(torch.tensor([[x]]) for x in (48.0, 58.0, 53.0, 58.0))).item()
        0.5
    """
    shared = (torch.minimum(stop, other_stop) - torch.maximum(start, other_start)).clamp_min(0)
    return shared / (stop - start + other_stop - other_start - shared)


def moment_level(highest: float, median: float) -> float:
    """The score that every part of a moment reaches: a third of the way from the median to the highest.

    Examples:
        >>> moment_level(9.0, 3.0)
        5.0
    """
    return (highest + 2 * median) / 3


def word_scores(
    words: Float[Tensor, "q w d"],
    word_mask: Bool[Tensor, "q w"],
    word_weights: Float[Tensor, "q w"],
    frames: Float[Tensor, "v f d"],
    frame_mask: Bool[Tensor, "v f"] | None = None,
    *,
    dots: bool = False,
) -> Float[Tensor, "q v"]:
    r"""$\sum_i g_i \max_j a_{ij}$, a cosines of words with frames: late interaction (MaxSim), in which words ask.

    Args:
        words: `(q, w, d)` word embeddings.
        word_mask: `(q, w)` True = valid.
        word_weights: `(q, w)` g, of sum one over valid words.
        frames: `(v, f, d)` frame embeddings.
        frame_mask: `(v, f)` True = valid; None = every row counts.
        dots: a are plain products instead.

    Raises:
        ValueError: a mask that is not boolean, or (on the CPU; elsewhere it scores 0, as asking would
            mean waiting) a query without a valid word or a video without a valid frame.

    Examples:
        >>> words, frames = torch.eye(2)[None], torch.tensor([[[2.0, 0.0], [3.0, 4.0]]])
        >>> mask, weights = torch.tensor([[True, True]]), torch.tensor([[0.5, 0.5]])
        >>> round(word_scores(words, mask, weights, frames).item(), 2)
        0.9
        >>> word_scores(words, mask, weights, frames, dots=True).item()
        3.5
    """
    if frame_mask is not None:
        expect_mask("frame_mask", frame_mask)
    with full_precision(words.device):
        words, frames = (at_least_float32(x) if dots else unit_rows(x) for x in (words, frames))
        return weighted_best(words, word_mask, word_weights, frames, frame_mask)


def weighted_best(
    words: Tensor,
    word_mask: Tensor,
    weights: Tensor,
    frames: Tensor,
    frame_mask: Tensor | None,
    also: Callable[[Tensor, slice, slice], Tensor] | None = None,
) -> Tensor:
    """Weighted best products of words over frames, a block of pairs at a time; `also` adds a score of each block.

    For gradients the best frame of each word in each video is kept, or, of more than `_KEPT` of these, only what is
    linear in texts or in videos, beside the scores: each block is computed again, which takes 1.3 to 1.4 times as long.
    """
    expect_mask("word_mask", word_mask)
    weights = weights.to(words.dtype).masked_fill(~word_mask, 0)
    bias = words.new_zeros(frames.shape[:2])
    if frame_mask is not None:
        frames, bias = frames.masked_fill(~frame_mask[..., None], 0), bias.masked_fill(~frame_mask, -torch.inf)
    pair = words.shape[1] * frames.shape[1]
    most = _BLOCK if words.is_cpu else 4 * _BLOCK
    videos = max(1, min(len(frames), most // pair))
    queries = max(1, most // (videos * pair))
    columns = list(zip(frames.split(videos), bias.split(videos), _slices(len(frames), videos), strict=True))

    def block(rows: Tensor, of_texts: slice, columns: Tensor, bias: Tensor, of_videos: slice) -> Tensor:
        # The mask as a bias of the product: no pass over all pairs, neither here nor for gradients.
        product = torch.addmm(bias.flatten(), rows.flatten(0, 1), columns.flatten(0, 1).mT)
        product = product.view(*rows.shape[:2], *columns.shape[:2])
        score = torch.einsum("qwv,qw->qv", best_products(product, 3), weights[of_texts])
        return score if also is None else score + also(product, of_texts, of_videos)

    # Split once, since each slice would have a gradient of the size of all.
    texts = list(zip(words.split(queries), _slices(len(words), queries), strict=True))
    if words[..., 0].numel() * len(frames) > _KEPT:
        block = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False, early_stop=False)
    return torch.cat([torch.cat([block(*text, *video) for video in columns], 1) for text in texts])


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, total, size)]


def best_products(product: Tensor, dim: int) -> Tensor:
    """The maximum along an axis, 0 where nothing is valid; its gradient keeps no more than where it was."""
    highest = product.max(dim).values if product.is_cpu else cast(tuple[Tensor, Tensor], _Max.apply(product, dim))[0]
    return highest.masked_fill(highest == -torch.inf, 0)


class _Max(torch.autograd.Function):
    """The maximum along an axis. The gradient of amax keeps the whole product; that of max writes its zeros twice."""

    @staticmethod
    def forward(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        highest, index = x.max(dim)
        return highest, index

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.shape, ctx.dim = inputs[0].shape, inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        index, g = ctx.saved_tensors[0].unsqueeze(ctx.dim), gradients[0].unsqueeze(ctx.dim)
        return g.new_zeros(ctx.shape).scatter_(ctx.dim, index, g), None
