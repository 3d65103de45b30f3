"""Pictures of retrieval: matplotlib figures, drawn without pyplot, from plain arrays, a model, or drawn videos.

Examples:
    >>> import numpy as np
    >>> from prvr.plot import PairScores, scores_figure
    >>> figure = scores_figure({"demo": PairScores(np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.7]))})
    >>> figure.axes[0].get_title()
    'demo\\nAUC 1.000, overlap 0 %'
"""

from prvr.plot.attention import AttentionMap, attention_figure, attention_of
from prvr.plot.figures import save_figure
from prvr.plot.histograms import PairScores, pair_scores, scores_figure
from prvr.plot.trajectory import Trajectory, trajectory_figure, trajectory_of
from prvr.plot.videos import Excerpt, MomentComparison, moment_frames, moments_figure, video_figure

__all__ = [
    "AttentionMap",
    "Excerpt",
    "MomentComparison",
    "PairScores",
    "Trajectory",
    "attention_figure",
    "attention_of",
    "moment_frames",
    "moments_figure",
    "pair_scores",
    "save_figure",
    "scores_figure",
    "trajectory_figure",
    "trajectory_of",
    "video_figure",
]
