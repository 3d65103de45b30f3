"""Texts, clips, frames and videos in the hyperbolic space of the entailment loss (HLFormer, figure 5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lorentz import dist0
from lorentz.models import to_poincare
from lorentz.plot import HoroPCA, origin_distances, poincare_disk
from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.losses import entailment
from prvr.objective import Objective
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import COLOURS, new_figure
from prvr.plot.plots import HyperbolicSettings
from prvr.training.checkpoint import load_best
from prvr.types import VideoEmbedding, query_vectors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class HyperbolicPoints:
    """A sample of points in hyperbolic space, in groups such as texts and videos.

    Args:
        groups: `(n, d + 1)` ambient points by name.
        c: the curvature is -c.
        inside: the share of queries that lie in the entailment cone of their video, in [0, 1].
        trained: whether the entailment loss was trained; else scales and curvature are those that it starts from.
    """

    groups: Mapping[str, Float[Tensor, "_ m"]]
    c: float
    inside: float
    trained: bool


def entailment_of(inputs: PlotInput) -> tuple[Any, bool]:
    """The entailment loss of a run, and whether it was trained; else a new one.

    Raises:
        InputError: the first stage is none that the loss fits.
    """
    first: Any = inputs.system.pipeline.first
    loss, folder = inputs.config.loss, inputs.system.folder
    if not isinstance(first.config, ModelConfig):
        raise InputError(f"{folder}: the entailment loss needs a model with one vector per query")
    if not loss.weight("entailment"):
        return entailment(loss["entailment"], first.config).to(inputs.device).eval(), False
    objective = Objective(loss, first.config, first.registers)
    load_best(folder / "best" if (folder / "best").is_dir() else folder, objective, "objective.safetensors")
    return objective.get_submodule("entailment").to(inputs.device).eval(), True


def hyperbolic_points(inputs: PlotInput, *, points: int = 3000, seed: int = 0) -> HyperbolicPoints:
    """Texts, pooled videos, clips and frames of a split in the space of the entailment loss.

    Args:
        inputs: the system; the scales and the curvature are those of its run.
        points: how many in all, equally many of each kind where there are so many.
        seed: the seed of the sample.

    Raises:
        InputError: the first stage is none that the loss fits.
        TrainingError: the parameters of the loss are not beside the weights.
    """
    term, trained = entailment_of(inputs)
    generator = torch.Generator().manual_seed(seed)
    with inputs.encoded() as (packed, encoded):
        video = VideoEmbedding.cat(encoded.videos)
        texts, videos = term.lift_text(query_vectors(encoded.text)), term.lift_video(term.pool(video))
        own = videos[torch.from_numpy(packed.query_to_video).to(videos.device)]
        inside = float((term.violation(own, texts) == 0).double().mean())
        groups = {"texts": texts, "videos": videos}
        if video.clips is not None:
            groups["clips"] = term.lift_video(video.clips.flatten(0, 1))
        if video.frames is not None:
            mask = video.frame_mask
            groups["frames"] = term.lift_video(video.frames.flatten(0, 1) if mask is None else video.frames[mask])
        each = max(1, points // len(groups))
        sample = {
            name: rows[torch.randperm(len(rows), generator=generator)[:each].to(rows.device)].double().cpu()
            for name, rows in groups.items()
        }
        return HyperbolicPoints(sample, float(term.c), inside, trained)


def hyperbolic_figure(points: HyperbolicPoints) -> "Figure":
    """Histograms of the distances from the origin, and the points in the Poincaré disk by HoroPCA.

    The disk keeps the origin in its middle (Chami et al. 2021, without centring).

    Args:
        points: the points.
    """
    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    groups = {
        f"{name}, median {float(dist0(rows, points.c).median()):.2f}": rows for name, rows in points.groups.items()
    }
    colours = dict(zip(groups, COLOURS, strict=False))
    origin_distances(groups, points.c, bins=80, colors=colours, ax=left)
    left.legend(frameon=False, loc="best")
    every = torch.cat(list(groups.values()))
    pca = HoroPCA(2, points.c, center=False)
    plane = pca.fit_transform(every)
    marks = [colours[name] for name, rows in groups.items() for _ in rows]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()  # no kind lies on top
    style = {"c": [marks[row] for row in order], "s": 5.0, "alpha": 0.6}
    poincare_disk(plane[order], points.c, point_style=style, ax=right)
    radius = min(1.0, 1.3 * float(torch.linalg.vector_norm(points.c**0.5 * to_poincare(plane, points.c), dim=-1).max()))
    right.set(xlim=(-1.04 * radius, 1.04 * radius), ylim=(-1.04 * radius, 1.04 * radius))
    right.scatter(0, 0, s=80, marker="+", color="black", zorder=5)
    kept = f"HoroPCA: {100 * pca.variance_ratio_:.0f} % of the squared distances kept"
    right.set_title(f"{kept}\n+: the origin; the inner {100 * radius:.0f} % of the radius", fontsize="medium")
    state = "" if points.trained else "without the entailment loss, scale and curvature as it starts: "
    inside = f"{100 * points.inside:.0f} % of the queries in the cone of their video"
    figure.suptitle(f"{state}{inside}, curvature -{points.c:.2f}", fontsize="medium")
    return figure


def draw_hyperbolic(inputs: PlotInput, settings: HyperbolicSettings) -> "Figure":
    """The hyperbolic space of a run on a split."""
    return hyperbolic_figure(hyperbolic_points(inputs, points=settings.points, seed=settings.seed))
