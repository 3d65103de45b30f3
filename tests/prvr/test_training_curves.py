"""The picture of a run."""

import io
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from training_runs import make_config

from prvr.training import Splits, train
from prvr.training.processes import terminal_bar
from prvr.training.run import curves_figure, plot_curves

HISTORY = [
    {"epoch": 0, "loss": {"total": 2.0, "triplet": 1.5}, "sumr": 50.0},
    {"epoch": 1, "loss": {"total": 1.0, "triplet": 0.5}, "sumr": 80.0},
    {"epoch": 2, "loss": {"total": 0.9, "triplet": 0.4}, "sumr": 75.0},
]


def red(path: Path) -> np.ndarray:
    """Pixels of the mark on the best epoch."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return np.argwhere((abs(pixels - (214, 39, 40)) < 12).all(-1))


def test_curves_show_the_loss_and_mark_the_best_epoch(tmp_path: Path) -> None:
    plot_curves(HISTORY, tmp_path / "curves.png", "a run")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.format == "PNG"
        assert image.size[0] > image.size[1] > 100
        width = image.size[0]
    marks = red(tmp_path / "curves.png")
    inside = marks[marks[:, 1] < 0.87 * width]  # the legend's own mark stands at the right edge
    plot_curves([{**line, "sumr": 100 - line["sumr"]} for line in HISTORY], tmp_path / "other.png")
    others = red(tmp_path / "other.png")
    assert len(marks)
    assert len(inside)
    assert sorted(map(tuple, marks)) != sorted(map(tuple, others))  # the mark moves with the best epoch


def test_chance_stands_beside_the_curve_where_it_is_known() -> None:
    known = [{**line, "chance": 23.5} for line in HISTORY]
    for history, expected in ((HISTORY, []), (known, [23.5])):
        _, right = curves_figure(history).axes
        dotted = [line for line in right.lines if line.get_linestyle() == ":"]
        assert [float(np.asarray(line.get_ydata())[0]) for line in dotted] == expected


@pytest.mark.parametrize("history", [[], HISTORY[:1], [{"epoch": 0, "loss": {"total": -1.0}, "sumr": 0.0}]])
def test_short_and_negative_histories_are_drawn(tmp_path: Path, history: list) -> None:
    plot_curves(history, tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").format == "PNG"
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]


def test_the_picture_is_drawn_at_the_end_and_between_epochs_that_take_long(
    splits: Splits, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    monkeypatch.setattr("prvr.training.run.plot_curves", lambda history, *_: lengths.append(len(history)))
    for name, seconds, drawn in (("short", 3600.0, [2]), ("long", -1.0, [1, 2, 2])):
        monkeypatch.setattr("prvr.training.trainer.CURVES_EVERY", seconds)
        lengths.clear()
        train(make_config(cache), output=tmp_path / name, splits=splits, device="cpu")
        assert lengths == drawn


class Screen(io.StringIO):
    """A standard error that is, or is not, a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_shows_loss_terms_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal_bar("epoch 1/2", 3) as report:
        for value in (3.0, 2.0, 1.5):
            report({"triplet_clips": 0.25 * value, "diversity": 0.75 * value, "total": value})
            time.sleep(0.11)  # tqdm draws at most every tenth of a second
    assert ("epoch 1/2" in screen.getvalue()) == terminal
    shown = re.search(r"loss [\d.]+: diversity [\d.]+ triplet_clips [\d.]+", screen.getvalue())
    assert (shown is not None) == terminal
