"""A stock transformer classifier with its attention replaced, trained in float32 and under bfloat16 autocast.

It reads 12 to 24 words of Python and says which module of the standard library they are from. Embedding, layer norm,
feed-forward, residual and classifier are torch's own. The last fifth of every file is held out.
"""

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from lorentz.nn import Curvature, ExpMap0, LogMap0, LorentzMultiheadAttention

MODULES = ("_pydecimal", "argparse", "tarfile", "turtle")
WORDS, LENGTH, DIM, HEADS, STEPS, BATCH = 400, 24, 32, 4, 200, 64


class LorentzSelfAttention(nn.Module):
    """In the place of `nn.MultiheadAttention(dim, heads)`: into the hyperboloid, attend, and out again."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        c = Curvature(1.0)  # learned
        self.enter, self.leave = ExpMap0(c), LogMap0(c)
        self.attention = LorentzMultiheadAttention(dim, heads, out_features=dim, c=c)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scale = x.shape[-1] ** 0.5
        points = self.enter(x / scale)  # after a layer norm: length about 1
        return scale * self.leave(self.attention(points, points, points, mask=mask))


class Classifier(nn.Module):
    """Two pre-norm transformer layers, the mean over the tokens that are not padding, a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(WORDS, DIM, padding_idx=0), nn.Embedding(LENGTH, DIM)
        self.attention = nn.ModuleList(LorentzSelfAttention(DIM, HEADS) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM)) for _ in range(2)
        )
        self.classify = nn.Linear(DIM, len(MODULES))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        valid = tokens != 0
        x = self.token(tokens) + self.position.weight
        for i, (attention, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
            x = x + attention(self.norm[2 * i](x), valid[:, None, None, :])
            x = x + feed(self.norm[2 * i + 1](x))
        return self.classify((x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True))


def read(module: str) -> list[str]:
    """The words and signs of the module's source."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return re.findall(r"\w+|[^\w\s]", Path(spec.origin).read_text(encoding="utf-8"))


def numbered(texts: list[list[str]]) -> list[torch.Tensor]:
    """The most frequent words as 2, 3, ..., all others as 1."""
    counts = Counter(word for text in texts for word in text[: len(text) * 4 // 5])
    number = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    return [torch.tensor([number.get(word, 1) for word in text]) for text in texts]


def draw(sources: list[torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Snippets of 12 to 24 words, padded with zeros, and the module each is from."""
    labels = torch.randint(len(sources), (count,))
    starts = (int(torch.randint(len(sources[label]) - LENGTH, ())) for label in labels.tolist())
    rows = [sources[label][start : start + LENGTH] for label, start in zip(labels.tolist(), starts, strict=True)]
    length = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1))
    return torch.where(torch.arange(LENGTH) < length, torch.stack(rows), 0), labels


def train(mixed: bool) -> float:
    """Accuracy on held-out text after training; no loss and no parameter may be NaN."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    texts = numbered([read(module) for module in MODULES])
    seen, held_out = ([t[: len(t) * 4 // 5] for t in texts], [t[len(t) * 4 // 5 :] for t in texts])
    for step in range(STEPS):
        tokens, labels = draw(seen, BATCH)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = F.cross_entropy(model(tokens).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters()), f"step {step}"
        optimizer.step()
    model.eval()
    tokens, labels = draw(held_out, 1000)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        return (model(tokens).argmax(-1) == labels).float().mean().item()


for name, mixed in (("float32", False), ("bfloat16 autocast", True)):
    accuracy = train(mixed)
    print(f"{name:18} {accuracy:.0%} of held-out snippets to the right module, chance {1 / len(MODULES):.0%}, no NaN")
    assert accuracy > 2 / len(MODULES)
