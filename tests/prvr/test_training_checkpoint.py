"""Checkpoints: whole or not at all, even on a full disk."""

import os
import random
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from kills import at_write
from torch import nn
from training_runs import file_size_limit, same

from prvr.config import ModelConfig
from prvr.data import DataError
from prvr.data.hashes import check_hashes
from prvr.models import Retriever, load_pretrained
from prvr.training import TrainingError
from prvr.training.checkpoint import load_best, load_state, recover, replace_folder, save_best, save_state


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def tiny_retriever(hidden: int = 16) -> Retriever:
    return Retriever(ModelConfig(video_dim=24, query_dim=20, hidden=hidden, heads=2, num_clips=4, max_frames=8))


def test_a_full_disk_leaves_the_previous_best(tmp_path: Path) -> None:
    retriever, objective = tiny_retriever(), nn.Linear(2, 2)
    save_best(tmp_path / "best", retriever, objective, "# first\n")
    before = snapshot(tmp_path)
    with torch.no_grad():
        next(retriever.parameters()).add_(1)
    with file_size_limit(20_000), pytest.raises(TrainingError, match="best: cannot be written"):
        save_best(tmp_path / "best", retriever, objective, "# second\n")
    assert snapshot(tmp_path) == before
    save_best(tmp_path / "best", retriever, objective, "# second\n")
    assert [p.name for p in tmp_path.iterdir()] == ["best"]
    assert (tmp_path / "best" / "README.md").read_text() == "# second\n"
    assert snapshot(tmp_path) != before


def mutations(content: bytes, count: int) -> Iterator[bytes]:
    """The content with one byte changed, anywhere."""
    rng = random.Random(20261122)
    for _ in range(count):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
        yield bytes(damaged)


def test_what_is_loaded_of_a_damaged_state_is_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"format": 99}, path)
    with pytest.raises(TrainingError, match="format 99"):
        load_state(path)
    weights = {f"w{i}": torch.randn(20) for i in range(5)}
    state = {"epoch": 3, "config": {"name": "tiny", "lr": 1e-3}, "history": [{"loss": 2.0}], "weights": weights}
    save_state(path, state)
    saved, refused = load_state(path), 0
    for damaged in mutations(path.read_bytes(), 400):
        path.write_bytes(damaged)
        try:
            assert same(load_state(path), saved)
        except TrainingError:
            refused += 1
    assert refused > 200  # the others hit what nobody reads


@pytest.mark.parametrize("file", ["model.safetensors", "objective.safetensors", "config.json", "sha256.txt"])
def test_a_damaged_best_is_refused_by_all_that_load_it(tmp_path: Path, file: str) -> None:
    save_best(tmp_path, tiny_retriever(), nn.Identity(), "")
    for damaged in mutations((tmp_path / file).read_bytes(), 20):
        (tmp_path / file).write_bytes(damaged)
        for load in (load_pretrained, lambda folder: load_best(folder, tiny_retriever())):
            with pytest.raises(DataError, match=re.escape(file)):
                load(tmp_path)
    (tmp_path / file).unlink()
    without_hashes = nullcontext()  # a folder of save_pretrained
    with without_hashes if file == "sha256.txt" else pytest.raises(DataError, match=rf"{file}: is missing"):
        load_pretrained(tmp_path)


class Evil:
    """Would create a file if it were unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return Path.touch, (self.target,)


def test_a_state_cannot_run_code(tmp_path: Path) -> None:
    path, trace = tmp_path / "state.pt", tmp_path / "trace"
    torch.save({"format": 1, "epoch": Evil(trace)}, path)
    with pytest.raises(TrainingError, match="not a readable training state"):
        load_state(path)
    assert not trace.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize(("rename", "survives"), [(1, "old"), (2, "new")])
def test_best_survives_a_kill_at_its_two_renames(tmp_path: Path, rename: int, survives: str) -> None:
    best = tmp_path / "best"
    replace_folder(best, lambda folder: (folder / "card").write_text("old"))
    if (child := os.fork()) == 0:
        at_write(rename, "renamed")()
        replace_folder(best, lambda folder: (folder / "card").write_text("new"))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "state.pt.0123456789abcdef.prvr-tmp").write_bytes(b"half")
    recover(tmp_path)
    check_hashes(tmp_path / "best")
    assert snapshot(tmp_path).pop("best/card") == survives.encode()
    assert [path.name for path in tmp_path.iterdir() if path.name != "last"] == ["best"]
