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
    """A tqdm bar with the loss and its terms, largest first, on standard error; nothing where that is no terminal."""
    layout = "{desc} |{bar:20}| {n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix}"  # what does not fit is cut there
    with tqdm(total=steps, desc=title, leave=False, disable=None, dynamic_ncols=True, bar_format=layout) as bar:

        def report(terms: Mapping[str, float]) -> None:
            parts = sorted((item for item in terms.items() if item[0] != "total"), key=lambda item: -item[1])
            shown = " ".join(f"{name} {value:.2g}" for name, value in parts)
            bar.set_postfix_str(f"loss {terms.get('total', sum(terms.values())):.3g}: {shown}", refresh=False)
            bar.update()

        yield report
