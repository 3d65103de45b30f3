"""The retriever that compares words with frames in both directions (DiffusionRet, first stage, eq. 10)."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.models.layers import TokenWeights, expect_fits
from prvr.models.own_retriever import OwnRetriever
from prvr.published.diffusionret.model_config import TOKEN_COMPAT, TokenModelConfig
from prvr.scoring import at_least_float32, best_products, full_precision, unit_rows, weighted_best
from prvr.types import Scores, TextEmbedding, VideoEmbedding, expect_mask
from regdiff.masks import masked

Words = Float[Tensor, "q w d"]
WordMask = Bool[Tensor, "q w"]
WordWeights = Float[Tensor, "q w"]
"""Words in the space of the frames, which are valid, and how much each counts."""
Frames = Float[Tensor, "v l d"]
FrameMask = Bool[Tensor, "v l"]
FrameWeights = Float[Tensor, "v l"]
"""Frames in the space of the words, which are valid, and how much each counts."""
WordFeatures = Float[Tensor, "q w e"]
FrameFeatures = Float[Tensor, "v l f"]
"""The features of words and of frames that the retriever reads."""


def token_alignment(
    words: Words,
    word_mask: WordMask,
    frames: Frames,
    frame_mask: FrameMask,
    word_weights: WordWeights,
    frame_weights: FrameWeights,
) -> Float[Tensor, "q v"]:
    r"""Weighted best cosines of words over frames and of frames over words (DiffusionRet, eq. 10).

    $s = \frac12 \left(\sum_i g_t^i \max_j a_{ij} + \sum_j g_v^j \max_i a_{ij}\right)$, a the cosines of valid words
    with valid frames. Padding changes nothing, whatever it holds. Pairs are compared a block at a time, so that memory
    beyond the result is bounded, but for what gradients need.

    Args:
        words: `(q, w, d)` word embeddings.
        word_mask: `(q, w)` True = valid.
        frames: `(v, l, d)` frame embeddings.
        frame_mask: `(v, l)` True = valid.
        word_weights: `(q, w)` g_t, of sum one over valid words; see `prvr.models.TokenWeights`.
        frame_weights: `(v, l)` g_v.

    Raises:
        ValueError: a mask that is not boolean, or (on the CPU; elsewhere it scores 0, as asking would
            mean waiting) a query without a valid word or a video without a valid frame.

    Examples:
        >>> words, frames = torch.eye(2)[None], torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
        >>> token_alignment(words, torch.tensor([[True, True]]), frames, torch.tensor([[True, False]]),
        ...     torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])).item()
        0.75
    """
    expect_mask("frame_mask", frame_mask)
    with full_precision(words.device):
        unit_words = unit_rows(masked(words, word_mask))
        unit_frames = unit_rows(masked(frames, frame_mask))
        frame_weights = masked(frame_weights.to(unit_words.dtype), frame_mask)

        def align(cosine: Tensor, words: slice, videos: slice) -> Tensor:
            best = best_products(cosine.masked_fill(~word_mask[words, :, None, None], -torch.inf), 1)
            return torch.einsum("qvf,vf->qv", best, frame_weights[videos])

        return weighted_best(unit_words, word_mask, word_weights, unit_frames, frame_mask, align) / 2


def quick_gelu(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """x sigmoid(1.702 x), the activation of CLIP."""
    return x * torch.sigmoid(1.702 * x)


class TemporalTransformer(nn.Module):
    """Frames with positions through pre-norm layers shaped as CLIP's text layers, added to the frames themselves.

    Positions and what each layer adds start at zero: a new one doubles its frames, so that cosines are those of the
    features until training, or `prvr.published.diffusionret.clip_retriever.start_from_clip`, changes it.

    Args:
        width: d.
        heads: number of heads of the attention.
        layers: how many.
        length: the length of the position table.
        dropout: inside the layers.
        eps: what their norms add to the variance.

    Examples:
        >>> frames, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
        >>> temporal = TemporalTransformer(width=8, heads=2, layers=1, length=6, dropout=0.0)
        >>> torch.equal(temporal(frames, mask), 2 * frames)
        True
    """

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout, quick_gelu, layer_norm_eps=eps, batch_first=True, norm_first=True
            )
            for last in (layer.self_attn.out_proj, layer.linear2):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
            self.layers.append(layer)

    def forward(self, frames: Frames, mask: FrameMask) -> Frames:
        """Frames after attending to each other; padded rows become 0, whatever they hold.

        Args:
            frames: `(v, l, d)` frame features, at most as many as there are positions.
            mask: `(v, l)` True = valid.
        """
        frames = masked(frames, mask)
        x = frames + self.positions[: frames.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        return masked(frames + x, mask)


def build_projection(kind: str, width: int, hidden: int) -> nn.Module:
    """CLIP's projections have no bias. A square one starts as the identity, another keeps lengths on average.

    Args:
        kind: "linear", or "none" for the identity.
        width: the width of the features.
        hidden: width of the result.
    """
    if kind == "none":
        return nn.Identity()
    linear = nn.Linear(width, hidden, bias=False)
    if width == hidden:
        nn.init.eye_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=hidden**-0.5)
    return linear


def weighted_words(words: Words, weights: WordWeights) -> Float[Tensor, "q d"]:
    r"""$\sum_i g_t^i w_i / \lVert w_i \rVert$: times a unit frame it is the weighted mean of the words' cosines.

    Examples:
        >>> weighted_words(torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]), torch.tensor([[0.25, 0.75]])).tolist()
        [[0.25, 0.75]]
    """
    return torch.einsum("qw,qwd->qd", weights.to(words.dtype), F.normalize(words, dim=-1))


def last_word(words: Words, mask: WordMask) -> Float[Tensor, "q d"]:
    """The last valid word of each query."""
    queries, places = (torch.arange(size, device=mask.device) for size in mask.shape)
    return words[queries, (places * mask).amax(1)]


class TokenRetrieverBase(OwnRetriever):
    """Words and frames in one space, compared token by token (DiffusionRet, eq. 10); subclasses bring them there.

    Second derivatives on a CPU are taken as those of `Retriever`.

    Args:
        config: the configuration of the retriever.

    Attributes:
        backbone: the pretrained encoder that is trained along, with a learning rate of its own; None without one.
    """

    def __init__(self, config: TokenModelConfig) -> None:
        super().__init__(config)
        self.build_inputs(config)
        width, eps = config.hidden, TOKEN_COMPAT["norms"][config.compat.norms].part
        self.temporal = TemporalTransformer(width, config.heads, config.depth, config.max_frames, config.dropout, eps)
        self.weigh_words = TokenWeights(width)
        self.weigh_frames = TokenWeights(width)
        self._align = TOKEN_COMPAT["alignment"][config.compat.alignment].part

    @abstractmethod
    def build_inputs(self, config: TokenModelConfig) -> None:
        """Sets the modules that `embed_words` and `embed_frames` use; called once, by the constructor."""

    @abstractmethod
    def embed_words(self, words: WordFeatures, word_mask: WordMask) -> Words:
        """Words in the space of the frames; padded rows may hold anything."""

    @abstractmethod
    def embed_frames(self, frames: FrameFeatures, frame_mask: FrameMask) -> Frames:
        """Frames in the space of the words, before the temporal transformer; padded rows may hold anything."""

    def encode_text(self, words: WordFeatures, word_mask: WordMask) -> TextEmbedding:
        """Words in the space of the frames, and the weight of each.

        Args:
            words: `(q, w, e)` word features, at most `config.max_words` of them.
            word_mask: `(q, w)` True = valid, at least one in each row.

        Raises:
            ValueError: too many words, or a width other than `config.query_dim`.
        """
        expect_fits("words", words, self.config)
        embedded = self.embed_words(words, word_mask)
        weights = self.weigh_words(embedded, word_mask)
        is_last = self.config.sentence == "last"
        sentence = last_word(embedded, word_mask) if is_last else weighted_words(embedded, weights)
        return TextEmbedding(sentence, embedded, word_mask, weights)

    def encode_video(
        self, clips: Float[Tensor, "v c f"], frames: FrameFeatures, frame_mask: FrameMask
    ) -> VideoEmbedding:
        """Frames after the temporal transformer, in which they attend to each other.

        Args:
            clips: not read.
            frames: `(v, l, f)`, at most `config.max_frames`.
            frame_mask: `(v, l)` True = valid, at least one in each row.

        Raises:
            ValueError: too many frames, or a width other than `config.video_dim`.
        """
        expect_fits("frames", frames, self.config)
        embedded = self.temporal(self.embed_frames(frames, frame_mask), frame_mask)
        return VideoEmbedding(frames=embedded, frame_mask=frame_mask)

    def score(self, text: TextEmbedding, video: VideoEmbedding, dots: bool = False) -> Scores:
        """Token-wise alignment of every query with every video, from -1 to 1; `dots` is ignored, there are none.

        How much a frame counts follows from the frame alone: a gallery stores frames and nothing else.

        Raises:
            ValueError: the videos have no frames, or (on the CPU) a query no valid word or a video no valid frame.
        """
        if video.frames is None:
            raise InputError("the video embedding has no frames: encode it with encode_video")
        mask = video.frame_mask
        if mask is None:
            mask = video.frames.new_ones(video.frames.shape[:2], dtype=torch.bool)
        frames = video.frames.to(self.temporal.positions.dtype)  # a gallery may be kept in half precision
        weights = self.weigh_frames(frames, mask)
        total = self._align(
            text.words, text.mask, video.frames, mask, at_least_float32(text.weights), at_least_float32(weights)
        )
        return Scores(total)


class TokenRetriever(TokenRetrieverBase):
    """Frames through a temporal transformer, words as they are, compared token by token (DiffusionRet, eq. 10).

    Words that have not attended to each other, unlike CLIP's, pass through layers of their own (`word_depth`).

    Examples:
        >>> import torch
        >>> retriever = TokenRetriever(TokenModelConfig(kind="tokens", video_dim=8, query_dim=6, hidden=8, heads=2,
        ...     depth=1, max_frames=5, max_words=4)).eval()
        >>> text = retriever.encode_text(torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool))
        >>> video = retriever.encode_video(torch.zeros(2, 1, 8), torch.randn(2, 5, 8),
        ...     torch.ones(2, 5, dtype=torch.bool))
        >>> retriever.score(text, video).total.shape
        torch.Size([3, 2])
    """

    def build_inputs(self, config: TokenModelConfig) -> None:
        """Sets the projections, and the layers of words where the configuration has some."""
        self.project_words = build_projection(config.word_projection, config.query_dim, config.hidden)
        self.project_frames = build_projection(config.frame_projection, config.video_dim, config.hidden)
        self.read_words = None
        if config.word_depth:
            self.read_words = TemporalTransformer(
                config.hidden, config.heads, config.word_depth, config.max_words, config.dropout
            )

    def embed_words(self, words: WordFeatures, word_mask: WordMask) -> Words:
        """Words projected, and through layers of their own where there are any."""
        projected = self.project_words(masked(words, word_mask))
        return projected if self.read_words is None else self.read_words(projected, word_mask)

    def embed_frames(self, frames: FrameFeatures, frame_mask: FrameMask) -> Frames:
        """Frames of length `config.feature_length`, projected."""
        return self.project_frames(self.config.feature_length * masked(frames, frame_mask))
