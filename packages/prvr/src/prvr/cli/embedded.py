"""The corpora that prvr makes itself: their names, and a bar while one is made."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.data import Corpus

__all__ = ["cached_corpus", "collection_of", "counting_bar"]

logger = logging.getLogger(__name__)


def collection_of(size: str) -> str:
    """The collection of a size.

    Raises:
        CommandError: there is no such size.

    Example:
        >>> collection_of("tiny")
        'embedded-tiny'
    """
    from prvr.data import COLLECTIONS

    names = {size: name for name, size in COLLECTIONS.items()}
    if size not in names:
        raise CommandError(f"--size {size}: expected one of {', '.join(names)}.")
    return names[size]


def cached_corpus(config: Config, quiet: bool) -> "Corpus":
    """The embedded corpus that a configuration without `data.root` reads; where it is not in the cache, it is made.

    Raises:
        prvr.training.TrainingError: the collection is another one.
        prvr.data.DataError: the disk is full, or the encoder is damaged.
    """
    from prvr.training.data import embedded_corpus

    with counting_bar(f"making {config.data.collection}, once", quiet) as progress:
        return embedded_corpus(config, progress)


@contextmanager
def counting_bar(title: str, quiet: bool, unit: str = "videos") -> Iterator[Callable[[int, int], None]]:
    """Shows how many of how many are done on standard error, as `terminal_bar` does; without a terminal, a line.

    Args:
        title: what is done.
        quiet: show nothing.
        unit: what is counted.
    """
    from tqdm import tqdm

    layout = f"{{desc}} |{{bar:20}}| {{n_fmt}}/{{total_fmt}} {unit} {{elapsed}}<{{remaining}}"
    disable = True if quiet else None  # None: where there is no terminal
    with tqdm(desc=title, leave=False, disable=disable, dynamic_ncols=True, bar_format=layout) as bar:

        def report(done: int, total: int) -> None:
            if bar.disable:
                if done == 1:
                    logger.info("%s: %d %s", title, total, unit)
                return
            bar.total = total
            bar.update(done - bar.n)

        yield report
