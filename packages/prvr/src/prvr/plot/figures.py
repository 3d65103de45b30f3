"""Figures without pyplot, which keeps global state and may look for a display, and their files."""

from pathlib import Path
from textwrap import shorten

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from prvr.data.atomic import write_file
from prvr.errors import DataError

RIGHT, WRONG = "tab:green", "0.65"
"""Colours of what is right and of all else."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F5B34", "#000000")
"""Colours of several things, which also people who confuse red and green tell apart (Okabe and Ito)."""

_DATES = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}  # left out: the same figure, the same file


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that draws itself with Agg.

    Args:
        width, height: the size in inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path | str, dpi: int = 100) -> Path:
    """Writes a picture, whole or not at all.

    Args:
        figure: a figure that `new_figure` made.
        path: its ending, .png, .pdf or .svg, chooses the format.
        dpi: dots per inch of a PNG.

    Raises:
        DataError: another ending, or it cannot be written.
    """
    path = Path(path).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _DATES:
        raise DataError(f"{path}: expected a file that ends in .png, .pdf or .svg.")
    with rc_context({"svg.hashsalt": "prvr"}):  # or else the names in an SVG are drawn
        write_file(path, lambda file: figure.savefig(file, format=kind, dpi=dpi, metadata=_DATES[kind]))
    return path


def brief(text: str, width: int = 70) -> str:
    """A text in one line, with its end left out where it is too long, and nothing that matplotlib reads as a formula.

    Examples:
        >>> brief("a  dog costs $5", 10)
        'a dog ...'
    """
    return shorten(text, width, placeholder=" ...").replace("$", r"\$")


def evenly(count: int, most: int) -> list[int]:
    """Evenly spread numbers below `count`, the first and the last among them, each once.

    Args:
        count: from 1.
        most: at most so many, from 2.

    Examples:
        >>> evenly(11, 3), evenly(2, 5)
        ([0, 5, 10], [0, 1])
    """
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
