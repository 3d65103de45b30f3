"""Models of `transformers`, by name on the hub or by folder: where they are, how they are downloaded and loaded."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub as hub
import torch
from torch import nn

from prvr.encoders.own import installed_encoders
from prvr.errors import DataError, PrvrError, require
from prvr.reading import read_object

_NOT_OF_THE_MODEL = ("transformers_version", "_name_or_path", "_commit_hash", "dtype", "torch_dtype", "architectures")


DEFAULT_ENCODER = "google/siglip-base-patch16-224"
"""The joint encoder that is downloaded, with consent, where there is none on this computer."""
_DEFAULT_SIZE = 816_000_000  # bytes of its download, known without a network
_POPULAR = (
    DEFAULT_ENCODER,
    *(f"openai/clip-vit-{size}" for size in ("base-patch32", "base-patch16", "large-patch14", "large-patch14-336")),
    *(f"google/siglip-{size}" for size in ("base-patch16-384", "large-patch16-256", "so400m-patch14-384")),
    *(f"google/siglip2-{size}" for size in ("base-patch16-224", "large-patch16-256", "so400m-patch14-384")),
)  # what is suggested for a misspelt name
_FILE = re.compile(r"(\d+_\w+/)?[^/]+")  # also of the parts of a model of sentence-transformers
_WEIGHTS = re.compile(r"(\d+_\w+/)?model(-\d+-of-\d+)?\.safetensors")
_INDEX = "model.safetensors.index.json"
SMALL = (".json", ".txt", ".model", ".jinja")  # suffixes of the configuration and of tokenizers
_TIMEOUT = 10  # seconds for the hub to answer


class DownloadNeeded(DataError):
    """A model is not on this computer, and nobody has agreed to its download.

    Args:
        name: the name of the model on the Hugging Face hub.
    """

    def __init__(self, name: str) -> None:
        names = {*_POPULAR, *local_models(), *installed_encoders()}
        close = [] if name in _POPULAR else get_close_matches(name, names, n=2, cutoff=0.8)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        super().__init__(
            f"{name}: no such folder, and no model of this name was downloaded to this computer.{hint} Download it "
            f"once from the Hugging Face hub: add --download (in Python, download=True); or name a folder "
            "written by save_pretrained. For an encoder of your own, add --import MODULE."
        )
        self.name, self.close = name, tuple(close)


class HubUnreachable(DataError):
    """The Hugging Face hub does not answer, or refuses a model.

    Args:
        name: the name of the model.
        reason: what the hub, or the network, said.
        result: what was downloaded.
    """

    def __init__(self, name: str, reason: str, result: str = "nothing was downloaded") -> None:
        super().__init__(
            f"{name}: the Hugging Face hub cannot be reached ({reason}); {result}. Check the name and the network, or "
            "copy a folder with the model to this computer and pass it with --encoder FOLDER."
        )
        self.reason = reason


@contextmanager
def _explained_hub(name: str, result: str = "nothing was downloaded") -> Iterator[None]:
    """Turns every failure of the hub's library into one message; its log of attempts is not shown."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # brings a client of HTTP

    level = hub.utils.logging.get_verbosity()
    hub.utils.logging.set_verbosity_error()
    try:
        yield
    except (PrvrError, MemoryError):
        raise
    except Exception as error:  # of the network, of the disk, or whatever a captive portal makes of the answer
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        if isinstance(error, OfflineModeIsEnabled):
            reason = "offline mode is on; unset HF_HUB_OFFLINE to download"
        elif isinstance(error, HfHubHTTPError):
            code = error.response.status_code
            reason = f"{code}: {'there is no such model, or it is not public' if code in (401, 404) else 'refused'}"
        raise HubUnreachable(name, reason, result) from error
    finally:
        hub.utils.logging.set_verbosity(level)


def _remote_files(name: str) -> dict[str, int]:
    """The files of a model on the hub that are needed, with their bytes, those of its own weights last.

    Raises:
        HubUnreachable: the hub does not answer, or has no such model.
        DataError: the model has no weights in safetensors.
    """
    with _explained_hub(name):
        listed: Any = hub.HfApi().model_info(name, files_metadata=True, timeout=_TIMEOUT).siblings or ()
    sizes = {file.rfilename: file.size or 0 for file in listed if _FILE.fullmatch(file.rfilename)}
    weights = {
        file: sizes[file] for file in sorted(sizes, key=lambda file: "/" not in file) if _WEIGHTS.fullmatch(file)
    }
    if not weights or "/" in [*weights][-1] or "config.json" not in sizes:
        raise DataError(f"{name}: no model of transformers with weights in safetensors. Choose another model.")
    return {file: size for file, size in sizes.items() if file.endswith(SMALL)} | weights


def download_size(name: str) -> int:
    """Bytes that a download of a model would take; that of `DEFAULT_ENCODER` is known without a network.

    Raises:
        HubUnreachable: the hub does not answer, or has no such model.
        DataError: the model has no weights in safetensors.
    """
    return _DEFAULT_SIZE if name == DEFAULT_ENCODER else sum(_remote_files(name).values())


