"""The packages of this repository need each other in one version; `__version__` in prvr/__init__.py is that of all."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Siblings(MetadataHookInterface):
    """Puts `siblings`, of the version of the package, before the `dependencies` that its pyproject.toml lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        siblings = [f"{name}=={metadata['version']}" for name in self.config["siblings"]]
        metadata["dependencies"] = [*siblings, *self.config["dependencies"]]
