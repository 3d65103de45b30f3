"""matplotlib, imported where something is drawn."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_for(caller: str, ax: Any, size: tuple[float, float]) -> "Axes":
    """The axes to draw on: those given, or those of a new pyplot figure.

    Raises:
        ImportError: matplotlib is missing.
        TypeError: `ax` is something else.
    """
    try:
        from matplotlib import pyplot
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ImportError(f"lorentz.plot.{caller} needs matplotlib: pip install 'lorentz-nn[plot]'") from error
    if ax is None:
        return pyplot.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax: got {type(ax).__name__}, expected a matplotlib Axes (one of them, not an array) or None")
    return ax
