"""Losses of a prediction against its target, their weights over timesteps, and their averages under a mask."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from regdiff.masks import masked, takes_mask
from regdiff.schedule import Schedule


def mse(prediction: Float[Tensor, "*s"], target: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Squared error, elementwise: the simple loss of Ho et al. (2020), eq. 14, before its average.

    Args:
        prediction: What the denoiser said.
        target: What it should have said.

    Examples:
        >>> import torch
        >>> mse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        tensor([0., 4.])
    """
    return F.mse_loss(prediction, target, reduction="none")


class KLToTarget:
    r"""KL(target || softmax(temperature * prediction)) over the last axis (DiffusionRet, Jin et al. 2023, eq. 9).

    For a denoiser that predicts clean scores (prediction_type "sample") of which x_0 is a distribution:
    sum_j y_j (log y_j - log softmax(temperature * prediction)_j), in nats, with 0 log 0 = 0.

    Args:
        temperature: What the predicted scores are multiplied by; 100 takes cosines to logits.

    Raises:
        ValueError: A temperature that is not positive.

    Examples:
        >>> import torch
        >>> target = torch.tensor([[1.0, 0.0]])
        >>> KLToTarget(temperature=1.0)(torch.tensor([[0.0, 0.0]]), target)
        tensor([0.6931])
    """

    def __init__(self, temperature: float = 100.0) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature: got {temperature}, expected a positive number")
        self.temperature = temperature

    def __call__(
        self,
        prediction: Float[Tensor, "*s k"],
        target: Float[Tensor, "*s k"],
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "*s"]:
        """One divergence per distribution.

        Args:
            prediction: Scores.
            target: Distributions: not negative, of sum one over the (valid) last axis.
            mask: Where the last axis is that of the registers (candidates): True at those that take part.
        """
        logits = self.temperature * prediction
        if mask is not None and mask.ndim == target.ndim:
            logits, target = logits.masked_fill(~mask, -torch.inf), masked(target, mask)
        logits = torch.log_softmax(logits, dim=-1)
        # xlogy knows that 0 log 0 = 0; where the target is 0, -inf (nan in a row without candidates) must not meet it.
        return (torch.xlogy(target, target) - target * logits.masked_fill(target == 0, 0)).sum(-1)


def min_snr_weights(schedule: Schedule, prediction_type: str, gamma: float = 5.0) -> Float64[Tensor, "t"]:
    r"""Min-SNR-gamma weights of a squared error (Hang et al. 2023): min(SNR, gamma) on the error of x_0.

    With SNR_t = signal_t^2 / sigma_t^2 and the error of x_0 in terms of the prediction's, that is min(SNR, gamma) for
    "sample", min(SNR, gamma) / SNR for "epsilon", min(SNR, gamma) / (SNR + 1) for "v_prediction" and
    min(SNR, gamma) sigma^2 for "flow" (x_0 = x - sigma u).

    Args:
        schedule: Signal and noise of each timestep.
        prediction_type: What the denoiser predicts.
        gamma: The cap.

    Examples:
        >>> import torch
        >>> schedule = Schedule(torch.tensor([0.8]).double(), torch.tensor([0.6]).double())
        >>> round(min_snr_weights(schedule, "epsilon", gamma=1.0).item(), 4)  # 1 / SNR
        0.5625
    """
    snr = (schedule.signal / schedule.sigma) ** 2
    capped = snr.clamp(max=gamma)
    if prediction_type == "epsilon":
        return (gamma / snr).clamp(max=1.0)  # finite where nothing of the signal is left, too
    if prediction_type == "v_prediction":
        return capped / (snr + 1)
    return capped if prediction_type == "sample" else capped * schedule.sigma**2


def mean_loss(
    loss_fn: Callable[..., Tensor],
    prediction: Float[Tensor, "b *s"],
    target: Float[Tensor, "b *s"],
    mask: Bool[Tensor, "b n"] | None = None,
    weights: Float[Tensor, "b"] | None = None,
) -> Float[Tensor, ""]:
    """The mean of a loss over valid registers (all of the batch alike), each row with its own weight.

    Args:
        loss_fn: (prediction, target) -> a scalar, or one value per row, per register or per element. One with a
            keyword `mask` is given the mask, and may then return one value per row: the mean is over rows with a valid
            register.
        prediction: What the denoiser said.
        target: What it should have said.
        mask: True at valid registers; a batch without any has a loss of 0.
        weights: One factor per row.

    Raises:
        ValueError: A loss of another shape, or one that says too little for a mask or for weights.

    Examples:
        >>> import torch
        >>> errors = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
        >>> valid = torch.tensor([[True, False], [True, True]])
        >>> mean_loss(lambda prediction, target: prediction, errors, errors, valid)  # (1 + 2 + 3) / 3
        tensor(2.)
    """
    if loss_fn is mse and mask is None and weights is None:
        return F.mse_loss(prediction, target)  # the same number from one kernel
    informed = mask is not None and takes_mask(loss_fn)
    values = loss_fn(prediction, target, mask=mask) if informed else loss_fn(prediction, target)
    if values.ndim == 0 and mask is None and weights is None:
        return values
    shape = tuple(target.shape)
    if values.ndim == 0 or values.shape != shape[: values.ndim]:
        raise ValueError(
            f"loss_fn: returned shape {tuple(values.shape)}, expected {shape[:1]} (one per row) up to {shape} (one per "
            "element); a scalar can be neither masked nor weighted"
        )
    if mask is not None and values.ndim == 1 and not informed:
        raise ValueError(
            "loss_fn: returned one value per row, in which padding has its share; expected one per register or "
            "element, or a loss_fn with a keyword `mask`"
        )
    if weights is not None:
        values = values * weights.view(-1, *(1,) * (values.ndim - 1))
    if mask is None:
        return values.mean()
    valid = mask.any(1) if values.ndim == 1 else mask
    count = valid.sum() * math.prod(values.shape[valid.ndim :])
    return masked(values, valid).sum() / count.clamp(min=1)
