"""The released DreamPRVR registers, number by number. Arrays under `sd/` carry our own state-dict names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from golden import check_close

from prvr.config import Compat, ModelConfig, RegisterConfig
from prvr.models import Retriever
from prvr.published.dreamprvr.released_registers import random_times, round_constants, start_noise
from regdiff.registers import RegisterGenerator, TextualPerturbation, make_register_generator

FIXTURE = Path(__file__).parents[1] / "fixtures" / "regdiff_dreamprvr.npz"
STEPS, ROWS, NUM, DIM = 10, 6, 4, 32
# Relative to the largest value: float64 as asked of a port, float32 (against the same numbers) by the authors' own gap.
LIMITS = {torch.float64: (1e-6, 5e-6), torch.float32: (1e-5, 2e-5)}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(FIXTURE) as arrays:
        return dict(arrays)


def released(golden: dict[str, np.ndarray], dtype: torch.dtype) -> RegisterGenerator:
    generator = make_register_generator(DIM, NUM, 2, steps=STEPS, start="prior_mean", loss_timesteps="all")
    for change in (start_noise, random_times, round_constants):
        change(generator)
    weights = {name[3:]: torch.from_numpy(value) for name, value in golden.items() if name.startswith("sd/")}
    generator.load_state_dict(weights)
    return generator.to(dtype)


@pytest.mark.parametrize("dtype", LIMITS)
def test_prior_chain_and_losses(golden, dtype):
    generator = released(golden, dtype)
    features = torch.from_numpy(golden["out64/mean_clip_feat"]).to(dtype)
    registers, limit = generator(features, return_chain=True), LIMITS[dtype][0]
    check_close(registers.prior.mean, golden["out64/pvs_mu"], limit, "mean of the prior")
    check_close(registers.prior.logvar, golden["out64/pvs_logvar"], limit, "log variance of the prior")
    check_close(registers.condition, golden["out64/condition"], limit, "condition")
    check_close(generator.prior.pooling(features), golden["out64/gpo_pooled"], limit, "pooling")
    chain = golden["out64/reverse_chain"]
    check_close(registers.chain, chain, LIMITS[dtype][1], "chain")
    check_close(registers.tokens, chain[-1], LIMITS[dtype][1], "registers")
    targets = torch.from_numpy(golden["in/tps_output"]).to(dtype)
    predicted = []
    for t in range(0, STEPS, 3):
        timesteps = torch.full((ROWS,), t)
        noised = generator.diffusion.add_noise(targets, registers.start, timesteps)
        predicted.append(generator.denoiser(noised, timesteps, registers.condition))
    check_close(torch.stack(predicted), golden["out64/dre_predicted_noise"], limit, "predicted noise")
    terms = generator.loss(targets, registers)
    check_close(terms["prior_kl"], golden["loss64/pvs_raw"], limit, "prior_kl")
    check_close(terms["diffusion"], golden["loss64/dre_raw"], limit, "diffusion")


def test_schedule(golden):
    abar = released(golden, torch.float64).diffusion.alphas_cumprod
    assert abar.dtype == torch.float64
    np.testing.assert_allclose(abar.numpy(), golden["sched/alphas_cumprod"], rtol=1e-12)
    before = torch.cat([torch.ones(1, dtype=abar.dtype), abar[:-1]])
    np.testing.assert_allclose((1 - abar / before).numpy(), golden["sched/betas"], rtol=1e-12)
    variance = (1 - before) / (1 - abar) * (1 - abar / before)
    np.testing.assert_allclose(variance.numpy(), golden["sched/posterior_variance"], rtol=1e-12, atol=1e-16)


def test_textual_perturbation(golden):
    drawn = {name: torch.from_numpy(golden[f"tps/{name}"]).permute(2, 0, 1) for name in ("z_alpha", "z_beta")}
    output = TextualPerturbation(gamma=0.1)(torch.from_numpy(golden["tps/features"]), NUM, **drawn)
    check_close(output, golden["tps/output"], 1e-6, "perturbation")


def test_released_numbers(golden):
    """A frozen N(0, 0.02) time table, and a schedule that went through float32 once."""
    torch.manual_seed(0)
    parts = RegisterConfig(kind="diffusion", steps=1000), Compat(register_times="random", register_constants="float32")
    config = ModelConfig(video_dim=4, query_dim=4, hidden=64, registers=parts[0], compat=parts[1])
    registers = Retriever(config).registers
    assert registers.denoiser.time_table.std().item() == pytest.approx(0.02, rel=0.02)
    assert "time_table" not in dict(registers.denoiser.named_parameters())
    rounded, exact = registers.diffusion.sampling_schedule.alphas_cumprod, registers.diffusion.alphas_cumprod
    assert torch.equal(rounded, exact.float().double())
    assert (rounded - exact).abs().max() > 1e-9
