"""The commands on videos: a module for each command that prvr-search adds to `prvr`, or for a few that belong together.

Every module is imported for its commands, as those of `prvr.cli` are, and imports what needs torch when a command runs.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
