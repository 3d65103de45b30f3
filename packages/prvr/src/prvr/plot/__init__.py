"""Pictures of retrieval: matplotlib figures, drawn without pyplot, of a system, of plain arrays or of drawn videos.

`draw` makes any entry of the registry `PLOTS` from a system; `prvr plot` and `prvr papers` call it. For numbers of your
own, each module below has a record of what is shown and a function that draws it:

| module | pictures |
|---|---|
| `prvr.plot.curves` | a metric over what is swept |
| `prvr.plot.embeddings` | frames and registers by t-SNE |
| `prvr.plot.examples` | the best videos for a query |
| `prvr.plot.hyperbolic` | points in hyperbolic space |
| `prvr.plot.reranker` | what a re-ranker generates, and its attention |
| `prvr.plot.scores` | scores of pairs |
| `prvr.plot.videos` | contact sheets of drawn videos |

Examples:
    >>> import numpy as np
    >>> from prvr.plot.scores import PairScores, scores_figure
    >>> figure = scores_figure({"demo": PairScores(np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.7]))})
    >>> figure.axes[0].get_title()
    'demo\\nAUC 1.000, overlap 0 %'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prvr.plot.plots import PLOTS

if TYPE_CHECKING:
    from prvr.plot.curves import Curve, sweep_figure
    from prvr.plot.drawing import PlotInput, draw
    from prvr.plot.figures import save_figure

__all__ = ["PLOTS", "Curve", "PlotInput", "draw", "save_figure", "sweep_figure"]

# Imported when first asked for, because they bring torch: the command line reads `PLOTS` before it is needed.
_LATER = {"curves": ("Curve", "sweep_figure"), "drawing": ("PlotInput", "draw"), "figures": ("save_figure",)}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"prvr.plot.{module}"), name)
    raise AttributeError(f"module 'prvr.plot' has no attribute {name!r}")
