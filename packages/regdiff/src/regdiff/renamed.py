"""Keywords that were renamed: the old spelling works with a DeprecationWarning, and saved files that hold it load."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Old spelling -> new spelling, of constructors and of the config.json that they are saved as.
RENAMED = {"heads": "num_heads"}


def takes_old_names(function: _Function) -> _Function:
    """A function or constructor that takes the old spelling of its keywords too.

    Raises:
        TypeError: Both spellings of one keyword.

    Examples:
        >>> import warnings
        >>> wrapped = takes_old_names(lambda num_heads: num_heads)
        >>> with warnings.catch_warnings(record=True) as seen:
        ...     warnings.simplefilter("always")
        ...     print(wrapped(heads=3), seen[0].category.__name__)
        3 DeprecationWarning
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for old in RENAMED.keys() & kwargs.keys():
            new = RENAMED[old]
            if new in kwargs:
                raise TypeError(f"{old}, {new}: got both, expected {new} alone")
            warnings.warn(f"the keyword {old} is now called {new}", DeprecationWarning, stacklevel=2)
            kwargs[new] = kwargs.pop(old)
        result = function(*args, **kwargs)
        if args and (config := getattr(args[0], "_hub_mixin_config", None)):  # what a module will be saved with
            for old in RENAMED.keys() & config.keys():
                config[RENAMED[old]] = config.pop(old)
        return result

    return wrapped  # pyright: ignore[reportReturnType]


def with_new_names(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the new spelling of its keys.

    Args:
        config: What config.json holds; it is not changed.

    Examples:
        >>> with_new_names({"dim": 8, "heads": 2})
        {'dim': 8, 'num_heads': 2}
    """
    return {RENAMED.get(name, name): value for name, value in config.items()}
