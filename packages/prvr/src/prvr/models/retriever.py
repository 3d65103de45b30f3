"""The retriever: text and video into one space, compared by the maximum cosine over clips and frames."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import CLIPS, COMPAT, FRAME_QUERIES, POOLINGS, QUERIES, BlockConfig, ModelConfig, validated
from prvr.errors import InputError
from prvr.models.clips import ClipConstruction, EncodedFrames, FramePooling
from prvr.models.encoders import BranchEncoder, QueryPart, build_blocks, frame_scores
from prvr.models.kernel_path import KernelPath
from prvr.models.layers import expect_fits, initialise
from prvr.models.pretrained import PretrainedModel
from prvr.models.rows import Sequences, Tokens
from prvr.models.streams import SecondStream
from prvr.scoring import max_scores, normalised
from prvr.types import Batch, Merged, RetrieverOutput, Scores, TextEmbedding, Texts, VideoEmbedding, query_vectors
from regdiff.registers import RegisterGenerator, Registers, make_register_generator


def unchanged(generator: RegisterGenerator) -> None:
    """Leaves a generator of registers as it is."""


def build_registers(config: ModelConfig) -> RegisterGenerator | None:
    """The generator of registers; None where the configuration has none."""
    chosen = config.registers
    if chosen.kind == "none":
        return None
    same = ("steps", "layers", "kind", "start", "loss_timesteps", "scheduler", "scheduler_options")
    options: dict[str, Any] = {key: getattr(chosen, key) for key in (*same, "prediction_type")}
    options |= {"num_sampling_steps": chosen.sampling_steps, "length": config.num_clips, "dropout": config.dropout}
    generator = make_register_generator(config.hidden, chosen.num, config.heads, **options)
    for name in ("register_noise", "register_times", "register_constants") if chosen.kind == "diffusion" else ():
        COMPAT[name][getattr(config.compat, name)].part(generator)
    initialise(*(module for module in generator.modules() if isinstance(module, nn.Linear)))
    for module in generator.modules():  # after all matrices, whose draws stay what they were
        if isinstance(module, nn.GRU):  # as DreamPRVR does
            for name, parameter in module.named_parameters():
                starts = {"weight_ih": nn.init.xavier_uniform_, "weight_hh": nn.init.orthogonal_}
                starts.get(name[:9], nn.init.zeros_)(parameter)
    return generator


class Retriever(PretrainedModel):
    """A member of the family HLFormer, DreamPRVR, GMMFormer, Holmes and their hybrids, as `config` composes it.

    Second derivatives are taken on a CPU, within `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`: torch's fused
    attention, and parts of a retriever on a GPU, have first derivatives only.

    Examples:
        >>> import torch
        >>> from prvr.config import BlockConfig, ModelConfig
        >>> retriever = Retriever(ModelConfig(video_dim=16, query_dim=12, hidden=8, heads=2, num_clips=4,
        ...     max_frames=8, blocks=(BlockConfig(), BlockConfig(width=2.0)))).eval()
        >>> text = retriever.encode_text(torch.randn(3, 5, 12), torch.ones(3, 5, dtype=torch.bool))
        >>> video = retriever.encode_video(torch.randn(2, 4, 16), torch.randn(2, 6, 16),
        ...     torch.ones(2, 6, dtype=torch.bool))
        >>> retriever.score(text, video).total.shape
        torch.Size([3, 2])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.path = KernelPath(config) if config.start == "kernel" else None
        self.has_blocks = config.branches != "none"
        # The branches are drawn first: a seed keeps the weights that it gave earlier runs.
        length = config.max_frames if config.clip_construction == "frames" else config.num_clips
        clips = BranchEncoder(config, length) if config.branches in ("both", "clips") else None
        frames = BranchEncoder(config, config.max_frames, clips) if config.branches in ("both", "frames") else None
        part = QUERIES[config.query_encoder.kind].part
        self.query: QueryPart | None = part(config) if self.has_blocks else None
        self.clips, self.frames = clips, frames
        self.pad_frames = COMPAT["padding"][config.compat.padding].part.frames
        self.encoded_frames = COMPAT["merging"][config.compat.merging].part
        self.frame_pool: FramePooling = POOLINGS[config.frame_pooling].part(config)
        self.clip_rows: ClipConstruction = CLIPS[config.clip_construction].part(config)
        # The block whose output the registers are generated from (Block0 of DreamPRVR).
        self.guide = None if config.registers.kind == "none" else build_blocks(config, (BlockConfig(),))
        self.registers = build_registers(config)
        self.frame_query: nn.Module | None = FRAME_QUERIES[config.frame_query].part(config)
        self.stream = None if config.stream is None else SecondStream(config)

    @property
    def backbone(self) -> nn.Module | None:
        """The pretrained part of the query encoder, trained with a learning rate of its own; None without one."""
        return None if self.query is None else self.query.backbone

    @classmethod
    def from_config_file(cls, values: Mapping[str, Any]) -> "Retriever":
        """A new retriever as `config.json` describes it."""
        return cls(validated(ModelConfig, values, "model configuration"))

    def encode_text(
        self, words: Float[Tensor, "q w e"], word_mask: Bool[Tensor, "q w"], valid: int | None = None
    ) -> Texts:
        """One vector per query, `(q, d)`; with `config.frame_query` also the words that frames are compared with.

        Args:
            words: `(q, w, e)` word features, at most `config.max_words` of them.
            word_mask: `(q, w)` True = valid.
            valid: number of valid entries of the mask, if the host knows it; else the host waits for a GPU.

        Raises:
            ValueError: too many words, or a width other than `config.query_dim`.
        """
        text = self._encode_text(words, word_mask, valid)
        if self.path is None or not self.has_blocks:
            return text
        if isinstance(text, Tensor):
            text = TextEmbedding.of_sentences(text)
        return replace(text, path=self.path.encode_text(words, word_mask))

    def _encode_text(self, words: Tensor, word_mask: Tensor, valid: int | None = None) -> Texts:
        """Queries as the blocks read them, or the path where there are none."""
        expect_fits("words", words, self.config)
        if self.query is None:
            assert self.path is not None  # the configuration sees to it
            return self.path.encode_text(words, word_mask)
        if self.config.padded_rows == "fixed":
            words = words.masked_fill(~word_mask[..., None], 0)
            sequences = Sequences.padded(word_mask)
        else:
            sequences = Sequences.packed(word_mask, valid)  # nothing reads a word past the end
        sentence = self.query(words, sequences)
        if self.frame_query is None:
            return sentence
        if not self.config.drops_padding and sequences.is_packed:  # as released
            words = words.masked_fill(~word_mask[..., None], 0)
            sequences = Sequences.padded(word_mask)
        return self.frame_query(sentence, words, word_mask, sequences, self.query.get_submodule("positions"))

    def encode_video(
        self,
        clips: Float[Tensor, "v c f"],
        frames: Float[Tensor, "v l f"],
        frame_mask: Bool[Tensor, "v l"],
        stream: Float[Tensor, "v s g"] | None = None,
        stream_mask: Bool[Tensor, "v s"] | None = None,
    ) -> VideoEmbedding:
        """Clip and frame embeddings of each video.

        Args:
            clips: `(v, c, f)`, exactly `config.num_clips` of them.
            frames: `(v, l, f)`, at most `config.max_frames`.
            frame_mask: `(v, l)` True = valid.
            stream: `(v, s, g)` rows of `config.stream`.
            stream_mask: `(v, s)` True = valid; a video may have no valid row.

        Raises:
            ValueError: another number of clips, too many frames, or a width other than `config.video_dim`.
        """
        video = replace(self._encode_video(clips, frames, frame_mask)[0], merged=None)
        if self.stream is not None:
            return replace(video, stream=self.stream(stream, stream_mask))
        if self.path is None or not self.has_blocks or self.path.gate == 1:  # then nothing reads it
            return video
        return replace(video, path=self.path.encode_video(frames, frame_mask))

    def _encode_video(
        self, clips: Tensor, frames: Tensor, frame_mask: Tensor, valid: int | None = None
    ) -> tuple[VideoEmbedding, Registers | None]:
        expect_fits("clips", clips, self.config)
        expect_fits("frames", frames, self.config)
        if self.path is not None and not self.has_blocks:
            return self.path.encode_video(frames, frame_mask), None
        if repeated := getattr(self.clip_rows, "repeated", None):
            frames, frame_mask = repeated(frames, frame_mask)
            valid = frame_mask.numel()
        encoded_clips = spans = encoded_frames = mask = None
        branch, more = _ClipBranch(self, frame_mask, valid), list[Merged]()
        if self.clips is not None:
            encoded_clips, spans, *more = self.clip_rows(branch, clips, frames, frame_mask)
        tokens = None if branch.registers is None else branch.registers.tokens
        if self.frames is not None:
            encoded = self.encoded_frames(frames)
            frames, valid_frames, mask = self.pad_frames(encoded, frame_mask, self.config.max_frames)
            sequences = self.sequences(valid_frames, valid)
            encoded = self.frames(self.frames.embed(frames, sequences), sequences, tokens)
            encoded_frames = encoded.masked_fill(~valid_frames[..., None], 0)
            encoded_frames, mask = self.frame_pool(EncodedFrames(encoded_frames, valid_frames, mask, encoded_clips))
        merged = more[0] if more else None
        return VideoEmbedding(encoded_clips, encoded_frames, mask, tokens, False, spans, merged), branch.registers

    def sequences(self, mask: Bool[Tensor, "v l"], valid: int | None) -> Sequences:
        """How rows of frames are computed, as `config.padded_rows` says."""
        return Sequences.packed(mask, valid) if self.config.drops_padding else Sequences.padded(mask)

    def generated(self, embedded: Tokens, sequences: Sequences, return_chain: bool = False) -> Registers:
        """The registers of what the clip branch has embedded."""
        generator: Any = self.registers
        read = embedded if self.guide is None else self.guide(embedded, sequences)[0]
        return generator(read, return_chain=return_chain)

    def score(self, text: Texts, video: VideoEmbedding, dots: bool = False) -> Scores:
        """Scores of every query with every video; `dots` adds the unnormalised maxima that InfoNCE trains on.

        Of embeddings with a path the total is (1 - gate) the score of the path + gate that of the blocks.
        """
        if self.path is not None and video.path is not None and isinstance(text, TextEmbedding):
            blocks = self.score(text, replace(video, path=None), dots)
            alone = self.path.score(text.path, video.path)
            return replace(blocks, total=alone.lerp(blocks.total, self.path.gate))
        clips = clips_dot = frames = frames_dot = key_clip = None
        vectors, unit = query_vectors(text), video.unit
        if self.frame_pool.by_clip and video.clips is not None and video.frames is not None:
            pool: Any = self.frame_pool
            parts = pool.scores(vectors, video.clips, video.frames, dots, unit=unit)
            clips, clips_dot, frames, frames_dot, key_clip = parts
        else:
            if video.clips is not None:
                clips, clips_dot = max_scores(vectors, video.clips, None, dots, unit=unit)
            if self.frame_query is not None and (video.frames is not None or clips is None):
                frames, frames_dot = frame_scores(self.frame_query, text, video, dots)
            elif video.frames is not None:
                frames, frames_dot = max_scores(vectors, video.frames, video.frame_mask, dots, unit=unit)
        if self.stream is not None and video.stream is not None and frames is not None:
            frames, frames_dot = self.stream.score(vectors, video.stream, frames, frames_dot)
        if clips is not None and frames is not None:
            total = self.config.clip_weight * clips + self.config.frame_weight * frames
        elif (total := frames if clips is None else clips) is None:
            raise InputError("the video embedding has neither clips nor frames: encode it with encode_video")
        return Scores(total, clips, frames, clips_dot, frames_dot, key_clip)

    def for_scoring(self, video: VideoEmbedding) -> VideoEmbedding:
        """The same videos with rows of unit length, which `score` would otherwise compute for each block of queries."""
        return normalised(video)

    def forward(self, batch: Batch) -> RetrieverOutput:
        """Encode a batch and score every query with every video in it."""
        return self.output(*self.encode(batch))

    def encode(self, batch: Batch) -> tuple[Texts, VideoEmbedding, Registers | None]:
        """Queries, videos and registers of a batch: what `output` takes.

        Losses train the blocks: a path beside them is left out.
        """
        if self.config.padded_rows == "fixed":
            batch = self.padded(batch)
        words = None if batch.counts is None else sum(batch.counts.words)
        text = self._encode_text(batch.words, batch.word_mask, words)
        video, registers = self._encode_video(batch.clips, batch.frames, batch.frame_mask, batch.valid_frames)
        if self.stream is not None:
            video = replace(video, stream=self.stream(batch.stream, batch.stream_mask))
        return text, video, registers

    def padded(self, batch: Batch) -> Batch:
        """A batch in the few shapes of `config.padded_rows="fixed"`."""
        config = self.config
        lengths = (batch.frames.shape[1], config.max_frames), (batch.words.shape[1], config.max_words)
        return batch.padded(*(config.padded_length(*length) for length in lengths))

    def output(self, text: Texts, video: VideoEmbedding, registers: Registers | None) -> RetrieverOutput:
        """The input of the losses, from encoded queries, videos and registers."""
        return RetrieverOutput(text, video, self.score(text, video, dots=True), registers)


@dataclass
class _ClipBranch:
    """The clip branch of a retriever as a `ClipConstruction` calls it; it keeps the registers that it has generated."""

    retriever: Retriever
    frame_mask: Tensor
    valid: int | None
    registers: Registers | None = None

    def __call__(self, rows: Tensor, mask: Tensor | None = None, sizes: Tensor | None = None) -> Tensor:
        retriever = self.retriever
        branch: Any = retriever.clips
        sequences = Sequences(None, retriever.config.num_clips, sizes=sizes)
        if mask is not None:
            sequences = retriever.sequences(mask, self.valid if mask is self.frame_mask else None)
            rows = rows.masked_fill(~mask[..., None], 0)
        x = branch.embed(rows, sequences)
        if retriever.registers is not None:
            self.registers = retriever.generated(x, sequences)
        return branch(x, sequences, None if self.registers is None else self.registers.tokens)
