"""A progress bar for each epoch, on a terminal only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ShowStep = Callable[[Mapping[str, float]], None]
"""Called after each step with the loss terms of that step."""

EpochProgress = Callable[[str, int], AbstractContextManager[ShowStep]]
"""Called at the start of each epoch with a title and the number of steps."""


@contextmanager
def no_progress(title: str, steps: int) -> Iterator[ShowStep]:
    """Shows nothing."""
    yield lambda terms: None


@contextmanager
def terminal_bar(title: str, steps: int) -> Iterator[ShowStep]:
    """A bar with the loss and its terms, largest first, on standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    loss = TextColumn("{task.fields[loss]}", markup=False)
    with Progress(*columns, loss, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=steps, loss="")

        def show(terms: Mapping[str, float]) -> None:
            parts = sorted((item for item in terms.items() if item[0] != "total"), key=lambda item: -item[1])
            shown = " ".join(f"{name} {value:.2g}" for name, value in parts)
            bar.update(task, advance=1, loss=f"loss {terms.get('total', sum(terms.values())):.3g}: {shown}")

        yield show
