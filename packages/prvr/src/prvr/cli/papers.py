"""`prvr papers`: the tables and figures of papers, ours beside the published numbers."""

import os
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, show_next, stdout
from prvr.cli.folders import device_of, open_corpus_of, threads
from prvr.cli.options import Parser, more_keys, one_of, parsed_keys, png_file, positive, whole_number

if TYPE_CHECKING:
    from prvr.papers import Cell, Choices, Failure, Run, Study


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "papers",
        "Reproduce a table or figure of a paper",
        "Run everything that a table or figure of a paper needs, and show our numbers beside the published ones.",
    )
    parser = group.command("list", show_list, "List the tables and figures", "[FILE.yaml ...]")
    parser.add_argument("tables", nargs="*", metavar="FILE.yaml", help="tables of your own (default: those of papers)")
    parser = group.command(
        "plan",
        plan,
        "Show what a table needs, without computing it",
        "TABLE ... [--output STUDY] [--sets NAME ...] [--seeds N ...] [--KEY VALUE ...] [OPTIONS]",
        "Build every configuration of a table and list its runs, with parameters, operations and steps.",
    )
    _add_common(parser)
    parser.add_argument(
        "--measure", action="store_true", help="time a few training steps of each kind here, and estimate the hours"
    )
    parser.add_argument(
        "--commands",
        action="store_true",
        help="print one command a run instead, to be spread over machines; an empty line stands before runs that need "
        "those above",
    )
    parser = group.command(
        "run",
        run,
        "Carry out what a table needs",
        "TABLE ... --output STUDY [--data-root ROOT] [--sets NAME ...] [--seeds N ...] [--KEY VALUE ...] [OPTIONS]",
        "Train and evaluate every row that is not finished. Interrupt it as you like: the same command goes on where "
        "it stopped, and rows that several tables share are computed once.",
    )
    _add_common(parser)
    parser.add_argument("--only", nargs="+", metavar="KEY", help="only these runs, by the keys that `plan` prints")
    parser.option("--jobs", type=positive, metavar="N", default=1, help="how many runs to carry out at a time")
    parser.shared("--threads")
    parser = group.command(
        "show",
        show,
        "Show a table: ours, published, difference",
        "TABLE ... --output STUDY [--sets NAME ...] [--format markdown] [--plot FILE.png]",
        "Print the results of a study, with the spread over its seeds, beside the published numbers.",
    )
    _add_common(parser)
    parser.option("--format", **one_of("terminal", "markdown", "latex"), default="terminal", help="how to print it")
    parser.add_argument(
        "--plot", type=png_file, metavar="FILE.png", help="also draw a sweep, or else the learning curves"
    )
    parser = group.command(
        "pack",
        pack,
        "Write a finished study as one file",
        "STUDY [--output FILE.tar.xz]",
        "Write the results of a study, without run folders, as one compressed file. `show` and `plan` read it like the "
        "folder; to add runs to it, unpack it with `tar -xf`.",
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="the folder of a study")
    parser.add_argument("--output", type=Path, metavar="FILE.tar.xz", help="the file (default: STUDY.tar.xz)")


def _add_common(parser: Parser) -> None:
    parser.add_argument(
        "tables", nargs="+", metavar="TABLE", help="a name from `prvr papers list`, a YAML file, or `all`"
    )
    parser.add_argument("--output", metavar="STUDY", help="the folder of the study, or a file of `prvr papers pack`")
    parser.add_argument(
        "--sets",
        nargs="+",
        metavar="NAME",
        help="only these data sets; `toy` needs no data (default: the paper's)",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=whole_number,
        metavar="N",
        help="the seeds of training (default: those of the table, and of a file of arms those that its rule asks for)",
    )
    parser.add_argument("--data-root", metavar="ROOT", help="the folder that holds the corpora")
    parser.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="SET=COLLECTION",
        help="read this corpus for a data set, if yours has another name; repeat it for more",
    )
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="the folder of converted checkpoints, for rows that need them"
    )
    parser.shared("--device")
    parser.accepts_keys = True


def show_list(args: Namespace) -> None:
    """Prints the tables that ship with prvr, or those of some files."""
    from prvr.evaluation.tables import new_table
    from prvr.papers import read_table, table_names

    printed = new_table("tables and figures", None, ["name", "what", "data sets"], ["rows"])
    for name in args.tables or table_names():
        table = read_table(name)
        rows = [row for row in table.rows if row.kind is not None and not row.hidden]
        printed.add_row(name, table.heading, " ".join(table.sets), str(len(rows)))
    stdout().print(printed)


def plan(args: Namespace) -> None:
    """Prints the runs of tables, or a command for each."""
    from prvr.papers import distinct_runs
    from prvr.papers.plan import plan_table

    choices, study = _choices(args)
    cells = _cells(args, choices, study)
    runs = distinct_runs(cells)
    if not args.commands:
        stdout().print(plan_table(runs, cells, study, device=device_of(args.device), measure=args.measure))
        return
    if study is None:
        raise CommandError("--commands: needs the folder of the study. Pass --output.")
    depth = 0
    for run in runs:
        print("\n" * (run.depth > depth) + shlex.join(["prvr", *_command(args, run)]))
        depth = run.depth


