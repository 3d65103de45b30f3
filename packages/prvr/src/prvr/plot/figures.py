"""Figures without pyplot, which keeps global state and may look for a display, and their files; and curves of a metric
over a swept value: the mean and the spread of seeds, published values, chance.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from prvr.data.atomic import write_file
from prvr.errors import DataError

RIGHT, WRONG = "tab:green", "0.65"
"""Colours of what is right and of all else."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F5B34", "#000000")
"""Colours of several things, which also people who confuse red and green tell apart (Okabe and Ito)."""

_FAR = 1.5  # chance further below than this many heights of the curves is named in the legend, not drawn
_DATES = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}  # left out: the same figure, the same file


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that draws itself with Agg.

    Args:
        width, height: the size in inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path | str, dpi: int = 100) -> Path:
    """Writes a picture, whole or not at all.

    Args:
        figure: a figure that `new_figure` made.
        path: its ending, .png, .pdf or .svg, chooses the format.
        dpi: dots per inch of a PNG.

    Raises:
        DataError: another ending, or it cannot be written.
    """
    path = Path(path).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _DATES:
        raise DataError(f"{path}: expected a file that ends in .png, .pdf or .svg.")
    with rc_context({"svg.hashsalt": "prvr"}):  # or else the names in an SVG are drawn
        write_file(path, lambda file: figure.savefig(file, format=kind, dpi=dpi, metadata=_DATES[kind]))
    return path


def brief(text: str, width: int = 70) -> str:
    """A text in one line, with its end left out where it is too long, and nothing that matplotlib reads as a formula.

    Examples:
        >>> brief("a  dog costs $5", 10)
        'a dog ...'
    """
    return shorten(text, width, placeholder=" ...").replace("$", r"\$")


def evenly(count: int, most: int) -> list[int]:
    """Evenly spread numbers below `count`, the first and the last among them, each once.

    Args:
        count: from 1.
        most: at most so many, from 2.

    Examples:
        >>> evenly(11, 3), evenly(2, 5)
        ([0, 5, 10], [0, 1])
    """
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


Point = tuple[float, Sequence[float], float | None]
"""A swept value, the metric of every seed there, none where it was not measured, and what a paper states, or None."""


def sweep_figure(
    series: Mapping[str, Sequence[Point]], *, xlabel: str, ylabel: str, chance: float | None = None
) -> Figure:
    """Curves with their mean as a line, their seeds as a band, and published values as hollow markers.

    Args:
        series: curves by name, in ascending order of the swept value, at least one of them measured; up to eight have a
            colour of their own.
        xlabel: what is swept.
        ylabel: the metric.
        chance: the metric of a random order.
    """
    figure = new_figure(7.6, 4.0)
    axes = figure.subplots()
    for number, (name, points) in enumerate(series.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 5, "label": brief(name, 32)}
        x, values, stated = zip(*points, strict=True)
        rows = [(min(seeds), np.mean(seeds), max(seeds)) if seeds else (np.nan,) * 3 for seeds in values]
        low, mean, high = np.array(rows, float).T
        if np.isfinite(mean).any():
            axes.plot(x, mean, **style)
            style["label"] = None  # one entry in the legend is enough
        if (high > low).any():
            axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
        if any(value is not None for value in stated):
            axes.plot(x, np.array(stated, float), linestyle="none", markerfacecolor="none", zorder=3, **style)
    points = [point for points in series.values() for point in points]
    lowest, highest = axes.dataLim.intervaly
    if chance is not None and lowest - chance > _FAR * (highest - lowest or abs(highest)):
        axes.plot([], [], linestyle="none", label=f"chance {chance:.1f}, far below")
    elif chance is not None:
        axes.axhline(chance, color="0.35", linestyle=":", linewidth=1, label=f"chance {chance:.1f}")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    seeds = max(len(values) for _, values, _ in points)
    published = any(value is not None for _, _, value in points)
    key = [f"band: lowest to highest of {seeds} seeds"] * (seeds > 1) + ["hollow: published"] * published
    axes.set_title("; ".join(key), fontsize="medium", loc="left")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure
