"""Embeddings in the plane by t-SNE: frames of a video before and after training (HLFormer, figure 4), and registers
along the reverse process (DreamPRVR's picture of r_t over t).
"""

from itertools import cycle
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure

from prvr.data import PackedSplit
from prvr.errors import InputError, require
from prvr.evaluation.encode import evaluation_mode
from prvr.models.rows import Sequences
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import COLOURS, brief, evenly, new_figure
from prvr.plot.plots import FramesSettings, RegistersSettings

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
    manifold = require("sklearn.manifold", "prvr[plot]", "A picture of embeddings")
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
    metrics = require("sklearn.metrics", "prvr[plot]", "A picture of embeddings")
    points, groups = points[groups >= 0], groups[groups >= 0]
    if not 2 <= len(np.unique(groups)) < len(groups):
        return None
    return float(metrics.silhouette_score(points.astype(np.float64), groups, metric="cosine"))


def moments_of_frames(
    split: PackedSplit, video: int, frames: int
) -> tuple[Bool[np.ndarray, "m l"], tuple[tuple[float, float], ...]]:
    """Which frames of a video lie in each of its moments, and the moments in order of time.

    Args:
        split: the split.
        video: its number.
        frames: how many frames, evenly spread over the video.

    Raises:
        InputError: no moment of the video is known.
    """
    queries, length = split.queries_of(video), float(split.durations[video])
    moments = sorted({(start, end) for start, end in split.windows[:, queries].reshape(-1, 2).tolist() if end > start})
    if not moments or not length > 0:
        raise InputError(f"{split.video_ids[video]}: none of its queries has a known moment, so frames have no colours")
    times = (np.arange(frames) + 0.5) / frames * length
    return np.stack([(times >= start) & (times < end) for start, end in moments]), tuple(moments)


