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
from prvr.plot.registry import HyperbolicSettings
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


def entailment_of(given: PlotInput) -> tuple[Any, bool]:
    """The entailment loss of a run, and whether it was trained; else a new one.

    Raises:
        InputError: the first stage is none that the loss fits.
    """
    first: Any = given.system.pipeline.first
    loss, folder = given.config.loss, given.system.folder
    if not isinstance(first.config, ModelConfig):
        raise InputError(f"{folder}: the entailment loss needs a model with one vector per query")
    if not loss.weight("entailment"):
        return entailment(loss["entailment"], first.config).to(given.device).eval(), False
    objective = Objective(loss, first.config, first.registers)
    load_best(folder / "best" if (folder / "best").is_dir() else folder, objective, "objective.safetensors")
    return objective.get_submodule("entailment").to(given.device).eval(), True


def hyperbolic_points(given: PlotInput, *, points: int = 3000, seed: int = 0) -> HyperbolicPoints:
    """Texts, pooled videos, clips and frames of a split in the space of the entailment loss.

    Args:
        given: the system; the scales and the curvature are those of its run.
        points: how many in all, equally many of each kind where there are so many.
        seed: the seed of the sample.

    Raises:
        InputError: the first stage is none that the loss fits.
        TrainingError: the parameters of the loss are not beside the weights.
    """
    term, trained = entailment_of(given)
    generator = torch.Generator().manual_seed(seed)
    with given.encoded() as (packed, encoded):
        video = VideoEmbedding.cat(encoded.videos)
        texts, videos = term.lift_text(query_vectors(encoded.text)), term.lift_video(term.pool(video))
        own = videos[torch.from_numpy(packed.query_to_video).to(videos.device)]
        inside = float((term.violation(own, texts) == 0).double().mean())
        found = {"texts": texts, "videos": videos}
        if video.clips is not None:
            found["clips"] = term.lift_video(video.clips.flatten(0, 1))
        if video.frames is not None:
            mask = video.frame_mask
            found["frames"] = term.lift_video(video.frames.flatten(0, 1) if mask is None else video.frames[mask])
        each = max(1, points // len(found))
        groups = {
            name: rows[torch.randperm(len(rows), generator=generator)[:each].to(rows.device)].double().cpu()
            for name, rows in found.items()
        }
        return HyperbolicPoints(groups, float(term.c), inside, trained)


def hyperbolic_figure(found: HyperbolicPoints) -> "Figure":
    """Histograms of the distances from the origin, and the points in the Poincaré disk by HoroPCA.

    The disk keeps the origin in its middle (Chami et al. 2021, without centring).

    Args:
        found: the points.
    """
    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    colours = dict(zip(found.groups, COLOURS, strict=False))
    medians = {name: float(dist0(rows, found.c).median()) for name, rows in found.groups.items()}
    named = {f"{name}, median {medians[name]:.2f}": rows for name, rows in found.groups.items()}
    origin_distances(named, found.c, bins=80, colors=dict(zip(named, COLOURS, strict=False)), ax=left)
    left.legend(frameon=False, loc="best")
    every = torch.cat(list(found.groups.values()))
    pca = HoroPCA(2, found.c, center=False)
    plane = pca.fit_transform(every)
    marks = [colours[name] for name, rows in found.groups.items() for _ in rows]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()  # no kind lies on top
    style = {"c": [marks[row] for row in order], "s": 5.0, "alpha": 0.6}
    poincare_disk(plane[order], found.c, point_style=style, ax=right)
    shown = min(1.0, 1.3 * float(torch.linalg.vector_norm(found.c**0.5 * to_poincare(plane, found.c), dim=-1).max()))
    right.set(xlim=(-1.04 * shown, 1.04 * shown), ylim=(-1.04 * shown, 1.04 * shown))
    right.scatter(0, 0, s=80, marker="+", color="black", zorder=5)
    right.set_title(
        f"HoroPCA: {100 * pca.variance_ratio_:.0f} % of the squared distances kept\n"
        f"+: the origin; shown: the inner {100 * shown:.0f} % of the radius",
        fontsize="medium",
    )
    state = "" if found.trained else "without the entailment loss, scale and curvature as it starts: "
    figure.suptitle(
        f"{state}{100 * found.inside:.0f} % of the queries in the cone of their video, curvature -{found.c:.2f}",
        fontsize="medium",
    )
    return figure


def draw_hyperbolic(given: PlotInput, settings: HyperbolicSettings) -> "Figure":
    """The hyperbolic space of a run on a split."""
    return hyperbolic_figure(hyperbolic_points(given, points=settings.points, seed=settings.seed))
