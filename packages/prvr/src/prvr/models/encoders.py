"""The query encoders and a video branch: input projection, positions, blocks, fusion."""

from abc import ABC, abstractmethod
from itertools import groupby, repeat
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import BLOCKS, COMPAT, FUSIONS, BlockConfig, ModelConfig
from prvr.errors import InputError
from prvr.models.blocks import (
    AttentionBlocks,
    RegisterTokens,
    TransformerBlocks,
)
from prvr.models.layers import AttentionPooling, InputProjection, Positions, TokenWeights, initialise
from prvr.models.rows import Sequences, Tokens
from prvr.scoring import unit_rows, word_scores
from prvr.types import TextEmbedding, Texts, VideoEmbedding


def build_blocks(config: ModelConfig, blocks: tuple[BlockConfig, ...]) -> nn.Module:
    """One stack of blocks that share a geometry."""
    space, num = blocks[0].space, len(blocks)
    kind = TransformerBlocks if config.layer == "transformer" else AttentionBlocks
    return kind(BLOCKS[space].part(config, num), num, config.hidden, config.dropout)


def build_windows(config: ModelConfig, blocks: tuple[BlockConfig, ...], length: int) -> nn.Module:
    """The Gaussian windows of a stack of blocks, for sequences of at most `length` positions."""
    return COMPAT["window"][config.compat.window].part(config, [block.width for block in blocks], length)


class QueryPart(nn.Module, ABC):
    """Words to one vector, see `prvr.config.QUERIES`.

    Args:
        config: the configuration of the retriever; `query_encoder` of it holds the settings of this part.

    Attributes:
        backbone: a pretrained part, which is trained at `optim.backbone_lr`; None without one.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.settings: Any = config.query_encoder
        self.backbone: Any = None

    @abstractmethod
    def forward(self, words: Float[Tensor, "q w e"], sequences: Sequences) -> Float[Tensor, "q d"]:
        """One vector `(q, d)` per query, from its words `(q, w, e)`; `sequences.mask` says which are valid."""

    def load_backbone(self) -> None:
        """Loads pretrained weights into a new encoder; a saved one has its own."""


class QueryEncoder(QueryPart):
    """Words -> one vector: projection, positions, one block, attention pooling (HLFormer eq. 7)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.project = InputProjection(config.query_dim, config.hidden, config.input_dropout)
        self.positions = Positions(config.max_words, config.hidden, config.input_dropout)
        self.block = build_blocks(config, (BlockConfig(),))
        self.pool = AttentionPooling(config.hidden)

    def forward(self, words: Float[Tensor, "q w e"], sequences: Sequences) -> Float[Tensor, "q d"]:
        """One vector `(q, d)` per query, from its words `(q, w, e)`."""
        x = self.positions(self.project(sequences.pack(words)), sequences)
        return self.pool(sequences.pad(self.block(x, sequences)[0]), sequences.mask)


class Motion(nn.Module):
    r"""A linear map of how features change, which tells a sequence from the same one backwards.

    $W \sqrt{f}\,(x_{t+1} - x_{t-1})$ for rows x of width f. At the ends of a sequence, where one neighbour is missing,
    the row itself stands for it. Rows have unit length, so the factor gives entries of about the size that layer norm
    gives to those of the other input. W starts at 0: a new model is the one without motion until W has learned.

    Args:
        config: `motion` says what W reads instead, as a control.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.reads = config.motion
        self.weight = nn.Parameter(torch.zeros(config.hidden, config.video_dim))

    def forward(self, features: Float[Tensor, "v l f"], sequences: Sequences) -> Tokens:
        """The map at each row that is computed; padding never counts as a neighbour.

        Examples:
            >>> motion = Motion(ModelConfig(video_dim=1, query_dim=1, hidden=2, heads=1, motion="difference"))
            >>> _ = torch.nn.init.ones_(motion.weight)
            >>> sequences = Sequences.packed(torch.tensor([[True, True, True, False]]))
            >>> motion(torch.tensor([[[1.0], [2.0], [4.0], [9.0]]]), sequences)[..., 0].tolist()
            [[1.0, 3.0, 2.0]]
        """
        x = features
        if self.reads != "features":
            valid = sequences.mask
            if valid is None:
                valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            after = torch.where(F.pad(valid[:, 1:], (0, 1))[..., None], x.roll(-1, 1), x)
            before = torch.where(F.pad(valid[:, :-1], (1, 0))[..., None], x.roll(1, 1), x)
            x = after - before if self.reads == "difference" else (after - before).abs()
        return F.linear(sequences.pack(x) * x.shape[-1] ** 0.5, self.weight)


class FrameQuery(nn.Module):
    """The second query encoder, whose words, or their weighted sum, frames are compared with (Holmes).

    A projection and a block as in `QueryEncoder`, whose positions it shares; no pooling. The weights of words are a
    softmax of Lin(ReLU(Lin(word))) over the valid ones: of unit words for cosines, of words as they are for products.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.project = InputProjection(config.query_dim, config.hidden, config.input_dropout)
        self.block = build_blocks(config, (BlockConfig(),))
        self.weigh = TokenWeights(config.hidden, config.hidden) if config.word_weights == "learned" else None
        self.pools = config.frame_query == "pooled_words"
        if self.weigh is not None:
            initialise(*(layer for layer in self.weigh.net if isinstance(layer, nn.Linear)))

    def weights(self, words: Float[Tensor, "q w d"], mask: Bool[Tensor, "q w"]) -> Float[Tensor, "q w"]:
        """The weight of each word, 0 for padding; those of a query add up to 1."""
        if self.weigh is None:
            return mask.to(words.dtype) / mask.sum(1, keepdim=True)
        return self.weigh(words, mask)

    def forward(
        self,
        sentence: Float[Tensor, "q d"],
        words: Float[Tensor, "q w e"],
        mask: Bool[Tensor, "q w"],
        sequences: Sequences,
        positions: Positions,
    ) -> TextEmbedding:
        """The words, or the one that stands for all, beside the sentence that clips are compared with."""
        x = positions(self.project(sequences.pack(words)), sequences)
        encoded = sequences.pad(self.block(x, sequences)[0])
        if self.pools:
            encoded = torch.einsum("qw,qwd->qd", self.weights(encoded, mask), encoded)[:, None]
            mask = torch.ones_like(mask[:, :1])
        return TextEmbedding(sentence, encoded, mask, self.weights(unit_rows(encoded), mask))


