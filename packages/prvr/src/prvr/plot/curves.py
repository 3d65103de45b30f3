"""Curves of a metric over a swept value: the mean and the spread of seeds, published values, chance."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from prvr.plot.figures import COLOURS, brief, new_figure

_FAR = 1.5  # chance further below than this many heights of the curves is named in the legend, not drawn


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
