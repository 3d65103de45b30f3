"""The ten shapes of the toy world, as signed distances, and its eight backgrounds, as muted patterns."""

import numpy as np
from jaxtyping import Float, Float32, UInt8

Planes = Float[np.ndarray, "..."]
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
        shape: one of `prvr.toy.world.SHAPES`.
        along: coordinate along the shape's own axis (an arrow points along it, a heart's tip lies there), in radii.
        across: coordinate at right angles to it, in radii.

    Examples:
        >>> import numpy as np
        >>> centre, side = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), 2, np.float32)
        >>> shape_distance("circle", centre, side).item()
        1.0
    """
    u, w = along, np.abs(across)  # each shape is its own mirror image
    match shape:
        case "circle":
            return length(u, w) - 1
        case "square":
            return np.maximum(np.abs(u), w) - 0.88
        case "triangle":
            return np.maximum(-u, 0.866025 * w + 0.5 * u) - 0.68
        case "star":  # where at most one of its five lines is crossed: by symmetry, two of these four are the furthest
            normals = ((0.309017, 0.951057), (-0.809017, 0.587785), (-0.809017, -0.587785))
            return np.sort([u, *(a * u + b * w for a, b in normals)], axis=0)[-2] - 0.435
        case "cross":
            return np.maximum(np.maximum(np.abs(u), w) - 1.15, np.minimum(np.abs(u), w) - 0.43)
        case "ring":
            return np.abs(length(u, w) - 0.83) - 0.31
        case "heart":  # two lobes, and the wedge from the tip to where its sides touch them, cut along their chords
            wedge = np.maximum(0.749771 * w - 0.661697 * (1.15 - u), 0.497199 * w - 0.867636 * u - 0.462)
            return np.minimum(length(w - 0.55, u + 0.35) - 0.58, wedge)
        case "diamond":  # 0.62 as wide as high: a square is never mistaken for it, however it is turned
            return (0.868 * np.abs(u) + 1.4 * w - 1.2152) / 1.64724
        case "crescent":
            return np.maximum(length(u, w) - 1.15, 0.86 - length(u + 0.55, w))
        case "arrow":
            head = np.maximum(0.1 - u, (1.25 * w + u - 1.35) / 1.600781)
            return np.minimum(head, np.maximum(w - 0.33, np.maximum(u - 0.7, -u - 1.25)))
    raise KeyError(shape)


def length(x: Planes, y: Planes) -> Planes:
    """The distance from the origin; square roots are the same on every machine, `np.hypot` is not."""
    return np.sqrt(x * x + y * y)


# Backgrounds


def draw_background(kind: str, side: int, seed: int, shot: int) -> UInt8[np.ndarray, "h w 3"]:
    """One crop of a background: mid-dark, a little tinted, the same for all shots of a video but for a slight change.

    Every shot has its own offset, scale and direction.

    Args:
        kind: one of `prvr.toy.world.BACKGROUNDS`.
        side: height and width in pixels.
        seed: of the video.
        shot: the number of the shot in it.
    """
    video, rng = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2, shot])
    tint = (86 + 26 * video.random() + 20 * (video.random(3) - 0.5)).astype(np.float32)
    tint = tint + (12 * (rng.random(3) - 0.5)).astype(np.float32)
    contrast = 42.0 if kind == "fading" else 17 + 4 * rng.random()
    offset = 64 * rng.random(2)
    scale, turn = rng.random(), int(rng.integers(8))
    steps = np.arange(side, dtype=np.float32)
    # fading goes from one side of the crop to the other, wherever the crop lies
    lines = [2 * steps / (side - 1) - 1] * 2 if kind == "fading" else [steps + np.float32(start) for start in offset]
    x, y = np.meshgrid(*lines)
    return (tint + contrast * _pattern(kind, x, y, scale, turn)[..., None] + np.float32(0.5)).astype(np.uint8)


def _pattern(kind: str, x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    """From -1 to 1 on the pixel grid, with a scale from 0 to 1 and one of eight directions."""
    match kind:
        case "plain":
            return np.zeros_like(x)
        case "fading":
            return (x, y, -x, -y, (x + y) / 2, (x - y) / 2, (y - x) / 2, (-x - y) / 2)[turn]
        case "striped":
            return _bands((x, y, 0.707107 * (x + y), 0.707107 * (x - y))[turn % 4], 9 + 3 * scale)
        case "chequered":
            return _bands(x, 15 + 5 * scale) * _bands(y, 15 + 5 * scale)
        case "dotted":
            spacing = 9 + 2 * scale
            centre = length(*(spacing * _sawtooth(s, spacing) for s in (x, y)))
            return 1.7 * np.clip((2.9 + 0.4 * scale) - centre, 0, 1) - 0.3
        case "wavy":
            x, y = (y, x) if turn % 2 else (x, y)
            s = 2 * _sawtooth(x, 20 + 4 * scale)
            return _bands(y + 13 * s * (1 - np.abs(s)), 10 + 2 * scale)  # two parabolas: nearly a sine
        case "brick":
            height = 7 + 2 * scale
            return 1.5 * _net(x + height * (np.floor(y / height - 0.5) % 2), 2 * height, y, height) - 0.5
        case "grid":
            return 0.4 - 1.6 * _net(x, 9 + 3 * scale, y, 9 + 3 * scale)
    raise KeyError(kind)


def _sawtooth(s: Plane, period: float) -> Plane:
    """From -1/2 to 1/2 in each period."""
    s = s / period
    return s - np.floor(s) - 0.5


def _triangle_wave(s: Plane, period: float) -> Plane:
    """Distance in pixels to where the wave changes sign, positive in one half of each period."""
    return period * (0.25 - np.abs(_sawtooth(s, period)))


def _bands(s: Plane, period: float) -> Plane:
    """-1 and 1 in turn, half a period each, with soft edges of one pixel."""
    return np.clip(2 * _triangle_wave(s, period), -1, 1)


def _net(x: Plane, width: float, y: Plane, height: float) -> Plane:
    """1 on lines of 1.6 pixels around meshes of a width and a height, 0 between."""
    lines = [_triangle_wave(s, period) - (period / 4 - 0.8 - 0.5) for s, period in ((x, width), (y, height))]
    return np.clip(np.maximum(*lines), 0, 1)