def no_frame_query(config: ModelConfig) -> None:
    """No second encoder of queries."""


def frame_scores(
    query: Any, text: Texts, video: VideoEmbedding, dots: bool
) -> tuple[Float[Tensor, "q v"], Float[Tensor, "q v"] | None]:
    """Weighted maxima of cosines and, with `dots`, of products of words and frames.

    Args:
        query: the encoder of the texts.
        text: the words.
        video: the frames.
        dots: whether products are asked for.

    Raises:
        InputError: the texts are single vectors, or the videos have no frames.
    """
    if not isinstance(text, TextEmbedding) or video.frames is None:
        lacking = "texts have no words" if video.frames is not None else "videos have no frames"
        raise InputError(f"this retriever compares words with frames, and these {lacking}: encode them with it")
    pairs = (video.frames, video.frame_mask)
    cosines = word_scores(text.words, text.mask, text.weights, *pairs)
    if not dots:
        return cosines, None
    return cosines, word_scores(text.words, text.mask, query.weights(text.words, text.mask), *pairs, dots=True)


class BlockStack(nn.Module):
    """Blocks side by side, grouped by geometry, each group one batched computation, then fused.

    Args:
        config: which blocks, windows and fusion.
        length: longest input.
        first: the same stack of another branch, made before, of whose fusion this one may share parameters.
    """

    order: Tensor | None

    def __init__(self, config: ModelConfig, length: int, first: "BlockStack | None" = None) -> None:
        super().__init__()
        order = sorted(range(len(config.blocks)), key=lambda i: config.blocks[i].space)
        kinds = [tuple(same) for _, same in groupby((config.blocks[i] for i in order), key=lambda block: block.space)]
        self.groups = nn.ModuleList(build_blocks(config, kind) for kind in kinds)
        self.windows = nn.ModuleList(build_windows(config, kind, length) for kind in kinds)
        fusion = FUSIONS[config.fusion]
        shared = [None if first is None else first.fusion] if "first" in fusion.needs else []
        self.fusion = fusion.part(config, length, *shared)
        mixed = order != sorted(order)
        self.register_buffer("order", torch.tensor(order).argsort() if mixed else None, persistent=False)

    def blocks(self, x: Tokens, sequences: Sequences, registers: RegisterTokens = None) -> Float[Tensor, "k v l d"]:
        """Output of every block before the fusion, in the configured order; padding that was not computed is 0."""
        outputs = [
            group(x, sequences, window(sequences.length), registers)
            for group, window in zip(self.groups, self.windows, strict=True)
        ]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return sequences.pad(joined if self.order is None else joined[self.order])

    def forward(self, x: Tokens, sequences: Sequences, registers: RegisterTokens = None) -> Float[Tensor, "v l d"]:
        """All blocks, fused: rows `(b, m, d)` to padded sequences `(v, l, d)`."""
        return self.fusion(self.blocks(x, sequences, registers), sequences.mask)


class BranchEncoder(nn.Module):
    """One branch of the video side, for clips or for frames.

    Args:
        config: the configuration of the retriever.
        length: longest input.
        first: the other branch, made before.
    """

    def __init__(self, config: ModelConfig, length: int, first: "BranchEncoder | None" = None) -> None:
        super().__init__()
        others: Any = repeat(None) if first is None else first.layers
        # Drawn first, see `Retriever`.
        layers = [BlockStack(config, length, other) for _, other in zip(range(config.depth), others, strict=False)]
        # The released clip branch owns a position table as long as the frames'; rows past the clips are never used.
        positions = config.max_frames if config.padding_counts else length
        has_registers = config.registers.kind != "none"
        self.project = InputProjection(config.video_dim, config.hidden, config.input_dropout)
        self.positions = Positions(positions, config.hidden, config.input_dropout)
        self.layers = nn.ModuleList(layers)
        self.registers = InputProjection(config.hidden, config.hidden, config.input_dropout) if has_registers else None
        self.motion = None if config.motion == "none" else Motion(config)

    def embed(self, features: Float[Tensor, "v l f"], sequences: Sequences) -> Tokens:
        """Projected features with positions: what the blocks, and the register generator, start from."""
        x = self.project(sequences.pack(features))
        if self.motion is not None:
            x = x + self.motion(features, sequences)
        return self.positions(x, sequences)

    def forward(self, x: Tokens, sequences: Sequences, registers: RegisterTokens = None) -> Float[Tensor, "v l d"]:
        """The result of `embed` through all layers, padded; rows of padding hold nothing of use."""
        if registers is not None and self.registers is not None:
            registers = self.registers(registers)
        for number, layer in enumerate(self.layers):
            x = layer(sequences.pack(x) if number else x, sequences, registers)
        return x
