"""A package as users import it: without the run-time shape checks of the test run, which cannot be traced."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

# Imported once and put back each time: torch.compile keeps the modules it has seen by their names.
_modules: dict[str, dict[str, ModuleType]] = {}


@contextlib.contextmanager
def unchecked(package: str) -> Iterator[None]:
    """Inside the block `import package` gives the unchecked package, outside the one it gave before."""
    checked, finders = _take(package), list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not type(finder).__module__.startswith("jaxtyping")]
    sys.modules.update(_modules.get(package, {}))
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        _modules[package] = _take(package)
        sys.modules.update(checked)


def _take(package: str) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
