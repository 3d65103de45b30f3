"""Hyperbolic layers alone: attention between points of the hyperboloid, trained to name the branch of a tree.

A sequence holds leaves of one branch of a binary tree among leaves from anywhere; the class is the branch. Points go
through a Lorentz attention and a Lorentz linear layer and are classified by their distance to one point per branch.
"""

import torch
import torch.nn.functional as F
from torch import nn

import lorentz

LEAVES, BRANCHES, LENGTH, DIM = 64, 8, 10, 8


class BranchFinder(nn.Module):
    """Leaves to points, points to points, nearest branch."""

    def __init__(self) -> None:
        super().__init__()
        self.curvature = lorentz.nn.Curvature(1.0)  # -c, learned and shared by all layers
        self.leaves = nn.Embedding(LEAVES, DIM)
        self.branches = nn.Parameter(0.5 * torch.randn(BRANCHES, DIM))
        self.attention = lorentz.nn.LorentzMultiheadAttention(DIM, heads=2, c=self.curvature)
        self.linear = lorentz.nn.LorentzLinear(DIM, DIM, c=self.curvature)

    def forward(self, leaves: torch.Tensor) -> torch.Tensor:
        c = self.curvature()
        points = lorentz.expmap0(0.5 * self.leaves(leaves), c)  # (b, l, d + 1), time first
        points = self.linear(self.attention(points, points, points))
        weights = torch.full((len(leaves), 1, LENGTH), 1 / LENGTH)
        middle = lorentz.centroid(points, weights, c)[:, 0]  # (b, d + 1)
        return -lorentz.pairwise_dist(middle, lorentz.expmap0(self.branches, c), c)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    branch = torch.randint(BRANCHES, (count,))
    own = branch[:, None] * (LEAVES // BRANCHES) + torch.randint(LEAVES // BRANCHES, (count, LENGTH))
    return torch.where(torch.rand(count, LENGTH) < 0.5, own, torch.randint(LEAVES, (count, LENGTH))), branch


torch.manual_seed(0)
model = BranchFinder()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
for step in range(101):
    leaves, branch = draw(64)
    loss = F.cross_entropy(model(leaves), branch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(f"step {step:3}: loss {loss.item():.3f}, c {model.curvature().item():.3f}")

leaves, branch = draw(1000)
accuracy = (model(leaves).argmax(-1) == branch).float().mean().item()
print(f"right branch for {accuracy:.0%} of new sequences, chance {1 / BRANCHES:.0%}")
assert accuracy > 3 / BRANCHES
