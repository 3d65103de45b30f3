"""Earlier names of keyword arguments, accepted with a warning."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator whose function takes keyword arguments under earlier names, too: `renamed(earlier="current")`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
            for earlier in names.keys() & kwargs.keys():
                current = names[earlier]
                if current in kwargs:
                    raise TypeError(f"{current}: also given as {earlier}, its earlier name; give one of them")
                warnings.warn(f"{earlier}= is called {current}= now", DeprecationWarning, stacklevel=2)
                kwargs[current] = kwargs.pop(earlier)
            return function(*args, **kwargs)

        return accepting

    return decorate
