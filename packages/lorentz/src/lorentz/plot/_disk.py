"""Points of the hyperbolic plane on the Poincare disk, with geodesic edges and labels that keep off each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from lorentz._hyperboloid import root
from lorentz._manifold_curvature import one_number
from lorentz._precision import Scalar
from lorentz.models import to_poincare

from ._horopca import HoroPCA
from ._labels import place_labels
from ._matplotlib import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEP = np.pi / 90  # a chord of 2 degrees leaves its circle by 0.0002 radii: less than a pixel


def _arc(start: complex, end: complex) -> np.ndarray:
    """Points (m, 2) on the geodesic between two points of the unit disk.

    It lies on a circle that meets the rim at right angles. At `start` it leaves its chord by the angle
    phi = arg(1 - start conj(end)), because z -> (z - u)/(1 - conj(u) z) keeps directions at u and makes the geodesic a
    ray; the arc that turns by 2 phi is then u + (v - u) sin(t phi)/sin(phi) exp(i phi (1 - t)), a segment at phi = 0.
    """
    phi = float(np.angle(1.0 - start * np.conj(end)))
    t = np.linspace(0.0, 1.0, 2 + int(abs(2.0 * phi) / _STEP))
    share = t if phi == 0.0 else np.sin(t * phi) / np.sin(phi)
    z = start + (end - start) * share * np.exp(1j * phi * (1.0 - t))
    return np.stack([z.real, z.imag], axis=-1)


def _unit_disk(x: Tensor, c: Scalar) -> np.ndarray:
    """Points of the unit disk (n, 2), whatever c."""
    x, c = x.detach().cpu().double(), one_number("c", c, owner="picture")
    if x.shape[-1] > 3:
        x = HoroPCA(2, c, center=False).fit_transform(x)
    return (root(c) * to_poincare(x, c)).numpy()


def poincare_disk(
    x: Float[Tensor, "n m"],
    c: Scalar = 1.0,
    *,
    edges: Int[Tensor, "e 2"] | Sequence[tuple[int, int]] | None = None,
    labels: Sequence[str | None] | None = None,
    point_style: Mapping[str, Any] | None = None,
    edge_style: Mapping[str, Any] | None = None,
    label_size: float = 8.0,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw points on the Poincare disk, scaled to radius 1, with edges as the circular arcs that geodesics are.

    Points of more than two dimensions go through `HoroPCA(2, c, center=False)` first: the middle of the disk stays the
    origin. Labels are placed in the order given, beside their points and where they cover neither each other nor a
    labelled point; a label that finds no room is left out, so put what matters first or label less.

    Args:
        x: ambient points of dimension d >= 2; only their space parts are read.
        c: curvature -c < 0, a number or a scalar tensor.
        edges: pairs of row numbers to join.
        labels: a text per point; None or "" for none.
        point_style: keyword arguments of `Axes.scatter`, for example {"c": colours, "s": sizes}.
        edge_style: keyword arguments of `LineCollection`, for example {"colors": colours, "linewidths": widths}.
        label_size: font size of the labels.
        ax: axes to draw on; None makes a figure with pyplot.

    Returns:
        The axes, equal in scale, without frame.

    Raises:
        ImportError: matplotlib is missing (`pip install 'lorentz-nn[plot]'`).
        ValueError: no points, points on the line (d = 1) or not finite, not one label per point, an edge
            that names no point, or `c` <= 0.

    Examples:
        >>> import torch
        >>> from lorentz.functional import expmap0
        >>> x = expmap0(torch.tensor([[0.0, 0.0], [1.0, 0.5], [-1.0, 1.0]]))
        >>> ax = poincare_disk(x, edges=[(0, 1), (0, 2)], labels=["root", "left", "right"])
        >>> ax.figure.savefig("disk.png")  # doctest: +SKIP
    """
    if x.ndim != 2 or len(x) == 0 or x.shape[-1] < 3 or not bool(x.isfinite().all()):
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected finite ambient points (n, d + 1), n >= 1 and d >= 2")
    if labels is not None and len(labels) != len(x):
        raise ValueError(f"labels: got {len(labels)} for {len(x)} points, expected one each (None for no label)")
    pairs = np.zeros((0, 2), dtype=int) if edges is None else np.asarray(edges, dtype=int).reshape(-1, 2)
    if len(pairs) and not (pairs.min() >= 0 and pairs.max() < len(x)):
        raise ValueError(f"edges: got row numbers {pairs.min()} to {pairs.max()}, expected 0 to {len(x) - 1}")
    ax = axes_for("poincare_disk", ax, (6.0, 6.0))
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    points = _unit_disk(x, c)
    wide, high = (1.04, 1.04) if labels is None else (1.3, 1.1)  # room for labels outside
    ax.set(xlim=(-wide, wide), ylim=(-high, high), aspect="equal")
    ax.axis("off")
    ax.add_patch(Circle((0.0, 0.0), 1.0, facecolor="none", edgecolor="0.3", linewidth=0.8, zorder=0))
    z = [complex(a, b) for a, b in points]
    lines = {"colors": "0.65", "linewidths": 0.8, "zorder": 1, **(edge_style or {})}
    arcs = [_arc(z[a], z[b]) for a, b in pairs]
    ax.add_collection(LineCollection(arcs, **lines), autolim=False)
    marks = {"s": 16.0, "linewidths": 0, "zorder": 2, "clip_on": False, **(point_style or {})}
    ax.scatter(points[:, 0], points[:, 1], **marks)
    if labels is not None:
        place_labels(ax, points, labels, label_size)
    return ax
