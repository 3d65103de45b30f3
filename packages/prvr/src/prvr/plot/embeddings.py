"""Embeddings in the plane by t-SNE: frames of a video before and after training (HLFormer, figure 4), and registers
along the reverse process (DreamPRVR's picture of r_t over t).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from prvr.data import PackedSplit
from prvr.errors import InputError, require
from prvr.evaluation.encode import evaluation_mode
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import COLOURS, brief, evenly, new_figure
from prvr.plot.plots import FramesSettings, RegistersSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEWEST = 4  # points that t-SNE can spread
_SHAPES = "osD^vP*X"


def flattened(points: Float[np.ndarray, "n d"], *, seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """Points in the plane by t-SNE of their cosine distances (van der Maaten and Hinton 2008).

    Neighbours stay neighbours; sizes of clusters and distances between them mean nothing.

    Args:
        points: at least 4.
        seed: the seed of t-SNE.

    Raises:
        InputError: fewer points.
        MissingExtraError: scikit-learn is not installed.
    """
    if len(points) < _FEWEST:
        raise InputError(f"{len(points)} points: expected at least {_FEWEST} to spread over the plane")
    manifold = require("sklearn.manifold", "plot", "A picture of embeddings")
    nearest = min(30.0, (len(points) - 1) / 3)
    projection = manifold.TSNE(perplexity=nearest, metric="cosine", init="random", random_state=seed)
    return projection.fit_transform(np.ascontiguousarray(points, np.float32))


def separation(points: Float[np.ndarray, "n d"], groups: Int[np.ndarray, " n"]) -> float | None:
    """The mean silhouette of groups by cosine distance, in [-1, 1] (Rousseeuw 1987).

    1: every point is far nearer to its own group than to any other; 0: groups overlap.

    Args:
        points: in their own space.
        groups: the group of each point; those below 0 are left out.

    Returns:
        None where there are not two groups, or no group of two points.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    metrics = require("sklearn.metrics", "plot", "A picture of embeddings")
    points, groups = points[groups >= 0], groups[groups >= 0]
    if not 2 <= len(np.unique(groups)) < len(groups):
        return None
    return float(metrics.silhouette_score(points.astype(np.float64), groups, metric="cosine"))


@dataclass(frozen=True)
class FrameMap:
    """The frames of a video in several spaces, and the moments they belong to.

    Args:
        spaces: `(l, d)` rows in the order of time, by the name of the space; d may differ.
        groups: `(l,)` the moment of each frame, -1 where it is in none.
        moments: start and end of each moment in seconds.
        video: its name.
    """

    spaces: Mapping[str, Float[np.ndarray, "l _"]]
    groups: Int[np.ndarray, " l"]
    moments: tuple[tuple[float, float], ...]
    video: str


def moments_of_frames(
    split: PackedSplit, video: int, frames: int
) -> tuple[Int[np.ndarray, " l"], tuple[tuple[float, float], ...]]:
    """The moment that each frame of a video belongs to, and the moments in order of time.

    A frame in several moments belongs to the shortest of them.

    Args:
        split: the split.
        video: its number.
        frames: how many frames, evenly spread over the video.

    Raises:
        InputError: no moment of the video is known.
    """
    queries, length = split.queries_of(video), float(split.durations[video])
    times = zip(split.moments.start[queries].tolist(), split.moments.end[queries].tolist(), strict=True)
    moments = sorted({(start, end) for start, end in times if end > start})
    if not moments or not length > 0:
        raise InputError(f"{split.video_ids[video]}: none of its queries has a known moment, so frames have no colours")
    times = (np.arange(frames) + 0.5) / frames * length
    groups = np.full(frames, -1)
    for number in sorted(range(len(moments)), key=lambda n: moments[n][0] - moments[n][1]):  # the longest first
        groups[(times >= moments[number][0]) & (times < moments[number][1])] = number
    return groups, tuple(moments)


def frames_of(inputs: PlotInput, split: PackedSplit, video: int, *, seed: int = 0) -> FrameMap:
    """The frames of a video as features, as untrained weights embed them, and as the first stage does.

    Args:
        inputs: the system; the untrained weights are those of a new first stage of the same configuration.
        split: a split of it.
        video: its number.
        seed: the seed of the untrained weights.

    Raises:
        InputError: the first stage gives no frames, or one for the whole video; or no moment is known.
    """
    first: Any = inputs.system.pipeline.first
    clips, frames = split.video(video)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained = type(first)(first.config)
    spaces = {"input features": frames.numpy()}
    for name, model in (("untrained weights", untrained), ("trained", first)):
        with evaluation_mode(model, inputs.device, inputs.config.train.seed):
            every = torch.ones(1, len(frames), dtype=torch.bool)
            rows = model.encode_video(*(x.to(inputs.device) for x in (clips[None], frames[None], every))).frames
        if rows is None or rows.shape[1] < len(frames):
            raise InputError(
                f"{inputs.system.folder}: its first stage gives {'no' if rows is None else rows.shape[1]} frames of a "
                f"video of {len(frames)}; expected one embedding for each"
            )
        spaces[name] = rows[0, : len(frames)].float().cpu().numpy()
    groups, moments = moments_of_frames(split, video, len(frames))
    return FrameMap(spaces, groups, moments, split.video_ids[video])


