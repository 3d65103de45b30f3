"""The folder of a stage-2 run: that of any run, with a re-ranker of each direction in `best/`."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from prvr.config import config_to_dict, read_yaml_file
from prvr.data import DataError
from prvr.data.hashes import check_hashes
from prvr.generation.config import GenerationConfig, generation_config
from prvr.stages import CandidateReranker, Direction
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


def is_generation_run(folder: Path) -> bool:
    """Whether a folder is a run of stage 2."""
    return (folder / "config.yaml").is_file() and "reranker" in read_yaml_file(folder / "config.yaml")


def read_config(path: Path, width: int | None = None) -> GenerationConfig:
    """The configuration of a run, or one of your own.

    Args:
        path: of the file.
        width: of the retriever's embeddings, for a file that does not say `reranker.width`.

    Raises:
        prvr.ConfigError: no such file, not YAML, a bad key or value, or no width.
    """
    return generation_config(read_yaml_file(path), width=width, source=str(path))


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
        found[direction] = CandidateReranker.from_pretrained(path).eval()
    return found
