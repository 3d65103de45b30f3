"""Regression of the rows of a video on its sentences, the loss of the kernel path, for a model that is trained."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.config.losses import RegressionSettings
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.kernel_path import sentences
from prvr.models.layers import initialise
from prvr.scoring import at_least_float32, unit_rows


def regression_loss(
    rows: Float[Tensor, "v l e"],
    mask: Bool[Tensor, "v l"] | None,
    targets: Float[Tensor, "q e"],
    query_to_video: Int[Tensor, " q"],
    temperature: float,
) -> Scalar:
    r"""$\frac1Q \sum_q \sum_i r_{qi} (1 - \cos(y_q, x_i))$ over the rows of the video of each sentence.

    As in EM, the shares $r_{qi} = \mathrm{softmax}_i(\cos(y_q, x_i) / \tau)$ are constants: no gradient passes them.

    Args:
        rows: x, in the space of the sentences.
        mask: True = valid; None = all.
        targets: y.
        query_to_video: the video of each sentence.
        temperature: tau, above 0.

    Examples:
        >>> rows, target = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[1.0, 0.0]])
        >>> round(regression_loss(rows, None, target, torch.tensor([0]), 1e6).item(), 4)
        0.5
    """
    cosines = torch.einsum("qe,qle->ql", unit_rows(targets), unit_rows(rows)[query_to_video])
    logits = cosines.detach() / temperature
    if mask is not None:
        logits = logits.masked_fill(~mask[query_to_video], -torch.inf)
    return 1 - (logits.softmax(1) * cosines).sum(1).mean()


class Regression(Term[RegressionSettings]):
    """`regression_loss` of the rows of each branch, which one linear map takes into the space of the words.

    The target is the mean of the words' features, not the encoded query: nothing that is trained moves it, so the loss
    cannot fall by a query encoder that makes sentences alike, and a row learns all that the features tell of them.
    """

    def __init__(self, settings: RegressionSettings, model: ModelConfig) -> None:
        super().__init__(settings, model)
        self.head = nn.Linear(model.hidden, model.query_dim)
        initialise(self.head)

    def forward(self, inputs: LossInputs) -> dict[str, Tensor]:
        """The losses by branch, "regression_clips" and "regression_frames"."""
        video, owner = inputs.output.video, inputs.labels.query_to_video
        words, mask = inputs.words
        targets = sentences(at_least_float32(words), mask)
        return {
            f"regression_{branch}": regression_loss(self.head(rows), valid, targets, owner, self.settings.temperature)
            for branch, rows, valid in (("clips", video.clips, None), ("frames", video.frames, video.frame_mask))
            if rows is not None
        }
