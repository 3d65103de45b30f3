"""A table with our numbers beside the published ones: for the terminal, as Markdown, as LaTeX."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import mean, stdev
from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text

from prvr.errors import InputError
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import Difference
from prvr.evaluation.tables import TIES, new_table
from prvr.papers.judge import Finished, Verdict, finished_rows, verdicts
from prvr.papers.runs import Cell, Choices
from prvr.papers.study import Result, Study
from prvr.papers.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "r100": "R@100", "sumr": "SumR", "rsum": "Rsum"}
_HEADS |= {"mdr": "MdR", "mnr": "MnR"}
_JUDGED = ("cost", "less the base", "p", "Holm", "less its control", "verdict")
_REFERENCES = {"chance", "zero_shot"}
_PROTOCOLS = {
    "paper": "best epoch on the split that is reported",
    "val": "best epoch on the validation split",
    "holdout": "best epoch on training videos that were set aside",
}


@dataclass(frozen=True)
class Number:
    """A metric with every seed of a row, at least one; it is shown as mean ± sample standard deviation."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.values)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f"±{stdev(self.values):.1f}" if len(self.values) > 1 else "")


@dataclass(frozen=True)
class Line:
    """A row as it is shown.

    Args:
        group: heading above it; empty for none.
        name: of the row.
        seeds: those with which it is finished.
        ours: a number for each column; None where the row is not finished, or runs nothing.
        published: a number for each column, None where the paper prints none.
        picture: the file of a row that draws.
        x: place in a sweep.
        series: curve of a sweep.
        judged: of an arm, what stands below those headings.
    """

    group: str
    name: str
    seeds: tuple[int, ...]
    ours: tuple[Number | None, ...]
    published: tuple[float | None, ...]
    picture: str | None = None
    x: float | None = None
    series: str = ""
    judged: tuple[str, ...] = ()

    def differences(self) -> list[float | None]:
        """Ours less the published number, for each column."""
        pairs = zip(self.ours, self.published, strict=True)
        return [None if own is None or other is None else own.mean - other for own, other in pairs]


