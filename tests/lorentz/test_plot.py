"""What the pictures show: arcs that are geodesics, labels that can be read, histograms of the right numbers."""

import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

import lorentz
from lorentz.models import from_poincare, to_poincare
from lorentz.plot import origin_distances, poincare_disk


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(5, 5), dpi=80).subplots()


in_disk = st.builds(lambda r, a: complex(r * np.cos(a), r * np.sin(a)), st.floats(0.0, 0.999), st.floats(0.0, 6.28))


@given(start=in_disk, end=in_disk)
def test_every_point_of_an_edge_lies_between_its_ends(start: complex, end: complex) -> None:
    x = from_poincare(torch.tensor([[z.real, z.imag] for z in (start, end, 0j, -0.5 * start)], dtype=torch.float64))
    drawn = poincare_disk(x, edges=[(0, 1), (0, 2), (0, 3), (0, 0)], ax=Figure().subplots())
    (lines,) = [child for child in drawn.collections if isinstance(child, LineCollection)]
    for points in (torch.from_numpy(np.asarray(segment)) for segment in lines.get_segments()):
        assert points.isfinite().all()
        x = from_poincare(points)
        detour = lorentz.dist(x[:1], x) + lorentz.dist(x, x[-1:]) - lorentz.dist(x[0], x[-1])
        assert float(detour.abs().max()) < 1e-5  # 2 s when a point lies s off a long geodesic


@pytest.mark.parametrize("c", [0.2, 1.0, 5.0])
def test_disk_shows_poincare_coordinates_at_radius_one(ax: Axes, c: float) -> None:
    x = lorentz.expmap0(torch.randn(7, 2), c)
    edges = [(0, row) for row in range(1, 7)]
    assert poincare_disk(x, c, edges=edges, ax=ax) is ax
    (marks,) = [child for child in ax.collections if isinstance(child, PathCollection)]
    shown = np.asarray(marks.get_offsets())
    assert np.allclose(shown, c**0.5 * to_poincare(x, c), atol=1e-6)
    (lines,) = [child for child in ax.collections if isinstance(child, LineCollection)]
    for (a, b), drawn in zip(edges, lines.get_segments(), strict=True):
        assert np.allclose(drawn[[0, -1]], shown[[a, b]])


def test_labels_cover_neither_each_other_nor_a_labelled_point(ax: Axes) -> None:
    x = lorentz.expmap0(2.0 * torch.randn(60, 2))
    poincare_disk(x, labels=[f"name {row}" if row % 2 else None for row in range(60)], ax=ax)
    boxes = [text.get_window_extent() for text in ax.texts]
    assert 5 < len(boxes) <= 30
    assert ax.texts[0].get_text() == "name 1"  # the first always finds room
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    marks = ax.transData.transform(to_poincare(x)[1::2])
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


def test_more_dimensions_go_through_horopca_with_the_origin_in_the_middle(ax: Axes) -> None:
    x = lorentz.expmap0(torch.cat([torch.zeros(1, 3), torch.randn(7, 3)]))
    poincare_disk(x, ax=ax)
    (marks,) = [child for child in ax.collections if isinstance(child, PathCollection)]
    shown = np.asarray(marks.get_offsets())
    assert np.allclose(shown[0], 0.0, atol=1e-9)
    assert (np.linalg.norm(shown, axis=1) < 1.0).all()


def test_histogram_counts_distances_with_area_one_per_group(ax: Axes) -> None:
    near = torch.tensor([[0.5, 0.0], [0.0, -0.5]])
    far = torch.tensor([[2.0, 0.0, 0.0]])
    groups = {"near": lorentz.expmap0(near, 2.0), "far": lorentz.expmap0(far, 2.0)}
    origin_distances(groups, 2.0, bins=8, ax=ax)
    assert ax.get_legend_handles_labels()[1] == ["near", "far"]
    outlines = {patch.get_label(): patch for patch in ax.patches if patch.get_label() in groups}
    for name, distance in (("near", 0.5), ("far", 2.0)):
        density, edges, _ = outlines[name].get_data()
        (bar,) = density.nonzero()[0]  # one distance, one bar
        assert edges[bar] <= distance <= edges[bar + 1]
        assert density[bar] * (edges[bar + 1] - edges[bar]) == pytest.approx(1.0)
    assert outlines["near"].get_edgecolor() != outlines["far"].get_edgecolor()


@pytest.mark.usefixtures("any_time")
def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (poincare_disk, origin_distances):
        with pytest.raises(ImportError, match=rf"{draw.__name__} needs matplotlib: pip install 'lorentz-nn\[plot\]'"):
            draw(torch.zeros(4, 3))
