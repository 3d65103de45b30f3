"""Errors that a user can fix, and imports that may fail or wait. Any other error is a bug and shows its traceback."""

import errno
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

DISK_FULL = (errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC, errno.EFBIG)
"""Codes of `OSError` for a full disk or an exceeded quota."""


class PrvrError(Exception):
    """An error that the user can fix: the message says what was read, what was expected and what to do.

    All other error classes of `prvr` derive from it. The command line prints its message and exits with 2.
    """


class InputError(PrvrError, ValueError):
    """An argument or an option that cannot be used."""


class DataError(PrvrError, ValueError):
    """Data on disk that cannot be used: the message names the file or id, what was expected and how to fix it."""


class TrainingError(PrvrError, RuntimeError):
    """A run that cannot start, continue or be saved."""


class DivergedError(TrainingError):
    """A loss or gradient that is not finite has ended the training."""


class MissingExtraError(PrvrError, ImportError):
    """An optional library that is not installed; the message has the command that installs it."""


def require(module: str, requirement: str, purpose: str) -> ModuleType:
    """Imports an optional library.

    Args:
        module: its name, such as `pymilvus` or `matplotlib.figure`.
        requirement: what pip installs for it, such as "prvr[plot]".
        purpose: what needs it, the subject of a sentence.

    Raises:
        MissingExtraError: it is not installed.

    Examples:
        >>> require("no_such_module", "prvr[plot]", "A picture")
        Traceback (most recent call last):
        ...
        prvr.errors.MissingExtraError: A picture needs no_such_module. Install it: pip install "prvr[plot]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise MissingExtraError(f'{purpose} needs {name}. Install it: pip install "{requirement}"') from error


class _WorkingFolder:
    """Finds one module in the folder, and what modules that were found there import themselves."""

    def __init__(self, module: str) -> None:
        self._module = module.partition(".")[0]
        self._folder = str(Path.cwd())
        self._importers = set[str]()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "").partition(".")[0]
        if path is not None or (name != self._module and importer not in self._importers):
            return None  # a library that is not installed and that others ask for
        spec = PathFinder.find_spec(name, [self._folder])
        if spec is not None:
            self._importers.add(name)
        return spec


NAMED: set[str] = set()
"""The top-level modules that the user has named, which are not prvr's."""


def import_named(module: str) -> ModuleType:
    """Imports a module that the user names: from Python's path or, if it is not there, from the working folder.

    No other library is looked for in that folder meanwhile, installed or not.

    Args:
        module: its name.
    """
    finder = _WorkingFolder(module)
    NAMED.add(module.partition(".")[0])
    sys.meta_path.append(finder)  # at the end, so that no file there stands for an installed library
    try:
        return importlib.import_module(module)
    finally:
        sys.meta_path.remove(finder)


def unknown_name(what: str, name: str, names: Iterable[str]) -> str:
    """The message for a name that does not exist: the closest names, and all names.

    Examples:
        >>> unknown_name("loss", "tripet", ["triplet", "diversity"])
        "unknown loss 'tripet'; did you mean triplet? Known: triplet, diversity"
    """
    names = list(names)
    close = get_close_matches(str(name), names, n=3)
    suggestion = f"; did you mean {', '.join(close)}?" if close else "."
    return f"unknown {what} {name!r}{suggestion} Known: {', '.join(names) or 'none'}"


def deferred(package: str, modules: Mapping[str, str] | str) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562): names that modules define, and the modules of the package themselves.

    Args:
        package: its name.
        modules: the names that each of its modules defines, separated by spaces; or the modules alone, which are
            imported in this order until one has a name that stands in the package's `__all__`. No module may have one
            of these names: its import would put it in their place.

    Examples:
        >>> deferred("prvr.data", {"prvr.data.sampling": "pad segment_mean"})("segment_mean").__module__
        'prvr.data.sampling'
        >>> deferred("prvr.data", {})("sampling").__name__
        'prvr.data.sampling'
    """
    listed, places = (), dict[str, str]()
    if isinstance(modules, str):
        listed = modules.split()
    else:
        places = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in places:
            return getattr(importlib.import_module(places[name]), name)
        for module in listed if name in sys.modules[package].__all__ else ():
            if hasattr(importlib.import_module(f"{package}.{module}"), name):
                return getattr(sys.modules[f"{package}.{module}"], name)
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
