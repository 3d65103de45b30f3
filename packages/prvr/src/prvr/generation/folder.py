"""The folder of a stage-2 run: that of any run, with a re-ranker of each direction in `best/`."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import yaml
from safetensors import SafetensorError
from torch import nn

from prvr.config import config_to_dict
from prvr.data import DataError
from prvr.data.hashes import check_hashes
from prvr.generation.config import GenerationConfig, generation_config
from prvr.reranking import CandidateReranker, Direction
from prvr.training.checkpoint import replace_folder, write_file

__all__ = ["is_generation_run", "load_rerankers", "read_config", "save_rerankers", "write_config"]

_CARD = """---
library_name: prvr
tags:
- text-video-retrieval
- diffusion
---
# Re-rankers of candidates

`t2v` and `v2t` re-rank what the retriever {trained_on} finds, on the embeddings of that retriever alone.
Load both with `prvr.generation.load_rerankers(PATH)`.
"""


def write_config(folder: Path, config: GenerationConfig) -> None:
    """Writes `config.yaml`, and with it the folder."""
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
    write_file(folder / "config.yaml", lambda file: file.write(text.encode()))


def _values(path: Path) -> Mapping:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Name a run of `prvr train --stage generation`.") from error
    return values if isinstance(values, Mapping) else {}


def is_generation_run(folder: Path) -> bool:
    """Whether a folder is a run of stage 2."""
    return (folder / "config.yaml").is_file() and "reranker" in _values(folder / "config.yaml")


def read_config(path: Path) -> GenerationConfig:
    """The configuration of a run, or one of your own.

    Raises:
        DataError: no such file, or not YAML.
        prvr.ConfigError: a bad key or value.
    """
    values = _values(path)
    return generation_config(values, width=dict(values.get("reranker") or {}).get("width", 1), source=str(path))


def save_rerankers(folder: Path, rerankers: Mapping[Direction, CandidateReranker]) -> None:
    """Replaces `folder` by one with a re-ranker of each direction, whole or not at all.

    Raises:
        prvr.training.TrainingError: it cannot be written.
    """

    def write(temporary: Path) -> None:
        known = next(iter(rerankers.values())).config.trained_on or "(unknown)"
        (temporary / "README.md").write_text(_CARD.format(trained_on=known), encoding="utf-8", newline="\n")
        for direction, reranker in rerankers.items():
            reranker.save_pretrained(temporary / direction)

    replace_folder(folder, write)


def load_rerankers(folder: Path | str) -> dict[Direction, CandidateReranker]:
    """The re-rankers of a stage-2 run, or of its `best/`, in evaluation mode.

    Raises:
        DataError: there are none, or their files are damaged.
        prvr.ConfigError: their configuration cannot be used.

    Example:
        >>> load_rerankers("runs/reranker-1")["t2v"].config.weight  # doctest: +SKIP
        0.1
    """
    base = Path(folder)
    directions: tuple[Direction, ...] = ("t2v", "v2t")
    places = [
        place for place in (base / "best", base) if any((place / d / "config.json").is_file() for d in directions)
    ]
    if not places:
        raise DataError(
            f"{base}: no re-ranker in it. Name a run of `prvr train --stage generation` that has finished an epoch."
        )
    check_hashes(places[0])
    found: dict[Direction, CandidateReranker] = {}
    for direction in directions:
        path = places[0] / direction
        if not (path / "config.json").is_file():
            continue
        try:
            with redirect_stdout(StringIO()):  # the hub's loader prints
                reranker: nn.Module = CandidateReranker.from_pretrained(path)
        except (SafetensorError, RuntimeError, TypeError, FileNotFoundError) as error:
            raise DataError(f"{path}: not a readable re-ranker ({error}). Train it again.") from error
        found[direction] = reranker.eval()
    return found
