"""Names of a package that are imported when they are first asked for, so that a command imports what it uses."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def deferred(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562).

    Args:
        package: its name.
        modules: the names that each of its modules defines, separated by spaces. No module may have one of them: its
            import would put it in their place.

    Examples:
        >>> deferred("prvr.data", {"prvr.data.sampling": "pad segment_mean"})("segment_mean").__module__
        'prvr.data.sampling'
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return get
