"""Pictures of retrieval: matplotlib figures, drawn without pyplot, from plain arrays, a model, or drawn videos.

Examples:
    >>> import numpy as np
    >>> from prvr.plot import PairScores, scores_figure
    >>> figure = scores_figure({"demo": PairScores(np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.7]))})
    >>> figure.axes[0].get_title()
    'demo\\nAUC 1.000, overlap 0 %'
"""

from prvr.plot.attention import AttentionMap as AttentionMap
from prvr.plot.attention import attention_figure as attention_figure
from prvr.plot.attention import attention_of as attention_of
from prvr.plot.figures import save_figure as save_figure
from prvr.plot.histograms import PairScores as PairScores
from prvr.plot.histograms import pair_scores as pair_scores
from prvr.plot.histograms import scores_figure as scores_figure
from prvr.plot.trajectory import Trajectory as Trajectory
from prvr.plot.trajectory import trajectory_figure as trajectory_figure
from prvr.plot.trajectory import trajectory_of as trajectory_of
from prvr.plot.videos import Excerpt as Excerpt
from prvr.plot.videos import MomentComparison as MomentComparison
from prvr.plot.videos import moment_frames as moment_frames
from prvr.plot.videos import moments_figure as moments_figure
from prvr.plot.videos import video_figure as video_figure

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
