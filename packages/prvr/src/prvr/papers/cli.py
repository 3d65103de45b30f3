"""`prvr papers`: the tables and figures of papers, ours next to the published numbers."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from prvr import papers
from prvr.cli.console import CommandError, import_options, is_quiet, show_next, stdout
from prvr.cli.folders import check_corpus, device_of, open_corpus_of, threads
from prvr.cli.options import Device, Keys, PictureFile, Several, Threads, Whole, import_listed, parsed_keys

group = App(name="papers")
_TABLE = Parameter(name="TABLE", help="a name from `prvr papers list`, a YAML file, or `all`", required=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Selection:
    """The options that choose the runs of tables.

    Args:
        output: the folder of the study, new or existing, or a file written by `prvr papers pack`
        sets: only these data sets; `toy` needs no data (default: the paper's)
        seeds: the seeds of training (default: those of the table, and of a file of arms those that its rule asks for)
        data_root: the folder of the corpora
        corpus: read this corpus for a data set, if yours has another name; can be repeated
        checkpoints: the folder of converted checkpoints, for rows that need them
    """

    output: Annotated[str | None, Parameter(metavar="STUDY")] = None
    sets: Annotated[list[str] | None, Several, Parameter(metavar="NAME")] = None
    seeds: Annotated[list[Whole] | None, Several, Parameter(metavar="N")] = None
    data_root: Annotated[str | None, Parameter(metavar="ROOT")] = None
    corpus: Annotated[list[str], Parameter(metavar="SET=COLLECTION")] = field(default_factory=list)
    checkpoints: Annotated[Path | None, Parameter(metavar="DIR")] = None
    device: Device = "auto"


@group.command(name="list")
def list_tables(*tables: Annotated[str, Parameter(metavar="FILE.yaml")]) -> None:
    """List the tables and figures.

    Args:
        tables: tables of your own (default: those of papers)
    """
    from prvr.evaluation.tables import new_table

    listing = new_table("tables and figures", None, ["name", "what", "data sets"], ["rows"])
    listing.columns[0].no_wrap = not tables  # names, not paths
    _import_parts_of(tables)
    for name in tables or papers.table_names():
        table = papers.read_table(name)
        rows = [row for row in table.rows if row.kind is not None and not row.hidden]
        listing.add_row(name, table.heading, " ".join(table.sets), str(len(rows)))
    stdout().print(listing)


@group.command
def plan(
    *tables: Annotated[str, _TABLE],
    args: Selection = Selection(),
    measure: bool = False,
    commands: bool = False,
    keys: Keys,
) -> None:
    """Show what a table needs, without computing it.

    Build every configuration of a table and list its runs, with parameters, operations and steps.

    Args:
        measure: time a few training steps of each kind on this machine, and estimate the hours
        commands: print one command per run instead, to be spread over machines; an empty line separates runs from those
            that need them
    """
    from prvr.papers.plan import plan_table

    selected = _Selected(args, tables, keys)
    cells = selected.cells()
    runs = papers.distinct_runs(cells)
    if not commands:
        stdout().print(plan_table(runs, cells, selected.study, device=device_of(args.device), measure=measure))
        return
    if selected.study is None:
        raise CommandError("--commands: needs the folder of the study. Pass --output.")
    selected.study.begin(selected.choices)  # so that commands that start at once find it
    depth = 0
    for run in runs:
        print("\n" * (run.depth > depth) + shlex.join(["prvr", *selected.command(run)]))
        depth = run.depth


@group.command
def run(
    *tables: Annotated[str, _TABLE],
    args: Selection = Selection(),
    only: Annotated[list[str] | None, Several, Parameter(metavar="KEY")] = None,
    thread_count: Annotated[Threads, Parameter(name="--threads")] = None,
    keys: Keys,
) -> None:
    """Train and evaluate what a table needs.

    Train and evaluate every row that is not finished. Interrupt it at any time: the same command continues where it
    stopped. Rows that several tables share are computed once.

    Args:
        only: only these runs, by the keys that `plan` prints
    """
    from prvr.training import no_progress, terminal_bar

    selected = _Selected(args, tables, keys)
    study = selected.study
    if study is None:
        raise CommandError("--output is missing. Pass the folder of a study, new or existing.")
    names, done, failures = dict[str, str](), set[str](), dict[str, str]()

    def announce(number: int, run: "papers.Run") -> None:
        if not is_quiet():
            print(f"[{number}/{len(runs)}] {run.key}  {names.get(run.key, 'needed by other rows')}", flush=True)

    machine = papers.Machine(device_of(args.device), no_progress if is_quiet() else terminal_bar)
    while True:
        cells = selected.cells()  # what is finished may be a reason for more seeds
        runs = papers.distinct_runs(cells)
        names = {cell.run.key: cell.label for cell in reversed(cells) if cell.run is not None}
        if only is not None:
            if unknown := set(only) - {run.key for run in runs}:
                raise CommandError(
                    f"--only {' '.join(sorted(unknown))}: no such runs; `prvr papers plan` prints the keys."
                )
            runs = [run for run in runs if run.key in only]
        if failures or done.issuperset(run.key for run in runs):
            break
        for config in {(run.config.data.root, run.config.data.collection): run.config for run in runs}.values():
            check_corpus(open_corpus_of(config))  # a missing or damaged one is noticed before the first run
        study.expect_same_inputs(runs)
        study.begin(selected.choices)
        with threads(thread_count):
            failures = papers.perform_all(runs, study, machine, announce)
        done |= {run.key for run in runs}
    if failures:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in failures.items())
        raise CommandError(f"{len(failures)} of {len(runs)} runs are not finished. {reasons}")
    if not is_quiet():
        print(f"{study.results}: {len(runs)} runs, all finished")
        sets_option = ["--sets", *args.sets] if args.sets else []
        show_next("prvr", "papers", "show", *tables, "--output", args.output, *sets_option)


@group.command
def show(
    *tables: Annotated[str, _TABLE],
    args: Selection = Selection(),
    format: Literal["terminal", "markdown", "latex"] = "terminal",
    plot: PictureFile | None = None,
    keys: Keys,
) -> None:
    """Show a table: ours, published, difference.

    Print the results of a study, with the spread over its seeds, next to the published numbers; without --output, the
    published numbers alone.

    Args:
        format: how to print it
        plot: also draw a sweep as curves
    """
    from prvr.papers.show import sweep_picture

    selected = _Selected(args, tables, keys)
    if selected.study is not None and not selected.study.exists:
        raise CommandError("--output: expected a study; `prvr papers run` makes one.")
    for name in selected.tables:
        table = papers.read_table(name)
        cells = selected.cells_of(name, table.seeds[:1])  # all finished seeds are shown
        parts = list(papers.shown(selected.study, cells, selected.choices))
        for part in parts:
            if format != "terminal":
                print(papers.markdown(part) if format == "markdown" else papers.latex(part))
                continue
            for printed in papers.terminal_tables(part):
                stdout().print()
                stdout().print(printed)
        if plot is not None:
            from prvr.plot import save_figure

            print(save_figure(sweep_picture(table, parts), plot))


@group.command
def pack(study: Path, /, *, output: Annotated[Path | None, Parameter(metavar="FILE.tar.xz")] = None) -> None:
    """Write a finished study as one file.

    Write the results of a study, without run folders, as one compressed file. `show` and `plan` read it like the
    folder; to add runs to it, unpack it with `tar -xf`.

    Args:
        study: the folder of a study
        output: the file (default: STUDY.tar.xz)
    """
    opened = papers.Study(study)
    file = output or opened.path.with_name(f"{opened.path.resolve().name}.tar.xz")
    opened.pack(file)
    print(file)


def _import_parts_of(tables: Sequence[str]) -> None:
    for name in tables:
        import_listed(name, any_of=frozenset(("rows", "arms")))


class _Selected:
    """The tables of a command, its choices, and its study.

    Args:
        args: the options of the command.
        tables: names of tables, YAML files, or `all`.
        keys: keys of the configuration of every run, with their values.
    """

    def __init__(self, args: Selection, tables: Sequence[str], keys: Mapping[str, str]) -> None:
        self.args, self.table_args, self.keys = args, tables, keys
        _import_parts_of(tables)
        self.tables = papers.table_names() if tables == ("all",) else list(tables)
        corpora = dict[str, str]()
        for text in args.corpus:
            name, equals, collection = text.partition("=")
            if not equals or not collection:
                raise CommandError(f"--corpus {text}: expected SET=COLLECTION, for example tvr=my-tvr.")
            corpora[name] = collection
        choices = papers.Choices(parsed_keys(keys), corpora, args.data_root, args.checkpoints)
        self.study = None if args.output is None else papers.Study(args.output)
        self.choices = choices if self.study is None else self.study.choices(choices)

    def cells(self) -> "list[papers.Cell]":
        """The cells of all tables."""
        return [cell for name in self.tables for cell in self.cells_of(name, self.args.seeds)]

    def cells_of(self, name: str, seeds: Sequence[int] | None) -> "list[papers.Cell]":
        """The cells of a table; of several tables, each has those of the chosen sets that it can run on."""
        table, sets = papers.read_table(name), self.args.sets
        if sets is not None and len(self.tables) > 1:
            sets = [name for name in sets if table.runs_on(name)]
        if seeds is None and self.study is not None:
            return papers.due_cells(self.study, table, self.choices, sets)
        return papers.cells_of(table, self.choices, sets=sets, seeds=seeds or table.seeds)

    def command(self, run: "papers.Run") -> list[str]:
        """The words after `prvr` that perform one run."""
        args = {name.replace("_", "-"): value for name, value in vars(self.args).items() if value not in (None, "auto")}
        words = ["papers", "run", *self.table_args]
        for name, value in {**args, "seeds": run.seed, "only": run.key, **self.keys}.items():
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(each)]
        return words + import_options()
