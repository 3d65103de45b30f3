"""The released register generator of DreamPRVR: one tensor as all its noise, a random time table, float32 numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.config import ModelConfig
from regdiff import (
    Capabilities,
    ConditionalDiffusion,
    ConditionGenerator,
    PriorSampler,
    RegisterDenoiser,
    RegisterGenerator,
    Sampling,
    make_scheduler,
)
from regdiff.forward import ForwardProcess
from regdiff.noise import FreshNoise
from regdiff.schedule import Schedule
from regdiff.timestep import sincos_table


class StartNoise:
    """The start r_T in place of every other draw: as the noise of the loss and of each step, without detaching it."""

    def of_steps(
        self,
        can: Capabilities,
        start: Float[Tensor, "b n d"],
        fixed: Float[Tensor, "k n d"] | None,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "b n d"] | None, None]:
        """The start, where the scheduler adds noise."""
        return (start if can.stochastic else None), None

    def of_loss(self, start: Float[Tensor, "b n d"] | None) -> Float[Tensor, "b n d"] | None:
        """The start."""
        return start


def round_to_float32(diffusion: ConditionalDiffusion) -> None:
    """Round the numbers of a schedule as code does that stores them in float32; arithmetic stays as it is."""
    exact = diffusion.schedule
    assert exact.alphas_cumprod is not None
    diffusion.sampling_schedule = Schedule.of_alphas_cumprod(exact.alphas_cumprod.float().double())
    rounded = Schedule(exact.signal.float().double(), exact.sigma.float().double())
    diffusion.process = ForwardProcess(rounded, diffusion.prediction_type)


def released_registers(config: ModelConfig) -> RegisterGenerator:
    """The generator that `config.registers` describes, with the released parts that `config.compat` names.

    Args:
        config: the configuration of a model with registers of the kind "diffusion".
    """
    chosen, compat, width = config.registers, config.compat, config.hidden
    condition = ConditionGenerator(width, chosen.num, config.heads, config.dropout)
    prior = None if chosen.start == "gaussian" else PriorSampler(width, config.num_clips)
    # Drawn here, where the authors' model draws it: their re-initialisation overwrites the sinusoids.
    table = torch.randn(chosen.steps, width) * 0.02 if compat.register_times == "random" else None
    denoiser = RegisterDenoiser(width, chosen.steps, chosen.layers, config.dropout)
    if table is not None:
        denoiser.time_table = table
    scheduler = make_scheduler(
        chosen.scheduler, chosen.steps, prediction_type=chosen.prediction_type, **chosen.scheduler_options
    )
    diffusion = ConditionalDiffusion(denoiser, scheduler)
    if compat.register_constants == "float32":
        round_to_float32(diffusion)
        if prior is not None:
            table = sincos_table(*prior.pooling.rank_table.shape, dtype=torch.float32)
            prior.pooling.rank_table = table.to(torch.get_default_dtype())
    return RegisterGenerator(
        condition,
        diffusion,
        prior,
        sample_prior=chosen.start == "prior_sample",
        noise=StartNoise() if compat.register_noise == "start" else FreshNoise(),
        loss_timesteps=chosen.loss_timesteps,
        sampling=Sampling(chosen.sampling_steps),
    )