def frames_figure(frames: FrameMap, *, seed: int = 0) -> "Figure":
    """A panel for each space: t-SNE of the frames, with the silhouette of the moments in the space itself.

    Args:
        frames: the frames of a video.
        seed: the seed of t-SNE.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    figure = new_figure(3.2 * len(frames.spaces), 4.0)
    names = [f"{start:.0f}–{end:.0f} s" for start, end in frames.moments]
    panels = np.atleast_1d(figure.subplots(1, len(frames.spaces)))
    for axes, (name, rows) in zip(panels, frames.spaces.items(), strict=True):
        plane, rest = flattened(rows, seed=seed), frames.groups < 0
        axes.scatter(*plane[rest].T, s=14, color="0.82", label="no moment" if rest.any() else None)
        for number, moment in enumerate(names):
            colour = COLOURS[number % len(COLOURS)]
            axes.scatter(*plane[frames.groups == number].T, s=22, color=colour, label=moment)
        axes.set(xticks=[], yticks=[])
        score = separation(rows, frames.groups)
        axes.set_title(name if score is None else f"{name}\nsilhouette of moments {score:.2f}", fontsize="medium")
    figure.suptitle(f"frames of {brief(frames.video)}, by moment", fontsize="medium")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def draw_frames(inputs: PlotInput, settings: FramesSettings) -> "Figure":
    """The frames of one video of a split, before and after training."""
    with inputs.opened() as packed:
        video = number_of(settings.video, packed.video_ids, "video")
        return frames_figure(frames_of(inputs, packed, video, seed=settings.seed), seed=settings.seed)


@dataclass(frozen=True)
class RegisterChain:
    """Registers of some videos at every step of the reverse process.

    Args:
        values: `(k + 1, v, n, d)` the start r_T, then the registers after each of k steps, the last of them r_0.
        videos: names of the v videos.
    """

    values: Float[np.ndarray, "k v n d"]
    videos: tuple[str, ...]

    @property
    def between_videos(self) -> Float[np.ndarray, " k"]:
        """The share in [0, 1] of the variance at each step that is between videos, the rest between registers.

        0: every video has the same registers; 1: all registers of a video are the same.
        """
        every = self.values.reshape(len(self.values), -1, self.values.shape[-1])
        total = every.var(1).sum(-1)
        return self.values.var(1).sum(-1).mean(-1) / np.maximum(total, np.finfo(np.float32).tiny)


def register_chain(inputs: PlotInput, split: PackedSplit, videos: int) -> RegisterChain:
    """The registers of the first videos of a split along the reverse process, with the fixed noise of evaluation.

    Args:
        inputs: the system.
        split: a split of it.
        videos: how many.

    Raises:
        InputError: the first stage has no registers, or none that a diffusion generates.
    """
    first: Any = inputs.system.pipeline.first
    registers = getattr(first, "registers", None)
    if registers is None or registers.diffusion is None:
        raise InputError(
            f"{inputs.system.folder}: its first stage generates no registers by diffusion: "
            "model.registers.kind='diffusion' does"
        )
    batch = next(split.video_batches(videos))
    with evaluation_mode(first, inputs.device, inputs.config.train.seed):
        generated = first.generate_registers(batch.clips.to(inputs.device), return_chain=True)
        chain = torch.cat([generated.start[None], generated.chain]).float().cpu().numpy()
    return RegisterChain(chain, tuple(split.video_ids[row] for row in batch.indices.tolist()))


def registers_figure(registers: RegisterChain, *, panels: int = 5, seed: int = 0) -> "Figure":
    """One t-SNE of the registers of all steps, with a panel for some of them; a colour per video, a shape per register.

    Each title has the share of the variance that is between videos: near 0, registers say nothing of their video.

    Args:
        registers: the registers.
        panels: how many steps are shown, the first and the last among them.
        seed: the seed of t-SNE.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    steps, videos, number, width = registers.values.shape
    plane = flattened(registers.values.reshape(-1, width), seed=seed).reshape(steps, videos * number, 2)
    colours = [COLOURS[video % len(COLOURS)] for video in range(videos)]
    shown = evenly(steps, panels)
    figure = new_figure(2.5 * len(shown), 3.4)
    for axes, step in zip(np.atleast_1d(figure.subplots(1, len(shown), sharex=True, sharey=True)), shown, strict=True):
        axes.scatter(*plane.reshape(-1, 2).T, s=4, color="0.9")
        for register in range(number):
            points = plane[step].reshape(videos, number, 2)[:, register]
            axes.scatter(*points.T, s=24, color=colours, marker=_SHAPES[register % len(_SHAPES)], alpha=0.8)
        level = f"$r_{{{steps - 1 - step}}}$" + (", the start" if step == 0 else "")
        axes.set_title(f"{level}\n{100 * registers.between_videos[step]:.1f} %", fontsize="medium")
        axes.set(xticks=[], yticks=[])
    names = f"{brief(registers.videos[0])} to {brief(registers.videos[-1])}"
    about = f"{number} registers each of {videos} videos ({names}): a colour per video, a shape per register"
    figure.suptitle(f"{about}\nshare of the variance that is between videos", fontsize="medium")
    return figure


def draw_registers(inputs: PlotInput, settings: RegistersSettings) -> "Figure":
    """The registers of some videos of a split along the reverse process."""
    with inputs.opened() as packed:
        chain = register_chain(inputs, packed, min(settings.videos, len(packed)))
    return registers_figure(chain, panels=settings.panels, seed=settings.seed)
