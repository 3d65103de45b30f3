"""Verdicts on arms by the rule of their file, from the finished runs of a study alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import nan
from operator import attrgetter

import numpy as np

from prvr.evaluation.compare import matched_ranks
from prvr.evaluation.significance import Difference
from prvr.papers.runs import Cell, Choices, cells_of
from prvr.papers.several_seeds import holm, seeds_test
from prvr.papers.study import Result, Study
from prvr.papers.table import Row, Rule, Table


@dataclass(frozen=True)
class Finished:
    """The results of a row on a data set.

    Args:
        cell: the row; of one with a search, with the value that was chosen, and without a run where none can be yet.
        results: by seed, of finished runs.
        selection: SumR on the split that selects, by seed.
    """

    cell: Cell
    results: Mapping[int, Result]
    selection: Mapping[int, float]


@dataclass(frozen=True)
class Verdict:
    """The decision of the rule on a row, and its grounds.

    Args:
        text: the verdict, or what it waits for; empty for the base and for hidden rows.
        seeds: those that the rule asks for so far.
        base: the arm less the base, in SumR; None before the seeds are finished.
        control: the arm less its control; None if it has none.
        corrected: the p-value against the base, corrected for the number of arms.
    """

    text: str
    seeds: tuple[int, ...]
    base: Difference | None = None
    control: Difference | None = None
    corrected: float | None = field(default=None, kw_only=True)


def verdicts(table: Table, finished: Mapping[str, Finished]) -> dict[str, Verdict]:
    """The verdict on every row that has results, by the rule of the table.

    An arm gets the first seed, and is dropped if its gain over the base on the split that selects is at most
    `first_drop`. Otherwise it gets the other seeds. Then it is kept if the 95 % interval of its gain on the reported
    split lies above 0, and dropped if that ends below `least_gain`; else it gets `more_seeds`, once, and is kept if the
    interval lies above 0 then. The same must hold against its control, whatever it gains on the base. Of an arm that
    `removes` a part, the gain is that of the part: the base less the arm. If such an arm has a `base` of its own, it is
    another system, and the verdict says whether it is behind. An arm whose training diverges is dropped; a part without
    which it diverges is kept.

    Args:
        table: with a rule; its first row is the base.
        finished: the results of each row, by its name.
    """
    assert table.rule is not None
    base, *arms = [row for row in table.rows if row.is_arm]
    of_arms = {row.name: _verdict(row, table, table.rule, finished, base) for row in arms}
    p_values = {name: verdict.base.p_value for name, verdict in of_arms.items() if verdict.base is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values()), len(arms)), strict=True))
    judged = [row.name for row in table.rows if row.kind is not None and row.judged]
    controls = [row.control for row in arms if row.control]  # they need seeds, judged or not
    needed = {name: set(table.seeds[:1]) for name in (*controls, *judged)}
    for row in arms:  # those that it is compared with get the same seeds
        for name in (row.name, base.name, row.control or base.name):
            needed[name] |= set(of_arms[row.name].seeds)
    order = (*table.seeds, *table.rule.more_seeds)
    return {
        name: replace(
            of_arms.get(name, Verdict("", ())),
            seeds=tuple(seed for seed in order if seed in seeds),
            corrected=corrected.get(name),
        )
        for name, seeds in needed.items()
    }


def _verdict(row: Row, table: Table, rule: Rule, finished: Mapping[str, Finished], base: Row) -> Verdict:
    arm = finished[row.name]
    others = [finished[name] for name in dict.fromkeys((base.name, row.control or base.name))]
    common = set.intersection(*(set(entry.results) for entry in (arm, *others)))
    sign = -1 if row.removes else 1
    keep, drop = "keep", "drop"
    if row.removes:
        keep, drop = ("behind", "not behind") if row.base else ("keep the part", "drop the part")
    first = table.seeds[:1]
    if not common.issuperset(first):
        return Verdict("not finished", first)
    score, other = (entry.selection.get(first[0], nan) for entry in (arm, others[0]))
    if sign * (score - other) <= rule.first_drop:
        return Verdict(f"{drop} ({sign * (score - other):+.1f} in selection, seed {first[0]})", first)
    differences: tuple[Difference, ...] = ()
    for seeds in dict.fromkeys((table.seeds, (*table.seeds, *rule.more_seeds))):  # one round, if there are no more
        if not common.issuperset(seeds):
            return Verdict("undecided, more seeds" if differences else "not finished", seeds, *differences)
        for seed in seeds:
            if arm.results[seed].report is None:
                return Verdict(f"{keep if row.removes else drop} (diverged, seed {seed})", seeds)
            if any(other.results[seed].report is None for other in others):
                return Verdict(f"open: what it is compared with diverged, seed {seed}", seeds)
        differences = tuple(_difference(other, arm, seeds) for other in others)
        gains = (sorted((sign * one.interval.low, sign * one.interval.high)) for one in differences)
        decisions = ["keep" if low > 0 else "drop" if high < rule.least_gain else "open" for low, high in gains]
        if "open" not in decisions or "drop" in decisions:
            break
    text = keep
    if set(decisions) != {"keep"}:
        reason = "control" if decisions[0] == "keep" else "" if "drop" in decisions else "not shown"
        text = drop + f" ({reason})" * bool(reason)
    return Verdict(f"{text}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", seeds, *differences)


def _difference(other: Finished, arm: Finished, seeds: Sequence[int]) -> Difference:
    """The arm less another row, in SumR."""
    reports = [[report for seed in seeds if (report := row.results[seed].report)] for row in (other, arm)]
    like = reports[0][0]
    of_other, of_arm = (np.stack([matched_ranks(like, report) for report in of_row]) for of_row in reports)
    return seeds_test(of_other, of_arm, like.query_to_video)["sumr"]


def due_cells(study: Study, table: Table, choices: Choices, sets: Sequence[str] | None = None) -> list[Cell]:
    """The cells that a table asks for now: those of its seeds, and with a rule those that the verdicts so far ask for.

    Args:
        study: what is finished.
        table: the table.
        choices: what the user chooses for all rows.
        sets: the data sets; None = those of the table.
    """
    if table.rule is None:
        return cells_of(table, choices, sets=sets, seeds=table.seeds)
    cells = cells_of(table, choices, sets=sets, seeds=(*table.seeds, *table.rule.more_seeds))
    seeds = {
        (name, row): verdict.seeds
        for name, finished in finished_rows(study, [cell for cell in cells if cell.seed == table.seeds[0]])
        for row, verdict in verdicts(table, finished).items()
    }
    return [cell for cell in cells if cell.seed in seeds.get((cell.set_name, cell.row.name), table.seeds)]


def finished_rows(study: Study | None, cells: Sequence[Cell]) -> Iterator[tuple[str, dict[str, Finished]]]:
    """For each data set, the results of its rows, by their names.

    Of a row with a search they are those of the value that is best on the split that selects. The mean over the seeds
    with which every value is finished decides; before there is one, nothing is chosen.

    Args:
        study: the results.
        cells: the cells of one table with one seed; all finished seeds count.
    """
    for name, own in groupby(cells, attrgetter("set_name")):
        rows = dict[str, Finished]()
        for row, values in groupby(own, attrgetter("row.name")):
            entries = [_finished_cell(study, cell) for cell in values]
            common = set.intersection(*(set(entry.selection) for entry in entries))
            rows[row] = max(entries, key=lambda entry: sum(entry.selection[seed] for seed in common))
            if len(entries) > 1 and not common:
                rows[row] = Finished(replace(entries[0].cell, run=None), {}, {})
        yield name, rows


def _finished_cell(study: Study | None, cell: Cell) -> Finished:
    results, selection = dict[int, Result](), dict[int, float]()
    settings = {} if cell.run is None else cell.run.settings
    if study is not None and cell.arm is not None:
        for seed in study.seeds(cell.arm):
            if (result := study.stored(cell.arm, seed, settings)) is not None:
                results[seed] = result
            if (score := study.selection(cell.arm, seed)) is not None:
                selection[seed] = score
    return Finished(cell, results, selection)
