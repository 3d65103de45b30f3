"""The registers of some videos along the reverse process, from noise to tokens (DreamPRVR's picture of r_t over t)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from prvr.errors import InputError
from prvr.evaluation.encode import evaluation_mode
from prvr.plot.drawing import PlotInput
from prvr.plot.embeddings import flattened
from prvr.plot.figures import COLOURS, brief, evenly, new_figure
from prvr.plot.registry import RegistersSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.data import PackedSplit


_SHAPES = "osD^vP*X"


@dataclass(frozen=True)
class RegisterChain:
    """Registers of some videos at every step of the reverse process.

    Args:
        values: `(k + 1, v, n, d)` the start r_T, then the registers after each of k steps, the last of them r_0.
        videos: names of the v videos.
    """

    values: Float[np.ndarray, "k v n d"]
    videos: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.values.ndim != 4 or self.values.shape[1] != len(self.videos) or len(self.values) < 2:
            raise InputError(f"values {self.values.shape}: expected at least two steps of {len(self.videos)} videos")

    @property
    def between_videos(self) -> Float[np.ndarray, " k"]:
        """The share in [0, 1] of the variance at each step that is between videos, the rest between registers.

        0: every video has the same registers; 1: all registers of a video are the same.
        """
        every = self.values.reshape(len(self.values), -1, self.values.shape[-1])
        total = every.var(1).sum(-1)
        return self.values.var(1).sum(-1).mean(-1) / np.maximum(total, np.finfo(np.float32).tiny)


def register_chain(given: PlotInput, split: "PackedSplit", videos: int) -> RegisterChain:
    """The registers of the first videos of a split along the reverse process, with the fixed noise of evaluation.

    Args:
        given: the system.
        split: a split of it.
        videos: how many.

    Raises:
        InputError: the first stage has no registers, or none that a diffusion generates.
    """
    first: Any = given.system.pipeline.first
    registers = getattr(first, "registers", None)
    if registers is None or registers.diffusion is None:
        raise InputError(
            f"{given.system.folder}: its first stage generates no registers by diffusion: "
            "model.registers.kind='diffusion' does"
        )
    batch = next(split.video_batches(videos))
    with evaluation_mode(first, given.device, given.config.train.seed):
        found = first.generate_registers(batch.clips.to(given.device), return_chain=True)
        chain = torch.cat([found.start[None], found.chain]).float().cpu().numpy()
    return RegisterChain(chain, tuple(split.video_ids[row] for row in batch.indices.tolist()))


def registers_figure(found: RegisterChain, *, panels: int = 5, seed: int = 0) -> "Figure":
    """One t-SNE of the registers of all steps, with a panel for some of them; a colour per video, a shape per register.

    Each title has the share of the variance that is between videos: near 0, registers say nothing of their video.

    Args:
        found: the registers.
        panels: how many steps are shown, the first and the last among them.
        seed: the seed of t-SNE.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    steps, videos, number, width = found.values.shape
    plane = flattened(found.values.reshape(-1, width), seed=seed).reshape(steps, videos * number, 2)
    colours = [COLOURS[video % len(COLOURS)] for video in range(videos)]
    shown = evenly(steps, panels)
    figure = new_figure(2.5 * len(shown), 3.4)
    for axes, step in zip(np.atleast_1d(figure.subplots(1, len(shown), sharex=True, sharey=True)), shown, strict=True):
        axes.scatter(*plane.reshape(-1, 2).T, s=4, color="0.9")
        for register in range(number):
            points = plane[step].reshape(videos, number, 2)[:, register]
            axes.scatter(*points.T, s=24, color=colours, marker=_SHAPES[register % len(_SHAPES)], alpha=0.8)
        level = f"$r_{{{steps - 1 - step}}}$" + (", the start" if step == 0 else "")
        axes.set_title(f"{level}\n{100 * found.between_videos[step]:.1f} %", fontsize="medium")
        axes.set(xticks=[], yticks=[])
    names = f"{brief(found.videos[0])} to {brief(found.videos[-1])}"
    about = f"{number} registers each of {videos} videos ({names}): a colour per video, a shape per register"
    figure.suptitle(f"{about}\nshare of the variance that is between videos", fontsize="medium")
    return figure


def draw_registers(given: PlotInput, settings: RegistersSettings) -> "Figure":
    """The registers of some videos of a split along the reverse process."""
    with given.opened() as packed:
        found = register_chain(given, packed, min(settings.videos, len(packed)))
    return registers_figure(found, panels=settings.panels, seed=settings.seed)
