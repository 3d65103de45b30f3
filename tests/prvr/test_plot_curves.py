"""Curves of a metric: which numbers are drawn, and that labels keep off each other."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from prvr.plot import Curve, sweep_figure
from prvr.plot.curves import spread_labels

PLACES = st.lists(st.floats(-5, 5), min_size=1, max_size=7)


def labels_of(figure: Figure) -> list[Annotation]:
    figure.canvas.draw()
    return [label for label in figure.findobj(Annotation) if isinstance(label, Annotation)]


@given(PLACES, st.floats(0.1, 3), st.lists(st.floats(0, 3), min_size=7, max_size=7), st.floats(-9, 0))
def test_labels_keep_apart_and_none_could_be_nearer(
    wanted: list[float], gap: float, more: list[float], start: float
) -> None:
    places = np.array(wanted)
    found = spread_labels(places, gap)
    order = np.argsort(places, kind="stable")
    assert (np.diff(found[order]) >= gap - 1e-9).all()
    other = np.empty(len(places))
    other[order] = start + np.cumsum(gap + np.array(more[: len(places)]))  # any other way to keep them apart
    assert np.square(found - places).sum() <= np.square(other - places).sum() + 1e-9
    assert np.allclose(spread_labels(found, gap), found)  # nothing collides any more


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
    assert {label.get_text() for label in labels_of(figure)} == {"a", "chance 8.0"}
    deviation = curve.summary("deviation")
    assert deviation[2] - deviation[1] == pytest.approx([np.sqrt(8), 0, 2])


def test_names_do_not_cover_each_other() -> None:
    series = {f"system {number}": Curve([1.0, 2.0], [[1.0], [2.0 + number / 1000]]) for number in range(6)}
    figure = sweep_figure(series, xlabel="x", ylabel="y", chance=2.0, zero_shot=2.001)
    boxes = sorted((Text.get_window_extent(label) for label in labels_of(figure)), key=lambda box: box.y0)
    assert len(boxes) == 8
    assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in pairwise(boxes))


def test_what_lies_far_away_does_not_squeeze_the_curves() -> None:
    here = Curve([1.0, 2.0], [[280.0], [290.0]], [180.0, 185.0])
    figure = sweep_figure({"a": here}, xlabel="x", ylabel="SumR", chance=105.1)
    above, below = figure.axes
    assert above.get_ylim()[0] > 270
    assert (below.get_ylabel(), below.get_ylim()[1] < 200) == ("SumR, published", True)
    assert "chance: 105.1, far below" in [text.get_text() for text in above.texts]


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
