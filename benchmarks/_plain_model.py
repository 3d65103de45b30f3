"""DreamPRVR as one would write it down from the equations, without a thought for speed: what benchmarks compare with.

Blocks one after the other; register rows computed like all others and thrown away; keys and values of every block
projected for the fusion's single query; the query encoded twice; the denoiser called once per timestep; padded rows
computed. The register generator itself is `regdiff`'s.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.released.registers import StartNoise
from prvr.types import Batch
from regdiff import Registers, TextualPerturbation, make_register_generator


class Attention(nn.Module):
    """Multi-head attention with a window on the logits, no output projection (GMMFormer eq. 4)."""

    def __init__(self, dim: int, heads: int, dropout: float, width: float | None = None) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.heads, self.dropout, self.width = heads, nn.Dropout(dropout), width

    def window(self, length: int, device: torch.device) -> Tensor:
        position = torch.arange(length, device=device) / max(length - 1, 1)
        assert self.width is not None
        sigma = max(self.width, 0.01) / 9
        return torch.exp(-((position[None] - position[:, None]) ** 2) / (2 * sigma**2))

    def forward(self, queries: Tensor, x: Tensor, keep: Tensor | None, own: int) -> Tensor:
        q = self.query(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.key(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if self.width is not None:
            gain = torch.ones(logits.shape[-2:], device=x.device)
            gain[:own, :own] = self.window(own, x.device)
            logits = logits * gain
        if keep is not None:
            logits = logits + (1 - keep.to(logits.dtype))[:, None, None] * -1e4
        return (self.dropout(logits.softmax(-1)) @ v).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """y = LN(x + attention(x)); LN(y + FFN(y))."""

    def __init__(self, dim: int, inner: int, heads: int, dropout: float, width: float | None = None) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout, width)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.expand, self.contract = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, x: Tensor, keep: Tensor | None = None, own: int = 0) -> Tensor:
        y = self.norm1(queries + self.dropout(self.attention(queries, x, keep, own)))
        return self.norm2(y + self.dropout(self.contract(self.dropout(F.relu(self.expand(y))))))


class Project(nn.Module):
    """ReLU(Linear(dropout(LN(x))))."""

    def __init__(self, width: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout, self.linear = nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(self.dropout(self.norm(x))))


class Embed(nn.Module):
    """Projected features plus positions, normalised."""

    def __init__(self, width: int, length: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.project, self.positions = Project(width, dim, dropout), nn.Embedding(length, dim)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        return self.dropout(self.norm(x + self.positions(torch.arange(x.shape[1], device=x.device))))


class Branch(nn.Module):
    """Blocks one after the other, then mean-guided fusion with a cross attention for each of them."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        dim, heads, drop = config.hidden, config.heads, config.dropout
        self.embed = Embed(config.video_dim, length, dim, config.input_dropout)
        self.registers = Project(dim, dim, drop)
        self.blocks = nn.ModuleList(Block(dim, 4 * dim, heads, drop, block.width) for block in config.blocks)
        self.guide = Block(dim, dim, heads, drop)
        self.hidden, self.weights = nn.Linear(dim, dim), nn.Linear(dim, length)
        self.dropout, self.temperature = nn.Dropout(drop), config.fusion_temperature

    def forward(self, x: Tensor, registers: Tensor, mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        tokens = torch.cat([x, self.registers(registers)], 1)
        keep = None if mask is None else torch.cat([mask, mask.new_ones(registers.shape[:2])], 1)
        outputs = [block(tokens, tokens, keep, length)[:, :length] for block in self.blocks]
        together = torch.stack(outputs, -1)
        query = together.mean(-1).mean(1, keepdim=True)
        answers = torch.cat([self.guide(query, together[..., i], mask) for i in range(len(outputs))], 1)
        weights = self.weights(self.dropout(F.relu(self.hidden(answers)))).transpose(1, 2)
        weights = (weights / self.temperature).softmax(-1)
        return (together * weights[:, :, None].repeat(1, 1, together.shape[2], 1)).sum(-1)


class PlainRetriever(nn.Module):
    """The whole model; `config` as for `prvr.Retriever`: Euclidean blocks, both branches, diffused registers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.registers.kind == "diffusion"
        assert all(block.space == "euclidean" for block in config.blocks)
        dim, heads, drop = config.hidden, config.heads, config.dropout
        self.config = config
        self.words = Embed(config.query_dim, config.max_words, dim, config.input_dropout)
        self.query = Block(dim, 4 * dim, heads, drop)
        self.pool = nn.Linear(dim, 1, bias=False)
        self.clips, self.frames = Branch(config, config.num_clips), Branch(config, config.max_frames)
        self.condition = Block(dim, 4 * dim, heads, drop)
        self.perturb = TextualPerturbation(0.1)
        chosen = config.registers
        self.generator = make_register_generator(
            dim, chosen.num, heads, steps=chosen.steps, layers=chosen.layers, start="prior_mean", dropout=drop
        )
        self.generator.noise = StartNoise()

    def encode_text(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.words(words)
        x = self.query(x, x, mask)
        logits = self.pool(x).masked_fill(~mask[..., None], -1e10)
        return torch.einsum("qwo,qwd->qd", logits.softmax(1), x)

    def register_losses(self, text: Tensor, batch: Batch, registers: Registers) -> tuple[Tensor, Tensor]:
        means = [text[batch.query_to_video == v].mean(0) for v in range(len(batch.clips))]
        target = self.perturb(torch.stack(means), self.config.registers.num)
        assert registers.prior is not None
        assert self.generator.diffusion is not None
        steps = []
        for t in range(self.config.registers.steps):
            at = torch.full((len(target),), t, device=target.device)
            steps.append(self.generator.diffusion.loss(target, registers.condition, registers.start, at))
        return registers.prior.kl(), torch.stack(steps).mean()

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        text = self.encode_text(batch.words, batch.word_mask)
        x = self.clips.embed(batch.clips)
        registers = self.generator(self.condition(x, x))
        prior_kl, diffusion = self.register_losses(text, batch, registers)
        clips = self.clips(x, registers.tokens)
        missing = self.config.max_frames - batch.frames.shape[1]
        frames = F.pad(batch.frames * batch.frame_mask[..., None], (0, 0, 0, missing))
        mask = F.pad(batch.frame_mask, (0, missing))
        frames = self.frames(self.frames.embed(frames), registers.tokens, mask)
        frames = torch.where(mask[..., None].expand_as(frames), frames, 0.0 * frames)
        again = self.encode_text(batch.words, batch.word_mask)
        scores = {"text": text, "prior_kl": prior_kl, "diffusion": diffusion}
        for name, tokens in (("clips", clips), ("frames", frames)):
            unit = torch.matmul(F.normalize(tokens, dim=-1), F.normalize(again, dim=-1).T)
            scores[name] = unit.permute(2, 1, 0).max(1).values
            scores[f"{name}_dot"] = torch.matmul(tokens, again.T).permute(2, 1, 0).max(1).values
        return scores
