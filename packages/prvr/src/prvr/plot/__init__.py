"""Pictures of retrieval: matplotlib figures, drawn without pyplot, from plain arrays, a system, or drawn videos.

`draw` makes any entry of the registry `PLOTS` from a system; `prvr plot` and `prvr papers` call it.

Examples:
    >>> import numpy as np
    >>> from prvr.plot import PairScores, scores_figure
    >>> figure = scores_figure({"demo": PairScores(np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.7]))})
    >>> figure.axes[0].get_title()
    'demo\\nAUC 1.000, overlap 0 %'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prvr.plot.registry import PLOTS

if TYPE_CHECKING:
    from prvr.plot.attention import AttentionMap, attention_figure, attention_of
    from prvr.plot.curves import Curve, sweep_figure
    from prvr.plot.drawing import PlotInput, draw
    from prvr.plot.examples import Pictures, examples_figure, pictures_of
    from prvr.plot.figures import save_figure
    from prvr.plot.frames import FrameMap, frames_figure, frames_of
    from prvr.plot.histograms import PairScores, pair_scores, scores_figure
    from prvr.plot.hyperbolic import HyperbolicPoints, hyperbolic_figure, hyperbolic_points
    from prvr.plot.ratios import chance_by_ratio, ratios_figure
    from prvr.plot.registers import RegisterChain, register_chain, registers_figure
    from prvr.plot.trajectory import Trajectory, trajectory_figure, trajectory_of
    from prvr.plot.videos import Excerpt, MomentComparison, moment_frames, moments_figure, video_figure

__all__ = [
    "PLOTS",
    "AttentionMap",
    "Curve",
    "Excerpt",
    "FrameMap",
    "HyperbolicPoints",
    "MomentComparison",
    "PairScores",
    "Pictures",
    "PlotInput",
    "RegisterChain",
    "Trajectory",
    "attention_figure",
    "attention_of",
    "chance_by_ratio",
    "draw",
    "examples_figure",
    "frames_figure",
    "frames_of",
    "hyperbolic_figure",
    "hyperbolic_points",
    "moment_frames",
    "moments_figure",
    "pair_scores",
    "pictures_of",
    "ratios_figure",
    "register_chain",
    "registers_figure",
    "save_figure",
    "scores_figure",
    "sweep_figure",
    "trajectory_figure",
    "trajectory_of",
    "video_figure",
]

# Imported when first asked for, because they bring torch: the command line reads `PLOTS` before it is needed.
_LATER = {
    "attention": ("AttentionMap", "attention_figure", "attention_of"),
    "curves": ("Curve", "sweep_figure"),
    "drawing": ("PlotInput", "draw"),
    "examples": ("Pictures", "examples_figure", "pictures_of"),
    "figures": ("save_figure",),
    "frames": ("FrameMap", "frames_figure", "frames_of"),
    "histograms": ("PairScores", "pair_scores", "scores_figure"),
    "hyperbolic": ("HyperbolicPoints", "hyperbolic_figure", "hyperbolic_points"),
    "ratios": ("chance_by_ratio", "ratios_figure"),
    "registers": ("RegisterChain", "register_chain", "registers_figure"),
    "trajectory": ("Trajectory", "trajectory_figure", "trajectory_of"),
    "videos": ("Excerpt", "MomentComparison", "moment_frames", "moments_figure", "video_figure"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"prvr.plot.{module}"), name)
    raise AttributeError(f"module 'prvr.plot' has no attribute {name!r}")
