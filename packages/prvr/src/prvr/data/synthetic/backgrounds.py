"""The eight backgrounds of the embedded world: muted patterns that every colour stands out from."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32

Plane = Float32[np.ndarray, "h w"]


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
    offset, scale, turn = 64 * rng.random(2), rng.random(), int(rng.integers(8))
    steps = np.arange(side, dtype=np.float32)
    x, y = np.meshgrid(steps + np.float32(offset[0]), steps + np.float32(offset[1]))
    if kind == "fading":  # from one side of the crop to the other, wherever the crop lies
        x, y = np.meshgrid(2 * steps / (side - 1) - 1, 2 * steps / (side - 1) - 1)
    pattern = _PATTERNS[kind](x, y, scale, turn)
    return tint + contrast * pattern[..., None]


# Patterns are in -1..1 of the pixel grid (x, y), a scale in 0..1 and one of eight directions.


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


def _plain(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    return np.zeros_like(x)


def _fading(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    return (x, y, -x, -y, (x + y) / 2, (x - y) / 2, (y - x) / 2, (-x - y) / 2)[turn]


def _striped(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    diagonal = 0.707107
    return _bands((x, y, diagonal * (x + y), diagonal * (x - y))[turn % 4], 9 + 3 * scale)


def _chequered(x: Plane, y: Plane, scale: float, turn: int) -> Plane:
    return _bands(x, 15 + 5 * scale) * _bands(y, 15 + 5 * scale)


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
    "plain": _plain,
    "fading": _fading,
    "striped": _striped,
    "chequered": _chequered,
    "dotted": _dotted,
    "wavy": _wavy,
    "brick": _brick,
    "grid": _grid,
}
