"""Loss and recalls over the epochs, as a picture in the run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prvr.training.checkpoint import write_file

__all__ = ["plot_curves"]


def plot_curves(history: Sequence[Mapping[str, Any]], path: Path, title: str = "") -> None:
    """Draws the loss terms (left) and the sum of recalls that selects (right) per epoch.

    Args:
        history: the lines of `metrics.jsonl`: mappings with `epoch`, `loss` (term to mean), and `sumr`, or
            `rsum` where R@100 is left out.
        path: the PNG to write.
        title: above the picture.

    Raises:
        TrainingError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Figure and canvas by hand: pyplot keeps global state and may look for a display.
    figure = Figure(figsize=(11, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in history]
    names = list(dict.fromkeys(name for line in history for name in line["loss"]))
    for name in names:
        values = [line["loss"].get(name, float("nan")) for line in history]
        total = name == "total"
        left.plot(epochs, values, label=name, color="black" if total else None, linewidth=2 if total else 1, marker=".")
    left.set(xlabel="epoch", ylabel="loss (weighted terms)")
    if names and all(value > 0 for line in history for value in line["loss"].values()):
        left.set_yscale("log")
    if names:
        left.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    measure, name = ("rsum", "Rsum, both directions") if any("rsum" in line for line in history) else ("sumr", "SumR")
    scores = [line[measure] for line in history]
    right.plot(epochs, scores, color="black", marker=".")
    if scores:
        best = max(range(len(scores)), key=scores.__getitem__)
        right.plot(epochs[best], scores[best], "o", color="tab:red", label=f"best: {scores[best]:.1f}")
        right.legend(fontsize="small", loc="lower right")
    right.set(xlabel="epoch", ylabel=name)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    write_file(path, lambda file: canvas.print_png(file))
