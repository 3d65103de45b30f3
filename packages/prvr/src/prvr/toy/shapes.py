"""The ten shapes of the toy world, as signed distances, and its eight backgrounds, as muted patterns."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float32

Planes = Float[np.ndarray, "n p p *one"]
Plane = Float32[np.ndarray, "h w"]

EXTENT = 1.42
"""No shape of radius 1 reaches further from its centre than this."""

OPEN = ("ring", "crescent")
"""Shapes with a hole at the centre: a hand from there to the rim is not cut by the shape."""


def shape_distance(shape: str, along: Planes, across: Planes) -> Planes:
    """Distance to the rim of a shape of radius 1, negative inside.

    Only + - * / and square roots in the precision that comes in, so the bits are the same on every machine. Radii are
    chosen so that all ten look equally large. Distances outside sharp corners are a little short (mitred corners).

    Args:
        shape: one of the ten names.
        along: coordinate along the shape's own axis (an arrow points along it, a heart's tip lies there), in radii.
        across: coordinate at right angles to it, in radii.

    Examples:
        >>> import numpy as np
        >>> centre, side = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), 2, np.float32)
        >>> shape_distance("circle", centre, side).item()
        1.0
    """
    return _DISTANCES[shape](along, across)


def _star(u: Planes, w: Planes) -> Planes:
    # A pentagram is where at most one of its five lines is crossed: the second largest of their distances decides.
    normals = ((0.309017, 0.951057), (0.309017, -0.951057), (-0.809017, 0.587785), (-0.809017, -0.587785))
    first, second = u, np.full_like(u, -np.inf)
    for a, b in normals:
        line = a * u + b * w
        second = np.maximum(second, np.minimum(first, line))
        first = np.maximum(first, line)
    return second - 0.435


def _cross(u: Planes, w: Planes) -> Planes:
    u, w = np.abs(u), np.abs(w)
    return np.minimum(np.maximum(u - 1.15, w - 0.43), np.maximum(w - 1.15, u - 0.43))


def _heart(u: Planes, w: Planes) -> Planes:
    # Two lobes, and the wedge from the tip to where its sides touch them, cut along the lobes' chords.
    u, w = -u, np.abs(w)
    lobe = np.sqrt((w - 0.55) * (w - 0.55) + (u - 0.35) * (u - 0.35)) - 0.58
    wedge = np.maximum(0.749771 * w - 0.661697 * (u + 1.15), 0.867636 * u + 0.497199 * w - 0.462)
    return np.minimum(lobe, wedge)


def _crescent(u: Planes, w: Planes) -> Planes:
    bite = np.sqrt((u + 0.55) * (u + 0.55) + w * w) - 0.86
    return np.maximum(np.sqrt(u * u + w * w) - 1.15, -bite)


def _arrow(u: Planes, w: Planes) -> Planes:
    w = np.abs(w)
    head = np.maximum(0.1 - u, (1.25 * w + u - 1.35) / 1.600781)
    shaft = np.maximum(w - 0.33, np.maximum(u - 0.7, -u - 1.25))
    return np.minimum(head, shaft)


_DISTANCES: dict[str, Callable[[Planes, Planes], Planes]] = {
    "circle": lambda u, w: np.sqrt(u * u + w * w) - 1,
    "square": lambda u, w: np.maximum(np.abs(u), np.abs(w)) - 0.88,
    "triangle": lambda u, w: np.maximum(-u, 0.866025 * np.abs(w) + 0.5 * u) - 0.68,
    "star": _star,
    "cross": _cross,
    "ring": lambda u, w: np.abs(np.sqrt(u * u + w * w) - 0.83) - 0.31,
    "heart": _heart,
    # A tall rhombus, 0.62 as wide as high: a square is never mistaken for it, however it is turned.
    "diamond": lambda u, w: (0.868 * np.abs(u) + 1.4 * np.abs(w) - 1.2152) / 1.64724,
    "crescent": _crescent,
    "arrow": _arrow,
}


# Backgrounds


def draw_tint(rng: np.random.Generator) -> Float32[np.ndarray, " 3"]:
    """The greyish colour of a video's background, red green blue in 0-255: mid-dark, a little tinted."""
    return (86 + 26 * rng.random() + 20 * (rng.random(3) - 0.5)).astype(np.float32)


