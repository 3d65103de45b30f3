"""Hyperbolic layers: first your attention replaced by ours in ten lines, then a network of points from end to end.

The network is trained to name the branch of a tree. A sequence holds leaves of one branch of a binary tree among leaves
from anywhere; the class is the branch. Points go through one transformer block of Lorentz layers and are classified by
their distances to hyperplanes.
"""

import torch
import torch.nn.functional as F
from torch import nn

import lorentz
from lorentz.nn import (
    Curvature,
    ExpMap0,
    LogMap0,
    LorentzActivation,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzMLR,
    LorentzMultiheadAttention,
    LorentzResidual,
)


# Wherever you call nn.MultiheadAttention(dim, heads, batch_first=True) on Euclidean vectors, this goes in its place.
class HyperbolicAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        c = Curvature(1.0)  # -c, learned
        self.enter, self.leave = ExpMap0(c), LogMap0(c)
        self.attention = LorentzMultiheadAttention(dim, heads, out_features=dim, c=c)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None):
        scale = q.shape[-1] ** 0.5
        points = (self.enter(x / scale) for x in (q, k, v))  # normalised vectors: length about 1
        return scale * self.leave(self.attention(*points, mask=mask))  # mask: True = valid, (b, 1, 1, keys) for padding


torch.manual_seed(0)
x = torch.randn(2, 5, 16)
theirs = nn.MultiheadAttention(16, heads := 4, batch_first=True)(x, x, x)[0]
assert HyperbolicAttention(16, heads)(x, x, x).shape == theirs.shape

LEAVES, BRANCHES, LENGTH, DIM = 64, 8, 10, 8


class BranchFinder(nn.Module):
    """Leaves to points, points to points, hyperplanes between the branches."""

    def __init__(self) -> None:
        super().__init__()
        self.curvature = c = Curvature(1.0)  # shared by all layers
        self.leaves, self.enter = nn.Embedding(LEAVES, DIM), ExpMap0(c)
        self.attention = LorentzMultiheadAttention(DIM, num_heads=2, out_features=DIM, c=c)
        self.feed = nn.Sequential(
            LorentzLayerNorm(DIM, c=c),
            LorentzLinear(DIM, 2 * DIM, c=c),
            LorentzActivation(nn.GELU(), c=c),
            LorentzLinear(2 * DIM, DIM, c=c),
        )
        self.join = LorentzResidual(learnable=True, c=c)
        self.classify = LorentzMLR(DIM, BRANCHES, c=c)

    def forward(self, leaves: torch.Tensor) -> torch.Tensor:
        x = self.enter(0.5 * self.leaves(leaves))  # (b, l, d + 1), time first
        x = self.join(x, self.attention(x, x, x))
        x = self.join(x, self.feed(x))
        middle = lorentz.centroid(x, x.new_ones(len(x), 1, LENGTH), self.curvature())[:, 0]  # (b, d + 1)
        return self.classify(middle)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    branch = torch.randint(BRANCHES, (count,))
    own = branch[:, None] * (LEAVES // BRANCHES) + torch.randint(LEAVES // BRANCHES, (count, LENGTH))
    return torch.where(torch.rand(count, LENGTH) < 0.5, own, torch.randint(LEAVES, (count, LENGTH))), branch


model = BranchFinder()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
for step in range(101):
    leaves, branch = draw(64)
    loss = F.cross_entropy(model(leaves), branch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        share = torch.as_tensor(model.join.share).item()
        print(f"step {step:3}: loss {loss.item():.3f}, c {model.curvature().item():.3f}, residual share {share:.2f}")

leaves, branch = draw(1000)
accuracy = (model(leaves).argmax(-1) == branch).float().mean().item()
print(f"right branch for {accuracy:.0%} of new sequences, chance {1 / BRANCHES:.0%}")
assert accuracy > 3 / BRANCHES
