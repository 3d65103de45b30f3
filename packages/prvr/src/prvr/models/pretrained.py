"""Models as folders: `save_pretrained` writes them, `from_pretrained` reads them from a disk or from the hub."""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file
from torch import Tensor, nn

from prvr.config import LOSSES, RETRIEVERS, config_to_dict, expect_imported, own_modules, validated
from prvr.errors import DataError, InputError, PrvrError
from prvr.reading import read_object, short
from prvr.types import MomentSpans, VideoEmbedding

_Model = TypeVar("_Model", bound="PretrainedModel")
CONFIG, WEIGHTS, HEADS = "config.json", "model.safetensors", "moment_heads"
SHIPPED = Path(__file__).parent / "shipped"
"""The folder of the models that ship with prvr, each a folder of its name."""
ABOUT = "prvr"
"""Key of the metadata in the weights of a shipped model: a JSON object that says how it was trained."""

CARD_HEAD = """---
library_name: prvr
tags:
- text-to-video-retrieval
- partially-relevant-video-retrieval
---
"""
"""The first lines of the model card of every model."""

_CARD = f"""{CARD_HEAD}# A model of text-to-video retrieval

`prvr.models.load_pretrained(PATH)` loads a retriever, which ranks videos for a sentence; its inputs are the features
that it was trained on (`config.json`: `video_dim`, `query_dim`).

`prvr.CandidateReranker.from_pretrained(PATH)` loads a re-ranker, which generates a distribution over the best
candidates of a retriever (DiffusionRet, Jin et al. 2023); its inputs are the text and frame embeddings of the retriever
that it was trained on (`config.json`: `width`, `trained_on`).
"""


def rename_heads(module: nn.Module, weights: dict[str, Any], prefix: str = "", *_: object) -> None:
    """Gives weights of moment heads the name that they have today; they were called `kept`."""
    for key in [] if hasattr(module, "kept") else [key for key in weights if key.startswith(f"{prefix}kept.")]:
        weights[f"{prefix}{HEADS}.{key[len(prefix) + 5 :]}"] = weights.pop(key)


class PretrainedModel(nn.Module, PyTorchModelHubMixin, ABC, library_name="prvr", model_card_template=_CARD):
    """Reads nothing but `config.json` and `model.safetensors`, and says what is missing or wrong in them.

    Not through the hub's own `from_pretrained`: it drops keys that it does not know, leaves weights that are not in
    the file as they were drawn, asks the network for every folder that is missing, and prints.

    Attributes:
        moment_heads: losses that are trained and saved with the model (`prvr.losses.Term.is_moment_head`), by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moment_heads = nn.ModuleDict()
        self.register_load_state_dict_pre_hook(rename_heads)

    def moments(self, text: Any, video: VideoEmbedding) -> MomentSpans:
        """Moments of one video for every query, see `prvr.types.GivesMoments`: those of the last head that has any."""
        given = (head.moments(text, video) for head in reversed([*self.moment_heads.values()]))  # pyright: ignore[reportCallIssue]
        return next((found for found in given if found is not None), None)

    @classmethod
    @abstractmethod
    def from_config_file(cls: type[_Model], values: Mapping[str, Any]) -> _Model:
        """A new model as its `config.json` describes it.

        Raises:
            PrvrError: a key or a value cannot be used.
        """

    @classmethod
    def from_pretrained(cls: type[_Model], pretrained_model_name_or_path: str | Path, **options: Any) -> _Model:
        """The model that `save_pretrained` wrote.

        Args:
            pretrained_model_name_or_path: a folder, or OWNER/NAME on the hub.
            options: those of `huggingface_hub.snapshot_download` (`revision`, `cache_dir`, `token`, `force_download`,
                `local_files_only`).

        Raises:
            DataError: there is no such folder or model, or its files are damaged or do not belong together.
            ConfigError: a key or a value of its configuration cannot be used.
        """
        folder = pretrained_folder(pretrained_model_name_or_path, **options)
        values, config, weights = read_model_config(folder), folder / CONFIG, folder / WEIGHTS
        heads = values.pop(HEADS, values.pop("kept", {}))
        if not weights.is_file():
            raise DataError(f"{weights}: no such file. Expected a folder written by save_pretrained.")
        try:
            model = cls.from_config_file(values)
            for name, settings in heads.items():
                entry = LOSSES[name]
                settings = validated(entry.settings, settings, f"{HEADS}.{name}")
                model.moment_heads[name] = entry.part(settings, model.config)
        except (PrvrError, TypeError) as error:
            kind = values.get("kind")
            if kind in RETRIEVERS.names and RETRIEVERS[kind].part is not cls:
                raise InputError(
                    f"{config}: a model of kind {kind!r}, no {cls.__name__}: open it with prvr.models.load_pretrained"
                ) from error
            if isinstance(error, TypeError):
                raise
            raise type(error)(f"{config}: {error}") from error
        except (OverflowError, RuntimeError) as error:
            raise DataError(f"{config}: no model has these sizes ({short(str(error), 300)}).") from error
        try:
            load_model(model, weights)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise DataError(
                f"{weights}: not the weights of this model ({short(str(error), 300)}). {CONFIG} and {WEIGHTS} must be "
                "of one model."
            ) from error
        return model

    def _save_pretrained(self, save_directory: Path) -> None:
        """Writes the weights; and for heads and parts of others, a `config.json` that names them and their modules."""
        weights = self.state_dict()
        if any(tensor.device.type != "cpu" for tensor in weights.values()):
            save_file(on_host(weights), save_directory / WEIGHTS, {"format": "pt"})
        else:
            super()._save_pretrained(save_directory)
        heads = {name: config_to_dict(head.settings) for name, head in self.moment_heads.items()}
        modules = sorted({*getattr(self.config, "own_modules", []), *own_modules(LOSSES[name] for name in heads)})
        if modules or heads:
            values = config_to_dict(self.config) | {"imports": modules} | ({HEADS: heads} if heads else {})
            text = json.dumps(values, sort_keys=True, indent=2)
            (save_directory / CONFIG).write_text(text, encoding="utf-8", newline="\n")


def shipped_model(name: str | Path) -> Path | None:
    """The folder of a model that ships with prvr; None if none has this name.

    A name is a string and comes before a folder of the same name, which `./NAME` or a Path stands for.

    Examples:
        >>> shipped_model("toy-world").name
        'toy-world'
    """
    return SHIPPED / name if isinstance(name, str) and name in _shipped_names() else None


def _shipped_names() -> list[str]:
    return sorted(folder.name for folder in SHIPPED.iterdir() if (folder / WEIGHTS).is_file())


def model_files(folder: Path) -> tuple[Path, Path | None]:
    """The files of a trained model.

    Args:
        folder: the folder of a run of `prvr train`, of which the best epoch is taken, or of `save_pretrained`; `first/`
            of a pipeline is one.

    Returns:
        The folder of the weights, and the `config.yaml` of the run, if there is one.

    Raises:
        DataError: the folder is neither.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder. Expected a run of `prvr train`, a folder written by save_pretrained, or a "
            f"model that ships with prvr: {', '.join(_shipped_names())}."
        )
    weights = next((place for place in (folder, folder / "best") if (place / WEIGHTS).is_file()), None)
    if weights is None:
        runs = next((found for depth in (1, 2, 3) if (found := sorted(folder.glob("*/" * depth + "best")))), [])
        mend = f"Name a run inside it: {runs[0].parent}" if runs else "Train at least one epoch, or name another folder"
        raise DataError(
            f"{folder}: neither a run of `prvr train` nor a folder written by save_pretrained: no {WEIGHTS} in it "
            f"or in its best/. {mend}."
        )
    files = [
        place / "config.yaml" for place in (weights, weights.parent)[: 2 if weights.name in ("best", "first") else 1]
    ]
    return weights, next((file for file in files if file.is_file()), None)


