"""A stage that also compares queries with videos by way of anchors: the registers of a video, or means of its parts."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

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
from prvr.stages.rescoring import weighted
from prvr.stages.scores import ScoreMatrix
from prvr.text import Texts, sentences
from prvr.types import Direction, FirstStage, Rescore, Scores, VideoEmbedding


@dataclass(frozen=True, config=STRICT)
class AnchorSettings:
    """What the anchors are, and how much the scores that go by way of them count."""

    top_k: int = Field(default=50, ge=1, le=MANY)
    """How many candidates of each row are re-scored."""
    anchors: Literal["registers", "segments"] = "registers"
    """registers: those that the first stage generated; segments, the control: means of equal parts of the frames."""
    segments: int = Field(default=8, ge=1, le=1024)
    """How many parts."""
    weight: float = Field(default=0.03, ge=0, le=1e6)
    """What both routes count beside the score so far."""
    residual: float = Field(default=0.3, ge=0, le=1e6)
    """What the way over the anchors adds to the score of a frame."""
    soft: float = Field(default=0.2, ge=0, le=1e6)
    """What the frames count that the anchors read, beside the best frame."""
    temperature: float = Field(default=0.07, ge=1e-3, le=1e3)


def anchor_scores(
    text: Float[Tensor, "q d"],
    frames: Float[Tensor, "v l d"],
    mask: Bool[Tensor, "v l"] | None,
    anchors: Float[Tensor, "v n d"],
    settings: AnchorSettings,
) -> Float[Tensor, "q v"]:
    r"""The residual and the soft route of TRACE (preprint, 2026) over anchors r of each video, without its projections.

    $\max_i [\cos(q, f_i) + a \rho_i] + b \cos(q, \sum_i u_i f_i)$ over the valid unit frames f, with
    $\rho_i = \tau \log \sum_k e^{(\cos(q, r_k) + \cos(r_k, f_i)) / \tau}$: a frame counts more where an anchor is near
    both to it and to the query; and $u_i = \sum_k \mathrm{softmax}_k(\cos(q, r_k) / \tau)\,
    \mathrm{softmax}_i(\cos(r_k, f_i) / \tau)$: the frames that those anchors read which the query picks.

    Args:
        text: q.
        frames: f.
        mask: True = valid; None = every frame counts.
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
    """The mean unit frame of each of s equal parts of a video; short videos have parts that overlap, none is empty.

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


class AnchorStage:
    """Adds TRACE's residual routes over the registers of a video, or over means of its parts.

    Args:
        settings: how they are computed and what they count.
    """

    kind = "anchors"
    encoder = None
    directions: frozenset[Direction] = frozenset(["t2v", "v2t"])

    def __init__(self, settings: AnchorSettings | None = None) -> None:
        self.settings = settings or AnchorSettings()

    @property
    def top_k(self) -> int:
        """How many candidates are re-scored."""
        return self.settings.top_k

    @property
    def rows(self) -> frozenset[str]:
        """The frames, and the registers where these are the anchors."""
        return frozenset(["frames", "registers"] if self.settings.anchors == "registers" else ["frames"])

    def check(self, first: FirstStage) -> None:
        """Refuse a retriever without the frames or registers that this stage reads.

        Raises:
            InputError: it lacks them.
        """
        known = first if isinstance(first, Retriever) else None
        if known is not None and known.frames is None:
            raise InputError("an anchors stage reads frames: the first stage needs model.branches='both' or 'frames'")
        if self.settings.anchors == "registers" and (known is None or known.registers is None):
            raise InputError(
                "anchors='registers': the first stage has no registers (model.registers.kind='none'): use a retriever "
                "with registers, or set anchors=segments"
            )

    def open_split(self, split: Any) -> Any:
        """As it is: this stage reads what the first stage gave."""
        return split

    def prepare(self, direction: Direction, score: Callable[[Any], Tensor]) -> None:
        """Nothing needs to be known of the gallery."""

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        """The function that adds the scores by way of anchors."""
        return weighted(replace(matrix, retriever=self), direction, self.settings.weight, keep=True)

    def score(self, text: Texts, video: VideoEmbedding) -> Scores:
        """`anchor_scores` of every text with every video."""
        assert video.frames is not None
        anchors = video.registers
        if self.settings.anchors == "segments":
            anchors = segment_anchors(video.frames, video.frame_mask, self.settings.segments)
        assert anchors is not None
        return Scores(anchor_scores(sentences(text), video.frames, video.frame_mask, anchors, self.settings))

    def save(self, folder: Path) -> dict[str, Any]:
        """There is nothing to write but the settings."""
        return asdict(self.settings)

    @classmethod
    def build(cls, settings: AnchorSettings, run: Path | None, encode: Any) -> "AnchorStage":
        """A stage with these settings; there is nothing to train.

        Raises:
            InputError: a run is named.
        """
        if run is not None:
            raise InputError(f"an anchors stage has no run, got {run}: leave it out")
        return cls(settings)

    @classmethod
    def load(cls, folder: Path, settings: AnchorSettings) -> "AnchorStage":
        """A stage with these settings."""
        return cls(settings)
