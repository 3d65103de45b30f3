"""A table with our numbers beside the published ones: for the terminal, as Markdown, as LaTeX, a sweep as curves."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import mean, stdev
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from prvr.errors import InputError
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import Difference
from prvr.evaluation.tables import TIES, new_table
from prvr.papers.judge import Finished, Verdict, finished_rows, verdicts
from prvr.papers.runs import READY, Cell, Choices
from prvr.papers.study import Study
from prvr.papers.table import COLUMNS, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.plot.figures import Point

_JUDGED = ("cost", "Δ base", "p", "Holm", "Δ control", "verdict")
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
        judged: of an arm, the cells below those headings; of a published row, its source.
    """

    group: str
    name: str
    seeds: tuple[int, ...]
    ours: tuple[Number | None, ...]
    published: tuple[float | None, ...]
    picture: str | None = None
    judged: tuple[str, ...] = ()

    def texts(self) -> list[tuple[str, str, str]]:
        """For each column our number, the published one, and ours less the published one; empty where there is none."""
        return [
            (
                "" if own is None else str(own),
                "" if other is None else f"{other:.1f}",
                "" if own is None or other is None else f"{own.mean - other:+.1f}",
            )
            for own, other in zip(self.ours, self.published, strict=True)
        ]


@dataclass(frozen=True)
class Shown:
    """A table on one data set, ready to be printed.

    Args:
        title: paper, item and data set.
        columns: names of the metrics.
        lines: the rows.
        notes: what a reader must know: protocol, ties, seeds, what is not as in the paper.
        chance: SumR of chance; None where nothing is finished.
        judged: headings of the verdicts, or of the sources of published numbers.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    chance: float | None
    judged: tuple[str, ...] = ()

    @property
    def has_results(self) -> bool:
        """Whether a number is ours."""
        return any(number is not None for line in self.lines for number in line.ours)


def shown(study: Study | None, cells: Sequence[Cell], choices: Choices) -> Iterator[Shown]:
    """The table on each data set, from the results of a study.

    Args:
        study: the results; None shows the published numbers alone.
        cells: the cells of one table with one seed; all finished seeds are shown.
        choices: what was chosen for all rows.
    """
    for name, finished in finished_rows(study, cells):
        visible = [entry for entry in finished.values() if not entry.cell.row.hidden]
        first = visible[0].cell
        table = first.table
        by_rule = verdicts(table, finished) if table.rule else {}
        headings = _JUDGED if table.rule else ("source",) * any(row.source for row in table.rows)
        entries, lines, group = list[Finished](), list[Line](), ""
        for entry in visible:
            row = entry.cell.row
            group = row.group or group
            if not row.quoted or name in row.published:
                judged = _judged(row, by_rule.get(row.name)) if table.rule else (row.source,) * len(headings)
                entries.append(entry)
                lines.append(_line(entry, group, judged))
                group = ""
        reports = (result.report for entry in entries for result in entry.results.values())
        report = next(filter(None, reports), None)
        yield Shown(
            f"{table.heading}. {first.data.title}",
            table.columns,
            tuple(lines),
            tuple(_notes(first, entries, finished, report, choices)),
            None if report is None else report.chance,
            headings,
        )


def _judged(row: Row, verdict: Verdict | None) -> tuple[str, ...]:
    """The cells of a row below `_JUDGED`, empty where no rule judges it."""
    if verdict is None:
        return ("",) * len(_JUDGED)

    def interval(difference: Difference | None) -> str:
        if difference is None:
            return ""
        return f"{difference.value:+.1f} [{difference.interval.low:.1f}, {difference.interval.high:.1f}]"

    cost = "" if row.cost is None else f"{row.cost:.2f}"
    p_values = ("", "") if verdict.base is None else (f"{verdict.base.p_value:.3f}", f"{verdict.corrected:.3f}")
    return (cost, interval(verdict.base), *p_values, interval(verdict.control), verdict.text)


def _line(entry: Finished, group: str, judged: tuple[str, ...]) -> Line:
    row, columns, results = entry.cell.row, entry.cell.table.columns, entry.results.values()
    reports = [result.report for result in results if result.report is not None]
    values = [[x for report in reports if (x := _metric(report, column)) is not None] for column in columns]
    ours = [Number(tuple(each)) if each else None for each in values]
    published = row.published.get(entry.cell.set_name, (None,) * len(columns))
    picture = next((str(result.picture) for result in results if result.picture is not None), None)
    return Line(group, row.name, tuple(entry.results), tuple(ours), published, picture, judged)


def _metric(report: EvaluationReport, column: str) -> float | None:
    """The number of a column; None for moments that were not measured."""
    match column.split("_"):
        case ["v2t", name]:
            metrics = report.video_to_sets or report.video_to_text
        case [task, name, iou]:
            metrics = next((one for one in report.moments if (one.task, str(one.iou)) == (task, iou)), None)
        case _:
            name, metrics = column, report.text_to_video
    return metrics and float(getattr(metrics, name))


def _notes(
    first: Cell,
    entries: Sequence[Finished],
    finished: Mapping[str, Finished],
    report: EvaluationReport | None,
    choices: Choices,
) -> Iterator[str]:
    """The notes below a table.

    Args:
        first: a cell of the table on the data set.
        entries: the rows that are shown.
        finished: all rows, by their names.
        report: one of the results that are shown; None if there is none.
        choices: what was chosen for all rows.
    """
    table, data, rows = first.table, first.data, [entry.cell.row for entry in entries]
    numbers = (number for row in rows for number in row.published.get(first.set_name, ()))
    if data.protocol and any(number is not None for number in numbers):
        yield f"published: {data.protocol}"
    if data.about:
        yield data.about
    config = next((entry.cell.run.config for entry in entries if entry.cell.run is not None), None)
    if report is not None and config is not None:
        protocol = _PROTOCOLS[config.train.protocol]
        if config.train.average:
            protocol = f"mean of the weights at the ends of the last {config.train.average} epochs, none chosen"
        kinds = {result.record["kind"] for entry in entries for result in entry.results.values()}
        yield (
            f"ours: {f'{protocol}; ' * bool(kinds - {*READY})}{report.split}, {len(report.query_ids):,} queries, "
            f"{len(report.video_ids):,} videos; {TIES[report.ties]}; chance SumR {report.chance:.1f}"
        )
    if seeds := {row.name: tuple(entry.results) for row, entry in zip(rows, entries, strict=True) if entry.results}:
        most = max(set(seeds.values()), key=len)
        fewer = [name for name, some in seeds.items() if some != most]
        yield f"seeds {', '.join(map(str, most))}" + (f"; not all of {', '.join(fewer)}" if fewer else "")
    if past := [row.name for row in rows if row.history]:
        yield f"results of code that is not part of this version: {', '.join(past)}"
    if changed := [f"{key}={value}" for key, value in choices.keys.items()]:
        yield f"not as in the paper: {', '.join(changed)}"
    corpus = choices.corpora.get(data.trained_on or first.set_name) or choices.corpora.get(first.set_name)
    if corpus is not None:
        yield f"not the paper's data: the corpus {corpus} stands for {data.title}"
    yield from (f"{row.name}: {row.note}" for row in rows if row.note)
    if table.note:
        yield table.note
    for key, values in table.search.items():
        chosen = {name: entry.cell.value for name, entry in finished.items() if entry.cell.run is not None}
        edges = (values[0], values[-1])
        parts = [f"{name} {value}{' (edge of the search)' * (value in edges)}" for name, value in chosen.items()]
        tried = ", ".join(map(str, values))
        yield f"{key}: of {tried} the best on the split that selects: {', '.join(parts) or 'not finished'}"
    if table.rule:
        yield (
            f"judged against {table.rows[0].name}, the base, in SumR, with 95 % intervals for new videos and new "
            "seeds; Holm: p corrected for the number of arms; cost: processor time of a step, that of the base being 1"
        )
    for entry in entries:
        if failed := [str(seed) for seed, result in entry.results.items() if result.diverged]:
            yield f"{entry.cell.row.name}: the training diverged with seed {', '.join(failed)}, which is omitted"


def terminal_tables(table: Shown) -> Iterator[RenderableType]:
    """For the terminal: in each cell our number, then the published one, then the difference.

    Text to video, video to text and moments are tables of their own, so that each fits 80 columns; the notes stand
    below the last one.
    """
    published = table.has_results and any(number is not None for line in table.lines for number in line.published)
    legend = "in a cell: ours, mean±standard deviation over seeds; published; difference" * published
    headings = [COLUMNS[column] for column in table.columns]
    kinds = [head.rpartition(" ")[0] for head in headings]
    parts = [[place for place, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(kinds)] or [[]]
    for part in parts:
        printed = new_table(table.title, None, [""], [headings[place] for place in part])
        printed.columns[0].min_width = 20
        for line in table.lines:
            if line.group:
                printed.add_row(Text(line.group, "italic"))
            texts = line.texts()
            printed.add_row(Text(line.name), *("\n".join(filter(None, texts[place])) or "-" for place in part))
            if line.picture is not None and part is parts[-1]:
                printed.add_row(Text(f"  {line.picture}"))
        yield printed
    if table.judged:
        printed = new_table("", None, ["", *table.judged])
        for line in table.lines:
            printed.add_row(Text(line.name), *map(Text, line.judged))
        yield printed
    yield Text("\n".join(filter(None, [legend, *table.notes])), "dim italic")


def _rows(table: Shown) -> Iterator[list[str]]:
    """The headings, then every row: in each cell ours, then the published number and the difference in brackets.

    A heading above rows is a row of one cell.
    """
    yield ["", *(COLUMNS[column] for column in table.columns), *table.judged]
    for line in table.lines:
        if line.group:
            yield [line.group]
        cells = [
            (own or "-") + (f" ({other}" + f" ({difference})" * bool(difference) + ")") * bool(other)
            if table.has_results
            else other or "-"
            for own, other, difference in line.texts()
        ]
        yield [line.name, *cells, *line.judged]


def markdown(table: Shown) -> str:
    """As Markdown: in each cell ours, then the published number and the difference in brackets."""
    head, *rows = _rows(table)
    rule = ["---", *["---:"] * len(table.columns), *["---"] * len(table.judged)]
    rows = [row if row[1:] else [f"*{row[0]}*", *[""] * len(head[1:])] for row in rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, rule, *rows)]
    pictures = [f"![{line.name}]({line.picture})\n" for line in table.lines if line.picture is not None]
    return "\n".join([f"**{table.title}**", "", *lines, "", *pictures, *(f"- {note}" for note in table.notes), ""])


def latex(table: Shown) -> str:
    """As a LaTeX table in the style of booktabs, with the cells of the Markdown table."""
    head, *rows = ([_tex(cell) for cell in row] for row in _rows(table))
    group = rf"\multicolumn{{{len(head)}}}{{l}}{{\emph{{%s}}}}"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(table.title)}. {_tex('; '.join(table.notes))}.}}",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}{'l' * len(table.judged)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *((" & ".join(row) if row[1:] else group % row[0]) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash ", "±": r"$\pm$", "~": r"\textasciitilde "}


def _tex(text: str) -> str:
    return text.translate(str.maketrans(_TEX)).replace("->", r"$\to$")


def sweep_picture(table: Table, parts: Sequence[Shown]) -> "Figure":
    """A sweep as curves: the mean and the spread of seeds over `Row.x`, published values, chance.

    Args:
        table: the table.
        parts: the table on each data set; each is a curve, or several if the rows have `series`.

    Raises:
        InputError: the table has no sweep, or no row is finished.
    """
    from prvr.plot import sweep_figure

    if table.sweep is None:
        raise InputError(f"{table.name}: no `sweep` to draw. `prvr train` draws the learning curves of each run.")
    column = table.columns.index(table.sweep.column)
    curves = defaultdict[str, list["Point"]](list)
    swept = sorted(((row.x, row) for row in table.rows if row.x is not None), key=itemgetter(0))
    for part in parts:
        data, lines = part.title.removeprefix(f"{table.heading}. "), {line.name: line for line in part.lines}
        for x, row in swept:
            if (line := lines.get(row.name)) is not None:
                number = line.ours[column]
                point = (x, () if number is None else number.values, line.published[column])
                curves[f"{data}: {row.series}" if row.series else data].append(point)
    if not any(seeds for points in curves.values() for _, seeds, _ in points):
        raise InputError(f"{table.name}: no finished rows to draw. Run the table first.")
    chance = parts[0].chance if len(parts) == 1 and table.sweep.column == "sumr" else None
    return sweep_figure(curves, xlabel=table.sweep.xlabel, ylabel=COLUMNS[table.sweep.column], chance=chance)
