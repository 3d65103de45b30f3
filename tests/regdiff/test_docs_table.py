"""Two tables of schedulers: that of docs/regdiff.md is regdiff.SCHEDULERS, that beside the studies is measured."""

import re
import runpy
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from nightly import NIGHTLY

from regdiff import SCHEDULERS, Capabilities

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "regdiff.md"
MEASURED = ROOT / "benchmarks" / "studies" / "regdiff.md"
COLUMNS = {
    "`make_scheduler`": "name",
    "class in diffusers": "scheduler",
    "predicts": "prediction_types",
    "adds noise": "stochastic",
    "takes yours": "own_noise",
    "calls": "calls",
}

OF_ALL = {"custom_timesteps": {True}, "truncated_start": {True}, "gradient": {True}, "precision": {"float64"}}
"""What the page says of all schedulers in a sentence."""


def cell(value: object) -> str:
    """A value of `Capabilities` as the page writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def rows(first: str, page: Path = PAGE) -> list[list[str]]:
    """The table of the page whose header begins with `first`, header first, without the rule below it."""
    text = page.read_text(encoding="utf-8")
    table = re.search(rf"^\| {first} \|.*?\n\n", text, flags=re.MULTILINE | re.DOTALL)
    assert table is not None, f"{page.name} has no table that begins with {first}"
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in table.group().splitlines() if line]
    return [lines[0], *lines[2:]]


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    assert {field.name for field in fields(Capabilities)} == {*COLUMNS.values(), *OF_ALL}
    assert {name: {getattr(row, name) for row in SCHEDULERS.values()} for name in OF_ALL} == OF_ALL
    expected = [list(COLUMNS)]
    for row in SCHEDULERS.values():
        cells = [cell(getattr(row, field)) for field in COLUMNS.values()]
        expected.append([f"`{cells[0]}`", f"`{cells[1]}`", *cells[2:]])
    assert rows("`make_scheduler`") == expected


@pytest.mark.parametrize(("prediction", "column"), [("epsilon", 1), ("v_prediction", 5)][: 2 if NIGHTLY else 1])
def test_errors_are_those_of_the_page_and_no_scheduler_is_far_behind_ddim(prediction, column, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scheduler_by_name.py", "--prediction", prediction])
    runpy.run_path(str(ROOT / "examples" / "scheduler_by_name.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    measured = {line.split()[0]: [float(value) for value in line.split()[-4:]] for line in lines if "0." in line}
    assert measured.keys() == SCHEDULERS.keys()
    for name, *cells in rows("scheduler", MEASURED):
        if name == "scheduler" or (name.startswith("`flow`") and prediction == "epsilon"):
            continue
        errors = measured[name.split("`")[1]]
        assert errors == pytest.approx([float(cell) for cell in cells[column - 1 : column + 3]], abs=0.04), name
    for name in measured.keys() - {"flow"}:
        assert all(a < b + 0.05 for a, b in zip(measured[name], measured["ddim"], strict=True)), name