@dataclass(frozen=True)
class Shown:
    """A table on one data set, ready to be printed.

    Args:
        title: paper, item and data set.
        columns: names of the metrics.
        lines: the rows.
        notes: what a reader must know: protocol, ties, seeds, what is not as in the paper.
        chance: SumR of chance; None where nothing is finished.
        judged: headings of what is said of arms; empty for other tables.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    chance: float | None
    judged: tuple[str, ...] = ()


def shown(study: Study, cells: Sequence[Cell], choices: Choices) -> Iterator[Shown]:
    """The table on each data set, from what a study holds.

    Args:
        study: the results.
        cells: the cells of one table with one seed; all finished seeds are shown.
        choices: what was chosen for all rows.
    """
    for name, found in finished_rows(study, cells):
        mine = [cell for cell in cells if cell.set_name == name]
        table, rows = mine[0].table, {cell.row.name: cell for cell in mine if not cell.row.hidden}
        lines = [_line(cell, found[row].results, table.columns) for row, cell in rows.items()]
        if table.rule is not None:
            said = verdicts(table, found)
            lines = [replace(line, judged=_judged(line.name, table, study, found, said)) for line in lines]
        finished = [result for row in rows for result in found[row].results.values()]
        reports = [result.report for result in finished if result.report]
        yield Shown(
            f"{table.heading}. {mine[0].data.title}",
            table.columns,
            tuple(lines),
            (*_notes(list(rows.values()), lines, finished, choices), *_chosen(table, found), *_diverged(rows, found)),
            reports[0].chance if reports else None,
            _JUDGED if table.rule is not None else (),
        )


def _judged(
    name: str, table: Table, study: Study, found: Mapping[str, Finished], said: Mapping[str, Verdict]
) -> tuple[str, ...]:
    """What is said of an arm, below `_JUDGED`."""
    if (verdict := said.get(name)) is None:
        return ("",) * len(_JUDGED)
    costs = [_cost(study, found[row]) for row in (name, table.rows[0].name)]
    cost = table.row(name).cost if costs[0] is None or costs[1] is None else costs[0] / costs[1]
    numbers = [None if verdict.base is None else verdict.base.p_value, verdict.corrected]
    shown = ["" if number is None else f"{number:.3f}" for number in numbers]
    base, control = _interval(verdict.base), _interval(verdict.control)
    return ("" if cost is None else f"{cost:.2f}", base, *shown, control, verdict.text)


def _cost(study: Study, row: Finished) -> float | None:
    """Processor seconds of a training step, the mean over the seeds whose run folders are at hand."""
    if row.cell is None or row.cell.run is None:
        return None
    costs = [study.cost(replace(row.cell.run, seed=seed)) for seed in row.results]
    return mean(known) if (known := [cost for cost in costs if cost is not None]) else None


def _interval(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return f"{difference.value:+.1f} [{difference.interval.low:.1f}, {difference.interval.high:.1f}]"


def _chosen(table: Table, found: Mapping[str, Finished]) -> Iterator[str]:
    """The values of a search that were chosen, and what the columns of verdicts mean."""
    for key, values in table.search.items():
        chosen = {name: one.cell.value for name, one in found.items() if one.cell is not None and one.cell.run}
        edges = (values[0], values[-1])
        parts = [f"{name} {value}{' (edge of the search)' * (value in edges)}" for name, value in chosen.items()]
        tried = ", ".join(map(str, values))
        yield f"{key}: of {tried} the best on the split that selects: {', '.join(parts) or 'not finished'}"
    if table.rule is not None:
        yield (
            f"judged against {table.rows[0].name}, the base, in SumR, with 95 % intervals for new videos and new "
            "seeds; Holm: p corrected for the number of arms; cost: processor time of a step, that of the base being 1"
        )


def _diverged(rows: Iterable[str], found: Mapping[str, Finished]) -> Iterator[str]:
    """The rows of which some seed is missing because its training diverged."""
    for row in rows:
        if seeds := [seed for seed, result in found[row].results.items() if "diverged" in result.record]:
            yield f"{row}: the training diverged with seed {', '.join(map(str, seeds))}, which is left out"


def _line(cell: Cell, found: Mapping[int, Result], columns: Sequence[str]) -> Line:
    row, reports = cell.row, [result.report for result in found.values() if result.report is not None]
    ours = [Number(tuple(_metric(report, column) for report in reports)) if reports else None for column in columns]
    published = row.published.get(cell.set_name, (None,) * len(columns))
    picture = next((str(result.picture) for result in found.values() if result.picture is not None), None)
    return Line(row.group, row.name, tuple(found), tuple(ours), published, picture, row.x, row.series)


def _metric(report: EvaluationReport, column: str) -> float:
    name = column.removeprefix("v2t_")
    if name == column:
        return float(getattr(report.text_to_video, name))
    return float(getattr(report.video_to_sets or report.video_to_text, name))


def _notes(cells: Sequence[Cell], lines: Sequence[Line], finished: Sequence[Result], choices: Choices) -> Iterator[str]:
    table, data = cells[0].table, cells[0].data
    if data.protocol:
        published = any(cells[0].set_name in row.published for row in table.rows)
        yield "published: " * published + data.protocol
    config = next((cell.run.config for cell in cells if cell.run is not None), None)
    reports = [result.report for result in finished if result.report is not None]
    if reports and config is not None:
        chosen = any(result.record["kind"] != "checkpoint" for result in finished)
        kept = _PROTOCOLS[config.train.protocol]
        if config.train.average:
            kept = f"mean of the weights at the ends of the last {config.train.average} epochs, none chosen"
        sizes = f"{len(reports[0].query_ids):,} queries, {len(reports[0].video_ids):,} videos"
        yield (
            f"ours: {f'{kept}; ' * chosen}{reports[0].split}, {sizes}; ties count "
            f"{TIES[reports[0].ties]}; chance SumR {reports[0].chance:.1f}"
        )
    seeds = {line.seeds for line in lines if line.seeds}
    if seeds:
        most = max(seeds, key=len)
        fewer = [line.name for line in lines if line.seeds and line.seeds != most]
        yield f"seeds {', '.join(map(str, most))}" + (f"; not all of {', '.join(fewer)}" if fewer else "")
    changed = [f"{key}={value}" for key, value in choices.keys.items()]
    if changed:
        yield f"not as in the paper: {', '.join(changed)}"
    corpus = choices.corpora.get(data.trained_on or cells[0].set_name) or choices.corpora.get(cells[0].set_name)
    if corpus is not None:
        yield f"not the paper's data: the corpus {corpus} stands for {data.title}"
    yield from (f"{cell.row.name}: {cell.row.note}" for cell in cells if cell.row.note)
    if table.note:
        yield table.note


def heads(columns: Sequence[str]) -> list[str]:
    """The headings of columns.

    Examples:
        >>> heads(["r1", "v2t_mdr"])
        ['R@1', 'V2T MdR']
    """
    return [("V2T " if column.startswith("v2t_") else "") + _HEADS[column.removeprefix("v2t_")] for column in columns]


def terminal_tables(table: Shown) -> Iterator[RichTable]:
    """For the terminal: in each cell our number, then the published one, then the difference.

    Text to video and video to text are tables of their own, so that each fits 80 columns; the notes stand below the
    last one.
    """
    beside = any(number is not None for line in table.lines for number in line.published)
    legend = "in a cell: ours, mean±standard deviation over seeds; published; difference" if beside else ""
    caption = Text("\n".join(filter(None, [legend, *table.notes])), justify="left")
    places = range(len(table.columns))
    ways = [[place for place in places if table.columns[place].startswith("v2t_") == back] for back in (False, True)]
    shown = [way for way in ways if way] or [[]]
    for way in shown:
        last = way is shown[-1] and not table.judged
        made = new_table(table.title, caption if last else None, [""], heads([table.columns[place] for place in way]))
        made.columns[0].min_width = 20
        for line in table.lines:
            if line.group:
                made.add_row(Text(line.group, "italic"))
            made.add_row(Text(line.name), *(_cell(line, place) for place in way))
            if line.picture is not None and way is shown[-1]:
                made.add_row(Text(f"  {line.picture}"))
        yield made
    if table.judged:
        made = new_table("", caption, ["", *table.judged])
        for line in table.lines:
            made.add_row(Text(line.name), *map(Text, line.judged))
        yield made


def _cell(line: Line, place: int) -> Text:
    """Our number, then the published one and the difference, as far as there are any."""
    own, other, difference = line.ours[place], line.published[place], line.differences()[place]
    parts = [] if own is None else [str(own)]
    text = Text("\n".join(parts))
    if other is not None:
        text.append("\n" * bool(parts) + f"{other:g}", "dim")
    if difference is not None:
        text.append(f"\n{difference:+.1f}", "dim")
    return text if text.plain else Text("-")


def markdown(table: Shown) -> str:
    """As Markdown: one line a row, in each cell ours, then the published number and the difference in brackets."""
    lines = [f"**{table.title}**", "", _piped(["", *heads(table.columns), *table.judged])]
    lines.append(_piped(["---", *["---:"] * len(table.columns), *["---"] * len(table.judged)]))
    for line in table.lines:
        if line.group:
            lines.append(_piped([f"*{line.group}*", *[""] * len(table.columns + table.judged)]))
        cells = []
        for own, other, difference in zip(line.ours, line.published, line.differences(), strict=True):
            beside = "" if other is None else f" ({_published(other, difference)})"
            cells.append(("-" if own is None else str(own)) + beside)
        lines.append(_piped([line.name, *cells, *line.judged]))
    pictures = [f"![{line.name}]({line.picture})\n" for line in table.lines if line.picture is not None]
    return "\n".join([*lines, "", *pictures, *(f"- {note}" for note in table.notes), ""])


def latex(table: Shown) -> str:
    """As a LaTeX table in the style of booktabs: a line of ours, and one of published numbers, for each row."""
    width, aligned = len(table.columns + table.judged) + 1, "r" * len(table.columns) + "l" * len(table.judged)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}. {_tex('; '.join(table.notes))}.}}",
        rf"\begin{{tabular}}{{l{aligned}}}",
        r"\toprule",
        " & ".join(["", *map(_tex, [*heads(table.columns), *table.judged])]) + r" \\",
        r"\midrule",
    ]
    for line in table.lines:
        if line.group:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_tex(line.group)}}}}} \\")
        if line.seeds:
            own = ["--" if number is None else _tex(str(number)) for number in line.ours]
            lines.append(" & ".join([_tex(line.name), *own, *map(_tex, line.judged)]) + r" \\")
        if any(number is not None for number in line.published):
            name = r"\quad published" if line.seeds else f"{_tex(line.name)}, published"
            other = ["--" if number is None else f"{number:g}" for number in line.published]
            lines.append(" & ".join([name, *other]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _published(number: float | None, difference: float | None) -> str:
    shown = "" if number is None else f"{number:g}"
    return shown + ("" if difference is None else f" ({difference:+.1f})")


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _tex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("±", r"$\pm$").replace("->", r"$\to$").replace("~", r"\textasciitilde ")


def sweep_picture(table: Table, shown: Sequence[Shown]) -> "Figure":
    """A sweep as curves: the mean and the spread of seeds over `Row.x`, published values, chance.

    Args:
        table: one with a `sweep`.
        shown: the table on each data set; each is a curve, or several if the rows have `series`.

    Raises:
        InputError: no row is finished.
    """
    from prvr.plot import Curve, sweep_figure

    assert table.sweep is not None
    column = table.columns.index(table.sweep.column)
    curves: dict[str, Curve] = {}
    for one in shown:
        data = one.title.rpartition(". ")[2]
        for series in dict.fromkeys(line.series for line in one.lines if line.x is not None):
            lines = sorted(
                ((line.x, line) for line in one.lines if line.x is not None and line.series == series), key=_x
            )
            numbers = [line.ours[column] for _, line in lines]
            curves[f"{data}: {series}" if series else data] = Curve(
                [x for x, _ in lines],
                [() if number is None else number.values for number in numbers],
                [line.published[column] for _, line in lines],
            )
    if not any(len(values) for curve in curves.values() for values in curve.values):
        raise InputError(f"{table.name}: no row of it is finished, there is nothing to draw. Run it first.")
    chance = shown[0].chance if len(shown) == 1 and table.sweep.column == "sumr" else None
    return sweep_figure(curves, xlabel=table.sweep.xlabel, ylabel=heads([table.sweep.column])[0], chance=chance)


def _x(pair: tuple[float, Line]) -> float:
    return pair[0]


def course_picture(study: Study, cells: Sequence[Cell]) -> "Figure":
    """Learning curves of a table's rows: SumR after each epoch on the split that selects, the mean and all seeds.

    Args:
        study: the results.
        cells: the cells of the table with one seed; those of the first data set that something was trained on are
            drawn, of a search those with the value that was chosen.

    Raises:
        InputError: no row that trains is finished.
    """
    from prvr.plot import Curve, sweep_figure

    for name, found in finished_rows(study, cells):
        rows = {
            row: [one.record["course"] for one in about.results.values() if one.record.get("course")]
            for row, about in found.items()
        }
        rows = {row: courses for row, courses in rows.items() if courses}
        if not rows:
            continue
        curves = dict[str, Curve]()
        for row, courses in rows.items():
            epochs = list(zip_longest(*(course["sumr"] for course in courses)))
            values = [[value for value in epoch if value is not None] for epoch in epochs]
            curves[row] = Curve(range(1, len(epochs) + 1), values)
        title = next(cell.data.title for cell in cells if cell.set_name == name)
        known = {
            key: course[key] for courses in rows.values() for course in courses for key in _REFERENCES & course.keys()
        }
        return sweep_figure(curves, xlabel="epoch", ylabel="SumR on the split that selects", title=title, **known)
    raise InputError(f"{cells[0].table.name}: no row of it was trained, there is nothing to draw. Run it first.")
