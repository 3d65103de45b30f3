"""prvr-search needs prvr of its own version, with what reads CLIP and SigLIP; prvr/__init__.py says which that is."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Siblings(MetadataHookInterface):
    """Puts prvr before the dependencies that pyproject.toml lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"prvr[encoders]=={metadata['version']}", *self.config["dependencies"]]
