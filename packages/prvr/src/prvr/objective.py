"""The objective: which losses, with which weights, and the parameters only training needs."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import lorentz
from prvr.config import LossConfig, ModelConfig, TokenModelConfig
from prvr.losses import Negatives, contrastive_loss, diversity_loss, info_nce_loss, query_structure_loss, triplet_loss
from prvr.models.layers import AttentionPooling
from prvr.types import Batch, Labels, RetrieverOutput, VideoEmbedding
from regdiff import TextualPerturbation

__all__ = ["Entailment", "LogitScale", "Objective"]


class LogitScale(nn.Module):
    """A learned temperature: the exponential of one number, as CLIP has it.

    Args:
        temperature: where it starts.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.tensor(temperature).log().neg())

    def forward(self) -> Float[Tensor, ""]:
        """The temperature now."""
        return self.logarithm.neg().exp()


class Entailment(nn.Module):
    r"""Partial order preservation (POP, HLFormer eq. 18-20): a video's cone should hold its queries.

    Pooled video and query are scaled into the ball, lifted by expmap0 and compared: mean over queries of
    max(0, exterior angle at the video - its half-aperture). Curvature and scales are bounded in the expression.

    Args:
        dim: width d.
        curvature: starting value of c, learned within a factor of 10.
        min_radius: K of the half-aperture.
    """

    def __init__(self, dim: int, curvature: float, min_radius: float) -> None:
        super().__init__()
        self.pool_frames = AttentionPooling(dim)
        self.pool_clips = AttentionPooling(dim)
        self.curvature = lorentz.nn.Curvature(curvature, bounds=(curvature / 10, curvature * 10))
        start = torch.logit(torch.tensor(dim**-0.5))
        self.text_scale = nn.Parameter(start.clone())
        self.video_scale = nn.Parameter(start.clone())
        self.min_radius = min_radius

    def forward(
        self, text: Float[Tensor, "q d"], video: VideoEmbedding, query_to_video: Int[Tensor, " q"]
    ) -> Float[Tensor, ""]:
        parts = []
        if video.frames is not None:
            parts.append(self.pool_frames(video.frames, video.frame_mask))
        if video.clips is not None:
            parts.append(self.pool_clips(video.clips))
        pooled = torch.stack(parts).mean(0)
        c = self.curvature()
        query_points = lorentz.expmap0(text * torch.sigmoid(self.text_scale), c)
        video_points = lorentz.expmap0(pooled * torch.sigmoid(self.video_scale), c)
        return lorentz.entailment_violation(
            video_points[query_to_video], query_points, c, min_radius=self.min_radius
        ).mean()


