"""Checkpoints that appear whole or not at all: `best/` to use, `last/state.pt` to resume from."""

import hashlib
import json
import logging
import math
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from prvr.data.atomic import (
    Content,
    clear_abandoned,
    clear_half_written,
    is_real_folder,
    replace_file,
    unfinished_folder,
)
from prvr.data.hashes import check_hashes, write_hashes
from prvr.errors import DataError, TrainingError
from prvr.models.pretrained import HEADS, PretrainedModel, rename_heads, write_model
from prvr.reading import parse_record, short

logger = logging.getLogger(__name__)

FORMAT = 4
_REPLACED = ".replaced"


def write_file(path: Path, content: Content) -> None:
    """Writes a file whole or not at all; the one that stood there stays until the new one is complete.

    Raises:
        TrainingError: it cannot be written, for example because the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except (OSError, RuntimeError) as error:  # torch.save reports a failed write as RuntimeError
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> TrainingError:
    return TrainingError(
        f"{path}: cannot be written ({error}). What was there before is intact. "
        "Free space or correct the permissions, then continue with --resume."
    )


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes everything a run needs to go on (`Trainer.state_dict`): plain values and tensors only."""
    write_file(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load_state(path: Path) -> dict[str, Any]:
    """Reads what `save_state` wrote, on the CPU and without running any code of the file.

    The file is a ZIP archive, which holds a checksum of each of its parts. Torch does not look at them; this does.

    Raises:
        TrainingError: the file is missing, damaged, or of another format.
    """
    if not path.is_file():
        raise TrainingError(f"{path}: no such file, nothing to resume. Start without --resume.")
    try:
        with zipfile.ZipFile(path) as parts:
            if (damaged := parts.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of its part {damaged} does not match")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and zipfile raise many kinds for a damaged file
        raise TrainingError(
            f"{path}: not a readable training state ({error}). Use best/ of the same folder, or start a new run."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        version = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise TrainingError(
            f"{path}: training state of format {short(version)}, this version reads {FORMAT}. Start a new run."
        )
    return state


@dataclass(frozen=True)
class Score:
    """The validation score of a network after an epoch.

    Args:
        epoch: from 0; -1 = before the first. With `train.average`, the last of those that are averaged.
        value: in percent.
        details: what else describes it, as plain values.
    """

    epoch: int = -1
    value: float = -math.inf
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class TrainerState:
    """How far an epoch has come, with the sums of its loss terms.

    Args:
        step: batches of the epoch that are done, skipped ones included.
        skipped: steps that were left out because loss or gradient was not finite.
        rate: learning rate of the last step.
        seconds: spent in the steps so far, also before an interruption.
        processor: seconds of all processor cores in these steps, of this process alone.
        sums: the sums of each loss term over the steps that were not skipped.
    """

    step: int = 0
    skipped: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    processor: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, terms: Mapping[str, float]) -> None:
        """Adds the loss terms of a step to the sums."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """The mean of each loss term over the steps that were not skipped; empty if all were."""
        return {name: value / (self.step - self.skipped) for name, value in self.sums.items()}


@dataclass(frozen=True)
class Position:
    """What a saved state says in plain values, see `Trainer.state_dict`."""

    config: dict[str, Any]
    parts: dict[str, str]
    best: dict[str, Score]
    epoch: int
    history: list[dict[str, Any]]
    position: TrainerState | None
    skipped_in_row: int
    stopped: bool = False

    def problem(self, steps: int, epochs: int) -> str:
        """What no run of so many epochs, each of so many steps, has saved; empty if it all may be."""
        position, ended, best = self.position or TrainerState(), self.epoch, [s.epoch for s in self.best.values()]
        if (
            0 <= ended == len(self.history) <= epochs
            and 0 <= position.skipped <= position.step <= steps
            and 0 <= self.skipped_in_row <= ended * steps + position.step
            and all(-1 <= epoch <= ended for epoch in best)
        ):
            return ""
        return (
            f"step {short(position.step)} of {steps} after {short(ended)} of {epochs} epochs, metrics of "
            f"{len(self.history)}, {short(self.skipped_in_row)} steps skipped in a row, best epochs {short(best)}."
        )


@dataclass(frozen=True)
class _Line:
    """What is read of a line of the history."""

    epoch: int
    loss: dict[str, float]
    sumr: float | None = None
    rsum: float | None = None
    chance: float | None = None
    averaged: list[int] | None = None


def plain_state(state: Mapping[str, Any], path: Path) -> Position:
    """The plain values of a saved state, with their types.

    Args:
        state: what `load_state` gave.
        path: where it lies, for the message.

    Raises:
        TrainingError: one is missing, of another type, or not finite.
    """
    names = [field.name for field in fields(Position)]
    try:
        plain = parse_record(Position, {name: state[name] for name in names if name in state}, str(path))
        position = TrainerState() if plain.position is None else plain.position
        json.dumps([plain.history, asdict(position)], allow_nan=False)
        for number, values in enumerate(plain.history):
            line = parse_record(_Line, values, f"{path}: history: {number}")
            if line.epoch != number or (line.sumr is None) == (line.rsum is None):
                raise DataError(f"{path}: history: {number}: expected epoch {number} with sumr or rsum.")
        if any(math.isnan(score.value) or score.value == math.inf for score in plain.best.values()):
            raise DataError(f"{path}: best: a score is not finite.")
    except ValueError as error:  # DataError is one
        raise damaged(path, error) from error
    return plain


def damaged(path: Path, why: object) -> TrainingError:
    """The error for a state whose content makes no sense."""
    reason = str(why).removeprefix(f"{path}: ")
    return TrainingError(f"{path}: is damaged: {reason} Use best/ of the same folder, or start a new run.")


def expect_like(own: Any, saved: Any, name: str) -> None:
    """Refuses a value of another structure: other types, keys, lengths or shapes, or numbers that are not finite.

    Raises:
        ValueError: names the part.
    """
    if isinstance(own, Tensor):
        same_structure = isinstance(saved, Tensor) and (saved.shape, saved.dtype) == (own.shape, own.dtype)
    elif isinstance(own, Mapping):
        same_structure = isinstance(saved, Mapping) and saved.keys() == own.keys()
        for key in own if same_structure else ():
            expect_like(own[key], saved[key], f"{name}.{key}")
    elif isinstance(own, list | tuple):
        same_structure = isinstance(saved, list | tuple) and len(saved) == len(own)
        for number, (value, saved_value) in enumerate(zip(own, saved, strict=True) if same_structure else ()):
            expect_like(value, saved_value, f"{name}.{number}")
    elif isinstance(own, float):
        same_structure = type(saved) in (float, int) and math.isfinite(saved)
    else:
        same_structure = type(saved) is type(own)
    if not same_structure:
        raise ValueError(f"{name}: got {short(saved)}, expected a value like {short(own)}.")


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], source: Path | str) -> None:
    """Loads a state dict that must fit exactly.

    Raises:
        TrainingError: tensors are missing, unknown, or of another shape: a checkpoint of another model.
    """
    own, theirs = ({name: tuple(x.shape) for name, x in state.items()} for state in (module.state_dict(), weights))
    names = [name for name in own | theirs if own.get(name) != theirs.get(name)]
    if names:
        some = ", ".join(f"{name} {theirs.get(name, 'absent')} -> {own.get(name, 'absent')}" for name in names[:3])
        more = f" and {len(names) - 3} more" * (len(names) > 3)
        remedy = "Use the configuration it was trained with (config.yaml in its run folder)."
        ours, parts = ({name.partition(".")[0] for name in state} for state in (own, theirs))
        if parts == {"path"} and ours != parts:
            remedy = "It is a kernel regression; a deep system fits one of its own with model.start=kernel."
        raise TrainingError(f"{source}: a checkpoint of another model ({some}{more}). {remedy}")
    module.load_state_dict(dict(weights))


def save_best(folder: Path, retriever: PretrainedModel, objective: nn.Module, card: str) -> None:
    """Replaces `folder` by a new one: the retriever as `save_pretrained` writes it, `objective.safetensors`, the card.

    Raises:
        TrainingError: it cannot be written; the old folder is intact.
    """
    replace_folder(folder, lambda temporary: write_model(temporary, retriever, objective, card))


def replace_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Replaces `folder` by a new one that `write` fills, and lists the hashes of its files.

    A crash leaves the old folder or the new one; `recover` puts back what was caught between the two renames.

    Raises:
        TrainingError: it cannot be written; the old folder is intact. Or it is a link.
    """
    if folder.is_symlink():
        raise TrainingError(f"{folder}: is a symbolic link, expected a folder of the run. Put the folder itself there.")
    replaced = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}{_REPLACED}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = unfinished_folder(folder)
        write(temporary)
        readable = [file for file in temporary.rglob("*") if file.is_file() and file.suffix != ".safetensors"]
        for file in temporary.rglob("*.safetensors"):
            shutil.copymode(readable[0], file)  # safetensors makes them private to the user
        write_hashes(temporary)
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
    except Exception as error:
        _recover(folder)
        if isinstance(error, OSError | SafetensorError):
            raise _unwritable(folder, error) from error
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def load_best(folder: Path, module: nn.Module, name: str = "model.safetensors", *, other_heads: bool = False) -> None:
    """Loads a file of `best/` into a module of the same configuration.

    Args:
        folder: `best/`, or one like it.
        module: a retriever, or the objective.
        name: `model.safetensors` for the retriever, `objective.safetensors` for the objective.
        other_heads: the file may lack moment heads of the retriever, or have others: those stay, these are left out.

    Raises:
        TrainingError: they are missing, unreadable, or those of another model.
        DataError: they are not what was saved.
    """
    path = folder / name
    check_hashes(folder)
    if not path.is_file():
        raise TrainingError(
            f"{path}: no such file. A run of `prvr train` has it: name one, or restore it from a backup."
        )
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise TrainingError(f"{path}: cannot be read ({error}). Restore it from a backup, or train again.") from error
    rename_heads(module, weights)
    if other_heads:
        own = {key: value for key, value in module.state_dict().items() if key.startswith(HEADS)}
        weights = own | {key: value for key, value in weights.items() if key in own or not key.startswith(HEADS)}
    load_weights(module, weights, path)


def recover(run: Path) -> None:
    """Clears away what a killed process left half-written in a run folder, and puts back a replaced `best/`."""
    _recover(run / "best")
    clear_half_written(run, "last")


def _recover(folder: Path) -> None:
    name = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{16}" + re.escape(_REPLACED))
    for replaced in [path for path in folder.parent.iterdir() if name.fullmatch(path.name) and is_real_folder(path)]:
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            logger.warning("%s: restoring the checkpoint that a killed process was replacing", folder)
            replaced.rename(folder)
    clear_abandoned(folder)


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts, for example (run seed, epoch, purpose).

    Examples:
        >>> derived_seed(0, 1, "dropout") == derived_seed(0, 1, "dropout") != derived_seed(0, 2, "dropout")
        True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
