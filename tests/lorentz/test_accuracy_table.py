"""The table of errors on docs/lorentz.md, recomputed."""

import re
from pathlib import Path

import pytest
import torch
from far_rows import KINDS, drawn, errors_of

pytestmark = pytest.mark.usefixtures("any_time")
PAGE = Path(__file__).parents[2] / "docs" / "lorentz.md"
COLUMNS = (
    (torch.float32, "auto", 20),
    (torch.float32, "native", 6),
    (torch.float32, "native", 20),
    (torch.float64, "auto", 6),
    (torch.float64, "auto", 20),
)
ROWS = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
ABOVE, BELOW = 2.0, 8.0
"""What is measured is at most ABOVE times the figure, and at least 1/BELOW of it."""


def measured(name: str, kind: str) -> list[float]:
    """The figures of a row of the table: errors of values and gradients."""
    found: list[float] = []
    for dtype, mode, radius in COLUMNS:
        found += errors_of(name, drawn(name, kind, radius, dtype), 1.0, dtype, mode)
    return found


def table() -> dict[tuple[str, str], list[float]]:
    rows = re.findall(r"^\| `(\w+)`, (\w+) \|(.*)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        (name, kind): [float(x) for cell in cells.split("|") for x in cell.split(";")] for name, kind, cells in rows
    }


def test_the_table_is_complete() -> None:
    assert list(table()) == ROWS


@pytest.mark.parametrize(("one", "kind"), ROWS)
def test_errors_are_as_the_page_says(one: str, kind: str) -> None:
    told, found = table()[one, kind], measured(one, kind)
    for value, figure in zip(found, told, strict=True):
        assert value <= ABOVE * figure, f"{one}, {kind}: measured {found}, the page says {told}"
        assert value >= figure / BELOW or figure <= 1e-15, f"{one}, {kind}: measured {found}, the page says {told}"
