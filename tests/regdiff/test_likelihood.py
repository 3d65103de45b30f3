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
