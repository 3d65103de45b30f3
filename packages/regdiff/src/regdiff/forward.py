"""The forward process on tensors: noised samples, training targets and loss weights, row by row."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regdiff.losses import min_snr_weights
from regdiff.schedule import Schedule

Weighting = Literal["uniform", "min_snr"]


@dataclass(frozen=True, eq=False)
class ForwardProcess:
    """x_t = signal_t x_0 + sigma_t eps, and what a denoiser learns from it.

    Args:
        schedule: Signal and noise of each timestep.
        prediction_type: "epsilon", "sample", "v_prediction" or "flow".
        weighting: "uniform" or "min_snr".
        snr_gamma: The cap of "min_snr".

    Raises:
        ValueError: An unknown weighting or a cap that is not positive.

    Examples:
        >>> import torch
        >>> schedule = Schedule(torch.tensor([0.8]).double(), torch.tensor([0.6]).double())
        >>> process = ForwardProcess(schedule, "epsilon")
        >>> process.add_noise(torch.ones(1, 1), torch.ones(1, 1), torch.tensor([0]))
        tensor([[1.4000]])
    """

    schedule: Schedule
    prediction_type: str
    _: KW_ONLY
    weighting: Weighting = "uniform"
    snr_gamma: float = 5.0
    _on_device: dict[Any, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.weighting not in ("uniform", "min_snr"):
            raise ValueError(f"weighting: got {self.weighting!r}, expected 'uniform' or 'min_snr'")
        if not self.snr_gamma > 0:
            raise ValueError(f"snr_gamma: got {self.snr_gamma}, expected a positive number")

    def add_noise(
        self, target: Float[Tensor, "b *s"], noise: Float[Tensor, "b *s"], timesteps: Int[Tensor, "b"]
    ) -> Float[Tensor, "b *s"]:
        """signal_t target + sigma_t noise.

        Args:
            target: Clean samples x_0.
            noise: eps.
            timesteps: One timestep in [0, T) per row.
        """
        signal, sigma = self._signal_and_sigma(target, timesteps)
        return signal * target + sigma * noise

    def training_target(
        self, target: Float[Tensor, "b *s"], noise: Float[Tensor, "b *s"], timesteps: Int[Tensor, "b"]
    ) -> Float[Tensor, "b *s"]:
        """What the denoiser should say: eps, x_0, signal_t eps - sigma_t x_0, or eps - x_0.

        Args:
            target: Clean samples x_0.
            noise: eps.
            timesteps: One timestep in [0, T) per row.
        """
        if self.prediction_type == "epsilon":
            return noise
        if self.prediction_type == "sample":
            return target
        if self.prediction_type == "flow":
            return noise - target
        signal, sigma = self._signal_and_sigma(target, timesteps)
        return signal * noise - sigma * target

    def weights(self, like: Tensor, timesteps: Int[Tensor, "b"]) -> Float[Tensor, "b"] | None:
        """The factor of each row's loss; None where all are 1.

        Args:
            like: Tensor whose dtype and device the result takes.
            timesteps: One timestep in [0, T) per row.
        """
        weights = self._numbers(like)[2]
        return None if weights is None else weights[timesteps]

    def _signal_and_sigma(self, sample: Tensor, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        signal, sigma, _ = self._numbers(sample)
        shape = (-1,) + (1,) * (sample.ndim - 1)
        return signal[timesteps].view(shape), sigma[timesteps].view(shape)

    def _numbers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The tables in the dtype and on the device of a tensor."""
        key = (like.device, like.dtype)
        if key not in self._on_device:
            with torch.inference_mode(False):  # a cache filled while validating must still serve training
                plain = self.weighting == "uniform"
                weights = None if plain else min_snr_weights(self.schedule, self.prediction_type, self.snr_gamma)
                tables = (self.schedule.signal, self.schedule.sigma, weights)
                self._on_device[key] = tree_map_only(Tensor, lambda t: t.to(like.dtype).to(like.device), tables)
        return self._on_device[key]
