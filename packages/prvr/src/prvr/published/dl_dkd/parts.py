"""The linear maps after the branches of DL-DKD, its second query encoder, and its distillation from a teacher."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.clips import Encode, EncodedFrames
from prvr.models.encoders import QueryEncoder
from prvr.models.layers import Positions, initialise
from prvr.models.rows import Sequences
from prvr.published.dl_dkd import FrameDistillationSettings
from prvr.scoring import unit_rows
from prvr.types import TextEmbedding


class FrameRows(nn.Module):
    """A linear map of each frame as the clip branch encodes it; after the last frame its row is repeated (DL-DKD)."""

    has_spans = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.rows = model.max_frames
        self.map = nn.Linear(model.hidden, model.hidden)
        initialise(self.map)

    def forward(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v p d"], Float[Tensor, "v p 2"]]:
        """The rows, see `ClipConstruction`."""
        encoded = self.map(encode(frames, mask))
        count = mask.sum(1, keepdim=True)
        place = torch.arange(self.rows, device=mask.device).minimum(count - 1)
        spans = torch.stack([place, place + 1], -1).to(encoded.dtype) / count[..., None]
        return encoded.take_along_dim(place[..., None], 1), spans


class MappedFrames(nn.Module):
    """A linear map of frames, one by one (DL-DKD)."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.map = nn.Linear(model.hidden, model.hidden)
        initialise(self.map)

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v l d"], Bool[Tensor, "v l"] | None]:
        """The frames, see `FramePooling`."""
        return self.map(frames.rows), frames.scored


class SecondQuery(nn.Module):
    """A second `QueryEncoder`, whose vector frames are compared with (DL-DKD)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = QueryEncoder(config)

    def weights(self, words: Float[Tensor, "q 1 d"], mask: Bool[Tensor, "q 1"]) -> Float[Tensor, "q 1"]:
        """1 for each vector."""
        return mask.to(words.dtype)

    def forward(
        self,
        sentence: Float[Tensor, "q d"],
        words: Float[Tensor, "q w e"],
        mask: Bool[Tensor, "q w"],
        sequences: Sequences,
        positions: Positions,
    ) -> TextEmbedding:
        """The vector for frames, as the one word, beside the one for clips."""
        return replace(TextEmbedding.of_sentences(self.encoder(words, sequences)), sentence=sentence)


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
    return F.kl_div(student, target, reduction="sum", log_target=True)


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
