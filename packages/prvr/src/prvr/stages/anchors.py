"""TRACE's scores over anchors: the registers of a video, or means of its parts."""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from prvr.config.strict import MANY, STRICT
from prvr.errors import InputError
from prvr.models import Retriever
from prvr.scoring import full_precision, unit_rows
from prvr.stages.matrix import ScoreMatrix
from prvr.stages.stage import STAGES, Rescore, Stage, add_scores
from prvr.types import Direction, FirstStage, Scores, Texts, VideoEmbedding, query_vectors


@dataclass(frozen=True, config=STRICT)
class AnchorSettings:
    """The anchors, and the weights of their scores."""

    top_k: int = Field(default=50, ge=1, le=MANY)
    """The number of candidates of each row that are re-scored."""
    anchors: Literal["registers", "segments"] = "registers"
    """registers: the registers of the first stage; segments, the control: means of equal parts of the frames."""
    segments: int = Field(default=8, ge=1, le=1024)
    """The number of parts."""
    weight: float = Field(default=0.03, ge=0, le=1e6)
    """The weight of the anchor scores, which are added to the score so far."""
    residual: float = Field(default=0.3, ge=0, le=1e6)
    """The weight a of the residual route in the score of a frame."""
    soft: float = Field(default=0.2, ge=0, le=1e6)
    """The weight b of the soft route."""
    temperature: float = Field(default=0.07, ge=1e-3, le=1e3)
    """The temperature tau of both routes."""


def anchor_scores(
    text: Float[Tensor, "q d"],
    frames: Float[Tensor, "v l d"],
    mask: Bool[Tensor, "v l"] | None,
    anchors: Float[Tensor, "v n d"],
    settings: AnchorSettings,
) -> Float[Tensor, "q v"]:
    r"""The residual and the soft route of TRACE (preprint, 2026) over anchors r of each video, without its projections.

    $\max_i [\cos(q, f_i) + a \rho_i] + b \cos(q, \sum_i u_i f_i)$ over the valid unit frames f, with
    $\rho_i = \tau \log \sum_k e^{(\cos(q, r_k) + \cos(r_k, f_i)) / \tau}$, which is large for a frame near an anchor
    near the query, and $u_i = \sum_k \mathrm{softmax}_k(\cos(q, r_k) / \tau)\,
    \mathrm{softmax}_i(\cos(r_k, f_i) / \tau)$, the attention of the query over frames by way of the anchors.

    Args:
        text: q.
        frames: f.
        mask: True = valid; None = all frames are valid.
        anchors: r.
        settings: a is `residual`, b is `soft`, tau is `temperature`.

    Examples:
        >>> frames, anchors = torch.eye(2)[None], torch.tensor([[[1.0, 0.0]]])
        >>> settings = AnchorSettings(residual=0.5, soft=0.0)
        >>> anchor_scores(torch.tensor([[1.0, 0.0]]), frames, None, anchors, settings).tolist()
        [[2.0]]
    """
    with full_precision(text.device):
        query, rows, anchors = unit_rows(text), unit_rows(frames), unit_rows(anchors)
        absent = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device) if mask is None else ~mask
        to_anchors = torch.einsum("qd,vnd->qvn", query, anchors)
        to_rows = torch.einsum("vnd,vld->vnl", anchors, rows)
        over = settings.temperature * ((to_anchors[..., None] + to_rows) / settings.temperature).logsumexp(2)
        direct = torch.einsum("qd,vld->qvl", query, rows).masked_fill(absent, -torch.inf)
        picked = (to_anchors / settings.temperature).softmax(2)
        reads = (to_rows / settings.temperature).masked_fill(absent[:, None], -torch.inf).softmax(2)
        read = torch.einsum("qvn,vnl,vld->qvd", picked, reads, rows)
        softly = torch.einsum("qd,qvd->qv", query, unit_rows(read))
        return (direct + settings.residual * over).amax(2) + settings.soft * softly


def segment_anchors(
    frames: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"] | None, segments: int
) -> Float[Tensor, "v s d"]:
    """The mean unit frame of each of s equal parts of a video; the parts of short videos overlap, and none is empty.

    Examples:
        >>> segment_anchors(torch.tensor([[[1.0], [1.0], [-1.0]]]), None, 2).flatten().tolist()
        [1.0, 0.0]
    """
    videos, length = frames.shape[:2]
    valid = torch.ones(videos, length, dtype=torch.bool, device=frames.device) if mask is None else mask
    count, row = valid.sum(1)[:, None, None], torch.arange(length, device=frames.device)
    part = torch.arange(segments, device=frames.device)[:, None]
    inside = ((row + 1) * segments > part * count) & (row * segments < (part + 1) * count)
    return torch.einsum("vsl,vld->vsd", F.normalize(inside.to(torch.float32), p=1, dim=-1), unit_rows(frames).float())


class AnchorStage(Stage):
    """Adds TRACE's routes over the registers of a video, or over means of its parts.

    Args:
        settings: the anchors and their weights.
    """

    kind = "anchors"

    def __init__(self, settings: AnchorSettings | None = None) -> None:
        self.settings = settings or AnchorSettings()
        self.top_k = self.settings.top_k
        self.rows = frozenset(["frames", "registers"] if self.settings.anchors == "registers" else ["frames"])

    def check(self, first: FirstStage) -> None:
        """Refuses a retriever without the frames or registers that this stage reads.

        Raises:
            InputError: the retriever lacks them.
        """
        retriever = first if isinstance(first, Retriever) else None
        if retriever is not None and retriever.frames is None:
            raise InputError("an anchors stage reads frames: the first stage needs model.branches='both' or 'frames'")
        if self.settings.anchors == "registers" and (retriever is None or retriever.registers is None):
            raise InputError(
                "anchors='registers': the first stage has no registers (model.registers.kind='none'): use a retriever "
                "with registers, or set anchors=segments"
            )

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds the anchor scores."""
        return add_scores(replace(matrix, retriever=self), direction, self.settings.weight)

    def score(self, text: Texts, video: VideoEmbedding) -> Scores:
        """`anchor_scores` of every text with every video."""
        assert video.frames is not None
        anchors = video.registers
        if self.settings.anchors == "segments":
            anchors = segment_anchors(video.frames, video.frame_mask, self.settings.segments)
        assert anchors is not None
        return Scores(anchor_scores(query_vectors(text), video.frames, video.frame_mask, anchors, self.settings))


STAGES.register("anchors", AnchorStage, "Adds TRACE's scores over registers or segments.", AnchorSettings)
