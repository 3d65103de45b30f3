"""A page to write pictures and words on, from the top down, in pixels."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, Rectangle

from prvr.data.files import replace_file

WIDTH = 1200
PICTURE = 128  # two pixels for each of a frame
DPI = 128  # a power of two: sizes in inches are exact
INK, QUIET, FAINT = "#1c1c1e", "#6e6e73", "#d9d9de"

Pixels = float | int


class Page:
    """A figure whose height is known when all is written; y grows downwards."""

    def __init__(self) -> None:
        # Figure and canvas by hand: pyplot keeps global state and may look for a display.
        self.figure = Figure(figsize=(WIDTH / DPI, 1), dpi=DPI, facecolor="white")
        self._renderer = FigureCanvasAgg(self.figure).get_renderer()
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.axis("off")

    def finish(self, height: Pixels) -> Figure:
        """The figure, cut at a height."""
        self.figure.set_size_inches(WIDTH / DPI, round(height) / DPI)
        self._axes.set(xlim=(0, WIDTH), ylim=(round(height), 0))
        return self.figure

    def text(self, x: Pixels, y: Pixels, words: str, size: Pixels = 14, **style: Any) -> Pixels:
        """Words on the line y, `size` pixels high; gives where they end."""
        style = {"color": INK, "va": "baseline", "parse_math": False} | style
        text = self._axes.text(x, y, words, fontsize=size * 72 / DPI, **style)
        return x + text.get_window_extent(self._renderer).width

    def wrap(self, words: str, width: Pixels, size: Pixels, weight: str = "normal") -> list[str]:
        """Lines of at most `width` pixels."""
        lines = [""]
        for word in words.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self.width(longer, size, weight) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def width(self, words: str, size: Pixels, weight: str = "normal") -> Pixels:
        """How long words are on one line."""
        font = FontProperties(size=size * 72 / DPI, weight=weight)
        return self._renderer.get_text_width_height_descent(words, font, ismath=False)[0]

    def bar(self, x: Pixels, y: Pixels, width: Pixels, height: Pixels, colour: str, *, round_by: Pixels = 0) -> None:
        """A filled rectangle."""
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "none", "linewidth": 0}
        if round_by:
            box = f"round,pad=0,rounding_size={round_by}"
            self._axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=box, **style))
        else:
            self._axes.add_patch(Rectangle((x, y), width, height, **style))

    def picture(self, x: Pixels, y: Pixels, pixels: UInt8[np.ndarray, "h w 3"]) -> None:
        """A frame, enlarged without smoothing."""
        box = (x, x + PICTURE, y + PICTURE, y)
        self._axes.imshow(pixels, extent=box, interpolation="nearest", aspect="auto", origin="upper")


def write_png(figure: Figure, path: Path | str) -> None:
    """Writes a finished page; the file appears whole or not at all."""
    replace_file(Path(path), lambda file: figure.canvas.print_figure(file, format="png", dpi=DPI))