def pretrained_folder(name: str | Path, **options: Any) -> Path:
    """The folder of a model; one of the hub is downloaded into its cache first.

    Args:
        name: a folder, a model that ships with prvr, or OWNER/NAME on the hub. Whatever else looks like a path is one.
        options: options of `huggingface_hub.snapshot_download`.

    Raises:
        DataError: there is no such folder, or the hub does not give such a model.

    Examples:
        >>> pretrained_folder("runs/hybrid-1/best")
        Traceback (most recent call last):
        ...
        prvr.errors.DataError: runs/hybrid-1/best: no such folder. Expected a folder written by save_pretrained, or
        OWNER/NAME on the hub.
    """
    text = os.fspath(name)
    folder = shipped_model(name) or Path(text).expanduser()
    if folder.is_dir():
        return folder
    on_hub = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text) is not None
    if isinstance(name, Path) or not on_hub or folder.exists() or folder.parent.is_dir():
        raise DataError(
            f"{text}: no such folder. Expected a folder written by save_pretrained, or OWNER/NAME on the hub."
        )
    try:
        return Path(snapshot_download(text, allow_patterns=[CONFIG, WEIGHTS], **options))
    except (OSError, HfHubHTTPError, HFValidationError) as error:  # OSError: no network either
        raise DataError(
            f"{text}: no such folder, and the hub does not give such a model ({short(str(error), 200)})."
        ) from error


def read_model_config(folder: Path) -> dict[str, Any]:
    """The configuration in the `config.json` of a model.

    Raises:
        DataError: it is missing, or holds something else than an object.
        ConfigError: it names modules that are not imported.
    """
    mend, path = "Expected a folder written by save_pretrained.", folder / CONFIG
    values = read_object(path, mend, f"{path}: no such file. {mend}")
    expect_imported(values.pop("imports", None), str(path))
    return values


def write_model(folder: Path, model: PretrainedModel, objective: nn.Module, card: str) -> None:
    """Puts a model into a folder, as `save_pretrained` writes it, with `objective.safetensors` and its card."""
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
    model.save_pretrained(folder)  # keeps a README.md that is there
    save_file(on_host(objective.state_dict()), folder / "objective.safetensors")


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors in the memory of the host: of those on a device, one copy for each dtype, all at once.

    Examples:
        >>> on_host({"weight": torch.ones(2, 3).mT})["weight"].is_contiguous()
        True
    """
    result = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    on_device = [name for name, tensor in result.items() if tensor.device.type != "cpu"]
    for dtype in {result[name].dtype for name in on_device}:
        names = [name for name in on_device if result[name].dtype == dtype]
        sizes = [result[name].numel() for name in names]
        parts = torch.cat([result[name].flatten() for name in names]).cpu().split(sizes)
        result |= {name: part.view(result[name].shape) for name, part in zip(names, parts, strict=True)}
    return result
