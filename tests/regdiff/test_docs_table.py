"""docs/regdiff.md says what the code says: one table of schedulers is regdiff.SCHEDULERS, the other is measured."""

import re
from dataclasses import fields
from pathlib import Path

from regdiff import SCHEDULERS, Capabilities

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "regdiff.md"
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


def rows(first: str) -> list[list[str]]:
    """The table of the page whose header begins with `first`, header first, without the rule below it."""
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(rf"^\| {first} \|.*?\n\n", text, flags=re.MULTILINE | re.DOTALL)
    assert table is not None, f"docs/regdiff.md has no table that begins with {first}"
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
