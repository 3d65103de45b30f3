"""Labels beside their points that cover neither each other nor another labelled point."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAPS = (4.0, 11.0)  # points between a mark and its label
# The directions tried, as turns from the ray that leads away from the middle of the disk.
_TURNS = np.pi / 4 * np.array([0, 1, -1, 2, -2, 3, -3, 4])


def _free(box: np.ndarray, taken: list[np.ndarray]) -> bool:
    """Does the box (left, bottom, right, top) meet none of those taken?"""
    left, bottom, right, top = np.stack(taken).T
    return not bool(((box[0] < right) & (left < box[2]) & (box[1] < top) & (bottom < box[3])).any())


def _inside(box: np.ndarray, marks: np.ndarray, reach: float) -> int:
    """How many marks the box hides or touches."""
    return int(((box[:2] - reach < marks) & (marks < box[2:] + reach)).all(axis=-1).sum())


def place_labels(ax: "Axes", points: np.ndarray, labels: Sequence[str | None], size: float) -> None:
    """Write what finds room, in the order of `labels`, inside the figure, where it hides the fewest other
    points. Measured in the pixels of the figure as it is now.
    """
    from matplotlib.patheffects import withStroke

    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides where the axes lie
    pixel = figure.dpi / 72.0
    where = ax.transData.transform(points)
    named = [row for row, label in enumerate(labels) if label]
    page, reach = np.array(figure.bbox.extents), 2.0 * pixel
    taken = [np.array([*(where[row] - reach), *(where[row] + reach)]) for row in named]
    for row in named:
        x, y = points[row]
        outward = np.arctan2(y, x) if x or y else np.pi / 2
        text = ax.annotate(
            str(labels[row]),
            points[row],
            xytext=(0.0, 0.0),
            textcoords="offset points",
            fontsize=size,
            ha="center",
            va="center",
            zorder=3,
            annotation_clip=False,
            in_layout=False,  # a second layout would move the points under the labels
            path_effects=[withStroke(linewidth=2.0, foreground="white")],
        )
        extent = text.get_window_extent()
        half = np.array([extent.width, extent.height]) / 2.0
        candidates = []
        for gap, (rank, turn) in itertools.product(_GAPS, enumerate(outward + _TURNS)):
            direction = np.array([np.cos(turn), np.sin(turn)])
            # the box begins at the gap: as far along the direction as its nearer half side asks for
            offset = direction * (gap * pixel) + np.clip(direction * half.sum(), -half, half)
            box = np.concatenate([where[row] + offset - half, where[row] + offset + half])
            if (page[:2] <= box[:2]).all() and (box[2:] <= page[2:]).all() and _free(box, taken):
                candidates.append((_inside(box, where, reach), gap, rank, tuple(offset / pixel), box))
        if candidates:
            *_, position, box = min(candidates, key=lambda candidate: candidate[:3])
            text.set_position(position)
            taken.append(box)
        else:
            text.remove()
