"""The reverse process on tensors: from a start down to the clean sample, along the stages of a sampler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regdiff.masks import masked
from regdiff.noise import Generators, standard_normal
from regdiff.predictor import Predictor
from regdiff.solver import History, Stage, clean_sample

#: Called after each step with (which step, its timestep, x after it); a tensor it returns replaces x.
Callback = Callable[[int, int, Tensor], Tensor | None]


@dataclass(frozen=True, eq=False)
class ReverseProcess:
    """What `ConditionalDiffusion.sample` does once all that it was given has been checked.

    Attributes:
        stages: The calls of the denoiser, and the weights of each step.
        prediction_type: What the denoiser says.
        limit: Clips the estimate of the clean sample to [-limit, limit]; None leaves it.
        generator: Source of the noise, where none is given.
        callback: See `Callback`.
        every: Whether x after every step is wanted, not only after the last.
    """

    stages: Sequence[Stage]
    prediction_type: str
    limit: float | None
    generator: Generators | None = None
    callback: Callback | None = None
    every: bool = False

    def noise_like(self, x: Tensor) -> Tensor:
        """The noise of all steps that add any, drawn in their order: (steps, *x.shape). Those without are the last."""
        return torch.stack([standard_normal(x.shape, x, self.generator) for stage in self.stages if stage.noise])

    def __call__(self, predictor: Predictor, initial: Tensor, noise: Tensor | None = None) -> list[Tensor]:
        """x after every step, or after the last one alone.

        Args:
            predictor: The denoiser; its mask is that of the sample.
            initial: x at the first stage.
            noise: That of each step, (steps, *initial.shape); None draws it.
        """
        history, x, states = History(self.stages), masked(initial, predictor.mask), []
        predictions = predictor.at([stage.timestep for stage in self.stages])
        for stage, predict in zip(self.stages, predictions, strict=True):
            # Python numbers throughout: reading one from a tensor would wait for the device.
            prediction = predict(x, torch.full((x.shape[0],), stage.timestep, device=x.device))
            clean = clean_sample(self.prediction_type, prediction, x, stage.signal, stage.sigma)
            x = history.advance(stage, x, clean, self.limit)
            if stage.noise:
                drawn = standard_normal(x.shape, x, self.generator) if noise is None else noise[stage.step]
                x = torch.add(x, drawn, alpha=stage.noise)
            x = masked(x, predictor.mask)
            if stage.ends_step:
                x = self._called_back(stage, x, predictor.mask)
                states = [*states, x] if self.every else [x]
        return states

    def _called_back(self, stage: Stage, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the callback makes of x."""
        replacement = None if self.callback is None else self.callback(stage.step, stage.timestep, x)
        if replacement is None:
            return x
        if replacement.shape != x.shape:
            raise ValueError(f"callback: returned shape {tuple(replacement.shape)}, expected {tuple(x.shape)}, or None")
        return masked(replacement, mask)
