"""Verdicts on arms by the rule of their file, from the finished runs of a study alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prvr.evaluation.compare import matched_ranks
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import Difference, holm, seeds_test
from prvr.papers.runs import Cell, Choices, cells_of
from prvr.papers.study import Result, Study
from prvr.papers.table import Row, Rule, Table


@dataclass(frozen=True)
class Finished:
    """What a row has left on a data set.

    Args:
        cell: the row; of one with a search, with the value that was chosen. None where nothing can be chosen yet.
        results: by seed, of finished runs.
        selection: SumR on the split that selects, by seed.
    """

    cell: Cell | None
    results: Mapping[int, Result]
    selection: Mapping[int, float]

    def ranks(self, seeds: Sequence[int], like: EvaluationReport) -> np.ndarray:
        """The ranks of some seeds, `(s, q)`, in the order of the queries of another report."""
        reports = [report for seed in seeds if (report := self.results[seed].report) is not None]
        return np.stack([matched_ranks(like, report) for report in reports])


@dataclass(frozen=True)
class Verdict:
    """What the rule says of a row, and on what grounds.

    Args:
        text: the verdict, or what it waits for; empty for the base and for hidden rows.
        seeds: those that the rule asks for so far.
        differences: the arm less the base, and less its control if it has one, in SumR; empty before the seeds are
            finished.
        corrected: the p-value against the base, corrected for the number of arms.
    """

    text: str
    seeds: tuple[int, ...]
    differences: tuple[Difference, ...] = ()
    corrected: float | None = None

    @property
    def base(self) -> Difference | None:
        """The arm less the base."""
        return self.differences[0] if self.differences else None

    @property
    def control(self) -> Difference | None:
        """The arm less its control."""
        return self.differences[1] if len(self.differences) > 1 else None


def finished_row(study: Study, cells: Sequence[Cell]) -> Finished:
    """What a row has left: one cell, or one for each value of a search, of which the best on the split that selects.

    The mean over the seeds with which every value is finished decides; before there is one, nothing is chosen.

    Args:
        study: the results.
        cells: the cells of the row on one data set with one seed; all finished seeds count.
    """
    found: list[Finished] = []
    for cell in cells:
        results, selection = dict[int, Result](), dict[int, float]()
        for one in () if cell.run is None else (replace(cell.run, seed=seed) for seed in study.seeds(cell.run)):
            if (result := study.result(one)) is not None:
                results[one.seed] = result
            if (score := study.selection(one)) is not None:
                selection[one.seed] = score
        found.append(Finished(cell, results, selection))
    if len(found) == 1:
        return found[0]
    common = set.intersection(*(set(one.selection) for one in found))
    if not common:
        return Finished(None, {}, {})
    return max(found, key=lambda one: sum(one.selection[seed] for seed in common))


def verdicts(table: Table, found: Mapping[str, Finished]) -> dict[str, Verdict]:
    """The verdict on every row that is run, by the rule of the table.

    An arm gets the first seed, and is dropped if its gain over the base on the split that selects is at most
    `first_drop`. Otherwise it gets the other seeds. Then it is kept if the 95 % interval of its gain on the reported
    split lies above 0, and dropped if that ends below `least_gain`; else it gets `more_seeds`, once, and is kept if the
    interval lies above 0 then. The same must hold against its control, whatever it gains on the base. Of an arm that
    `removes` a part, the gain is that of the part: the base less the arm. If such an arm has a `base` of its own, it is
    another system, and the verdict says whether it is behind. An arm whose training diverges is dropped; a part without
    which it diverges is kept.

    Args:
        table: with a rule; its first row is the base.
        found: what each row has left, by its name.
    """
    assert table.rule is not None
    base, *arms = [row for row in table.rows if row.kind not in (None, "plot") and not row.hidden]
    judged = {row.name: Verdict("", ()) for row in table.rows if row.kind is not None}
    judged |= {row.name: _verdict(row, table, table.rule, found, base) for row in arms}
    tested = {name: verdict.base.p_value for name, verdict in judged.items() if verdict.base is not None}
    for name, p_value in zip(tested, holm(list(tested.values()), len(arms)), strict=True):
        judged[name] = replace(judged[name], corrected=p_value)
    needed = {name: {*verdict.seeds, *table.seeds[:1]} for name, verdict in judged.items()}
    for row in arms:  # those that it is compared with get the same seeds
        for other in {base.name, row.control or base.name}:
            needed[other] |= set(judged[row.name].seeds)
    order = (*table.seeds, *table.rule.more_seeds)
    return {
        name: replace(verdict, seeds=tuple(seed for seed in order if seed in needed[name]))
        for name, verdict in judged.items()
    }


def _verdict(row: Row, table: Table, rule: Rule, found: Mapping[str, Finished], base: Row) -> Verdict:
    arm, others = found[row.name], [found[name] for name in dict.fromkeys((base.name, row.control or base.name))]
    sign = -1 if row.removes else 1
    kept, dropped = "keep", "drop"
    if row.removes:
        kept, dropped = ("behind", "not behind") if row.base else ("keep the part", "drop the part")
    first, seeds = table.seeds[:1], table.seeds

    def finished(seeds: Sequence[int]) -> bool:
        return all(seed in one.results for one in (arm, *others) for seed in seeds)

    def diverged(seeds: Sequence[int]) -> str:
        for seed in seeds:
            if arm.results[seed].report is None:
                return f"{kept if row.removes else dropped} (diverged, seed {seed})"
            if any(one.results[seed].report is None for one in others):
                return f"open: what it is compared with diverged, seed {seed}"
        return ""

    if not finished(first):
        return Verdict("not finished", first)
    scores = [one.selection.get(first[0]) for one in (arm, others[0])]
    if scores[0] is not None and scores[1] is not None and sign * (scores[0] - scores[1]) <= rule.first_drop:
        return Verdict(f"{dropped} ({sign * (scores[0] - scores[1]):+.1f} in selection, seed {first[0]})", first)
    if not finished(seeds):
        return Verdict("not finished", seeds)
    if why := diverged(seeds):
        return Verdict(why, seeds)
    differences = [_difference(other, arm, seeds) for other in others]
    looks = [_look(one, sign, rule) for one in differences]
    if "open" in looks and "drop" not in looks and rule.more_seeds:
        seeds = (*seeds, *rule.more_seeds)
        if not finished(seeds):
            return Verdict("undecided, more seeds", seeds, tuple(differences))
        if why := diverged(seeds):
            return Verdict(why, seeds)
        differences = [_difference(other, arm, seeds) for other in others]
        looks = [_look(one, sign, rule) for one in differences]
    if looks == ["keep"] * len(looks):
        text = kept
    else:
        why = "control" if looks[0] == "keep" else "" if "drop" in looks else "not shown"
        text = dropped + f" ({why})" * bool(why)
    return Verdict(f"{text}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", seeds, tuple(differences))


def _difference(other: Finished, arm: Finished, seeds: Sequence[int]) -> Difference:
    """The arm less another row, in SumR."""
    like = other.results[seeds[0]].report
    assert like is not None
    return seeds_test(other.ranks(seeds, like), arm.ranks(seeds, like), like.query_to_video)["sumr"]


def _look(difference: Difference, sign: int, rule: Rule) -> str:
    """What the interval of a gain says: keep, drop, or open."""
    low, high = sorted((sign * difference.interval.low, sign * difference.interval.high))
    return "keep" if low > 0 else "drop" if high < rule.least_gain else "open"


def due_cells(study: Study, table: Table, choices: Choices, sets: Sequence[str] | None = None) -> list[Cell]:
    """The cells that a table asks for now: those of its seeds, and with a rule those that the verdicts so far ask for.

    Args:
        study: what is finished.
        table: the table.
        choices: what the user chooses for all rows.
        sets: the data sets; None = those of the table.
    """
    more = () if table.rule is None else table.rule.more_seeds
    cells = cells_of(table, choices, sets=sets, seeds=(*table.seeds, *more))
    if table.rule is None:
        return cells
    asked = {
        (name, row): set(verdict.seeds)
        for name, found in finished_rows(study, [cell for cell in cells if cell.seed == table.seeds[0]])
        for row, verdict in verdicts(table, found).items()
    }
    return [cell for cell in cells if cell.seed in asked.get((cell.set_name, cell.row.name), set(table.seeds))]


def finished_rows(study: Study, cells: Sequence[Cell]) -> Iterator[tuple[str, dict[str, Finished]]]:
    """For each data set, what its rows have left, by their names.

    Args:
        study: the results.
        cells: the cells of one table with one seed.
    """
    for name in dict.fromkeys(cell.set_name for cell in cells):
        rows: dict[str, list[Cell]] = {}
        for cell in cells:
            if cell.set_name == name:
                rows.setdefault(cell.row.name, []).append(cell)
        yield name, {row: finished_row(study, mine) for row, mine in rows.items()}
