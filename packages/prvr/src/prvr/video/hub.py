"""Models of `transformers`, by name on the hub or by folder: found, loaded and hashed."""

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from prvr.errors import DataError, InputError, PrvrError, require
from prvr.reading import read_object
from prvr.video.own import installed_encoders

_NOT_OF_THE_MODEL = ("transformers_version", "_name_or_path", "_commit_hash", "dtype", "torch_dtype", "architectures")


DEFAULT_ENCODER = "google/siglip-base-patch16-224"
"""The joint encoder that is downloaded, with consent, where there is none on this computer."""
_KNOWN = (
    DEFAULT_ENCODER,
    *(f"openai/clip-vit-{size}" for size in ("base-patch32", "base-patch16", "large-patch14", "large-patch14-336")),
    *(f"google/siglip-{size}" for size in ("base-patch16-384", "large-patch16-256", "so400m-patch14-384")),
    *(f"google/siglip2-{size}" for size in ("base-patch16-224", "large-patch16-256", "so400m-patch14-384")),
)  # what is suggested for a misspelt name
_DOWNLOADABLE: ContextVar[frozenset[str]] = ContextVar("downloadable", default=frozenset())
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_COUNT_FROM_PAD = ("roberta", "xlm-roberta", "mpnet", "altclip_text_model")
"""Types of models whose position of the first token follows the id of the padding token."""


class DownloadNeeded(DataError):
    """A model is not on this computer, and nobody has agreed to its download.

    Args:
        name: the name of the model on the Hugging Face hub.
    """

    def __init__(self, name: str) -> None:
        close = (
            []
            if name in _KNOWN
            else get_close_matches(name, {*_KNOWN, *local_models(), *installed_encoders()}, n=2, cutoff=0.8)
        )
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        super().__init__(
            f"{name}: no such folder, and no model of this name was downloaded to this computer.{hint} Download it "
            f"once from the Hugging Face hub: add --download (in Python, download=True); or name a folder "
            "written by save_pretrained."
        )
        self.name, self.close = name, tuple(close)


@contextmanager
def downloads(name: str) -> Iterator[None]:
    """Lets a model be downloaded from the Hugging Face hub inside the `with` statement; otherwise none is."""
    token = _DOWNLOADABLE.set(_DOWNLOADABLE.get() | {name})
    try:
        yield
    finally:
        _DOWNLOADABLE.reset(token)


def expect_local(name: str) -> None:
    """Refuses a model that would have to be downloaded.

    Raises:
        DownloadNeeded: it is neither a folder nor in the cache of the Hugging Face hub.
        DataError: the hub has no such names.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if Path(name).is_dir() or name in _DOWNLOADABLE.get() or name in local_models():
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise DataError(f"{name}: no such folder. {_MEND}") from error
    raise DownloadNeeded(name)


def local_models() -> list[str]:
    """Names of the models in the cache of the Hugging Face hub that have weights in safetensors, last used first."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = [repository for repository in scan_cache_dir().repos if repository.repo_type == "model"]
    except (CacheNotFound, OSError):
        return []
    repositories.sort(key=lambda repository: -repository.last_accessed)
    files = {
        repository.repo_id: {file.file_name for revision in repository.revisions for file in revision.files}
        for repository in repositories
    }
    return [
        name
        for name, names in files.items()
        if "config.json" in names and any(file.endswith(_WEIGHTS) for file in names)
    ]


def download_size(name: str) -> int | None:
    """Bytes that a download of a model would take; None where the hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        files: Collection[Any] = HfApi().model_info(name, files_metadata=True, timeout=10).siblings or ()
    except Exception:
        return None
    return sum(file.size or 0 for file in files if file.rfilename.endswith((".safetensors", ".json", ".txt", ".model")))


def import_transformers() -> ModuleType:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("transformers", "video", "CLIP, SigLIP or RoBERTa")


def read_config(name: str) -> dict[str, Any]:
    """The content of the `config.json` of a model, as it is written.

    Raises:
        DownloadNeeded: it is not on this computer.
        DataError: there is no such model.
    """
    import_transformers()
    expect_local(name)
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
        config = library.AutoConfig.from_pretrained(name, **_how(name))
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
            name, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **_how(name)
        )
    # The library fills what is missing with random numbers. Some language models come without the unused pooler.
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise DataError(f"{name}: its weights lack {len(missing)} tensors, {missing[0]} first. Copy the folder again.")
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model.

    Raises:
        DataError: it has none.
    """
    library = import_transformers()
    with explained(name):
        tokenizer = library.AutoTokenizer.from_pretrained(name, **_how(name))
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what the library makes where the files are missing
        raise DataError(f"{name}: its tokenizer has no words. Copy the folder again, with the files of the tokenizer.")
    return tokenizer


def load_image_processor(name: str) -> Any:
    """What prepares pictures for a model, on the CPU with Pillow, so that it gives the same on every computer.

    Raises:
        DataError: it has none.
    """
    library = import_transformers()
    with explained(name):
        return library.AutoImageProcessor.from_pretrained(name, backend="pil", **_how(name))


def most_tokens(config: Any) -> int:
    """How many tokens a language model of transformers has positions for, from its configuration."""
    taken = config.pad_token_id + 1 if config.model_type in _COUNT_FROM_PAD else 0
    return int(config.max_position_embeddings) - taken


def token_ids(tokenizer: Any, text: str, most: int) -> list[int]:
    """The tokens of a text with those that begin and end it.

    Args:
        tokenizer: a tokenizer of transformers.
        text: with at least one token of its own.
        most: how many the model reads.

    Raises:
        ValueError: the text is empty, or too long.
    """
    if not text.strip():
        raise InputError(f"no word in {text[:40]!r}. Describe what is to be seen, for example 'a dog catches a ball'.")
    ids = list(tokenizer(text, truncation=False, verbose=False)["input_ids"])
    if len(ids) > most:
        raise InputError(
            f"{len(ids)} tokens in {text[:40]!r}..., the model reads at most {most}. Describe one moment briefly."
        )
    return ids


def read_json(name: str, file: str) -> dict[str, Any]:
    """A JSON file of a model; empty if there is none.

    Raises:
        DataError: there is no such model, or the file holds no JSON object.
    """
    import_transformers()
    from transformers.utils.hub import cached_file

    with explained(name):
        path = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **_where(name))
    return {} if path is None else read_object(Path(path), "Copy the folder again.")


def hash_model(model: nn.Module, config: dict[str, Any]) -> str:
    """sha256 of all weights, in float32, and of the configuration: the same in whatever files they lie."""
    digest = hashlib.sha256()
    body = {key: value for key, value in config.items() if key not in _NOT_OF_THE_MODEL}
    digest.update(json.dumps(body, sort_keys=True).encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()


def hash_tokenizer(tokenizer: Any) -> str:
    """sha256 of how a tokenizer cuts, the same whatever it was used for before."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:  # SigLIP's own, of SentencePiece
        state = {"kind": type(tokenizer).__name__, "words": tokenizer.get_vocab(), "ends": tokenizer.special_tokens_map}
    else:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        for key in ("padding", "truncation"):  # set by calls
            state.pop(key, None)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _where(name: str) -> dict[str, bool]:
    return {"local_files_only": Path(name).is_dir() or name not in _DOWNLOADABLE.get()}


def _how(name: str) -> dict[str, bool]:
    return _where(name) | {"trust_remote_code": False}  # a model that brings code is refused, and nobody is asked


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
    "Expected 'toy', the name of a model on the Hugging Face hub (downloaded once, with --download), a folder "
    "written by save_pretrained with safetensors, or MODULE:CLASS."
)
