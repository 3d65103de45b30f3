"""What every benchmark is made of: options, contenders in processes of their own, times with their spread, tables.

    comparison = compare([Contender("loops", make_loops, (32,)), Contender("ours", make_ours, (32,))], rounds=5)
    show("losses", ["loss", "loops / ours"], [[task, comparison.ratio(task, "loops", "ours")] for task in comparison])

A contender is a function at the top of a module that makes what is timed: named callables. It is made once, in a fresh
process. Then the contenders take turns, task by task and round by round, while all others wait, so that whatever else
the machine does meets all of them. `torch.utils.benchmark` times a callable. A ratio is taken within a round; what is
printed is the median over the rounds with the lowest and the highest.
"""

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils import benchmark

ROOT = Path(__file__).resolve().parent.parent
LEAST_SECONDS = 0.2
"""How long a callable is repeated in a round; one that takes longer runs twice, to warm up and to be timed."""

Tasks = Mapping[str, Callable[[], Any]]
Measured = Mapping[str, float]


def option(default: Any, help: str | None = None, **more: Any) -> dict[str, Any]:
    """An option of `parse_options` with a help text, choices and the like: keyword arguments of `add_argument`."""
    return {"default": default, "help": help, **more}


def parse_options(doc: str | None, parse: Sequence[str] | None = None, **options: Any) -> argparse.Namespace:
    """Options of a benchmark from the command line, those that all have included; sets threads and seed.

    Args:
        doc: the benchmark's docstring, which is the help text.
        parse: the words of the command line; None takes those of this process.
        options: the name of each option with its default value or an `option`. A list takes several values, False makes
            a switch, a Path or a number is parsed as such; None stands for a string that need not be given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = {
        "threads": option(1, "threads that torch uses on the CPU"),
        "seed": option(0, "seed of torch's generator"),
        "json": option(None, "file to write the figures and the environment to", type=Path),
    }
    for name, value in (common | options).items():
        settings = dict(value) if isinstance(value, dict) else {"default": value}
        default = settings["default"]
        if default is False:
            settings["action"] = "store_true"
        elif isinstance(default, list):
            settings.setdefault("nargs", "*" if not default else "+")
            settings.setdefault("type", type(default[0]) if default else str)
        elif default is not None and "action" not in settings:
            settings.setdefault("type", type(default))
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    args = parser.parse_args(parse)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return args


def environment(device: str = "cpu") -> str:
    """What the figures depend on: commit, versions, processor and threads, in one line."""
    describe, commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], ""
    with suppress(OSError):  # git is not everywhere
        commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    where = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else platform.machine()
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} threads"
    return f"{commit or 'no commit'}, torch {torch.__version__}, Python {platform.python_version()}, {where}, {threads}"


def synchronise(device: torch.device | str) -> None:
    """Waits for a GPU; there is nothing to wait for elsewhere."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def clock(device: torch.device | str = "cpu") -> Callable[[], float]:
    """The clock to measure with.

    On a CPU with one thread this is the time of the processor, which other programs of a shared machine lengthen less.
    """
    if torch.device(device).type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time
    return time.perf_counter


def seconds(run: Callable[[], Any], device: torch.device | str = "cpu") -> tuple[Any, float]:
    """What one call returns, and how long it took with everything it started."""
    now = clock(device)
    synchronise(device)
    start = now()
    result = run()
    synchronise(device)
    return result, now() - start


def timed(run: Callable[[], Any]) -> Measured:
    """Median seconds of a call, by torch.utils.benchmark, which waits for a GPU where one is in use."""
    own = {"timer": time.process_time} if clock() is time.process_time and not torch.cuda.is_initialized() else {}
    timer = benchmark.Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads(), **own)
    return {"seconds": timer.blocked_autorange(min_run_time=LEAST_SECONDS).median}


def returned(run: Callable[[], Any]) -> Measured:
    """What a task measures itself: it returns named numbers."""
    return run()


def percentiles(times: Sequence[float]) -> Measured:
    """The median of some times, and what 95 of 100 do not exceed."""
    return {f"p{p}": float(np.percentile(times, p)) for p in (50, 95)}


def memory(device: torch.device | str = "cpu") -> int:
    """The most bytes so far: of the GPU, or of this process, pages of mapped files included."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sizes := memory_of("self"):
        return sizes["VmHWM"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak(run: Callable[[], Any], device: torch.device | str = "cpu") -> tuple[Any, int]:
    """What one call returns, and the most bytes: of the GPU during the call, or of this process so far."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return run(), memory(device)


def memory_of(process: int | str) -> dict[str, int]:
    """Bytes of a process of Linux: the most it had (VmHWM), and what it has without mapped files (RssAnon)."""
    try:  # not getrusage, whose peak a process inherits from the one that started it
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {name: 1024 * int(fields[name].split()[0]) for name in ("VmHWM", "RssAnon")}


