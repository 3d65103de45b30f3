"""One process at a time brings the files of a backend up to date."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prvr.data.files import owned

__all__ = ["locked"]

logger = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; waits for the others. A folder that cannot be written is read without a lock."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(owned(folder, "", wait=True))
        except OSError as error:
            logger.info("%s: read without a lock (%s)", folder, error)
        yield
