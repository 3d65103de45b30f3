"""The released register generator of DreamPRVR: one tensor as all its noise, a random time table, float32 numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

from regdiff import Capabilities
from regdiff.forward import ForwardProcess
from regdiff.registers import PriorSampler, RegisterGenerator
from regdiff.schedule import Schedule
from regdiff.timestep import sincos_table

Registers = Float[Tensor, "b n d"]
"""Registers of each video, or noise like them."""


class StartNoise:
    """The start r_T in place of every other draw: as the noise of the loss and of each step, without detaching it."""

    def of_steps(
        self,
        can: Capabilities,
        start: Registers,
        fixed: Float[Tensor, "k n d"] | None,
        generator: torch.Generator | None,
    ) -> tuple[Registers | None, None]:
        """The start, where the scheduler adds noise."""
        return (start if can.stochastic else None), None

    def of_loss(self, start: Registers | None) -> Registers | None:
        """The start."""
        return start


def start_noise(generator: RegisterGenerator) -> None:
    """Makes the start of the diffusion its noise."""
    generator.noise = StartNoise()


def random_times(generator: RegisterGenerator) -> None:
    """Makes the time codes random numbers: the authors' re-initialisation overwrites the sinusoids."""
    denoiser = generator.denoiser
    denoiser.time_table = torch.randn(denoiser.time_table.shape) * 0.02


def round_constants(generator: RegisterGenerator) -> None:
    """Rounds the noise schedule and the rank codes of the prior, as code does that stores them in float32.

    Arithmetic stays as it is.
    """
    diffusion = generator.diffusion
    assert diffusion is not None
    exact = diffusion.schedule
    assert exact.alphas_cumprod is not None
    diffusion.sampling_schedule = Schedule.of_alphas_cumprod(exact.alphas_cumprod.float().double())
    rounded = Schedule(exact.signal.float().double(), exact.sigma.float().double())
    diffusion.process = ForwardProcess(rounded, diffusion.prediction_type)
    prior = generator.prior
    if isinstance(prior, PriorSampler) and prior.pooling is not None:
        table = sincos_table(*prior.pooling.rank_table.shape, dtype=torch.float32)
        prior.pooling.rank_table = table.to(torch.get_default_dtype())