@dataclass(frozen=True)
class Contender:
    """A way of doing what is compared.

    Args:
        name: as tables show it.
        make: a function at the top of a module that returns named callables; it is called once, in a new process.
        arguments: what `make` is called with; they are pickled.
        sources: folders to put first on that process's module path, to measure another checkout.
    """

    name: str
    make: Callable[..., Tasks]
    arguments: tuple[Any, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """A median with the lowest and the highest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        places = max(2, 1 - math.floor(math.log10(abs(self.median)))) if 0 < abs(self.median) < 1 else 2
        return f"{self.median:.{places}f} ({self.low:.{places}f}-{self.high:.{places}f})"


@dataclass(frozen=True)
class Comparison:
    """All measurements: by task, by contender, one for each round."""

    measured: Mapping[str, Mapping[str, Sequence[Measured]]]

    def __iter__(self) -> Iterator[str]:
        """The tasks."""
        return iter(self.measured)

    def values(self, task: str, contender: str, what: str = "seconds") -> list[float]:
        """One number for each round."""
        return [figures[what] for figures in self.measured[task][contender]]

    def ratio(self, task: str, slow: str, fast: str, what: str = "seconds") -> Spread:
        """`slow` over `fast`, each within its round."""
        pairs = zip(self.values(task, slow, what), self.values(task, fast, what), strict=True)
        return Spread.of([a / b for a, b in pairs])

    def figures(self) -> dict[str, Any]:
        """All measurements as plain dictionaries and lists, for JSON."""
        return {
            task: {name: list(map(dict, rounds)) for name, rounds in by.items()} for task, by in self.measured.items()
        }


def compare(
    contenders: Sequence[Contender],
    *,
    rounds: int = 5,
    measure: Callable[[Callable[[], Any]], Measured] = timed,
    threads: int = 1,
    last: Sequence[str] = (),
) -> Comparison:
    """Measures every task of every contender in every round, one at a time.

    Args:
        contenders: what is compared, each under its own name; a task that one of them lacks is not measured for it.
        rounds: how often each task is measured.
        measure: `timed`, or `returned` where the tasks return numbers.
        threads: how many threads torch uses in each process.
        last: tasks to measure once, after all other measurements.
    """
    with ExitStack() as stack:
        lanes = {each.name: stack.enter_context(_process(each.sources, threads)) for each in contenders}
        tasks = {each.name: lanes[each.name].submit(_make, each).result() for each in contenders}
        measured: dict[str, dict[str, list[Measured]]] = {}
        names = dict.fromkeys(task for contender_tasks in tasks.values() for task in contender_tasks)
        usual = [task for task in names if task not in last]
        for task in [*usual * rounds, *last]:
            for name, lane in lanes.items():
                if task in tasks[name]:
                    figures = lane.submit(_measure, task, measure).result()
                    measured.setdefault(task, {}).setdefault(name, []).append(figures)
    return Comparison(measured)


def alone(function: Callable[..., Any], *arguments: Any, threads: int = 1) -> Any:
    """What a function at the top of a module returns in a process of its own, whose memory is its alone."""
    with _process((), threads) as lane:
        return lane.submit(function, *arguments).result()


def _process(sources: Sequence[str], threads: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _begin, (tuple(sources), threads))


def _begin(sources: Sequence[str], threads: int) -> None:
    sys.path[:0] = sources
    torch.set_num_threads(threads)


_TASKS: dict[str, Callable[[], Any]] = {}
"""The tasks of the contender whose process this is."""


def _make(contender: Contender) -> list[str]:
    torch.manual_seed(0)
    _TASKS.update(contender.make(*contender.arguments))
    return list(_TASKS)


def _measure(task: str, measure: Callable[[Callable[[], Any]], Measured]) -> Measured:
    return measure(_TASKS[task])


def show(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], *, note: str | None = None) -> None:
    """Prints a table that can be pasted into a page, numbers to the right."""
    table = Table(box=box.MARKDOWN)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row))
    print(f"\n{title}")
    Console(width=320, highlight=False, markup=False).print(table)
    print(f"{note or ''}", flush=True)


def show_imports(statements: Mapping[str, str], rounds: int) -> None:
    """Times of imports over that of torch alone, each in a fresh process between two that import torch."""
    rows = []
    for name, statement in statements.items():
        ratios = []
        for _ in range(rounds):
            first, ours, last = (_import_time(each)[0] for each in ("", statement, ""))
            ratios.append(2 * ours / (first + last))
        added = [each for each in _import_time(statement)[1] if each not in sys.stdlib_module_names and each[0] != "_"]
        rows.append([name, Spread.of(ratios), ", ".join(added) if len(added) <= 6 else f"{len(added)} packages"])
    show("time of an import over that of torch alone", ["import", "median (lowest-highest)", "packages added"], rows)


def _import_time(statement: str) -> tuple[float, list[str]]:
    code = (
        "import sys, time; start = time.process_time(); import torch; before = set(sys.modules)\n"
        f"{statement}\nend = time.process_time(); "
        "print(end - start, *sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    time_taken, *added = done.stdout.split()
    return float(time_taken), added


def write_figures(options: argparse.Namespace, figures: Any) -> None:
    """Writes figures and environment as JSON where `--json` names a file."""
    if options.json is not None:
        body = {"environment": environment(getattr(options, "device", "cpu")), "figures": figures}
        text = json.dumps(
            body, indent=2, default=lambda value: vars(value) if isinstance(value, Spread) else str(value)
        )
        options.json.write_text(text + "\n", encoding="utf-8", newline="\n")
