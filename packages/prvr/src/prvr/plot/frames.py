"""The frames of one video before and after training, coloured by the moment they belong to (HLFormer, figure 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from prvr.errors import InputError
from prvr.evaluation.encode import evaluation_mode
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.embeddings import flattened, scatter, separation
from prvr.plot.figures import brief, new_figure
from prvr.plot.registry import FramesSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.data import PackedSplit


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

    def __post_init__(self) -> None:
        sizes = {name: len(rows) for name, rows in self.spaces.items()}
        if not sizes or set(sizes.values()) != {len(self.groups)}:
            raise InputError(f"rows {sizes}: expected at least one space, each with {len(self.groups)} rows")


def moments_of_frames(
    split: "PackedSplit", video: int, frames: int
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
    given = np.stack([split.moments.start[queries], split.moments.end[queries]], 1)
    moments = sorted({(float(start), float(end)) for start, end in given if end > start})
    if not moments or not length > 0:
        raise InputError(f"{split.video_ids[video]}: none of its queries has a known moment, so frames have no colours")
    times = (np.arange(frames) + 0.5) / frames * length
    groups = np.full(frames, -1)
    for number in sorted(range(len(moments)), key=lambda n: moments[n][0] - moments[n][1]):  # the longest first
        groups[(times >= moments[number][0]) & (times < moments[number][1])] = number
    return groups, tuple(moments)


def frames_of(given: PlotInput, split: "PackedSplit", video: int, *, seed: int = 0) -> FrameMap:
    """The frames of a video as features, as untrained weights embed them, and as the first stage does.

    Args:
        given: the system; the untrained weights are those of a new first stage of the same configuration.
        split: a split of it.
        video: its number.
        seed: the seed of the untrained weights.

    Raises:
        InputError: the first stage gives no frames, or one for the whole video; or no moment is known.
    """
    first: Any = given.system.pipeline.first
    clips, frames = split.video(video)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained = type(first)(first.config)
    spaces = {"input features": frames.numpy()}
    for name, model in (("untrained weights", untrained), ("trained", first)):
        with evaluation_mode(model, given.device, given.config.train.seed):
            every = torch.ones(1, len(frames), dtype=torch.bool)
            found = model.encode_video(*(x.to(given.device) for x in (clips[None], frames[None], every))).frames
        if found is None or found.shape[1] < len(frames):
            raise InputError(
                f"{given.system.folder}: its first stage gives {'no' if found is None else found.shape[1]} frames of a "
                f"video of {len(frames)}; expected one embedding for each"
            )
        spaces[name] = found[0, : len(frames)].float().cpu().numpy()
    groups, moments = moments_of_frames(split, video, len(frames))
    return FrameMap(spaces, groups, moments, split.video_ids[video])


def frames_figure(found: FrameMap, *, seed: int = 0) -> "Figure":
    """A panel for each space: t-SNE of the frames, with the silhouette of the moments in the space itself.

    Args:
        found: the frames of a video.
        seed: the seed of t-SNE.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    figure = new_figure(3.2 * len(found.spaces), 4.0)
    names = [f"{start:.0f}–{end:.0f} s" for start, end in found.moments]
    panels = np.atleast_1d(figure.subplots(1, len(found.spaces)))
    for axes, (name, rows) in zip(panels, found.spaces.items(), strict=True):
        scatter(axes, flattened(rows, seed=seed), found.groups, names)
        score = separation(rows, found.groups)
        axes.set_title(name if score is None else f"{name}\nsilhouette of moments {score:.2f}", fontsize="medium")
    figure.suptitle(f"frames of {brief(found.video)}, by moment", fontsize="medium")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def draw_frames(given: PlotInput, settings: FramesSettings) -> "Figure":
    """The frames of one video of a split, before and after training."""
    with given.opened() as packed:
        video = number_of(settings.video, packed.video_ids, "video")
        return frames_figure(frames_of(given, packed, video, seed=settings.seed), seed=settings.seed)
