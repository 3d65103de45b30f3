"""Curves of a metric: which numbers are drawn, and what the legend says of them."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from prvr.plot import Curve, sweep_figure


def named(figure: Figure) -> list[str]:
    """The entries of the legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_lines_are_means_and_bands_are_seeds() -> None:
    curve = Curve([2.0, 4.0, 8.0], [[10.0, 14.0], [11.0], [13.0, 15.0, 17.0]], [9.0, None, 16.0])
    figure = sweep_figure({"a": curve}, xlabel="blocks", ylabel="SumR", chance=8.0, title="demo")
    (axes,) = figure.axes
    line, published, reference = axes.lines
    assert np.asarray(line.get_xydata()).tolist() == [[2, 12], [4, 11], [8, 15]]
    assert np.asarray(published.get_xydata()).tolist() == [[2, 9], [8, 16]]
    assert (published.get_markerfacecolor(), published.get_linestyle()) == ("none", "None")
    assert np.asarray(reference.get_ydata()).tolist() == [8, 8]
    (band,) = (part for part in axes.collections if isinstance(part, PolyCollection))
    corners = {tuple(row) for row in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert {(2, 10), (2, 14), (4, 11), (8, 13), (8, 17)} <= corners
    assert axes.get_title(loc="left") == "demo\nband: lowest to highest of 3 seeds; hollow: published"
    assert named(figure) == ["a", "chance 8.0"]


def test_what_lies_far_away_does_not_squeeze_the_curves() -> None:
    here = Curve([1.0, 2.0], [[280.0], [290.0]], [180.0, 185.0])
    figure = sweep_figure({"a": here}, xlabel="x", ylabel="SumR", chance=105.1)
    above, below = figure.axes
    assert above.get_ylim()[0] > 270
    assert (below.get_ylabel(), below.get_ylim()[1] < 200) == ("SumR, published", True)
    assert [np.asarray(line.get_ydata()).tolist() for line in below.lines] == [[180.0, 185.0]]
    assert named(figure) == ["a", "chance 105.1, far below"]


def test_a_curve_that_is_published_alone_has_its_name() -> None:
    series = {"ours": Curve([1.0, 2.0], [[1.0], []]), "theirs": Curve([1.0, 2.0], [[], []], [1.5, 2.0])}
    figure = sweep_figure(series, xlabel="x", ylabel="SumR", zero_shot=1.2)
    assert named(figure) == ["ours", "theirs", "zero-shot 1.2"]
    assert [len(np.asarray(line.get_xdata())) for line in figure.axes[0].lines[:2]] == [1, 2]


def test_values_may_have_names() -> None:
    series = {"a": Curve(["8:0", "4:4"], [[1.0], [2.0]]), "b": Curve(["4:4", "0:8"], [[3.0], [2.0]])}
    (axes,) = sweep_figure(series, xlabel="ratio", ylabel="SumR").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8:0", "4:4", "0:8"]
    assert np.asarray(axes.lines[1].get_xdata()).tolist() == [1, 2]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no curve"):
        sweep_figure({}, xlabel="x", ylabel="y")
    with pytest.raises(ValueError, match=r"the seeds of each of them \(1 given\)"):
        Curve([1.0, 2.0], [[1.0]])
