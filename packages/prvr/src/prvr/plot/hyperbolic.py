"""Texts, clips, frames and videos in the hyperbolic space of the entailment loss (HLFormer, figure 5)."""

from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from lorentz import dist0
from lorentz.models import to_poincare
from lorentz.plot import HoroPCA, origin_distances, poincare_disk
from prvr.config import ModelConfig
from prvr.data import PackedSplit
from prvr.errors import InputError
from prvr.objective import Objective
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import COLOURS, new_figure
from prvr.plot.plots import HyperbolicSettings
from prvr.published.hlformer.parts import entailment
from prvr.stages import EncodedSplit
from prvr.training.checkpoint import load_best
from prvr.types import VideoEmbedding, query_vectors


def entailment_of(inputs: PlotInput) -> tuple[Any, bool]:
    """The entailment loss of a run, and whether it was trained; else a new one.

    Raises:
        InputError: the first stage is none that the loss fits.
        TrainingError: the parameters of the loss are not beside the weights.
    """
    first: Any = inputs.system.pipeline.first
    loss, folder = inputs.config.loss, inputs.system.folder
    if not isinstance(first.config, ModelConfig) or first.config.branches == "none":
        raise InputError(
            f"{folder}: the space is that of the entailment loss, which compares one vector per query with clips or "
            "frames of blocks, and its first stage has none. Name a run with model.branches both, clips or frames."
        )
    with torch.random.fork_rng([]):  # a new one is the same each time
        torch.manual_seed(inputs.config.train.seed)
        term, trained = entailment(loss["entailment"], first.config), loss.weight("entailment") > 0
    if trained:
        objective = Objective(loss, first.config, first.registers)
        load_best(folder / "best" if (folder / "best").is_dir() else folder, objective, "objective.safetensors")
        term = objective.get_submodule("entailment")
    return term.to(inputs.device).eval(), trained


def lifted(term: Any, split: PackedSplit, encoded: EncodedSplit) -> tuple[dict[str, Float[Tensor, "_ m"]], float]:
    """Texts, pooled videos, clips and frames of a split in the space of the entailment loss.

    Args:
        term: the loss.
        split: the split.
        encoded: what `prvr.evaluation.encode_split` gave for it.

    Returns:
        `(n, d + 1)` ambient points by name, and the share of queries in [0, 1] that lie in the cone of their video.
    """
    video = VideoEmbedding.cat(encoded.videos)
    texts = term.lift_text(query_vectors(encoded.text))
    videos = term.lift_video(term.pool(video))
    own = videos[torch.from_numpy(split.query_to_video).to(videos.device)]
    groups = {"texts": texts, "videos": videos}
    if video.clips is not None:
        groups["clips"] = term.lift_video(video.clips.flatten(0, 1))
    if video.frames is not None:
        mask = video.frame_mask
        groups["frames"] = term.lift_video(video.frames.flatten(0, 1) if mask is None else video.frames[mask])
    return groups, float((term.violation(own, texts) == 0).double().mean())


def draw_hyperbolic(inputs: PlotInput, settings: HyperbolicSettings) -> Figure:
    """The hyperbolic space of a run on a split.

    Histograms of the distances from the origin, and the points in the Poincaré disk by HoroPCA, which keeps the origin
    in its middle (Chami et al. 2021, without centring). Scales and curvature are those of the run.

    Raises:
        InputError: the first stage is none that the loss fits.
        TrainingError: the parameters of the loss are not beside the weights.
    """
    term, trained = entailment_of(inputs)
    generator = torch.Generator().manual_seed(settings.seed)
    with inputs.encoded() as (packed, encoded):
        points, inside = lifted(term, packed, encoded)
        each = max(1, settings.points // len(points))
        c = float(term.c)
        groups = {}
        for name, rows in points.items():
            sample = rows[torch.randperm(len(rows), generator=generator)[:each].to(rows.device)].double().cpu()
            groups[f"{name}, median {float(dist0(sample, c).median()):.2f}"] = sample
    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    colours = dict(zip(groups, COLOURS, strict=False))
    origin_distances(groups, c, bins=80, colors=colours, ax=left)
    left.legend(frameon=False, loc="best")
    sample = torch.cat(list(groups.values()))
    pca = HoroPCA(2, c, center=False)
    plane = pca.fit_transform(sample)
    marks = [colours[name] for name, rows in groups.items() for _ in rows]
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(0))  # no kind lies on top
    poincare_disk(
        plane[order], c, point_style={"c": [marks[place] for place in order], "s": 5.0, "alpha": 0.6}, ax=right
    )
    radius = min(1.0, 1.3 * float(torch.linalg.vector_norm(c**0.5 * to_poincare(plane, c), dim=-1).max()))
    right.axis([-1.04 * radius, 1.04 * radius] * 2)
    right.scatter(0, 0, s=80, marker="+", color="black", zorder=5)
    variance = f"HoroPCA: {100 * pca.variance_ratio_:.0f} % of the squared distances kept"
    right.set_title(f"{variance}\n+: the origin; the inner {100 * radius:.0f} % of the radius", fontsize="medium")
    state = "" if trained else "without the entailment loss, scale and curvature as it starts: "
    about = f"{100 * inside:.0f} % of the queries in the cone of their video, curvature -{c:.2f}"
    figure.suptitle(f"{state}{about}", fontsize="medium")
    return figure
