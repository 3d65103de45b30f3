"""What is added to the core: by the packages `prvr.LEAVES`, by prvr-search, and by other distributions.

Each says in a mapping what it adds: from a kind to "module" or "module:attribute". That of a package of this repository
is its `EXTENSIONS`, found by import: everything runs from PYTHONPATH, where no metadata are installed, and a command
does not wait until those of all distributions have been read. Another distribution names its mapping in the entry-point
group `prvr.extensions`.
"""

import logging
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from prvr import LEAVES
from prvr.errors import MissingExtraError

GROUP = "prvr.extensions"
SIBLING, DISTRIBUTION = "prvr_search", "prvr-search"
"""The import and the distribution of this repository that adds most."""
logger = logging.getLogger(__name__)


def extensions(what: str, others: bool = True) -> Iterator[Any]:
    """The additions of a kind, those of the packages of this repository first.

    Args:
        what: "commands", a module that registers commands when it is imported, and "converters", one that adds commands
            to `prvr convert`; "imported", a function to call after the modules of `--import`; the name of a registry,
            such as "encoder", a module that registers parts; or what one place takes from elsewhere: "teacher",
            "moments", "features", "frames", "write_videos", "attention", "graded", see the `EXTENSIONS` of
            `prvr.published`, `prvr.plot`, `prvr.papers` and `prvr_search`.
        others: False leaves out other distributions, and reads no metadata.
    """
    for name in (*LEAVES, SIBLING):
        if find_spec(name) is not None and (place := import_module(name).EXTENSIONS.get(what)) is not None:
            yield _part(place)
    if not others:
        return
    from importlib.metadata import entry_points  # takes time, too

    for point in entry_points(group=GROUP):
        if point.module == SIBLING:
            continue
        try:
            places = point.load()
            part = _part(places[what]) if what in places else None
        except Exception as error:  # of others' code: it does not stop the rest
            logger.warning("%s of the group %s cannot be imported (%s)", point.value, GROUP, error)
            continue
        if part is not None:
            yield part


def _part(place: str) -> Any:
    return resolve_name(place if ":" in place else f"{place}:")  # with a colon, errors of an import are its own


def extension(what: str, purpose: str) -> Any:
    """The first that any distribution adds of a kind.

    Args:
        what: as of `extensions`.
        purpose: what needs it, the subject of a sentence.

    Raises:
        MissingExtraError: no distribution that adds it is installed.
    """
    for part in extensions(what):
        return part
    raise missing(purpose)


def missing(purpose: str) -> MissingExtraError:
    """The error for what needs prvr-search where it is not installed."""
    return MissingExtraError(f'{purpose} needs {DISTRIBUTION}. Install it: pip install "{DISTRIBUTION}"')