def frame_spaces(inputs: PlotInput, split: PackedSplit, video: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """The frames of a video as features, as untrained weights embed them, and as the first stage does.

    Args:
        inputs: the system; the untrained weights are those of a new first stage of the same configuration.
        split: a split of it.
        video: its number.
        seed: the seed of the untrained weights.

    Returns:
        `(l, d)` rows in the order of time, by the name of the space; d may differ.

    Raises:
        InputError: the first stage gives no frames, or one for the whole video.
    """
    first: Any = inputs.system.pipeline.first
    *batch, _ = next(split.subset([video]).video_batches(1))
    frames = batch[1][0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained = type(first)(first.config)
    spaces = {"input features": frames.numpy()}
    for name, model in (("untrained weights", untrained), ("trained", first)):
        with evaluation_mode(model, inputs.device, inputs.config.train.seed):
            rows = model.encode_video(*(x.to(inputs.device) for x in batch)).frames
        if rows is None or rows.shape[1] < len(frames):
            raise InputError(
                f"{inputs.system.folder}: its first stage gives {'no' if rows is None else rows.shape[1]} frames of a "
                f"video of {len(frames)}; expected one embedding for each, as with model.frame_pooling none"
            )
        spaces[name] = rows[0, : len(frames)].float().cpu().numpy()
    return spaces


def draw_frames(inputs: PlotInput, settings: FramesSettings) -> Figure:
    """The frames of one video by moment, before and after training.

    A panel for each space: t-SNE of the frames, with the silhouette of the moments in the space itself. A frame in
    several moments has the colours of all as rings, the shortest one in the middle, to which the silhouette counts it.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    with inputs.opened() as packed:
        video = number_of(settings.video, "video", packed.video_ids)
        spaces, name = frame_spaces(inputs, packed, video, seed=settings.seed), packed.video_ids[video]
        inside, moments = moments_of_frames(packed, video, packed.frame_counts[video])
    layer = np.argsort([start - end for start, end in moments], kind="stable").argsort()  # the shortest on top
    above = (layer[:, None] < layer).astype(int) @ inside  # how many moments around a frame are drawn on this one
    groups = np.where(inside.any(0), (inside * (1 + layer[:, None])).argmax(0), -1)
    figure = new_figure(3.2 * len(spaces), 4.0)
    panels = figure.subplots(1, len(spaces))
    for axes, (space, rows) in zip(panels, spaces.items(), strict=True):
        plane, rest = flattened(rows, seed=settings.seed), groups < 0
        axes.scatter(*plane[rest].T, s=14, color="0.82", label="no moment" if rest.any() else None)
        for number, (start, end) in enumerate(moments):
            colour, label = COLOURS[number % len(COLOURS)], f"{start:.0f}–{end:.0f} s"
            sizes = 22 * (1 + above[number, inside[number]]) ** 1.5
            order = 2 + layer[number] / len(moments)
            axes.scatter(*plane[inside[number]].T, s=sizes, color=colour, label=label, zorder=order, linewidths=0)
        axes.set(xticks=[], yticks=[])
        score = separation(rows, groups)
        axes.set_title(space if score is None else f"{space}\nsilhouette of moments {score:.2f}", fontsize="medium")
    figure.suptitle(f"frames of {brief(name)}, by moment", fontsize="medium")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def share_between_videos(registers: Float[np.ndarray, "k v n d"]) -> Float[np.ndarray, " k"]:
    """The share in [0, 1] of the variance at each step that is between videos, the rest between registers.

    0: every video has the same registers; 1: all registers of a video are the same.
    """
    rows = registers.reshape(len(registers), -1, registers.shape[-1])
    return registers.var(1).sum(-1).mean(-1) / np.maximum(rows.var(1).sum(-1), np.finfo(np.float32).tiny)


def draw_registers(inputs: PlotInput, settings: RegistersSettings) -> Figure:
    """The registers of the first videos of a split along the reverse process, with the fixed noise of evaluation.

    One t-SNE of the registers of all steps, with a panel for some of them; a colour per video, a shape per register.
    Each title has the share of the variance that is between videos: near 0, registers say nothing of their video.

    Raises:
        InputError: the first stage has no registers, or none that a diffusion generates.
        MissingExtraError: scikit-learn is not installed.
    """
    first: Any = inputs.system.pipeline.first
    if getattr(getattr(first, "registers", None), "diffusion", None) is None:
        raise InputError(
            f"{inputs.system.folder}: its first stage generates no registers by diffusion: "
            "model.registers.kind='diffusion' does"
        )
    with inputs.opened() as packed, evaluation_mode(first, inputs.device, inputs.config.train.seed):
        clips = next(packed.video_batches(settings.videos))[0].to(inputs.device)
        ids = packed.video_ids[: len(clips)]
        every_clip = Sequences(None, first.config.num_clips)
        generated = first.generated(first.clips.embed(clips, every_clip), every_clip, return_chain=True)
        values = torch.cat([generated.start[None], generated.chain]).float().cpu().numpy()
    steps, videos, number, width = values.shape
    plane = flattened(values.reshape(-1, width), seed=settings.seed).reshape(steps, videos, number, 2)
    colours = [COLOURS[video % len(COLOURS)] for video in range(videos)]
    panels = evenly(steps, settings.panels)
    shares = share_between_videos(values)
    figure = new_figure(2.5 * len(panels), 3.4)
    (row,) = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)
    for axes, step in zip(row, panels, strict=True):
        axes.scatter(*plane.reshape(-1, 2).T, s=4, color="0.9")
        for register, shape in zip(range(number), cycle(_SHAPES), strict=False):
            axes.scatter(*plane[step, :, register].T, s=24, color=colours, marker=shape, alpha=0.8)
        level = f"$r_{{{steps - 1 - step}}}$" + ", the start" * (not step)
        axes.set_title(f"{level}\n{100 * shares[step]:.1f} %", fontsize="medium")
        axes.set(xticks=[], yticks=[])
    names = f"{brief(ids[0])} to {brief(ids[-1])}"
    about = f"{number} registers each of {videos} videos ({names}): a colour per video, a shape per register"
    figure.suptitle(f"{about}\nshare of the variance that is between videos", fontsize="medium")
    return figure
