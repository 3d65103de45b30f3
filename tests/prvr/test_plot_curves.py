"""Curves of a metric: which numbers are drawn, and what the legend says of them."""

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from prvr.plot import sweep_figure


def named(figure: Figure) -> list[str]:
    """The entries of the legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_lines_are_means_and_bands_are_seeds() -> None:
    curve = [(2.0, [10.0, 14.0], 9.0), (4.0, [11.0], None), (8.0, [13.0, 15.0, 17.0], 16.0)]
    figure = sweep_figure({"a": curve}, xlabel="blocks", ylabel="SumR", chance=8.0)
    (axes,) = figure.axes
    line, published, reference = axes.lines
    assert np.asarray(line.get_xydata()).tolist() == [[2, 12], [4, 11], [8, 15]]
    assert np.asarray(published.get_xydata())[[0, 2]].tolist() == [[2, 9], [8, 16]]
    assert (published.get_markerfacecolor(), published.get_linestyle()) == ("none", "None")
    assert np.asarray(reference.get_ydata()).tolist() == [8, 8]
    (band,) = (part for part in axes.collections if isinstance(part, PolyCollection))
    corners = {tuple(row) for row in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert {(2, 10), (2, 14), (4, 11), (8, 13), (8, 17)} <= corners
    assert axes.get_title(loc="left") == "band: lowest to highest of 3 seeds; hollow: published"
    assert named(figure) == ["a", "chance 8.0"]


def test_a_reference_far_away_does_not_squeeze_the_curves() -> None:
    figure = sweep_figure({"a": [(1.0, [280.0], None), (2.0, [290.0], None)]}, xlabel="x", ylabel="SumR", chance=105.1)
    assert figure.axes[0].get_ylim()[0] > 270
    assert named(figure) == ["a", "chance 105.1, far below"]


def test_a_curve_that_is_published_alone_has_its_name() -> None:
    series = {"ours": [(1.0, [1.0], None), (2.0, [], None)], "theirs": [(1.0, [], 1.5), (2.0, [], 2.0)]}
    figure = sweep_figure(series, xlabel="x", ylabel="SumR", chance=1.0)
    assert named(figure) == ["ours", "theirs", "chance 1.0"]
    assert [np.isfinite(np.asarray(line.get_ydata())).sum() for line in figure.axes[0].lines[:2]] == [1, 2]
