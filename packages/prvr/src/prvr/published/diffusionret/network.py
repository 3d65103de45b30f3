"""The network of DiffusionRet: text-frame attention, pairs of queries and candidates, the denoiser, the meaning of its
scores, and the schedule of the noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.types import Direction
from regdiff.masks import masked
from regdiff.timestep import sincos_table

Vectors = Float[Tensor, "b m d"]
"""Texts, or what each reads of a video."""
CandidateVectors = Float[Tensor, "b n d"]
Rows = Float[Tensor, "b n"]
"""A number for each candidate of each row."""
Frames = Float[Tensor, "b f d"]
FrameMask = Bool[Tensor, "b f"]
"""The frames of a video, and which are valid."""
Pool = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`TextFrameAttention`, or the released one: text (b, m, d), frames (b, f, d) and their mask to (b, m, d)."""

Finish = Callable[[Tensor, Tensor], Tensor]
"""The output (b, n) from decoded scores (b, n) and attention weights (b, n)."""

#: Numbers of frame embeddings that are gathered at a time: 64 MB of float32.
_BLOCK = 2**24
#: How many pairs share one copy of the frames of a video; unused places are computed in vain.
_SHARED = 8


class TextFrameAttention(nn.Module):
    r"""One vector of a video's frames for each text, C_v = Softmax(C_t F^T / tau') F (DiffusionRet, eq. 4).

    It has no parameters. Padded frames are masked before the softmax and may hold anything; a video without a valid
    frame gives zeros.

    Args:
        temperature: tau'; a smaller one makes the weights sharper.

    Examples:
        >>> import torch
        >>> frames = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
        >>> mask = torch.tensor([[True, True, False]])
        >>> TextFrameAttention(temperature=0.5)(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), frames, mask)
        tensor([[[0.9820, 0.0180],
                 [0.5000, 0.5000]]])
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def weights(self, text: Vectors, frames: Frames, frame_mask: FrameMask) -> Float[Tensor, "b m f"]:
        """The weight of each frame for each text: the attention map of figure B."""
        # A logit of NaN would be a gradient of NaN, though it has no weight.
        logits = text @ masked(frames, frame_mask).mT / self.temperature
        # Not -inf: a video without a valid frame would have a gradient of NaN.
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(~frame_mask[:, None], lowest).softmax(-1).masked_fill(~frame_mask[:, None], 0)

    def forward(self, text: Vectors, frames: Frames, frame_mask: FrameMask) -> Vectors:
        """Pool the frames of b videos, each for its own m texts.

        Args:
            text: `(b, m, d)` text embeddings.
            frames: `(b, f, d)` frame embeddings.
            frame_mask: `(b, f)` True = valid.
        """
        weights = self.weights(text, frames, frame_mask)
        return weights @ masked(frames, frame_mask)  # a weight of 0 does not remove a NaN


@dataclass(frozen=True)
class RerankerInputs:
    """Embeddings of a split as a `CandidateReranker` reads them.

    Args:
        text: `(q, d)`.
        frames: `(v, f, d)`; may be of lower precision, and on another device than the text.
        mask: `(v, f)` True = valid.
    """

    text: Float[Tensor, "q d"]
    frames: Float[Tensor, "v f d"]
    mask: Bool[Tensor, "v f"]


class Pairs(NamedTuple):
    """Queries `(b, m, d)`, one for all candidates (m = 1) or one for each (m = n), and candidates `(b, n, d)`."""

    queries: Vectors
    candidates: CandidateVectors


def pooled_pairs(
    pool: Pool, inputs: RerankerInputs, direction: Direction, rows: Int[Tensor, " r"], columns: Int[Tensor, "r k"]
) -> Pairs:
    """Queries and candidates, the video of each pair pooled for its text.

    A bounded number of frames is gathered at a time, once for several pairs.

    Args:
        pool: the text-frame attention.
        inputs: embeddings of all texts and videos.
        direction: "t2v": pairs of the texts `rows` and the videos `columns` of each; "v2t": of videos and their texts.
        rows, columns: the pairs.
    """
    pairs = rows[:, None].expand_as(columns).flatten(), columns.flatten()
    texts, videos = pairs if direction == "t2v" else pairs[::-1]
    text, videos = inputs.text, videos.to(inputs.frames.device)
    # Groups of pairs with the same video, of at most `_SHARED` or as many as each video has, padded with -1.
    order = videos.argsort(stable=True)
    _, member, counts = videos[order].unique_consecutive(return_inverse=True, return_counts=True)
    size = min(max(_SHARED, int(counts.min())), int(counts.max()))
    padding = -counts % size
    members = videos.new_full((len(videos) + int(padding.sum()),), -1)
    members[torch.arange(len(videos), device=videos.device) + (padding.cumsum(0) - padding)[member]] = order
    pooled = text.new_empty(len(texts), text.shape[-1])
    block = max(1, _BLOCK // (inputs.frames.shape[1] * inputs.frames.shape[2]))
    for places in members.view(-1, size).split(block):
        some, places = videos[places[:, 0]], places.to(text.device)
        used, asking = places >= 0, text[texts[places.clamp_min(0)]]
        pooled[places[used]] = pool(asking, inputs.frames[some].to(text), inputs.mask[some].to(text.device))[used]
    pooled = pooled.view(*columns.shape, -1)
    return Pairs(text[rows][:, None], pooled) if direction == "t2v" else Pairs(pooled, text[columns])


@dataclass(frozen=True)
class PreparedPairs:
    """Everything of the denoiser that does not depend on x and the step.

    A record and no tuple: regdiff passes it on as it is, as not all of its tensors have the axis b.

    Attributes:
        queries: `(b, m, d)` projected queries, one for all candidates (m = 1) or one for each (m = n).
        keys: `(b, n, d)` projected candidates.
        candidates: `(b, n, d)` candidates without projection; their values are projected after the weighted mean.
        products: `(b, n)` inner products of queries and keys.
        decoded: `(b, n, 2d)` the part of the decoder's first layer that reads the candidates.
        codes: `(3, K, d)` the codes Proj(k) of all steps after the query, the key and the value projection.
    """

    queries: Vectors
    keys: CandidateVectors
    candidates: CandidateVectors
    products: Rows
    decoded: Float[Tensor, "b n h"]
    codes: Float[Tensor, "3 k d"]


class CandidateDenoiser(nn.Module):
    r"""Scores of n candidates for a query, given the noised distribution x over them (DiffusionRet, eq. 5 and 6).

    With te = Proj(k) the code of the step, q the query and c_n the candidates:
    p = Softmax_n(<W_q(q + te), W_k(c_n + te)> + x_n),  E = sum_n p_n W_v(c_n + te),  s_n = MLP([E; c_n]).
    The candidates have no order: permuting them and x permutes the output.

    `prepare` computes once what does not depend on x and the step. Each step then costs O(n d) instead of O(n d^2):
    linear maps are applied to the weighted mean alone, because the weights add up to one.

    Args:
        width: d.
        steps: K, the number of steps that have a code.
        merge: a map that is applied to E; None for the identity.
        finish: computes the output from decoded scores and attention weights; None for the decoded scores (eq. 6).

    Examples:
        >>> import torch
        >>> denoiser = CandidateDenoiser(width=8, steps=10)
        >>> text, videos = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
        >>> denoiser(torch.zeros(2, 5), torch.tensor([0, 9]), denoiser.prepare(text, videos)).shape
        torch.Size([2, 5])
    """

    time_table: Tensor

    def __init__(self, width: int, steps: int, *, merge: nn.Module | None = None, finish: Finish | None = None) -> None:
        super().__init__()
        self.width = width
        self.finish = finish
        self.register_buffer("time_table", sincos_table(steps, width).to(torch.get_default_dtype()), persistent=False)
        self.time_in = nn.Linear(width, width)
        self.time_out = nn.Linear(width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.merge = nn.Identity() if merge is None else merge
        self.decoder_in = nn.Linear(2 * width, 2 * width)
        self.decoder_out = nn.Linear(2 * width, 1)

    def prepare(self, queries: Vectors, candidates: CandidateVectors) -> PreparedPairs:
        """Everything before x and the step.

        Args:
            queries: `(b, m, d)`, m = 1 or m = n.
            candidates: `(b, n, d)`.
        """
        projected, keys = self.query(queries), self.key(candidates)
        decoded = F.linear(candidates, self.decoder_in.weight[:, self.width :], self.decoder_in.bias)
        time = self.time_out(F.silu(self.time_in(self.time_table)))
        codes = torch.stack([self.query(time), self.key(time), self.value(time)])
        return PreparedPairs(projected, keys, candidates, (projected * keys).sum(-1), decoded, codes)

    def forward(self, x: Rows, timestep: Int[Tensor, "b"], pairs: PreparedPairs) -> Rows:
        """Scores of the candidates.

        Args:
            x: `(b, n)` the noised distribution.
            timestep: `(b,)` in [0, K).
            pairs: the result of `prepare`.
        """
        query, key, value = pairs.codes[:, timestep]
        # <q + a, k + b> without <a, b>, which is the same for every candidate: no softmax sees it.
        logits = pairs.products + (pairs.keys @ query[..., None]).squeeze(-1)
        logits = logits + (pairs.queries @ key[..., None]).squeeze(-1)
        weights = (logits + x).softmax(-1)
        mean = (weights[:, None] @ pairs.candidates)[:, 0]
        attended = self.merge(self.value(mean) + value)
        hidden = pairs.decoded + F.linear(attended, self.decoder_in.weight[:, : self.width])[:, None]
        decoded = self.decoder_out(hidden.relu_()).squeeze(-1)
        return decoded if self.finish is None else self.finish(decoded, weights)


class Output(NamedTuple):
    """The meaning of scores: functions of `(b, n)`.

    Attributes:
        clean: the prediction of x_0 from scores.
        target: x_0 of the relevant candidates, a boolean mask.
        probability: the distribution over the candidates that a generated x_0 stands for.
    """

    clean: Callable[[Tensor], Tensor]
    target: Callable[[Tensor], Tensor]
    probability: Callable[[Tensor], Tensor]


def distribution(config: RerankerConfig) -> Output:
    """x_0 is the uniform distribution over the relevant candidates, and its prediction is a distribution too.

    Args:
        config: `loss_temperature` is a factor of the scores before the softmax.
    """

    def target(positives: Tensor) -> Tensor:
        x = positives.to(torch.get_default_dtype())
        return x / x.sum(-1, keepdim=True)

    return Output(lambda scores: (config.loss_temperature * scores).softmax(-1), target, lambda sample: sample)


def beta_schedule(config: RerankerConfig) -> list[float]:
    r"""beta_0 ... beta_{K-1}, times `beta_scale` and capped at 0.999.

    cosine: 1 - f(k + 1) / f(k), f(k) = cos^2((k / K + 0.008) / 1.008 * pi / 2) (Nichol and Dhariwal 2021);
    linear: from 0.1 / K to 20 / K, which is 0.0001 to 0.02 for K = 1000 (Ho et al. 2020).

    Examples:
        >>> [round(beta, 4) for beta in beta_schedule(RerankerConfig(width=8, steps=50, schedule="linear"))[::49]]
        [0.002, 0.4]
    """
    steps = config.steps
    if config.schedule == "linear":
        betas = torch.linspace(0.1 / steps, 20 / steps, steps, dtype=torch.float64)
    else:
        f = torch.cos((torch.arange(steps + 1, dtype=torch.float64) / steps + 0.008) / 1.008 * torch.pi / 2) ** 2
        betas = 1 - f[1:] / f[:-1]
    return (betas * config.beta_scale).clamp(max=0.999).tolist()
