"""The retriever that a configuration describes, new or from a folder."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from prvr.config import ModelConfig, TokenModelConfig, validated
from prvr.data.errors import DataError
from prvr.data.hashes import check_hashes
from prvr.models.clip import start_from_clip
from prvr.models.retriever import Retriever
from prvr.models.token_retriever import TokenRetriever
from prvr.reading import read_json

__all__ = ["AnyRetriever", "build_retriever", "load_pretrained"]

AnyRetriever = Retriever | TokenRetriever
"""With one vector per query, or with its words."""


def build_retriever(config: ModelConfig | TokenModelConfig) -> AnyRetriever:
    """A retriever to be trained; a token retriever starts from the CLIP that `init_from` names.

    Raises:
        prvr.data.DataError: that CLIP cannot be loaded.
        ValueError: it does not fit.

    Example:
        >>> type(build_retriever(TokenModelConfig(kind="tokens", video_dim=8, query_dim=8, hidden=8, heads=2))).__name__
        'TokenRetriever'
    """
    if isinstance(config, ModelConfig):
        return Retriever(config)
    retriever = TokenRetriever(config)
    if config.init_from is not None:
        from prvr.video.pretrained import load_model

        start_from_clip(retriever, load_model(config.init_from, "cpu").state_dict())
    return retriever


def load_pretrained(folder: Path | str) -> AnyRetriever:
    """A retriever of either kind from a folder of `save_pretrained`.

    Raises:
        prvr.ConfigError: its configuration cannot be used.
        prvr.data.DataError: its configuration cannot be read, or it is the `best/` of a run and its files are not what
            was saved.
    """
    check_hashes(Path(folder))
    file = Path(folder) / "config.json"
    chosen = Retriever
    if file.is_file():
        values = read_json(file)
        if not isinstance(values, Mapping):
            raise DataError(f"{file}: expected the configuration of a retriever, found {type(values).__name__}.")
        chosen, kind = (
            (TokenRetriever, TokenModelConfig) if values.get("kind") == "tokens" else (Retriever, ModelConfig)
        )
        validated(kind, values, str(file))
    with redirect_stdout(StringIO()):  # the hub's loader prints
        return chosen.from_pretrained(folder)
