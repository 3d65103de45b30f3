"""Condition, pooling and the RegisterGenerator that joins the parts."""

import pytest
import torch
import torch.nn.functional as F
from noise_sources import Reused

from regdiff.registers import (
    ConditionGenerator,
    RegisterGenerator,
    TextualPerturbation,
    adaptive_average_pool,
    make_register_generator,
)

DIM, NUM, LENGTH = 8, 3, 10
VARIANTS = {
    "reused": {"start": "prior_mean", "loss_timesteps": "all"},
    "correct": {},
    "gaussian": {"start": "gaussian"},
    "gaussian-reused": {"start": "gaussian"},
    "mean-gaussian": {"start": "prior_mean"},
    "few-steps": {"num_sampling_steps": 2},
    "condition": {"kind": "condition"},
    "pooled": {"kind": "pooled"},
    "prior": {"kind": "prior"},
}


def build(variant: str = "correct", **options) -> RegisterGenerator:
    sizes = {"num_registers": NUM, "steps": 4, "length": LENGTH}
    generator = make_register_generator(DIM, num_heads=2, **(sizes | VARIANTS[variant] | options))
    if "reused" in variant:
        generator.noise = Reused()
    return generator


def features(rows: int = 5, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(rows, length, DIM)


def some_mask() -> torch.Tensor:
    mask = torch.rand(5, LENGTH) < 0.6
    mask[:, 4] = True
    return mask


def test_condition_by_plain_loops():
    module = ConditionGenerator(DIM, NUM, num_heads=2).double().eval()
    x, mask = features(2).double(), some_mask()[:2]
    output = module(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)
    for row in range(2):
        kept = x[row, mask[row]]
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            q = module.attention.query(module.query_tokens[0])[:, part]
            k, v = module.attention.key(kept)[:, part], module.attention.value(kept)[:, part]
            heads.append((q @ k.T / 2).softmax(-1) @ v)
        y = module.attention_norm(module.query_tokens[0] + torch.cat(heads, -1))
        y = module.ffn_norm(y + module.ffn_out(torch.relu(module.ffn_in(y))))
        torch.testing.assert_close(output[row], y)


@pytest.mark.parametrize(("length", "num"), [(10, 3), (10, 10), (3, 5), (7, 1), (1, 4)])
def test_adaptive_pool_equals_torch_and_ignores_padding(length, num):
    x = features(2, length)
    expected = F.adaptive_avg_pool1d(x.mT, num).mT
    torch.testing.assert_close(adaptive_average_pool(x, num), expected)
    padded = torch.full((2, length + 4, DIM), 1e3)
    mask = torch.zeros(2, length + 4, dtype=torch.bool)
    for row in range(2):
        mask[row, torch.randperm(length + 4)[:length]] = True
    padded[mask] = x.flatten(0, 1)
    torch.testing.assert_close(adaptive_average_pool(padded, num, mask), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("train", [True, False])
def test_shapes_terms_and_finite_gradients(variant, train):
    generator = build(variant).train(train)
    x = features().requires_grad_()
    registers = generator(x, some_mask(), return_chain=True)
    assert registers.tokens.shape == (5, NUM, DIM)
    assert registers.condition.shape == (5, NUM, DIM)
    terms = generator.loss(TextualPerturbation()(torch.randn(5, DIM), NUM), registers)
    diffused = variant not in ("condition", "pooled", "prior")
    assert ("diffusion" in terms) == diffused
    assert ("prior_kl" in terms) == (variant == "prior" or (diffused and not variant.startswith("gaussian")))
    if diffused:
        assert registers.tokens.abs().max() <= 1 + 1e-5
        assert torch.equal(registers.chain[-1], registers.tokens)
        assert len(registers.chain) == (2 if variant == "few-steps" else 4)
    total = registers.tokens.square().sum() + torch.stack([*terms.values(), x.new_zeros(())]).sum()
    total.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    unused = [name for name, p in generator.named_parameters() if p.grad is None]
    assert unused == []
    assert all(p.grad.isfinite().all() for p in generator.parameters())


@pytest.mark.parametrize("start", ["prior_sample", "prior_mean"])
def test_registers_without_denoising_are_where_the_diffusion_starts(start):
    whole, alone = build(start=start).double().eval(), build(kind="prior", start=start).double().eval()
    alone.load_state_dict({k: v for k, v in whole.state_dict().items() if k.startswith("prior.")})
    x, mask = features().double(), some_mask()
    register_mask = torch.tensor([[True, True, False]]).expand(5, -1)
    registers = alone(x, mask, register_mask=register_mask)
    prior = whole(x, mask).prior
    eps = alone.eval_noise[0] if start == "prior_sample" else torch.zeros(NUM, DIM)
    expected = prior.mean[:, None] + prior.std[:, None] * eps
    torch.testing.assert_close(registers.tokens, expected.masked_fill(~register_mask[..., None], 0))
    assert set(alone.loss(registers.tokens, registers)) == {"prior_kl"}
    drawn = alone(x, mask, generator=torch.Generator().manual_seed(5)).tokens
    torch.testing.assert_close(drawn, whole(x, mask, generator=torch.Generator().manual_seed(5)).start)


def test_training_draws_and_a_generator_fixes_them():
    generator, x = build(), features()
    assert not torch.allclose(generator(x).tokens, generator(x).tokens)
    for train in (True, False):
        generator.train(train)
        a, b, c = (generator(x, generator=torch.Generator().manual_seed(s)).tokens for s in (0, 0, 1))
        assert torch.equal(a, b)
        assert not torch.allclose(a, c)


def test_float64_and_autocast():
    generator, x = build().eval(), features()
    single = generator(x).tokens
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = generator(x)
        terms = generator.loss(torch.randn(5, NUM, DIM), mixed)
    assert mixed.start.dtype == mixed.tokens.dtype == torch.float32
    assert all(term.isfinite() for term in terms.values())
    assert (mixed.tokens - single).abs().mean() < 0.1
    double = generator.double()(x.double()).tokens
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-3, atol=1e-3)
