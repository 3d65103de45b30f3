"""A progress bar per epoch, on a terminal only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from tqdm import tqdm

__all__ = ["EpochProgress", "Report", "no_progress", "terminal_bar"]

Report = Callable[[Mapping[str, float]], None]
"""Called after each step with the loss terms of that step."""

EpochProgress = Callable[[str, int], AbstractContextManager[Report]]
"""Called at the start of each epoch with a title and the number of steps."""


@contextmanager
def no_progress(title: str, steps: int) -> Iterator[Report]:
    """Shows nothing."""
    yield lambda terms: None


@contextmanager
def terminal_bar(title: str, steps: int) -> Iterator[Report]:
    """A tqdm bar with the loss terms on standard error; nothing where that is no terminal."""
    with tqdm(total=steps, desc=title, unit="step", leave=False, disable=None, dynamic_ncols=True) as bar:

        def report(terms: Mapping[str, float]) -> None:
            bar.set_postfix({name: f"{value:.3g}" for name, value in terms.items()}, refresh=False)
            bar.update()

        yield report