class Objective(nn.Module):
    """Weighted sum of the loss terms a configuration turns on.

    Args:
        config: weights and constants; a weight of 0 means the term is not computed.
        model: what the retriever is made of.

    Example:
        >>> from prvr.config import LossConfig, ModelConfig
        >>> Objective(LossConfig(diversity=0.0), ModelConfig(video_dim=4, query_dim=4)).active
        ('triplet_clips', 'triplet_frames', 'info_nce_clips', 'info_nce_frames')
    """

    def __init__(self, config: LossConfig, model: ModelConfig | TokenModelConfig) -> None:
        super().__init__()
        self.config = config
        self.branches, self.num_registers = (), 1
        self.of_registers: tuple[str, ...] = ()
        if isinstance(model, ModelConfig):
            if model.registers.kind == "diffusion":
                self.of_registers = ("diffusion",) if model.registers.start == "gaussian" else ("prior_kl", "diffusion")
            self.branches = {"both": ("clips", "frames"), "clips": ("clips",), "frames": ("frames",)}[model.branches]
            self.num_registers = model.registers.num
        self.perturb = TextualPerturbation(config.perturbation)
        self.temperature = None
        if config.contrastive > 0 and config.contrastive_learned:
            self.temperature = LogitScale(config.contrastive_temperature)
        self.entailment = None
        if config.entailment > 0 and isinstance(model, ModelConfig):
            kind = _entailment_part(model)
            self.entailment = kind(model.hidden, config.entailment_curvature, config.entailment_min_radius)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the terms this objective computes."""
        c = self.config
        weights = {f"triplet_{branch}": c.triplet for branch in self.branches}
        weights |= {f"info_nce_{branch}": getattr(c, f"info_nce_{branch}") for branch in self.branches}
        names = ["contrastive", "diversity", "query_structure", *["entailment"] * (self.entailment is not None)]
        weights |= {name: getattr(c, name) for name in (*names, *self.of_registers)}
        return tuple(name for name, weight in weights.items() if weight > 0)

    def forward(
        self,
        output: RetrieverOutput,
        batch: Batch | Labels,
        negatives: Negatives = "random",
        register_targets: Float[Tensor, "v n d"] | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Weighted terms by name, and their sum as "total".

        Args:
            output: of the retriever for `batch`.
            batch: what it was computed from; of it only the labels count.
            negatives: of the triplet terms, see `prvr.losses.triplet_loss`.
            register_targets: what the registers should become; default: the perturbed mean of each video's queries.
            generator: source of all draws; None = the global one.
        """
        c, active, scores = self.config, set(self.active), output.scores
        own, positives = batch.own, batch.positives
        terms: dict[str, Tensor] = {}
        for branch in self.branches:
            if f"triplet_{branch}" in active:
                cosine = cast(Tensor, getattr(scores, branch))
                terms[f"triplet_{branch}"] = c.triplet * triplet_loss(
                    cosine, own, positives, c.margin, negatives, c.hard_pool, generator
                )
            if f"info_nce_{branch}" in active:
                dots = cast(Tensor, getattr(scores, f"{branch}_dot"))
                terms[f"info_nce_{branch}"] = getattr(c, f"info_nce_{branch}") * info_nce_loss(dots, positives)
        if "contrastive" in active:
            temperature = c.contrastive_temperature if self.temperature is None else self.temperature()
            terms["contrastive"] = c.contrastive * contrastive_loss(scores.total, positives, temperature)
        if "diversity" in active:
            terms["diversity"] = c.diversity * diversity_loss(
                output.text,
                batch.query_to_video,
                c.diversity_margin,
                c.diversity_scale,
                c.diversity_power,
                c.diversity_form,
            )
        if "query_structure" in active:
            terms["query_structure"] = c.query_structure * query_structure_loss(
                output.text, batch.query_to_video, c.query_structure_temperature
            )
        if self.entailment is not None:
            terms["entailment"] = c.entailment * self.entailment(output.text, output.video, batch.query_to_video)
        if output.register_loss is not None and active & {"prior_kl", "diffusion"}:
            if register_targets is None:
                register_targets = self.perturb(mean_queries(output.text, own), self.num_registers, generator)
            unweighted = output.register_loss(register_targets, generator=generator)
            for name in self.of_registers:
                if name in active:
                    terms[name] = getattr(c, name) * unweighted[name]
        terms["total"] = torch.stack(list(terms.values())).sum()
        return terms

    def project_bounds(self) -> None:
        """Put bounded parameters back into their bounds; only released parts have any."""
        project = getattr(self.entailment, "project_bounds", None)
        if project is not None:
            project()


def _entailment_part(model: ModelConfig) -> type[nn.Module]:
    if model.compat.entailment == "released":
        from prvr.released.entailment import ReleasedEntailment

        return ReleasedEntailment
    return Entailment


def mean_queries(text: Float[Tensor, "q d"], own: Tensor) -> Float[Tensor, "v d"]:
    """Mean embedding of each video's own queries; 0 for a video without any."""
    weights = own.to(text.dtype)
    return weights.mT @ text / weights.sum(0)[:, None].clamp_min(1)
