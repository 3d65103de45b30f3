"""Curves of a metric over what is swept or counted: the mean and the spread of seeds, published values, references."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from prvr.errors import InputError
from prvr.plot.figures import COLOURS, brief, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = 9.0  # points of a label
_FAR = 1.5  # a reference further away than this many heights of the curves is named at the edge, not drawn


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

    def summary(self, band: Literal["range", "deviation"]) -> Float[np.ndarray, "3 n"]:
        """Lower end of the band, mean and upper end for each x; NaN where nothing was measured.

        Args:
            band: from the lowest to the highest seed, or one sample standard deviation to either side.

        Examples:
            >>> Curve([1.0, 2.0], [[4.0, 6.0], []]).summary("range").tolist()
            [[4.0, nan], [5.0, nan], [6.0, nan]]
        """
        found = np.full((3, len(self.x)), np.nan)
        for place, seeds in enumerate(self.values):
            if len(seeds):
                mean = np.mean(seeds)
                spread = np.std(seeds, ddof=1) if len(seeds) > 1 else 0.0
                ends = (min(seeds), max(seeds)) if band == "range" else (mean - spread, mean + spread)
                found[:, place] = ends[0], mean, ends[1]
        return found


def spread_labels(wanted: Float[np.ndarray, " n"], gap: float) -> Float[np.ndarray, " n"]:
    """Places for labels that keep at least `gap` from each other, as near as can be to where they are wanted.

    The places minimise the sum of squared distances and keep the order.

    Args:
        wanted: the place that each label belongs to.
        gap: the least distance.

    Examples:
        >>> spread_labels(np.array([1.0, 5.0, 1.0]), 2.0).tolist()
        [0.0, 5.0, 2.0]
    """
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []  # what is left is a monotone regression: neighbours that collide share a mean
    for place in wanted[order] - gap * np.arange(len(order)):
        blocks.append([place])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = np.empty(len(order))
    found[order] = np.concatenate([[np.mean(block)] * len(block) for block in blocks]) + gap * np.arange(len(order))
    return found


@dataclass(frozen=True)
class _Line:
    """What is drawn of a curve: the measured part with its band, or the published one with hollow markers."""

    name: str
    colour: str
    x: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    published: bool


def sweep_figure(
    series: Mapping[str, Curve],
    *,
    xlabel: str,
    ylabel: str,
    chance: float | None = None,
    zero_shot: float | None = None,
    band: Literal["range", "deviation"] = "range",
    title: str = "",
) -> "Figure":
    """Curves with their mean as a line, their seeds as a band, and published values as hollow markers.

    Names stand beside the ends of the lines and keep off each other. Where the published values lie far from the
    measured ones, as those of another corpus do, they have a panel of their own.

    Args:
        series: curves by name; up to eight have a colour of their own.
        xlabel: what is swept.
        ylabel: the metric.
        chance: the metric of a random order.
        zero_shot: the metric of a joint encoder alone.
        band: what the bands show, see `Curve.summary`.
        title: above the picture.

    Raises:
        InputError: no curve.
    """
    if not series:
        raise InputError("no curve: give at least one")
    every = [x for curve in series.values() for x in curve.x]
    names = list(dict.fromkeys(map(str, every))) if any(isinstance(x, str) for x in every) else []
    measured, published = [], []
    for number, (name, curve) in enumerate(series.items()):
        x = np.array([names.index(str(x)) if names else x for x in curve.x], float)
        colour = COLOURS[number % len(COLOURS)]
        measured.append(_Line(name, colour, x, *curve.summary(band), published=False))
        stated = np.array(curve.published or [None] * len(x), float)
        published.append(_Line(name, colour, x, stated, stated, stated, published=True))
    measured, published = ([line for line in lines if np.isfinite(line.mean).any()] for lines in (measured, published))
    panels = [measured, published] if measured and published and _far(measured, published) else [measured + published]
    figure = new_figure(6.4, 1.0 + 3.0 * len(panels))
    for axes, lines in zip(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels, strict=True):
        own = all(line.published for line in lines) and bool(measured)
        for line in lines:
            _draw(axes, line)
        _name(axes, lines, {} if own else {"chance": chance, "zero-shot": zero_shot})
        axes.set_ylabel(f"{ylabel}, published" if own else ylabel)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.axes[-1].set_xlabel(xlabel)
    if names:
        figure.axes[-1].set_xticks(range(len(names)), names)
    seeds = max(len(values) for curve in series.values() for values in curve.values)
    spread = "lowest to highest" if band == "range" else "one standard deviation"
    key = [f"band: {spread} of {seeds} seeds"] * (seeds > 1) + ["hollow: published"] * bool(published)
    figure.axes[0].set_title("\n".join(filter(None, [title, "; ".join(key)])), fontsize="medium", loc="left")
    return figure


def _far(some: Sequence[_Line], others: Sequence[_Line]) -> bool:
    """Whether one panel would squeeze the curves: what lies between both is larger than each of them."""
    (low, high), (least, most) = _extent(some), _extent(others)
    return max(low, least) - min(high, most) > max(high - low, most - least)


def _extent(lines: Sequence[_Line]) -> tuple[float, float]:
    values = np.concatenate([part for line in lines for part in (line.low, line.high)])
    return float(np.nanmin(values)), float(np.nanmax(values))


def _draw(axes: "Axes", line: _Line) -> None:
    there = np.isfinite(line.mean)
    x, low, mean, high = (part[there] for part in (line.x, line.low, line.mean, line.high))
    face = "none" if line.published else line.colour
    style = "none" if line.published else "-"
    shape = {"marker": "o", "markersize": 5, "markerfacecolor": face, "zorder": 3 if line.published else 2}
    axes.plot(x, mean, linestyle=style, color=line.colour, label=line.name, **shape)
    if (high > low).any():
        axes.fill_between(x, low, high, color=line.colour, alpha=0.18, linewidth=0)


def _name(axes: "Axes", lines: Sequence[_Line], references: Mapping[str, float | None]) -> None:
    """Writes the names beside the ends of the lines, and draws the references or names those that lie too far away."""
    low, high = _extent(lines)
    height = high - low or abs(high) or 1.0
    labels = []
    for line in {line.name: line for line in reversed(lines)}.values():  # the measured one, where there are both
        last = np.flatnonzero(np.isfinite(line.mean))[-1]
        labels.append((line.name, line.colour, line.x[last], line.mean[last]))
    outside = []
    for name, value in references.items():
        if value is None:
            continue
        if max(low - value, value - high) > _FAR * height:
            outside.append(f"{name}: {value:.1f}, far {'below' if value < low else 'above'}")
        else:
            axes.axhline(value, color="0.35", linestyle={"chance": ":"}.get(name, "--"), linewidth=1)
            labels.append((f"{name} {value:.1f}", "0.35", None, value))
    axes.margins(y=0.08)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    axes.get_figure(root=True).draw_without_rendering()  # type: ignore[union-attr]  the layout gives the height
    points = axes.get_window_extent().height * 72 / axes.figure.dpi
    gap = 1.3 * _SIZE / points * (top - bottom)
    places = spread_labels(np.array([label[3] for label in labels]), gap)
    for (name, colour, x, y), place in zip(labels, places, strict=True):
        axes.annotate(
            brief(name, 32),
            (1.0 if x is None else x, y),
            (1.03, place),
            xycoords=axes.get_yaxis_transform() if x is None else "data",
            textcoords=axes.get_yaxis_transform(),
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.5, "linewidth": 0.8},
            color=colour, fontsize=_SIZE, va="center", annotation_clip=False,
        )  # fmt: skip
    if outside:
        axes.text(0.01, 0.01, "; ".join(outside), transform=axes.transAxes, fontsize=_SIZE, color="0.35")
