"""Run folders of small retrievers that nobody has trained, for tests of what is done with a run."""

from pathlib import Path
from typing import Any

import torch
from commands import SMALL

import prvr
from prvr.config import ModelConfig, dump_config


def write_run(
    folder: Path, root: Path, collection: str, seed: int = 0, cache: Path | None = None, **changes: Any
) -> tuple[Path, "prvr.Retriever"]:
    """A run folder as `prvr train` leaves it, for a corpus of the toy encoder; and its retriever."""
    torch.manual_seed(seed)
    data = {"data.root": str(root), "data.collection": collection, "data.feature": "frames"}
    data["data.cache_dir"] = str(cache or folder.parent / "cache")
    config = prvr.load_config("hybrid-toy", SMALL | data | changes)
    assert isinstance(config.model, ModelConfig)
    retriever = prvr.Retriever(config.model)
    retriever.save_pretrained(folder / "best")
    (folder / "config.yaml").write_text(dump_config(config))
    return folder, retriever
