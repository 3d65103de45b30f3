"""The ten shapes of the embedded world as signed distances: what is inside, how far to the rim."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Plane = Float[np.ndarray, "n p p"]

EXTENT = 1.42
"""No shape of radius 1 reaches further from its centre than this."""

OPEN = ("ring", "crescent")
"""Shapes with a hole at the centre: a hand from there to the rim is not cut by the shape."""


def shape_distance(shape: str, along: Plane, across: Plane) -> Plane:
    """Distance to the rim of a shape of radius 1, negative inside.

    Only + - * / and square roots in the precision that comes in, so the bits are the same on every machine. Radii are
    chosen so that all ten look equally large. Distances outside sharp corners are a little short (mitred corners).

    Args:
        shape: one of the ten names.
        along: coordinate along the shape's own axis (an arrow points along it, a heart's tip lies there), in radii.
        across: coordinate at right angles to it, in radii.

    Example:
        >>> import numpy as np
        >>> centre, side = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), 2, np.float32)
        >>> shape_distance("circle", centre, side).item()
        1.0
    """
    return _DISTANCES[shape](along, across)


def _circle(u: Plane, w: Plane) -> Plane:
    return np.sqrt(u * u + w * w) - 1


def _square(u: Plane, w: Plane) -> Plane:
    return np.maximum(np.abs(u), np.abs(w)) - 0.88


def _triangle(u: Plane, w: Plane) -> Plane:
    return np.maximum(-u, 0.866025 * np.abs(w) + 0.5 * u) - 0.68


def _star(u: Plane, w: Plane) -> Plane:
    # A pentagram is where at most one of its five lines is crossed: the second largest of their distances decides.
    normals = ((0.309017, 0.951057), (0.309017, -0.951057), (-0.809017, 0.587785), (-0.809017, -0.587785))
    first, second = u, np.full_like(u, -np.inf)
    for a, b in normals:
        line = a * u + b * w
        second = np.maximum(second, np.minimum(first, line))
        first = np.maximum(first, line)
    return second - 0.435


def _cross(u: Plane, w: Plane) -> Plane:
    u, w = np.abs(u), np.abs(w)
    return np.minimum(np.maximum(u - 1.15, w - 0.43), np.maximum(w - 1.15, u - 0.43))


def _ring(u: Plane, w: Plane) -> Plane:
    return np.abs(np.sqrt(u * u + w * w) - 0.83) - 0.31


def _heart(u: Plane, w: Plane) -> Plane:
    # Two lobes, and the wedge from the tip to where its sides touch them, cut along the lobes' chords.
    u, w = -u, np.abs(w)
    lobe = np.sqrt((w - 0.55) * (w - 0.55) + (u - 0.35) * (u - 0.35)) - 0.58
    wedge = np.maximum(0.749771 * w - 0.661697 * (u + 1.15), 0.867636 * u + 0.497199 * w - 0.462)
    return np.minimum(lobe, wedge)


def _diamond(u: Plane, w: Plane) -> Plane:
    # A tall rhombus, 0.62 as wide as high: a square is never mistaken for it, however it is turned.
    return (0.868 * np.abs(u) + 1.4 * np.abs(w) - 1.2152) / 1.64724


def _crescent(u: Plane, w: Plane) -> Plane:
    bite = np.sqrt((u + 0.55) * (u + 0.55) + w * w) - 0.86
    return np.maximum(np.sqrt(u * u + w * w) - 1.15, -bite)


def _arrow(u: Plane, w: Plane) -> Plane:
    w = np.abs(w)
    head = np.maximum(0.1 - u, (1.25 * w + u - 1.35) / 1.600781)
    shaft = np.maximum(w - 0.33, np.maximum(u - 0.7, -u - 1.25))
    return np.minimum(head, shaft)


_DISTANCES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "heart": _heart,
    "diamond": _diamond,
    "crescent": _crescent,
    "arrow": _arrow,
}