def draw_background(
    kind: str, tint: Float32[np.ndarray, " 3"], side: int, rng: np.random.Generator
) -> Float32[np.ndarray, "h w 3"]:
    """One crop of a background: every call has its own offset, scale, direction and slight change of tint.

    Args:
        kind: one of the eight names.
        tint: the colour that `draw_tint` gave for the video.
        side: height and width in pixels.
        rng: where the crop and its tint are drawn from.
    """
    tint = tint + (12 * (rng.random(3) - 0.5)).astype(np.float32)
    contrast = 42.0 if kind == "fading" else 17 + 4 * rng.random()
    offset = 64 * rng.random(2)
    scale = rng.random()
    turn = int(rng.integers(8))
    steps = np.arange(side, dtype=np.float32)
    x, y = np.meshgrid(steps + np.float32(offset[0]), steps + np.float32(offset[1]))
    if kind == "fading":  # from one side of the crop to the other, wherever the crop lies
        x, y = np.meshgrid(2 * steps / (side - 1) - 1, 2 * steps / (side - 1) - 1)
    pattern = _PATTERNS[kind](x, y, scale, turn)
    return tint + contrast * pattern[..., None]


# A pattern has values from -1 to 1. It takes the pixel grid (x, y), a scale from 0 to 1 and one of eight directions.


def _triangle_wave(s: Plane, period: float) -> Plane:
    """Distance in pixels to where the wave changes sign, positive in one half of each period."""
    s = s / period
    return period * (0.25 - np.abs(s - np.floor(s) - 0.5))


def _bands(s: Plane, period: float) -> Plane:
    """-1 and 1 in turn, half a period each, with soft edges of one pixel."""
    return np.clip(2 * _triangle_wave(s, period), -1, 1)


def _lines(s: Plane, period: float, width: float) -> Plane:
    """1 on lines of a width, 0 between."""
    return np.clip(_triangle_wave(s, period) - (period / 4 - width / 2 - 0.5), 0, 1)


def _striped(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    diagonal = 0.707107
    return _bands((x, y, diagonal * (x + y), diagonal * (x - y))[turn % 4], 9 + 3 * scale)


def _dotted(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    spacing = 9 + 2 * scale
    x, y = x / spacing, y / spacing
    x, y = spacing * (x - np.floor(x) - 0.5), spacing * (y - np.floor(y) - 0.5)
    dot = np.clip((2.9 + 0.4 * scale) - np.sqrt(x * x + y * y), 0, 1)
    return 1.7 * dot - 0.3


def _wavy(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    if turn % 2:
        x, y = y, x
    s = x / (20 + 4 * scale)
    s = 2 * (s - np.floor(s)) - 1
    return _bands(y + 13 * s * (1 - np.abs(s)), 10 + 2 * scale)  # two parabolas: nearly a sine


def _brick(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    height = 7 + 2 * scale
    row = y / height
    shifted = x + height * (np.floor(row - 0.5) % 2)
    mortar = np.maximum(_lines(y, height, 1.6), _lines(shifted, 2 * height, 1.6))
    return 1.5 * mortar - 0.5


def _grid(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    period = 9 + 3 * scale
    line = np.maximum(_lines(x, period, 1.6), _lines(y, period, 1.6))
    return 0.4 - 1.6 * line


_PATTERNS: dict[str, Callable[[Plane, Plane, float, int], Plane]] = {
    "plain": lambda x, y, scale, turn: np.zeros_like(x),
    "fading": lambda x, y, scale, turn: (x, y, -x, -y, (x + y) / 2, (x - y) / 2, (y - x) / 2, (-x - y) / 2)[turn],
    "striped": _striped,
    "chequered": lambda x, y, scale, turn: _bands(x, 15 + 5 * scale) * _bands(y, 15 + 5 * scale),
    "dotted": _dotted,
    "wavy": _wavy,
    "brick": _brick,
    "grid": _grid,
}
