"""The tables and figures of papers, each as one command: what to run, and our numbers beside the published ones.

Examples:
    >>> from prvr.papers import Choices, cells_of, distinct_runs, read_table
    >>> table = read_table("hlformer-table-2")
    >>> cells = cells_of(table, Choices({"train.epochs": 1}), sets=["toy"], seeds=[0, 1])
    >>> len(distinct_runs(cells)), cells[0].label
    (16, 'hlformer-table-2: HLFormer (full), toy corpus, seed 0')
    >>> study = Study("study")  # doctest: +SKIP
    >>> perform_all(distinct_runs(cells), study, Machine(), print)  # doctest: +SKIP
    >>> print(markdown(next(shown(study, cells, Choices({"train.epochs": 1})))))  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.papers.execution import *
    from prvr.papers.judge import *
    from prvr.papers.runs import *
    from prvr.papers.show import *
    from prvr.papers.study import *
    from prvr.papers.table import *

__all__ = [
    "EXTENSIONS",
    "Cell",
    "Choices",
    "Machine",
    "Run",
    "Shown",
    "Study",
    "Table",
    "cells_of",
    "distinct_runs",
    "due_cells",
    "latex",
    "markdown",
    "perform",
    "perform_all",
    "read_table",
    "shown",
    "table_names",
    "terminal_tables",
]

EXTENSIONS = {
    "commands": "prvr.papers.commands",
    "converters": "prvr.papers.benchmarks.cli",
    "graded": "prvr.papers.graded_moments:read_graded",
}
"""What this package adds, see `prvr.extensions`."""

__getattr__ = deferred(__name__, "table runs study judge show execution")
