"""Log-likelihoods under a trained denoiser, by the probability-flow ODE."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regdiff.diffusion import ConditionalDiffusion
from regdiff.divergence import directions, with_divergence
from regdiff.masks import masked
from regdiff.predictor import Predictor
from regdiff.schedule import descending_timesteps
from regdiff.solver import clean_sample


def log_likelihood(
    diffusion: ConditionalDiffusion,
    target: Float[Tensor, "b *s"],
    condition: Any,
    timesteps: Sequence[int] | None = None,
    *,
    probes: int | None = None,
    generator: torch.Generator | None = None,
    mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b"]:
    r"""log p(x_0 | condition) of each row, in nats (Song et al. 2021, "Score-based generative modeling", eq. 39).

    Samples of a deterministic sampler follow dx/dr = u, u = (d signal/dr) x_0 + (d sigma/dr) eps with the denoiser's
    x_0 and eps, where r is the angle of (signal, sigma) of a variance-preserving process and the sigma of a flow. So
    log p_0(x) = log N(x at the last level; 0, I) + integral of div u dr, which is followed upwards by Heun's method
    (error of second order in the steps), in the precision of the target. At the first timestep x is signal_0 x_0: what
    comes out is the density of samples with the noise sigma_0 left on them, which is close to theirs where T is large.
    An estimate of x_0 is not clipped, and one from epsilon is divided by the signal: start such a denoiser's list where
    there is some left.

    The divergence is the sum of the Jacobian's diagonal in up to 16 coordinates a row, and beyond that the estimate of
    Hutchinson (FFJORD, Grathwohl et al. 2019), without bias, from `probes` random signs. Gradients reach the denoiser
    and the target where they are enabled: second derivatives of the denoiser, which attention has under
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` alone. `torch.no_grad()` is faster where none are wanted.

    Args:
        diffusion: With a trained denoiser; its dropout should be off (`eval`).
        target: x_0, in the units of the data: `data_range` is accounted for.
        condition: As of `ConditionalDiffusion.loss`.
        timesteps: A strictly descending list, as of `ConditionalDiffusion.sample`; None takes all T.
        probes: Random probes of the divergence; 0 is exact, None is exact in up to 16 coordinates and 1 probe beyond.
        generator: Source of the probes.
        mask: (b, n), True at valid registers: the density is that of those.

    Raises:
        ValueError: Timesteps as of `sample`, or a number of probes below 0.

    Examples:
        >>> import torch
        >>> from regdiff import ConditionalDiffusion, make_scheduler
        >>> flow = ConditionalDiffusion(lambda x, t, c: torch.zeros_like(x), make_scheduler("flow", 10))
        >>> log_likelihood(flow, torch.zeros(1, 2), None).detach()  # nothing moves: that of N(0, I), at signal 0.9
        tensor([-2.0486])
    """
    schedule = diffusion.schedule
    order = descending_timesteps(diffusion.scheduler, len(schedule), None, timesteps)[::-1]
    flow = schedule.alphas_cumprod is None
    places = (schedule.sigma if flow else torch.atan2(schedule.sigma, schedule.signal)).tolist()
    predictor, axes = Predictor(diffusion.denoiser, condition, mask), directions(target, probes, generator)

    def velocity(t: int, x: Tensor) -> Tensor:
        signal, sigma = schedule.signal[t].item(), schedule.sigma[t].item()
        prediction = predictor(x, torch.full((len(x),), t, device=x.device))
        clean = clean_sample(diffusion.prediction_type, prediction, x, signal, sigma)
        noise = (x - signal * clean) / sigma
        return masked(noise - clean if flow else signal * noise - sigma * clean, mask)

    first = schedule.signal[order[0]].item()
    x = masked(first * diffusion._mapped(target), mask)
    # The slope of x in the target: its logarithm is what the change of units adds.
    slope = first * (diffusion._mapped(torch.ones_like(target)) - diffusion._mapped(torch.zeros_like(target)))
    total = masked(slope.log(), mask).flatten(1).sum(1)
    for t, after in pairwise(order):
        step = places[after] - places[t]
        u, divergence = with_divergence(partial(velocity, t), x, axes, axes)
        u_after, divergence_after = with_divergence(partial(velocity, after), x + step * u, axes, axes)
        x = x + step / 2 * (u + u_after)
        total = total + step / 2 * (divergence + divergence_after)
    normal = torch.distributions.Normal(torch.zeros_like(x), 1.0).log_prob(x)
    return total + masked(normal, mask).flatten(1).sum(1)
