"""One prediction of a denoiser: masked, guided, recomputed in the backward pass, as asked."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as checkpointed

from regdiff.conditioning import doubled, null_of
from regdiff.masks import masked, takes_mask


@runtime_checkable
class Denoiser(Protocol):
    """What `ConditionalDiffusion` needs of a network: any callable of this shape, usually an nn.Module.

    The output is whatever the scheduler's `prediction_type` says: the noise, the clean sample, the velocity or the
    flow. An output of diffusers' models is taken too: an object or a mapping with "sample", or a tuple of one. To take
    part in calls with a mask it also needs a keyword `mask`, (b, n), True at valid registers.
    """

    def __call__(
        self, sample: Float[Tensor, "b *s"], timestep: Int[Tensor, "b"], condition: Any, /
    ) -> Float[Tensor, "b *s"]: ...


@runtime_checkable
class PreparesSteps(Protocol):
    """A denoiser that computes once, for all steps of a sampler, what does not depend on the sample."""

    def prepare_steps(
        self, condition: Any, timesteps: Sequence[int], mask: Bool[Tensor, "b n"] | None = None
    ) -> Sequence[Any]:
        """For each timestep, what the denoiser takes in place of the condition there."""
        ...


class Predictor:
    """A denoiser with all but the sample and its timestep given.

    Args:
        denoiser: The network.
        condition: A pytree.
        mask: (b, n), True at valid registers; predictions of the others are zero.
        guidance_scale: w of null + w (conditional - null) (Ho and Salimans 2022), from one call with 2b rows.
            None or 1 asks for the condition alone.
        null_condition: See `null_of`.
        checkpoint: Recompute each call in the backward pass instead of keeping its activations.

    Raises:
        ValueError: A scale that is not finite, or a condition that has no null.
        TypeError: A mask for a denoiser without that keyword.

    Examples:
        >>> import torch
        >>> guided = Predictor(lambda x, t, c: x + c, torch.ones(2, 1), guidance_scale=3.0)
        >>> guided(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)).flatten()
        tensor([3., 3.])
    """

    def __init__(
        self,
        denoiser: Denoiser,
        condition: Any,
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        guidance_scale: float | None = None,
        null_condition: Any = None,
        checkpoint: bool = False,
    ) -> None:
        if mask is not None and not takes_mask(denoiser):
            raise TypeError(
                f"mask: the denoiser {type(denoiser).__name__} has no keyword `mask`, so padding would reach it; "
                "expected forward(sample, timestep, condition, mask=None), as the denoisers of regdiff have"
            )
        if guidance_scale is not None and (isinstance(guidance_scale, str) or not math.isfinite(guidance_scale)):
            raise ValueError(f"guidance_scale: got {guidance_scale!r}, expected a finite number, or None (no guidance)")
        self.denoiser, self.mask, self.checkpoint = denoiser, mask, checkpoint
        self.scale = None if guidance_scale == 1 else guidance_scale
        self.condition = condition
        self.options: dict[str, Any] = {} if mask is None else {"mask": mask}
        if self.scale is not None:
            self.condition = doubled(condition, null_of(condition, null_condition))
            if mask is not None:
                self.options = {"mask": torch.cat((mask, mask))}

    def __call__(self, sample: Float[Tensor, "b *s"], timesteps: Int[Tensor, "b"]) -> Float[Tensor, "b *s"]:
        """The prediction for these rows.

        Args:
            sample: x_t.
            timesteps: One integer per row.

        Raises:
            ValueError: A denoiser that returns another shape.
        """
        return self._predict(self.condition, sample, timesteps)

    def at(self, timesteps: Sequence[int]) -> list[Callable[[Tensor, Tensor], Tensor]]:
        """For each of these timesteps, which all rows share then, the function to call in place of this one.

        Args:
            timesteps: In the order of the calls.
        """
        if not isinstance(self.denoiser, PreparesSteps):
            return [self] * len(timesteps)
        try:
            prepared = self.denoiser.prepare_steps(self.condition, timesteps, **self.options)
        except RuntimeError as error:
            _expect_precision(self.denoiser, (None, None, self.condition), error)
            raise
        return [partial(self._predict, condition) for condition in prepared]

    def _predict(self, condition: Any, sample: Tensor, timesteps: Tensor) -> Tensor:
        if self.scale is None:
            return masked(self._call(sample, timesteps, condition), self.mask)
        both = self._call(torch.cat((sample, sample)), torch.cat((timesteps, timesteps)), condition)
        conditional, null = both.chunk(2)
        return masked(null + self.scale * (conditional - null), self.mask)

    def _call(self, *arguments: Any) -> Tensor:
        sample, call = arguments[0], self.denoiser
        if self.checkpoint:
            call = partial(checkpointed, self.denoiser, use_reentrant=False)
        try:
            prediction = call(*arguments, **self.options)
        except RuntimeError as error:
            _expect_precision(self.denoiser, arguments, error)
            raise
        if isinstance(prediction, Mapping) and "sample" in prediction:
            prediction = prediction["sample"]
        elif isinstance(prediction, tuple) and len(prediction) == 1:
            (prediction,) = prediction
        elif not isinstance(prediction, Tensor):
            prediction = getattr(prediction, "sample", prediction)
        if not isinstance(prediction, Tensor):
            raise ValueError(
                f"denoiser: returned {type(prediction).__name__}, expected a tensor like the sample; wrap the denoiser "
                "in a function that returns its prediction alone"
            )
        if prediction.shape != sample.shape:
            raise ValueError(
                f"denoiser: returned shape {tuple(prediction.shape)}, expected {tuple(sample.shape)} like the sample"
            )
        return prediction


def _expect_precision(denoiser: Any, arguments: tuple[Any, ...], error: RuntimeError) -> None:
    """Explain the error of a denoiser that was called with tensors of another precision than its parameters."""
    parameter = next(denoiser.parameters(), None) if isinstance(denoiser, nn.Module) else None
    if parameter is None or "type" not in str(error):
        return
    for name, argument in zip(("sample", "timestep", "condition"), arguments, strict=True):
        for leaf in tree_leaves(argument):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != parameter.dtype:
                raise ValueError(
                    f"denoiser: got a {name} of {leaf.dtype} with parameters of {parameter.dtype}, expected one "
                    "precision; convert the data (`.float()`) or the model (`.double()`)"
                ) from error
