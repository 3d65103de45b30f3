"""prvr needs lorentz-nn and regdiff of its own version; `__version__` in prvr/__init__.py is that of all packages."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Siblings(MetadataHookInterface):
    """Puts the siblings before the dependencies that pyproject.toml lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        siblings = [f"{name}=={metadata['version']}" for name in ("lorentz-nn", "regdiff")]
        metadata["dependencies"] = [*siblings, *self.config["dependencies"]]
