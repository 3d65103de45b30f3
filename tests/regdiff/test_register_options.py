"""RegisterGenerator with every scheduler, prediction type and denoiser: masks, guidance, refusals."""

import math

import pytest
import torch
from nightly import crossed
from saved_modules import spread_weights

from regdiff import SCHEDULERS
from regdiff.registers import RegisterGenerator, TextualPerturbation, make_register_generator

DIM, NUM, ROWS, LENGTH, STEPS = 8, 3, 5, 6, 5
PAIRS = [(name, kind) for name, row in SCHEDULERS.items() for kind in row.prediction_types]
DENOISERS = ["mlp", "transformer"]


def build(scheduler: str = "ddim", prediction_type: str = "epsilon", **options) -> RegisterGenerator:
    """Small random weights everywhere: a transformer starts with an output of zero."""
    options |= {"steps": STEPS, "scheduler": scheduler, "prediction_type": prediction_type}
    return spread_weights(make_register_generator(DIM, NUM, 2, **options), 0.2).double().train()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, their mask and a register mask, each row with its own pattern."""
    mask, register_mask = torch.rand(ROWS, LENGTH) < 0.6, torch.rand(ROWS, NUM) < 0.6
    mask[:, 2] = True
    register_mask[0] = torch.tensor([True, False, True])
    return torch.randn(ROWS, LENGTH, DIM).double(), mask, register_mask


CLOSE = {"rtol": 1e-8, "atol": 1e-8}


@pytest.mark.parametrize(("pair", "denoiser"), crossed(2, PAIRS, DENOISERS))
def test_training_with_all_options_at_once(pair, denoiser):
    options = {"guidance_scale": 1.5, "condition_dropout": 0.4, "weighting": "min_snr", "checkpoint": True}
    generator = build(*pair, denoiser=denoiser, num_sampling_steps=4, **options)
    x, mask, register_mask = inputs()
    x = x.requires_grad_()
    registers = generator(x, mask, return_chain=True, register_mask=register_mask)
    assert registers.tokens.shape == (ROWS, NUM, DIM)
    assert registers.chain.shape == (4, ROWS, NUM, DIM)
    assert not registers.chain[:, ~register_mask].any()
    targets = TextualPerturbation()(torch.randn(ROWS, DIM).double(), NUM)
    terms = generator.loss(targets, registers, register_mask=register_mask)
    (registers.tokens.square().mean() + terms["diffusion"] + terms["prior_kl"]).backward()
    assert x.grad.isfinite().all()
    assert not x.grad[~mask].any()
    assert [name for name, p in generator.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert generator.null_condition.grad.any()


@pytest.mark.parametrize(("pair", "denoiser"), crossed(2, PAIRS, DENOISERS))
def test_eval_depends_on_the_row_alone(pair, denoiser):
    """Also where the scheduler draws its own noise."""
    generator = build(*pair, denoiser=denoiser).eval()
    x, mask, register_mask = inputs()
    together = generator(x, mask, register_mask=register_mask).tokens
    torch.manual_seed(123)
    assert torch.equal(generator(x, mask, register_mask=register_mask).tokens, together)
    order = torch.tensor([3, 0, 4, 1])
    some = generator(x[order], mask[order], register_mask=register_mask[order]).tokens
    torch.testing.assert_close(some, together[order], **CLOSE)
    for row in range(ROWS):
        valid = mask[row : row + 1]
        alone = generator(x[row : row + 1, valid[0]], register_mask=register_mask[row : row + 1]).tokens
        torch.testing.assert_close(alone[0], together[row], **CLOSE)


def test_another_number_of_steps_for_one_call():
    generator, (x, mask, _) = build(num_sampling_steps=2).eval(), inputs()
    assert len(generator(x, mask, return_chain=True).chain) == 2
    for steps in (1, 5):  # more than the fixed numbers were made for, too
        registers = generator(x, mask, return_chain=True, num_steps=steps)
        assert len(registers.chain) == steps
        torch.testing.assert_close(generator(x[1:2], mask[1:2], num_steps=steps).tokens[0], registers.tokens[1])


@pytest.mark.parametrize("start", ["prior_sample", "prior_mean", "gaussian"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused_at_valid_positions_alone(start, garbage):
    generator, (x, mask, _) = build(start=start).eval(), inputs()
    mask[3, 4] = False
    clean = generator(x, mask).tokens
    x[3, 4, 1] = garbage
    assert torch.equal(generator(x, mask).tokens, clean)
    mask[3, 4] = True
    with pytest.raises(ValueError, match="features: the condition of row 3 is not finite"):
        generator(x, mask)
    if start != "gaussian":
        x[3, 4, 1] = 0
        with torch.no_grad():
            generator.prior.logvar_proj.bias.fill_(math.nan)
        with pytest.raises(ValueError, match="features: the prior of row 0 is not finite"):
            generator(x, mask)


def test_condition_dropout_trains_the_null_condition_only_by_the_loss():
    generator, (x, mask) = build(condition_dropout=0.999), inputs()[:2]
    generator(x, mask).tokens.sum().backward()
    assert generator.null_condition.grad is None
    generator.loss(torch.randn(ROWS, NUM, DIM).double(), generator(x, mask))["diffusion"].backward()
    assert generator.null_condition.grad.any()
