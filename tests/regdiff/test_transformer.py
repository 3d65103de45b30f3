"""TransformerDenoiser: its equation written out, sets and positions, masks, gradients, refusals."""

import math
from functools import partial

import pytest
import torch
from saved_modules import spread_weights
from torch import nn

from regdiff.transformer import TransformerDenoiser

DIM, HEADS, STEPS, ROWS, NUM, LENGTH = 8, 2, 5, 3, 4, 6


def build(**options) -> nn.Module:
    options = {"num_heads": HEADS, "condition_dim": 5, "register_dim": 3} | options
    return spread_weights(TransformerDenoiser(DIM, STEPS, **options)).double()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    timestep = torch.tensor([0, 3, 4])
    return torch.randn(ROWS, NUM, 3).double(), timestep, torch.randn(ROWS, LENGTH, 5).double()


def ragged(length: int) -> torch.Tensor:
    """A different pattern in each row, at least one valid position."""
    mask = torch.rand(ROWS, length) < 0.5
    mask[torch.arange(ROWS), torch.randint(length, (ROWS,))] = True
    mask[0, 1] = False
    mask[0, 0] = True
    return mask


def affine(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear.weight @ x + linear.bias


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


def swish(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def attend(module, x: torch.Tensor, keys: list[torch.Tensor]) -> torch.Tensor:
    """What one position x reads from `keys`, head by head and key by key; zeros where there are none."""
    width, heads = DIM // HEADS, []
    if not keys:
        return affine(module.out, torch.zeros(DIM).double())
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        query = affine(module.query, x)[part]
        weights = torch.stack([torch.exp(query @ affine(module.key, k)[part] / math.sqrt(width)) for k in keys])
        values = [affine(module.value, k)[part] for k in keys]
        heads.append(sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True)))
    return affine(module.out, torch.cat(heads))


def plain_loop(denoiser, x, timestep, condition, mask, condition_mask) -> torch.Tensor:
    """The docstring's equation, one register at a time."""
    output = torch.zeros_like(x)
    widen = (lambda c: c) if isinstance(denoiser.condition_in, nn.Identity) else partial(affine, denoiser.condition_in)
    for row in range(len(x)):
        table = denoiser.time_table[timestep[row]]
        e = swish(affine(denoiser.time_out, swish(affine(denoiser.time_in, table))))
        norm = denoiser.condition_norm
        seen = [normalised(widen(c)) * norm.weight + norm.bias for c in condition[row, condition_mask[row]]]
        kept = [n for n in range(x.shape[1]) if mask[row, n]]
        h = {n: affine(denoiser.register_in, x[row, n]) for n in kept}
        if denoiser.positions is not None:
            h = {n: h[n] + denoiser.positions[0, n] for n in kept}
        for block in denoiser.layers:
            for branch in range(3):
                m, s, g = affine(block.modulation, e).chunk(3)[branch].chunk(3)
                modulated = {n: normalised(h[n]) * (1 + s) + m for n in kept}
                if branch == 0:
                    added = {n: attend(block.self_attention, modulated[n], list(modulated.values())) for n in kept}
                elif branch == 1:
                    added = {n: attend(block.cross_attention, modulated[n], seen) for n in kept}
                else:
                    added = {}
                    for n in kept:
                        hidden = affine(block.mlp_in, modulated[n])
                        added[n] = affine(block.mlp_out, hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2)
                h = {n: h[n] + g * added[n] for n in kept}
        m, s = affine(denoiser.out_modulation, e).chunk(2)
        for n in kept:
            output[row, n] = affine(denoiser.out, normalised(h[n]) * (1 + s) + m)
    return output


@pytest.mark.parametrize("num_registers", [None, NUM])
@pytest.mark.parametrize("masked", [False, True])
def test_the_equation_register_by_register(num_registers, masked):
    denoiser, (x, timestep, condition) = build(layers=3, num_registers=num_registers), inputs()
    mask = ragged(NUM) if masked else torch.ones(ROWS, NUM, dtype=torch.bool)
    condition_mask = ragged(LENGTH) if masked else torch.ones(ROWS, LENGTH, dtype=torch.bool)
    if masked:  # rows without anything valid among them
        mask[1], condition_mask[2] = False, False
    output = denoiser(x, timestep, (condition, condition_mask) if masked else condition, mask if masked else None)
    expected = plain_loop(denoiser, x, timestep, condition, mask, condition_mask)
    torch.testing.assert_close(output, expected, rtol=1e-11, atol=1e-11)
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in denoiser.parameters() if p.grad is not None)


@pytest.mark.parametrize("garbage", [1e3, math.nan])
@pytest.mark.parametrize("num_registers", [None, NUM + 2])
def test_padding_of_registers_and_condition_changes_nothing(garbage, num_registers):
    denoiser, (x, timestep, condition) = build(num_registers=num_registers), inputs()
    expected = denoiser(x, timestep, condition)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in denoiser.parameters()]
    denoiser.zero_grad()
    longer = torch.cat([x, torch.full((ROWS, 2, 3), garbage).double()], dim=1).requires_grad_()
    wider = torch.cat([torch.full((ROWS, 3, 5), garbage).double(), condition], dim=1).requires_grad_()
    mask = torch.arange(NUM + 2).expand(ROWS, -1) < NUM
    condition_mask = torch.arange(LENGTH + 3).expand(ROWS, -1) >= 3
    output = denoiser(longer, timestep, (wider, condition_mask), mask=mask)
    torch.testing.assert_close(output[:, :NUM], expected)
    assert not output[:, NUM:].any()
    output.square().sum().backward()
    for parameter, gradient in zip(denoiser.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert not longer.grad[~mask].any()
    assert not wider.grad[~condition_mask].any()


def test_the_first_prediction_is_zero():
    denoiser = TransformerDenoiser(DIM, STEPS, register_dim=3, condition_dim=5).double()
    assert not denoiser(*inputs()).any()
