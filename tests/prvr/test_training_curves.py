"""The picture of a run."""

from pathlib import Path

import numpy as np
import pytest
from training_runs import make_config

from prvr.training import Splits, train
from prvr.training.run_folder import RunFolder, curves_figure

HISTORY = [
    {"epoch": 0, "loss": {"total": 2.0, "triplet": 1.5}, "sumr": 50.0},
    {"epoch": 1, "loss": {"total": 1.0, "triplet": 0.5}, "sumr": 80.0},
    {"epoch": 2, "loss": {"total": 0.9, "triplet": 0.4}, "sumr": 75.0},
]


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the curves are drawn, as in `prvr train`."""
    monkeypatch.setattr("prvr.training.run_folder.curves_figure", curves_figure)


@pytest.mark.parametrize(
    ("history", "saved"),
    [
        (HISTORY, (1, 80.0)),
        ([{**line, "averaged": [0, 1, 2]} for line in HISTORY], (2, 75.0)),
        (HISTORY[:1], (0, 50.0)),
    ],
)
def test_curves_show_the_loss_and_mark_the_epoch_that_is_saved(history: list, saved: tuple[int, float]) -> None:
    left, right = curves_figure(history).axes
    assert [line.get_label() for line in left.lines] == ["total", "triplet"]
    _, right = curves_figure([{**line, "chance": 23.5} for line in history]).axes
    (chance,) = (line for line in right.lines if line.get_linestyle() == ":")
    assert float(np.asarray(chance.get_ydata())[0]) == 23.5
    mark = next(line for line in right.lines if str(line.get_label()).startswith("saved"))
    assert np.asarray(mark.get_xydata()).tolist() == [list(saved)]


def test_the_picture_is_drawn_at_the_end_and_between_epochs_that_take_long(
    splits: Splits, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(RunFolder, "save_curves", lambda folder, history, title: lengths.append(len(history)))
    for name, seconds, drawn in (("short", 3600.0, [2]), ("long", -1.0, [1, 2, 2])):
        monkeypatch.setattr("prvr.training.trainer.CURVES_EVERY", seconds)
        lengths.clear()
        train(make_config(cache), output=tmp_path / name, splits=splits, device="cpu")
        assert lengths == drawn