def locate(name: str, download: bool = False) -> Path:
    """The folder of a model: one of `save_pretrained`, or that in the cache of the Hugging Face hub.

    Args:
        name: a folder, or a name on the hub.
        download: download the model if it is not on this computer.

    Raises:
        DownloadNeeded: it is not on this computer, and `download` is False.
        HubUnreachable: it cannot be downloaded.
        DataError: the hub has no such names, or the model has no weights in safetensors.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub.errors import HFValidationError

    try:
        hub.utils.validate_repo_id(name)
    except HFValidationError as error:
        raise DataError(f"{name}: no such folder. {_MEND}") from error
    folder = _cached(name)
    if folder is None and not download:
        raise DownloadNeeded(name)
    if folder is None:
        files = _remote_files(name)
        with _explained_hub(name, "the download is not complete; run it again to continue"):
            for file in files:  # weights last: with them the model counts as downloaded
                folder = Path(hub.hf_hub_download(name, file)).parent
    assert folder is not None
    return folder


def _cached(name: str) -> Path | None:
    """The folder of a model in the cache of the hub, if all of its weights are there."""
    path = hub.try_to_load_from_cache(name, "config.json")
    if not isinstance(path, str):
        return None
    folder = Path(path).parent
    try:
        weights = set(read_object(folder / _INDEX, "")["weight_map"].values())
    except FileNotFoundError:
        weights = {"model.safetensors"}
    except (DataError, LookupError, AttributeError, TypeError):  # damaged
        return None
    return folder if all((folder / str(file)).exists() for file in weights) else None


def local_models() -> dict[str, str]:
    """The type of each model of transformers in the cache of the Hugging Face hub, by its name, last used first."""
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = hub.scan_cache_dir(hub.constants.HF_HUB_CACHE)
    except (CacheNotFound, OSError):
        return {}
    types: dict[str, str] = {}
    repositories = (entry for entry in cache.repos if entry.repo_type == "model")
    for repository in sorted(repositories, key=lambda repository: -repository.last_accessed):
        with suppress(DataError, LookupError):  # of another library, or damaged
            if folder := _cached(repository.repo_id):
                types[repository.repo_id] = str(read_object(folder / "config.json", "")["model_type"])
    return types


def import_transformers() -> ModuleType:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("transformers", "prvr[encoders]", "CLIP, SigLIP or RoBERTa")


def read_config(name: str) -> dict[str, Any]:
    """The content of the `config.json` of a model, as it is written.

    Raises:
        DownloadNeeded: it is not on this computer.
        DataError: there is no such model.
    """
    import_transformers()
    config = read_json(name, "config.json")
    if not isinstance(config.get("model_type"), str):
        raise DataError(f"{name}: not a model of transformers: config.json is missing, or has no model_type. {_MEND}")
    return config


def has_both_sides(name: str) -> bool:
    """Whether the library has features of images and of texts for this type of model; its weights are not read.

    Raises:
        DataError: there is no such model, or the library does not know its type.
    """
    library = import_transformers()
    with explained(name):
        config = library.AutoConfig.from_pretrained(locate(name), trust_remote_code=False)
        model = library.MODEL_MAPPING.get(type(config), object)
        return all(hasattr(model, name) for name in ("get_image_features", "get_text_features"))


def load_model(name: str, device: Any) -> nn.Module:
    """A model in float32, frozen. Only safetensors are read: no file that could run code.

    Raises:
        DataError: there is no such model, or its files are damaged.
    """
    library = import_transformers()
    with explained(name):
        model, report = library.AutoModel.from_pretrained(
            locate(name), use_safetensors=True, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    # The library fills what is missing with random numbers. Some language models come without the unused pooler.
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise DataError(f"{name}: its weights lack {len(missing)} tensors, {missing[0]} first. Copy the folder again.")
    return model.to(device).eval().requires_grad_(False)


def read_json(name: str, file: str) -> dict[str, Any]:
    """A JSON file of a model; empty if there is none.

    Raises:
        DataError: there is no such model, or the file holds no JSON object.
    """
    path = locate(name) / file
    return read_object(path, "Copy the folder again.") if path.exists() else {}


def hash_model(model: nn.Module, config: dict[str, Any]) -> str:
    """sha256 of all weights, in float32, and of the configuration: the same in whatever files they lie."""
    digest = hashlib.sha256()
    body = {key: value for key, value in config.items() if key not in _NOT_OF_THE_MODEL}
    digest.update(json.dumps(body, sort_keys=True).encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Hides the library's progress bars and turns what it raises into one message.

    Only calls of the library, and the first trial of a model, belong inside. Exceptions of every kind are caught: wrong
    numbers or types in a folder make the library raise whatever its code meets, and tokenizers raises bare exceptions.
    """
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (PrvrError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise DataError(f"{name}: cannot be loaded by transformers ({message}). {_MEND}") from error
    finally:
        if was_enabled:
            logging.enable_progress_bar()


_MEND = (
    "Expected the name of a model on the Hugging Face hub (downloaded once, with --download), a folder written by "
    "save_pretrained with safetensors, MODULE:CLASS, or toy for the toy corpus."
)
