"""RegisterDenoiser: its equation written out, independence of registers, the frozen time table."""

import math

import pytest
import torch
from saved_modules import spread_weights
from torch import nn

from regdiff import ConditionalDiffusion, make_scheduler
from regdiff.registers import RegisterDenoiser
from regdiff.timestep import sincos_table


def test_the_equation_register_by_register():
    denoiser = spread_weights(RegisterDenoiser(6, steps=5, layers=3)).double()
    x, c, timestep = torch.randn(2, 4, 6).double(), torch.randn(2, 4, 6).double(), torch.tensor([4, 1])
    swish = nn.functional.silu
    output = denoiser(x, timestep, c)
    for row in range(2):
        te = denoiser.time_out(swish(denoiser.time_in(denoiser.time_table[timestep[row]])))
        for n in range(4):
            ce = denoiser.condition_proj(torch.relu(denoiser.condition_norm(c[row, n])))
            h = x[row, n]
            for layer in denoiser.layers:
                a = (
                    layer.proj_in(swish(layer.norm_in(h)))
                    + layer.time_proj(swish(te))
                    + layer.condition_proj(swish(ce))
                )
                h = layer.proj_out(swish(layer.norm_out(a))) + layer.shortcut(h)
            torch.testing.assert_close(output[row, n], denoiser.out(h + x[row, n]))


def test_the_time_table_is_frozen_and_survives_reinitialisation():
    denoiser = RegisterDenoiser(6, steps=5)

    def init_linear_and_embedding(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    before = denoiser.time_table.clone()
    denoiser.apply(init_linear_and_embedding)
    assert torch.equal(denoiser.time_table, before)
    assert "time_table" not in dict(denoiser.named_parameters())


def test_time_tables():
    table = sincos_table(7, 6)
    for p in range(7):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)
    assert sincos_table(3, 5).shape == (3, 5)
    torch.testing.assert_close(RegisterDenoiser(6, steps=7).time_table, table.float())


def test_masked_registers_are_zeros_and_change_nothing():
    denoiser = spread_weights(RegisterDenoiser(6, steps=5)).double()
    x, c, timestep = torch.randn(2, 4, 6).double(), torch.randn(2, 4, 6).double(), torch.tensor([1, 3])
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    plain = denoiser(x, timestep, c)
    for garbage in (1e3, math.nan):
        denoiser.zero_grad()
        dirty = [value.masked_fill(~mask[..., None], garbage).requires_grad_() for value in (x, c)]
        output = denoiser(dirty[0], timestep, dirty[1], mask=mask)
        assert torch.equal(output[mask], plain[mask])
        assert not output[~mask].any()
        output.square().sum().backward()
        assert all(value.grad.isfinite().all() for value in (*dirty, *denoiser.parameters()))
        assert not dirty[0].grad[~mask].any()


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_what_a_sampler_prepares_once_changes_neither_registers_nor_gradients(masked, guidance):
    denoiser = spread_weights(RegisterDenoiser(6, steps=5, layers=3)).double()
    start, c = torch.randn(3, 4, 6).double(), torch.randn(3, 4, 6).double()
    mask = torch.rand(3, 4) < 0.7 if masked else None
    noise, found = torch.randn(5, 3, 4, 6).double(), []
    for network in (denoiser, lambda x, t, c, mask=None: denoiser(x, t, c, mask)):
        denoiser.zero_grad()
        condition = c.clone().requires_grad_()
        diffusion = ConditionalDiffusion(network, make_scheduler("ddim", 5), condition_dropout=0.1)
        registers = diffusion.sample(start, condition, noise=noise, mask=mask, guidance_scale=guidance)
        registers.square().sum().backward()
        found.append([registers, condition.grad, *(p.grad.clone() for p in denoiser.parameters())])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
        assert plain.any()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(2, 3, 6), (2, 4, 5), (3, 4, 6), (2, 6), (2, 1, 4, 6)])
def test_a_condition_of_another_shape_is_refused(shape) -> None:
    """A condition that was prepared is refused, too."""
    denoiser, sample, timestep = RegisterDenoiser(6, steps=5), torch.randn(2, 4, 6), torch.tensor([0, 3])
    condition = torch.randn(shape)
    message = rf"condition: got shape \({', '.join(map(str, shape))}\), expected \(2, 4, 6\), or 1"
    with pytest.raises(ValueError, match=message):
        denoiser(sample, timestep, condition)
    if shape[-1] == 6:
        with pytest.raises(ValueError, match=message):
            denoiser(sample, timestep, denoiser.prepare_steps(condition, [3])[0])
    assert denoiser(sample, timestep, torch.randn(2, 1, 6)).shape == sample.shape
