"""The loss terms and gradient norms of a step, and what happens if they are not finite."""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.errors import TrainingError
from prvr.training.task import RunConfig

logger = logging.getLogger(__name__)

_SHOWN = 8


class StepMetrics:
    """The numbers of one step, in transfer from the device to the host from the start.

    Args:
        step: in its epoch, from 0.
        examples: the examples of its batch, for messages.
        terms: the loss terms by name, on the device.
        parameters: names of the tensors that have a gradient.
        norms: of the gradient of each parameter, on the device: fetched only if something is wrong.
        total_norm: the norm of the whole gradient.
        wait: until the numbers are on the host; False: continue at once, and reading `values` waits for this transfer
            alone, not for what was queued behind it.
    """

    def __init__(
        self,
        step: int,
        examples: str,
        terms: Mapping[str, Float[Tensor, ""]],
        parameters: Sequence[str],
        norms: Float[Tensor, " p"],
        total_norm: Float[Tensor, ""],
        wait: bool,
    ) -> None:
        self.step, self.examples, self.terms = step, examples, tuple(terms)
        self.parameters, self.norms, self._arrived = parameters, norms, None
        self._sent = torch.stack([*(term.detach().float() for term in terms.values()), total_norm.float()])
        if not wait and self._sent.is_cuda:
            self._sent = self._sent.to("cpu", non_blocking=True)  # into pinned memory
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    @cached_property
    def _numbers(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._sent.tolist()

    @property
    def values(self) -> dict[str, float]:
        """The loss terms by name."""
        return dict(zip(self.terms, self._numbers, strict=False))

    @property
    def finite(self) -> bool:
        """Whether every loss term and the gradient are finite."""
        return all(map(math.isfinite, self._numbers))

    def problem(self) -> str:
        """Describes what is not finite: the loss terms, or else the parameters whose gradient is not."""
        terms = [f"{name}={value}" for name, value in self.values.items() if not math.isfinite(value)]
        if terms:
            return f"the loss is not finite ({', '.join(terms)})"
        norms = self.norms.tolist()
        bad = [name for name, norm in zip(self.parameters, norms, strict=True) if not math.isfinite(norm)]
        if not bad:
            return f"the norm of the gradient is not finite ({self._numbers[-1]}), though each of its parts is"
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        return f"the loss is finite, its gradient is not (in {', '.join(bad[:_SHOWN])}{more})"


class NonFinitePolicy:
    """Decides about steps whose loss or gradient is not finite, by `train.on_nonfinite` and `train.max_skipped`.

    Args:
        config: of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.in_row = 0
        """Steps skipped one after the other so far."""

    def accepts(self, metrics: StepMetrics, where: str, saved: str) -> bool:
        """Whether a step counts; one that does not is logged with its examples.

        Args:
            metrics: of the step.
            where: run, epoch and step, for messages.
            saved: how far the run is saved, for messages.

        Raises:
            TrainingError: it is not finite, and `stop` is chosen, or it is one too many in a row.
        """
        if metrics.finite:
            self.in_row = 0
            return True
        train, rate = self.config.train, self.config.optim.lr
        message = f"{where}: {metrics.problem()}. {metrics.examples}."
        if train.on_nonfinite == "stop":
            raise TrainingError(
                f"{message} Look for NaN in their features, lower optim.lr={rate}, or leave such steps out with "
                f"train.on_nonfinite=skip; {saved}."
            )
        self.in_row += 1
        if self.in_row > train.max_skipped:
            raise TrainingError(
                f"{message} These are {self.in_row} such steps in a row, more than train.max_skipped="
                f"{train.max_skipped}. Look for NaN in the features, or lower optim.lr={rate}; {saved}."
            )
        logger.warning("%s Step skipped, %d in a row.", message, self.in_row)
        return False
