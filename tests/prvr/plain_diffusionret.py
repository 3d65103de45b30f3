"""DiffusionRet's two stages in plain PyTorch, with its tensors under the names that its checkpoints have."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, TOKENS, POSITIONS, SIDE, PATCH = 32, 14, 16, 16, 8


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() + self.bias


class Layer(nn.Module):
    """A layer of a CLIP of one head; `hidden` is True where a row must not see a column."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 1, batch_first=True)
        nn.init.normal_(self.attn.in_proj_bias)
        nn.init.normal_(self.attn.out_proj.bias)
        self.ln_1, self.ln_2 = Norm(width, eps), Norm(width, eps)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (self.ln_1(x) @ self.attn.in_proj_weight.T + self.attn.in_proj_bias).chunk(3, -1)
        logits = (q @ k.mT / math.sqrt(x.shape[-1])).masked_fill(hidden, -torch.inf)
        x = x + self.attn.out_proj(logits.softmax(-1) @ v)
        inner = self.mlp["c_fc"](self.ln_2(x))
        return x + self.mlp["c_proj"](inner * torch.sigmoid(1.702 * inner))


class Layers(nn.Module):
    def __init__(self, width: int, number: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Layer(width, eps) for _ in range(number))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        for layer in self.resblocks:
            x = layer(x, hidden)
        return x


class Vision(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn((SIDE // PATCH) ** 2 + 1, width))
        self.ln_pre, self.ln_post = Norm(width, 1e-5), Norm(width, 1e-5)
        self.transformer = Layers(width, 1)
        self.proj = nn.Parameter(torch.randn(width, WIDTH) / 500)  # small frames, whose norms show what eps is

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.conv1(pictures).flatten(2).mT
        x = torch.cat([self.class_embedding.expand(len(patches), 1, -1), patches], 1) + self.positional_embedding
        x = self.transformer(self.ln_pre(x), torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool))
        return self.ln_post(x[:, 0]) @ self.proj


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual, self.transformer = Vision(), Layers(WIDTH, 3)
        self.token_embedding, self.ln_final = nn.Embedding(TOKENS, WIDTH), Norm(WIDTH, 1e-5)
        self.positional_embedding = nn.Parameter(torch.randn(POSITIONS, WIDTH))
        self.text_projection = nn.Parameter(torch.randn(WIDTH, WIDTH) / 5)
        self.logit_scale = nn.Parameter(torch.tensor(100.0).log())

    def words(self, tokens: Tensor, mask: Tensor) -> Tensor:
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.token_embedding(tokens) + self.positional_embedding[:length]
        return self.ln_final(self.transformer(x, later | ~mask[:, None])) @ self.text_projection


def denoiser() -> nn.Module:
    """A denoiser's tensors, without its computation."""
    parts = {name: nn.Linear(WIDTH, WIDTH, bias=False) for name in ("q_proj", "k_proj", "v_proj")}
    embed, code = nn.Module(), nn.Module()
    embed.time_embed = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
    code.register_buffer("pe", torch.zeros(7, 1, WIDTH))
    embed.sequence_pos_encoder = code
    decoder = nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 1))
    return nn.ModuleDict(
        {**parts, "proj": nn.Linear(WIDTH, WIDTH), "embed_timestep": embed, "sequence_pos_encoder": code}
        | {"decoder": decoder}
    )


class PlainDiffusionRet(nn.Module):
    """What a checkpoint holds; `denoisers` are there after the second stage."""

    def __init__(self, denoisers: bool = True) -> None:
        super().__init__()
        self.clip = Clip()
        for name in ("text_weight_fc", "video_weight_fc"):
            setattr(self, name, nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 1)))
        self.frame_position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        nn.init.normal_(self.frame_position_embeddings.weight, std=0.01)
        self.transformerClip = Layers(WIDTH, 2, eps=1e-12)
        if denoisers:
            self.diffusion_model, self.diffusion_model_v = denoiser(), denoiser()

    def text(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Words and the sentence, which is that of the highest token number."""
        words = self.clip.words(tokens, mask)
        return words, words[torch.arange(len(words)), tokens.argmax(1)]

    def frames(self, pictures: Tensor, mask: Tensor) -> Tensor:
        found = self.clip.visual(pictures.flatten(0, 1)).unflatten(0, pictures.shape[:2])
        x = found + self.frame_position_embeddings.weight[: found.shape[1]]
        return found + self.transformerClip(x, ~mask[:, None].expand(-1, mask.shape[1], -1))

    def scores(self, words: Tensor, word_mask: Tensor, frames: Tensor, frame_mask: Tensor) -> Tensor:
        found = []
        for w, wm in zip(words, word_mask, strict=True):
            row = []
            for f, fm in zip(frames, frame_mask, strict=True):
                g_t = self.text_weight_fc(w)[:, 0].masked_fill(~wm, -9e15).softmax(0)
                g_v = self.video_weight_fc(f)[:, 0].masked_fill(~fm, -9e15).softmax(0)
                cosines = F.normalize(w, dim=-1) @ F.normalize(f, dim=-1).T * wm[:, None] * fm
                row.append((g_t @ cosines.amax(1) + g_v @ cosines.amax(0)) / 2)
            found.append(torch.stack(row))
        return torch.stack(found)
