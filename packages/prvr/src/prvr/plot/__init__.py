"""Pictures of retrieval: matplotlib figures, drawn without pyplot, of a system or of plain arrays.

`draw` makes any entry of the registry `PLOTS` from a system; `prvr plot` and `prvr papers` call it.

| module | pictures |
|---|---|
| `prvr.plot.attention` | none: what attention looks at, for `prvr evaluate --diagnose` |
| `prvr.plot.embeddings` | frames and registers by t-SNE |
| `prvr.plot.examples` | the best videos for a query |
| `prvr.plot.figures` | a metric over what is swept |
| `prvr.plot.hyperbolic` | points in hyperbolic space |
| `prvr.plot.reranker` | what a re-ranker generates, and its attention |
| `prvr.plot.scores` | scores of pairs |

Examples:
    >>> from prvr.plot import sweep_figure
    >>> points = [(2.0, [270.1, 272.3], 271.0), (4.0, [280.4, 281.0], None)]
    >>> sweep_figure({"ours": points}, xlabel="blocks", ylabel="SumR").axes[0].get_xlabel()
    'blocks'
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.plot.drawing import *
    from prvr.plot.figures import *
    from prvr.plot.plots import *

__all__ = ["EXTENSIONS", "PLOTS", "PlotInput", "draw", "save_figure", "sweep_figure"]

EXTENSIONS = {
    "commands": "prvr.plot.commands",
    "imported": "prvr.plot.cli:add_plots",
    "attention": "prvr.plot.attention:watched",
}
"""What this package adds, see `prvr.extensions`."""

__getattr__ = deferred(__name__, "plots figures drawing")
