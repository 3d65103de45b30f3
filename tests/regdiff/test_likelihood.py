"""Log-likelihoods against mixtures that are known, with denoisers that are right."""

import math

import pytest
import torch

from regdiff import ConditionalDiffusion, make_scheduler
from regdiff.likelihood import log_likelihood

CENTRES = torch.tensor([[-0.5, 0.3], [0.4, 0.4], [0.1, -0.6]], dtype=torch.float64)
SPREAD = 0.2


def mixture(means: torch.Tensor, deviation: float) -> torch.distributions.Distribution:
    normals = torch.distributions.Normal(means, torch.full_like(means, deviation))
    normals = torch.distributions.Independent(normals, 1)
    weights = torch.distributions.Categorical(torch.ones(means.shape[:-1], dtype=means.dtype))
    return torch.distributions.MixtureSameFamily(weights, normals)


def knows_the_mixture(kind: str, scheduler):
    """A denoiser that says E[x_0 | x_t] of the mixture, moved by the condition, in the form of its prediction type."""
    probe = ConditionalDiffusion(lambda x, t, c: x, scheduler)

    def denoiser(x, timestep, condition):
        signal, sigma = (v[timestep].view(-1, 1) for v in (probe.schedule.signal, probe.schedule.sigma))
        centres = CENTRES + condition[:, None]
        variance = (signal * SPREAD) ** 2 + sigma**2
        apart = x[:, None] - signal[..., None] * centres
        share = (-apart.square().sum(-1) / (2 * variance)).softmax(-1)
        eps = (share[..., None] * apart).sum(1) * sigma / variance
        clean = (x - sigma * eps) / signal if (signal > 0).all() else (share[..., None] * centres).sum(1)
        return {"epsilon": eps, "sample": clean, "v_prediction": signal * eps - sigma * clean, "flow": eps - clean}[
            kind
        ]

    return denoiser


@pytest.mark.parametrize(
    ("name", "kind"), [("ddim", "epsilon"), ("euler", "sample"), ("heun", "v_prediction"), ("flow", "flow")]
)
def test_of_a_known_mixture(name, kind):
    scheduler = make_scheduler(name, 400, prediction_type=kind)
    low, high = torch.tensor([-3.0, -1.0]).double(), torch.tensor([5.0, 2.0]).double()
    diffusion = ConditionalDiffusion(knows_the_mixture(kind, scheduler), scheduler, data_range=(low, high)).double()
    condition = 0.1 * torch.randn(20, 2, dtype=torch.float64)
    deviation = math.hypot(SPREAD, (diffusion.schedule.sigma[0] / diffusion.schedule.signal[0]).item())
    truth = mixture(CENTRES + condition[:, None], deviation)
    x = truth.sample()
    expected = truth.log_prob(x) + math.log(2 / 8) + math.log(2 / 3)
    data = (x * (high - low) + low + high) / 2
    ours = log_likelihood(diffusion, data, condition)
    torch.testing.assert_close(ours, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["sample", "flow"])
def test_random_probes_are_without_bias(kind):
    scheduler = make_scheduler("flow" if kind == "flow" else "ddim", 60, prediction_type=kind)
    diffusion = ConditionalDiffusion(knows_the_mixture(kind, scheduler), scheduler)
    x, condition = torch.tensor([[0.1, 0.2]]).double().expand(2000, -1), torch.zeros(2000, 2, dtype=torch.float64)
    with torch.no_grad():
        exact = log_likelihood(diffusion, x[:1], condition[:1])
        drawn = log_likelihood(diffusion, x, condition, probes=1, generator=torch.Generator().manual_seed(0))
    assert not drawn.requires_grad
    assert drawn.std() > 0.01
    assert abs(drawn.mean() - exact[0]) < 5 * drawn.std() / 2000**0.5


def test_registers_that_are_masked_count_for_nothing():
    """The density of a row is that of its valid registers, whatever the others hold."""
    scheduler = make_scheduler("ddim", 20, prediction_type="sample")

    def denoiser(x, timestep, condition, mask=None):
        return 0.3 * torch.tanh(x + condition)

    diffusion = ConditionalDiffusion(denoiser, scheduler, data_range=(-2.0, 3.0))
    x, condition = torch.randn(2, 3, 4, 2, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [True, False, False, False], [True] * 4])
    x[~mask] = math.nan
    whole = log_likelihood(diffusion, x, condition, mask=mask)
    for row in range(3):
        kept = mask[row]
        alone = log_likelihood(diffusion, x[row : row + 1, kept], condition[row : row + 1, kept])
        torch.testing.assert_close(whole[row], alone[0])


def test_gradients_reach_denoiser_and_target():
    weight = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    diffusion = ConditionalDiffusion(
        lambda x, t, c: weight * torch.tanh(x), make_scheduler("ddim", 10, prediction_type="sample")
    )
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    log_likelihood(diffusion, x, None).sum().backward()
    for leaf in (weight, x):
        step = torch.randn_like(leaf)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                leaf += 1e-6 * sign * step
                values.append(log_likelihood(diffusion, x, None).sum())
                leaf -= 1e-6 * sign * step
        assert (leaf.grad * step).sum().item() == pytest.approx(((values[0] - values[1]) / 2e-6).item(), rel=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_probes_and_timesteps_are_checked():
    diffusion = ConditionalDiffusion(lambda x, t, c: x, make_scheduler("ddim", 10))
    with pytest.raises(ValueError, match="probes: got -1, expected a number of at least 0"):
        log_likelihood(diffusion, torch.zeros(1, 2), None, probes=-1)
    with pytest.raises(ValueError, match="strictly descending"):
        log_likelihood(diffusion, torch.zeros(1, 2), None, [0, 5])


def test_where_nothing_moves_it_is_the_normal_in_the_units_of_the_data():
    flow = ConditionalDiffusion(lambda x, t, c: torch.zeros_like(x), make_scheduler("flow", 10), data_range=(-2.0, 2.0))
    target = torch.rand(3, 2, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros_like(target), 1 / 0.45)  # signal 0.9 of x/2
    torch.testing.assert_close(log_likelihood(flow, target, None), normal.log_prob(target).sum(-1))
