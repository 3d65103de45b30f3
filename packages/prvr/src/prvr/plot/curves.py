"""Curves of a metric over what is swept or counted: the mean and the spread of seeds, published values, references."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from prvr.errors import InputError
from prvr.plot.figures import COLOURS, brief, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAR = 1.5  # a reference further away than this many heights of the curves is named in the legend, not drawn


@dataclass(frozen=True)
class Curve:
    """A metric over a swept value.

    Args:
        x: the values, numbers in ascending order, or names.
        values: for each of them the metric of every seed; none where it was not measured.
        published: for each of them what a paper states; None where it states nothing.
    """

    x: Sequence[float | str]
    values: Sequence[Sequence[float]]
    published: Sequence[float | None] = ()

    def __post_init__(self) -> None:
        if not self.x or len(self.values) != len(self.x) or len(self.published) not in (0, len(self.x)):
            raise InputError(
                f"{len(self.x)} values of x: expected at least one, the seeds of each of them ({len(self.values)} "
                f"given), and no published value or one for each ({len(self.published)} given)"
            )

    def summary(self) -> Float[np.ndarray, "3 n"]:
        """The lowest seed, the mean and the highest seed for each x; NaN where nothing was measured.

        Examples:
            >>> Curve([1.0, 2.0], [[4.0, 6.0], []]).summary().tolist()
            [[4.0, nan], [5.0, nan], [6.0, nan]]
        """
        found = np.full((3, len(self.x)), np.nan)
        for place, seeds in enumerate(self.values):
            if len(seeds):
                found[:, place] = min(seeds), np.mean(seeds), max(seeds)
        return found


def sweep_figure(
    series: Mapping[str, Curve],
    *,
    xlabel: str,
    ylabel: str,
    chance: float | None = None,
    zero_shot: float | None = None,
    title: str = "",
) -> "Figure":
    """Curves with their mean as a line, their seeds as a band, and published values as hollow markers.

    Where the published values lie far from the measured ones, as those of another corpus do, they have a panel of their
    own.

    Args:
        series: curves by name; up to eight have a colour of their own.
        xlabel: what is swept.
        ylabel: the metric.
        chance: the metric of a random order.
        zero_shot: the metric of a joint encoder alone.
        title: above the picture.

    Raises:
        InputError: no curve.
    """
    if not series:
        raise InputError("no curve: give at least one")
    every = [x for curve in series.values() for x in curve.x]
    names = list(dict.fromkeys(map(str, every))) if any(isinstance(x, str) for x in every) else []
    measured = [value for curve in series.values() for seeds in curve.values for value in seeds]
    published = [value for curve in series.values() for value in curve.published if value is not None]
    apart = _far(measured, published)
    figure = new_figure(7.6, 4.0 + 3.0 * apart)
    panels = figure.subplots(1 + apart, 1, sharex=True, squeeze=False)[:, 0]
    for number, (name, curve) in enumerate(series.items()):
        x = np.array([names.index(str(x)) if names else x for x in curve.x], float)
        style = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 5, "label": brief(name, 32)}
        low, mean, high = curve.summary()
        there = np.isfinite(mean)
        if there.any():
            panels[0].plot(x[there], mean[there], **style)
            style["label"] = None  # one entry in the legend is enough
        if (high[there] > low[there]).any():
            panels[0].fill_between(x[there], low[there], high[there], color=style["color"], alpha=0.18, linewidth=0)
        if any(value is not None for value in curve.published):
            stated = np.array(curve.published, float)
            there = np.isfinite(stated)
            panels[-1].plot(x[there], stated[there], linestyle="none", markerfacecolor="none", zorder=3, **style)
    shown = measured + published * (not apart)
    for name, value, style in (("chance", chance, ":"), ("zero-shot", zero_shot, "--")):
        if value is None:
            continue
        if max(min(shown) - value, value - max(shown)) > _FAR * (max(shown) - min(shown) or abs(max(shown))):
            where = "below" if value < min(shown) else "above"
            panels[0].plot([], [], linestyle="none", label=f"{name} {value:.1f}, far {where}")
        else:
            panels[0].axhline(value, color="0.35", linestyle=style, linewidth=1, label=f"{name} {value:.1f}")
    for axes in panels:
        axes.set_ylabel(ylabel)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    if apart:
        panels[-1].set_ylabel(f"{ylabel}, published")
    panels[-1].set_xlabel(xlabel)
    if names:
        panels[-1].set_xticks(range(len(names)), names)
    seeds = max(len(values) for curve in series.values() for values in curve.values)
    key = [f"band: lowest to highest of {seeds} seeds"] * (seeds > 1) + ["hollow: published"] * bool(published)
    panels[0].set_title("\n".join(filter(None, [title, "; ".join(key)])), fontsize="medium", loc="left")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def _far(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether one panel would squeeze both: what lies between them is larger than the range of each."""
    if not some or not others:
        return False
    between = max(min(some), min(others)) - min(max(some), max(others))
    return between > max(max(some) - min(some), max(others) - min(others))