def run(args: Namespace) -> None:
    """Carries out the runs of tables that are not finished."""
    from prvr.papers import distinct_runs

    choices, study = _choices(args)
    if study is None:
        raise CommandError("--output is missing. Pass the folder of a study, new or existing.")
    cells, keys, failures = _cells(args, choices, study), set[str](), list["Failure"]()
    runs = distinct_runs(cells)
    if args.only is not None:
        if unknown := set(args.only) - {run.key for run in runs}:
            raise CommandError(f"--only {' '.join(sorted(unknown))}: no such runs; `prvr papers plan` prints the keys.")
        runs = [run for run in runs if run.key in args.only]
    while not failures and not keys.issuperset(run.key for run in runs):
        failures = _carry_out(args, cells, runs, choices, study)
        keys |= {run.key for run in runs}
        if args.seeds is None and args.only is None:  # what is finished may be a reason for more seeds
            cells = _cells(args, choices, study)
            runs = distinct_runs(cells)
    if failures:
        reasons = "; ".join(f"{failure.run.key}: {failure.reason}" for failure in failures)
        raise CommandError(f"{len(failures)} of {len(runs)} runs are not finished. {reasons}")
    if not args.quiet:
        print(f"{study.results}: {len(runs)} runs, all finished")
        sets = ["--sets", *args.sets] if args.sets else []
        show_next("prvr", "papers", "show", *args.tables, "--output", args.output, *sets)


def _carry_out(
    args: Namespace, cells: "Sequence[Cell]", runs: "Sequence[Run]", choices: "Choices", study: "Study"
) -> "list[Failure]":
    """Carries out the runs that are not finished, and returns those that failed."""
    from prvr.papers import Machine, perform_all, perform_in_processes
    from prvr.training import no_progress, terminal_bar

    for config in {(run.config.data.root, run.config.data.collection): run.config for run in runs}.values():
        open_corpus_of(config, args.quiet)  # a missing one is noticed before the first run
    for run in runs:
        study.expect_same_inputs(run)
    study.begin(choices)
    names = {cell.run.key: cell.label for cell in reversed(cells) if cell.run is not None}

    def announce(number: int, run: "Run") -> None:
        if not args.quiet:
            print(f"[{number}/{len(runs)}] {run.key}  {names.get(run.key, 'needed by other rows')}", flush=True)

    if args.jobs > 1:
        more = ["--threads", str(args.threads or max(1, (os.cpu_count() or 1) // args.jobs)), "-q"]
        return perform_in_processes(runs, study, args.jobs, lambda run: [*_command(args, run), *more], announce)
    progress = no_progress if args.quiet else terminal_bar
    with threads(args.threads):
        return perform_all(runs, study, Machine(device_of(args.device), progress), announce)


def show(args: Namespace) -> None:
    """Prints tables from the results of a study."""
    from prvr.papers import latex, markdown, read_table, shown, terminal_tables
    from prvr.papers.show import course_picture, sweep_picture

    choices, study = _choices(args)
    if study is None or not study.exists:
        raise CommandError("--output: expected a study; `prvr papers run` makes one.")
    for name in _tables(args):
        table = read_table(name)
        args.seeds = table.seeds[:1]  # all finished seeds are shown
        cells = _cells_of(name, args, choices, study)
        parts = list(shown(study, cells, choices))
        for part in parts:
            if args.format != "terminal":
                print(markdown(part) if args.format == "markdown" else latex(part))
                continue
            for printed in terminal_tables(part):
                stdout().print()
                stdout().print(printed)
        if args.plot is not None:
            from prvr.plot import save_figure

            picture = sweep_picture(table, parts) if table.sweep is not None else course_picture(study, cells)
            print(save_figure(picture, args.plot))


def pack(args: Namespace) -> None:
    """Writes a study as one file."""
    from prvr.papers import Study

    study = Study(args.study)
    file = args.output or study.path.with_name(f"{study.path.resolve().name}.tar.xz")
    study.pack(file)
    print(file)


def _tables(args: Namespace) -> list[str]:
    from prvr.papers import table_names

    return table_names() if args.tables == ["all"] else list(args.tables)


def _cells(args: Namespace, choices: "Choices", study: "Study | None") -> "list[Cell]":
    return [cell for name in _tables(args) for cell in _cells_of(name, args, choices, study)]


def _cells_of(name: str, args: Namespace, choices: "Choices", study: "Study | None") -> "list[Cell]":
    """The cells of a table; of several tables, each has those of the chosen sets that it can run on."""
    from prvr.papers import cells_of, due_cells, read_table

    table, sets = read_table(name), args.sets
    if sets is not None and len(_tables(args)) > 1:
        sets = [name for name in sets if table.runs_on(name)]
    if args.seeds is None and study is not None:
        return due_cells(study, table, choices, sets)
    return cells_of(table, choices, sets=sets, seeds=args.seeds or table.seeds)


def _choices(args: Namespace) -> "tuple[Choices, Study | None]":
    """What the command line and the study choose for all rows, and the study."""
    from prvr.papers import Choices, Study

    keys = parsed_keys(more_keys(args))
    corpora = dict[str, str]()
    for text in args.corpus:
        name, equals, collection = text.partition("=")
        if not equals or not collection:
            raise CommandError(f"--corpus {text}: expected SET=COLLECTION, for example tvr=my-tvr.")
        corpora[name] = collection
    root = None if args.data_root is None else str(Path(args.data_root).expanduser().resolve())
    checkpoints = None if args.checkpoints is None else args.checkpoints.expanduser().resolve()
    choices = Choices(keys, corpora, root, checkpoints)
    if args.output is None:
        return choices, None
    study = Study(args.output)
    return study.choices(choices), study


def _command(args: Namespace, run: "Run") -> list[str]:
    """The words after `prvr` that carry out one run."""
    words = ["papers", "run", *args.tables, "--output", args.output, "--seeds", str(run.seed), "--only", run.key]
    if args.sets is not None:
        words += ["--sets", *args.sets]
    for name in ("data_root", "checkpoints"):
        if getattr(args, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    for text in args.corpus:
        words += ["--corpus", text]
    if args.device != "auto":
        words += ["--device", args.device]
    return words + [word for key, value in more_keys(args).items() for word in (f"--{key}", value)]
