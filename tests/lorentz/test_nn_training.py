"""The layers inside torch: training in float32, float64 and under autocast, copies, checkpoints, compile, vmap."""

import pytest
import torch
from torch import Tensor, nn

import lorentz.nn as lnn


class Block(nn.Module):
    """Every layer once: a small transformer block on points, and a classifier."""

    def __init__(self, dim: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.curvature = c = lnn.Curvature(1.0)
        self.embed, self.enter = nn.Linear(5, dim), lnn.ExpMap0(c)
        self.attention = lnn.LorentzMultiheadAttention(dim, 2, out_features=dim, dropout=0.1, c=c)
        self.join = lnn.LorentzResidual(learnable=True, c=c)
        self.branch = nn.Sequential(
            lnn.LorentzLayerNorm(dim, c=c),
            lnn.LorentzLinear(dim, 2 * dim, c=c),
            lnn.LorentzBatchNorm(2 * dim, c=c),
            lnn.LorentzActivation(nn.GELU(), c=c),
            lnn.LorentzDropout(0.1, c=c),
            lnn.LorentzLinear(2 * dim, dim, magnitude="bounded", c=c),
        )
        self.classify = lnn.LorentzMLR(dim, classes, c=c)

    def forward(self, v: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.enter(0.3 * self.embed(v))
        x = self.join(x, self.attention(x, x, x, mask=mask))
        x = self.join(x, self.branch(x))
        return self.classify(x).mean(-2)


def batch(count: int = 96) -> tuple[Tensor, Tensor]:
    """Sequences of five, the class written into their mean."""
    target = torch.randint(3, (count,))
    return torch.randn(count, 5, 5) + 1.5 * torch.eye(5)[target].unsqueeze(1), target


@pytest.mark.parametrize("mode", ["float32", "float64", "autocast", "bfloat16"])
def test_trains(mode: str, device: str) -> None:
    model = Block()
    v, target = batch()
    if mode in ("float64", "bfloat16"):
        model, v = model.to(getattr(torch, mode)), v.to(getattr(torch, mode))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mode == "autocast"):
            logits = model(v)
            assert logits.dtype == (torch.float32 if mode == "autocast" else getattr(torch, mode))
            loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_keys_of_checkpoints_do_not_change() -> None:
    number, inner = ["curvature._extra_state"], ["linear.weight", "linear.bias"]
    linear = [*number, *inner]
    bounded = ["log_length", *linear, "gate.weight", "gate.bias"]
    expected = {
        lnn.Curvature(1.0): ["raw", "_extra_state"],
        lnn.Curvature(1.0, learnable=False): ["value", "_extra_state"],
        lnn.LorentzLinear(4, 3): linear,
        lnn.LorentzLinear(4, 3, magnitude="bounded"): bounded,
        lnn.LorentzMultiheadAttention(4, 2, out_features=4): [
            "log_temperature",
            *number,
            *(f"{part}.{name}" for part in ("query", "key", "value", "out") for name in linear),
        ],
        lnn.LorentzConv2d(4, 3, 3): [*number, *(f"linear.{name}" for name in linear)],
        lnn.LorentzBatchNorm(4): [*number, "weight", "bias", "running_mean", "running_var"],
        lnn.LorentzResidual(learnable=True): [*number, "logit"],
        lnn.LorentzMLR(4, 3): [*number, "weight", "offset"],
    }
    for module, keys in expected.items():
        assert sorted(module.state_dict()) == sorted(keys), type(module).__name__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_curvature_computes_in_float32_and_a_fixed_one_is_never_rounded(dtype: torch.dtype) -> None:
    fixed = nn.Sequential(lnn.ExpMap0(lnn.Curvature(0.3, learnable=False))).to(dtype)
    assert fixed[0].c.dtype == torch.float32
    assert fixed[0].c == torch.tensor(0.3)
    assert fixed.double()[0].c.dtype == torch.float64
    learned = lnn.Curvature(0.3).to(dtype)
    assert learned.raw.dtype == dtype
    assert learned().dtype == torch.float32
    torch.testing.assert_close(learned(), 0.1 * 100 ** torch.sigmoid(learned.raw.float()))
