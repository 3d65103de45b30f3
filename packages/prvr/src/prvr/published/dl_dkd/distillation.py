"""The distillation of DL-DKD: attention to frames as a teacher has it."""

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.errors import InputError
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.published.dl_dkd import FrameDistillationSettings
from prvr.scoring import unit_rows


def frame_distillation_loss(scores: Float[Tensor, "q l"], teacher: Float[Tensor, "q l"], temperature: float) -> Scalar:
    r"""How far the attention of queries to the frames of their videos is from a teacher's (DL-DKD): $\sum_q
    \mathrm{KL}(\mathrm{softmax}(T_q / \tau) \,\Vert\, \mathrm{softmax}(S_q / \tau))$, a sum over queries, as released.

    Args:
        scores: S, cosines of a query with the frames of its video.
        teacher: T, those of the teacher, -inf past the end of the video; no gradient reaches them.
        temperature: tau, above 0.

    Examples:
        >>> frame_distillation_loss(torch.tensor([[0.1, 0.7, 9.0]]), torch.tensor([[0.3, 0.9, -torch.inf]]), 0.2) < 1e-6
        tensor(True)
    """
    past = teacher == -torch.inf
    target = (teacher.detach().to(scores) / temperature).log_softmax(1).masked_fill(past, 0)
    student = (scores.masked_fill(past, -torch.inf) / temperature).log_softmax(1).masked_fill(past, 0)
    return (target.exp() * (target - student)).sum()


class FrameDistillation(Term[FrameDistillationSettings]):
    """`frame_distillation_loss` of the cosines of the clip branch with a row for each frame, less in each epoch."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the cosines are from the teacher's.

        Raises:
            InputError: the labels are without the teacher's cosines.
        """
        teacher, clips, c = inputs.labels.teacher_frames, inputs.output.video.clips, self.settings
        if teacher is None or clips is None:
            raise InputError(
                "loss.frame_distillation needs the cosines of a teacher, and this batch has none. Pass them as "
                "Batch.teacher_frames, as prvr.training.train does, or set it to 0"
            )
        rows = unit_rows(clips[inputs.labels.query_to_video, : teacher.shape[1]])
        cosines = torch.einsum("qd,qld->ql", unit_rows(inputs.text), rows)
        return frame_distillation_loss(cosines, teacher, c.temperature) * c.decay**inputs.epoch
