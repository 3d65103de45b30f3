"""Saving and loading modules with their constructor arguments, in files that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from safetensors.torch import load_file
from torch import nn

_CARD = """\
---
{{ card_data }}
---
# {{ class_name }}

A module of `regdiff`. Load it with `{{ module }}.{{ class_name }}.from_pretrained(PATH)`; its arguments are in
`config.json`.
"""

WEIGHTS = "model.safetensors"
_HUB_OPTIONS = ("revision", "cache_dir", "force_download", "proxies", "resume_download", "local_files_only", "token")


@contextmanager
def whole_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill; its files move to `target` when the block ends, each in one step, and not at all if it raises.

    Files of other names that stand in `target` stay.

    Args:
        target: The final folder, made if it does not exist.
    """
    final = Path(target)
    final.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that a move is a rename on one file system.
    filling = Path(tempfile.mkdtemp(prefix=f".{final.name}-", suffix=".tmp", dir=final.parent))
    try:
        yield filling
        for path in sorted(p for p in filling.rglob("*") if p.is_file()):
            place = final / path.relative_to(filling)
            place.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb+") as file:  # on the disk before it has its name
                os.fsync(file.fileno())
            path.replace(place)
        final.mkdir(exist_ok=True)
    finally:
        shutil.rmtree(filling, ignore_errors=True)


class Saveable(
    PyTorchModelHubMixin,
    library_name="regdiff",
    license="apache-2.0",
    tags=["diffusion", "register-tokens"],
    model_card_template=_CARD,
):
    """`save_pretrained` and `from_pretrained` for a module made of numbers, strings and None.

    The constructor's arguments go to config.json, weights and buffers to model.safetensors. Compared with
    huggingface_hub's own mixin: an interrupted save leaves the old files, loading is strict by default, prints nothing,
    and keeps the precision of the file (a float64 module comes back in float64).

    Examples:
        >>> import tempfile, torch
        >>> from regdiff import TransformerDenoiser
        >>> denoiser = TransformerDenoiser(dim=8, steps=10).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     denoiser.save_pretrained(folder)
        ...     same = TransformerDenoiser.from_pretrained(folder)
        >>> call = torch.randn(2, 3, 8), torch.tensor([0, 9]), torch.randn(2, 3, 8)
        >>> torch.equal(same(*call), denoiser(*call))
        True
    """

    @classmethod
    def from_config(cls, config: dict[str, Any], **options: Any) -> Any:
        """A new module.

        Args:
            config: What config.json holds.
            options: The constructor's arguments: those of `config`, and others that take their place.
        """
        return cls(**options)

    def _describe(self) -> Any:
        """What config.json will hold; None where the module cannot be built from it."""
        return self._hub_mixin_config

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README of a saved module."""
        kind = type(self)
        return super().generate_model_card(*args, **{"module": kind.__module__, "class_name": kind.__name__} | kwargs)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write config.json, model.safetensors and, where there is none, README.md.

        Args:
            save_directory: The folder, made if it does not exist.
            config: Instead of the constructor's arguments.
            repo_id: For `push_to_hub`; None means the folder's name.
            push_to_hub: Upload as well.
            model_card_kwargs: Fields of the model card.
            push_to_hub_kwargs: Further options of the upload.

        Returns:
            The address of the commit if it was uploaded.

        Raises:
            ValueError: The module was assembled from parts, so that a configuration cannot build it again.
        """
        config = self._describe() if config is None else config
        if config is None:
            raise ValueError(
                f"{type(self).__name__} was assembled from parts that config.json cannot describe; pass config=, or "
                "save its state_dict()"
            )
        with whole_folder(save_directory) as folder:
            super().save_pretrained(folder, config=config, model_card_kwargs=model_card_kwargs)
            if (Path(save_directory) / "README.md").exists():
                (folder / "README.md").unlink()
        if not push_to_hub:
            return None
        name = Path(save_directory).name if repo_id is None else repo_id
        return self.push_to_hub(repo_id=name, config=config, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        config: dict[str, Any] | None = None,
        map_location: str | torch.device = "cpu",
        strict: bool = True,
        **options: Any,
    ) -> Any:
        """Called by `from_pretrained` with the options of the hub, what config.json holds, and values instead of it."""
        hub = {name: options.pop(name) for name in _HUB_OPTIONS if name in options}
        file = Path(model_id, WEIGHTS) if Path(model_id).is_dir() else hf_hub_download(model_id, WEIGHTS, **hub)
        state = load_file(file)
        model: Any = cls.from_config(config or {}, **options)
        assert isinstance(model, nn.Module)
        # Buffers that are not in the file follow the precision of those that are.
        kinds = {value.dtype for value in state.values() if value.is_floating_point()}
        if len(kinds) == 1:
            model.to(kinds.pop())
        model.load_state_dict(state, strict=strict)
        return model.to(map_location).eval()
