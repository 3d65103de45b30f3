"""Losses of the embeddings of queries, which know the video of each."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.config import LossSettings
from prvr.config.losses import DiversitySettings, QueryStructureSettings
from prvr.losses.term import LossInputs, Term

_MOST_ANGLES = 64  # queries whose angles are compared


def _same_video(query_to_video: Int[Tensor, " q"]) -> Bool[Tensor, "q q"]:
    """Pairs of different queries of one video."""
    same = query_to_video[:, None] == query_to_video
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)


def diversity_loss(
    text: Float[Tensor, "q d"],
    query_to_video: Int[Tensor, " q"],
    margin: float,
    scale: float,
    power: float = 1.0,
    form: Literal["focal", "log_sum", "pairs"] = "focal",
) -> Float[Tensor, ""]:
    r"""Pushes the queries of one video apart, since they describe different moments (GMMFormer eq. 12).

    focal: $\frac1Q \sum_{p \ne q,\, y_p = y_q} (1 + c_{pq})^\gamma \log(1 + e^{\omega (c_{pq} + \delta)})$;
    log_sum: $\frac1Q \sum_q \log(1 + \sum_{p \ne q,\, y_p = y_q} e^{\omega (c_{pq} + \delta)})$, c cosines;
    pairs: the terms of focal, those of a video with M queries times $\frac{2}{M (M - 1)}$, and the mean over the videos
    that have two or more (DreamPRVR supplement eq. 34).

    Args:
        text: query embeddings.
        query_to_video: y.
        margin: delta.
        scale: omega.
        power: gamma, of the focal factor.
        form: which of the three.
    """
    unit = F.normalize(text, dim=-1)
    cosine = unit @ unit.mT
    pairs = _same_video(query_to_video)
    logits = scale * (cosine + margin)
    if form == "log_sum":
        row = logits.masked_fill(~pairs, -torch.inf)
        return torch.cat([row, row.new_zeros(len(row), 1)], 1).logsumexp(1).mean()
    # The diagonal is not a pair; its cosine is fixed at 0 so that neither value nor gradient of it can overflow.
    focal = (1 + cosine.masked_fill(~pairs, 0.0)) ** power
    terms = focal * torch.logaddexp(logits, torch.zeros_like(logits))
    if form == "focal":
        return (terms * pairs).sum() / len(text)
    siblings = pairs.sum(1).to(text.dtype)  # M - 1 for each query
    videos = ((siblings > 0) / (siblings + 1)).sum()  # each of M queries counts as 1 / M of its video
    share = 2 / (siblings * (siblings + 1)).clamp_min(1)
    return ((terms * pairs).sum(1) * share).sum() / videos.clamp_min(1)


def query_structure_loss(
    text: Float[Tensor, "q d"], query_to_video: Int[Tensor, " q"], temperature: float
) -> Float[Tensor, ""]:
    r"""Supervised contrast of queries by video (QSP of DreamPRVR; Khosla et al. 2020).

    Mean over queries with a sibling of $-\frac{1}{|P_q|} \sum_{p \in P_q} \log \frac{e^{c_{qp}/\tau}}
    {\sum_{k \ne q} e^{c_{qk}/\tau}}$.

    Args:
        text: query embeddings.
        query_to_video: which queries are siblings.
        temperature: tau.
    """
    unit = F.normalize(text, dim=-1)
    pairs = _same_video(query_to_video)
    itself = torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)
    logits = unit @ unit.mT / temperature
    log_share = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    siblings = pairs.sum(1)
    per_query = (log_share * pairs).sum(1) / siblings.clamp_min(1)
    return -per_query.sum() / (siblings > 0).sum().clamp_min(1)


def distance_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Float[Tensor, ""]:
    r"""Keeps how far apart queries are (RKD-D of Park et al., CVPR 2019; in MSC-PRVR between text and frozen text).

    Mean over pairs p < q of $\mathrm{smooth}_{L1}(d_{pq} / \bar d - f_{pq} / \bar f)$: d distances of unit embeddings,
    f those of fixed unit vectors, each divided by its mean over the pairs. Smooth L1 is $x^2 / 2$ up to 1, then
    $|x| - 1/2$.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Returns:
        0 for fewer than two queries.

    Examples:
        >>> fixed = torch.eye(3)
        >>> distance_geometry_loss(2 * fixed, fixed).item()
        0.0
    """
    first, second = torch.triu_indices(len(text), len(text), 1, device=text.device)
    relative = []
    for x in (text, fixed):
        unit = F.normalize(x, dim=-1)
        # The length of a difference has no gradient at 0, where captions are the same: a tiny number is put below it.
        distances = ((unit[first] - unit[second]).square().sum(1) + 1e-12).sqrt()
        relative.append(distances / distances.mean())
    losses = F.smooth_l1_loss(relative[0], relative[1], reduction="none")
    return losses.sum() / max(len(losses), 1)


def angle_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Float[Tensor, ""]:
    r"""Keeps the angles between queries (RKD-A of Park et al., CVPR 2019).

    Mean over triples of different queries of $\mathrm{smooth}_{L1}(\cos\angle_{pqr} - \cos\angle^*_{pqr})$: the angle
    at q between p and r, of unit embeddings and of fixed unit vectors. Where two fixed vectors are equal, there is no
    angle and the triple is left out. Memory grows with the third power of the number of queries.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Returns:
        0 where no triple has an angle.

    Examples:
        >>> angle_geometry_loss(2 * torch.eye(3), torch.eye(3)).item()
        0.0
    """
    away = [unit[:, None] - unit for unit in (F.normalize(x, dim=-1) for x in (text, fixed))]
    apart = away[1].square().sum(-1) > 1e-12
    sides = [F.normalize(x.masked_fill(~apart[..., None], 0), dim=-1, eps=1e-6) for x in away]
    cosines = [torch.einsum("qpd,qrd->qpr", side, side) for side in sides]
    losses = F.smooth_l1_loss(cosines[0], cosines[1], reduction="none")
    counted = apart[:, :, None] & apart[:, None] & ~torch.eye(len(text), dtype=torch.bool, device=text.device)
    return (losses * counted).sum() / counted.sum().clamp_min(1)


class Diversity(Term[DiversitySettings]):
    """`diversity_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diversity loss of the queries of each video."""
        c, owner = self.settings, inputs.labels.query_to_video
        return diversity_loss(inputs.text, owner, c.margin, c.scale, c.power, c.form)


class QueryStructure(Term[QueryStructureSettings]):
    """`query_structure_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The query structure loss."""
        return query_structure_loss(inputs.text, inputs.labels.query_to_video, self.settings.temperature)


class TextDistances(Term[LossSettings]):
    """`distance_geometry_loss` of the queries and the mean features of their words."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the distances of the queries are from those of their words."""
        return distance_geometry_loss(inputs.text, inputs.mean_words)


class TextAngles(Term[LossSettings]):
    """`angle_geometry_loss` of the queries and the mean features of their words; of 64 queries, drawn from more."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the angles of the queries are from those of their words."""
        text, fixed = inputs.text, inputs.mean_words
        if len(text) > _MOST_ANGLES:
            draw = torch.rand(len(text), device=text.device, generator=inputs.generator)
            sample = draw.topk(_MOST_ANGLES).indices
            text, fixed = text[sample], fixed[sample]
        return angle_geometry_loss(text, fixed)
