"""The retriever that a configuration describes, new or from a folder."""

from pathlib import Path

from prvr.config import ModelConfig, TokenModelConfig
from prvr.data.hashes import check_hashes
from prvr.models.clip_retriever import start_from_clip
from prvr.models.pretrained import pretrained_folder, read_model_config
from prvr.models.retriever import Retriever
from prvr.models.token_retriever import TokenRetriever

__all__ = ["AnyRetriever", "build_retriever", "load_pretrained"]

AnyRetriever = Retriever | TokenRetriever
"""With one vector per query, or with its words."""


def build_retriever(config: ModelConfig | TokenModelConfig) -> AnyRetriever:
    """A retriever to be trained; a token retriever starts from the CLIP that `init_from` names.

    Raises:
        prvr.data.DataError: that CLIP cannot be loaded.
        ValueError: it does not fit.

    Examples:
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

    Args:
        folder: its path, or OWNER/NAME on the hub.

    Raises:
        prvr.data.DataError: there is no such folder or model, its files are damaged, or it is the `best/` of a run and
            they are not what was saved.
        prvr.ConfigError: its configuration cannot be used.
    """
    place = pretrained_folder(folder)
    check_hashes(place)
    chosen = TokenRetriever if read_model_config(place).get("kind") == "tokens" else Retriever
    return chosen.from_pretrained(place)
