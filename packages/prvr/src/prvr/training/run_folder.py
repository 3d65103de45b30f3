"""The folder of a run: its files, and the lock of the process that writes them.

config.yaml        the resolved configuration
environment.yaml   versions, device, hashes of captions and features
metrics.jsonl      one line per epoch: loss terms, learning rate, selection metrics, steps, seconds, averaged epochs
curves.png         loss and SumR
best/              the retriever of the best epoch, or of the mean of the last ones (`from_pretrained` reads it),
                   objective.safetensors, README.md; before the first epoch, the start that was fitted in closed form
last/state.pt      everything `--resume` needs, of the last complete epoch or of a step inside the next
.lock              held by the process that trains
evaluation.json    the report of best/ on the reported split; evaluation_ranks.npz: the rank of each query
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from accelerate import Accelerator

from prvr.config import ConfigError, RunConfig, config_to_dict, dump_config, expect_readable, flat, validated
from prvr.data import DataError
from prvr.data.atomic import HALF_WRITTEN, LOCK, owned
from prvr.data.on_device import matrix_products
from prvr.errors import TrainingError
from prvr.evaluation.report import EvaluationReport
from prvr.training.checkpoint import load_state, plain_state, recover, save_state, write_file
from prvr.training.processes import (
    EpochProgress,
    StopRequest,
    in_main,
    kept_memory,
    listening,
    make_accelerator,
    no_progress,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)
RECORD = "environment.yaml"
"""The name of the record of a run, see `prvr.training.record`."""


MAY_CHANGE = frozenset(
    {
        *("name", "imports", "data.root", "data.cache_dir", "train.teacher", "train.start_from"),
        *("train.data_on_device", "train.cuda_graph", "train.checkpoint_every", "train.on_nonfinite"),
        *("train.max_skipped", "fit.baseline"),
    }
)
"""Keys that say what a run is called, where things are, how fast they go, or what is done about accidents."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys of two nested mappings that differ, each as "key: old -> new"; those in `MAY_CHANGE` are left out.

    Examples:
        >>> differences({"optim": {"lr": 0.1}}, {"optim": {"lr": 0.2}})
        ['optim.lr: 0.1 -> 0.2']
    """
    before, after = flat(old), flat(new)
    return [
        f"{key}: {before.get(key, 'absent')!r} -> {after.get(key, 'absent')!r}"
        for key in dict.fromkeys([*before, *after])
        if key not in MAY_CHANGE and before.get(key, "absent") != after.get(key, "absent")
    ]


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run folder, and how its files are written: each whole or not at all."""

    path: Path

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        return self.path / "best"

    @property
    def state(self) -> Path:
        """The file of the state that a resumed run continues from."""
        return self.path / "last" / "state.pt"

    @property
    def evaluation(self) -> Path:
        """The file of the report on the reported split."""
        return self.path / "evaluation.json"

    @contextmanager
    def owned(self, resume: bool) -> Iterator[None]:
        """Owns the folder, created where it is missing; removes what a killed process left half-written there.

        Raises:
            TrainingError: it is not empty, and not resumed; another process trains there; or it cannot be written.
        """
        if not resume:
            files = sorted(p.name for p in self.path.glob("*") if p.name != LOCK and p.suffix != HALF_WRITTEN)
            # These alone: it failed before its first epoch.
            if set(files) - {"config.yaml", RECORD} or self.path.is_file():
                raise TrainingError(
                    f"{self.path}: already holds {', '.join(files[:4]) or 'a file'}. Resume that run (--resume), or "
                    "choose another folder."
                )
        is_new = not self.path.exists()
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                busy = f"{self.path}: another process is training there. Wait for it, or choose another folder."
                stack.enter_context(owned(self.path, busy, TrainingError))
                recover(self.path)
            except OSError as error:
                raise TrainingError(f"{self.path}: cannot be written ({error}). Choose another folder.") from error
            if is_new:
                stack.callback(self._remove_if_not_begun)
            yield

    def open(self, config: Any, resume: bool) -> dict[str, Any] | None:
        """The state to continue from; None for a new run, or where the old one was stopped before its first was saved.

        Raises:
            TrainingError: there is no state, or the run was configured otherwise.
        """
        if not resume:
            return None
        if not self.state.exists() and not self._has_saved_an_epoch:
            logger.info("%s: no checkpoint was saved; starting over", self.path)
            return None
        state = load_state(self.state)
        saved = plain_state(state, self.state).config
        with suppress(ConfigError):  # keys that are new since it was saved have their defaults
            saved = config_to_dict(validated(type(config), saved))
        if changes := differences(saved, config_to_dict(config)):
            raise TrainingError(
                f"{self.path}: cannot resume with another configuration; {'; '.join(changes)}. "
                "Resume without these keys, or go on from its best weights in another folder: --output OTHER "
                f"--train.start_from {self.path}, with a preset and keys."
            )
        return state

    def _remove_if_not_begun(self) -> None:
        with suppress(OSError):
            if [path.name for path in self.path.iterdir()] == [LOCK]:
                (self.path / LOCK).unlink()
                self.path.rmdir()

    @property
    def _has_saved_an_epoch(self) -> bool:
        # The state is written last: a run killed before its first one may leave best/ and one line of metrics.jsonl.
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 1
        return lines != 1 or self.evaluation.exists()

    def write_config(self, config: Any) -> None:
        """Writes `config.yaml`, and with it the folder."""
        self._write_text("config.yaml", dump_config(config))

    def save_epoch(self, state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Writes the metrics, and last the state: metrics after the last saved state are written again on resume."""
        lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in history)
        self._write_text("metrics.jsonl", lines)
        self.save_state(state)

    def save_curves(self, history: Sequence[Mapping[str, Any]], title: str) -> None:
        """Draws `curves.png`, which takes as long as several steps of a small model."""
        figure = curves_figure(history, title)
        write_file(self.path / "curves.png", lambda file: figure.savefig(file, format="png"))

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Writes the state alone, as it is done inside an epoch."""
        save_state(self.state, state)

    def save_report(self, report: EvaluationReport) -> None:
        """Writes `evaluation.json` and its ranks."""
        try:
            report.to_json(self.evaluation)
        except (OSError, DataError) as error:
            raise TrainingError(
                f"{self.evaluation}: cannot be written ({error}). Free space, then --resume."
            ) from error

    def _write_text(self, name: str, text: str) -> None:
        write_file(self.path / name, text.encode())


OnEpoch = Callable[[Mapping[str, Any]], bool | None]
"""What is called after each epoch."""


class RunOptions(TypedDict, total=False):
    """Options of every run that its configuration does not hold: keywords of `train`, `resume` and other trainings."""

    resume: bool
    """Continue the run in `output` from its last checkpoint: the end of an epoch, or a step inside one."""
    device: torch.device | str | None
    """Where to compute: "cpu", or None for accelerate's choice."""
    progress: EpochProgress
    """Shows the steps of an epoch, for example `terminal_bar`."""
    trackers: Sequence[Any]
    """Trackers of accelerate, for example ["tensorboard"]."""
    on_epoch: OnEpoch
    """Called after each epoch, once it is saved, with its line of `metrics.jsonl`; True ends the training there."""


@dataclass(frozen=True)
class Run:
    """The folder, processes and signals of a run of any task.

    Args:
        folder: where it is written.
        accelerator: device, precision, processes and trackers.
        stop: requests of the system to stop.
        progress: shows the steps of an epoch.
        state: what it continues from, as `RunFolder.open` returned it; None = the start.
        on_epoch: called after each epoch in the main process; see `RunOptions`.
    """

    folder: RunFolder
    accelerator: Accelerator
    stop: StopRequest
    progress: EpochProgress = no_progress
    state: Mapping[str, Any] | None = None
    on_epoch: OnEpoch | None = None


@contextmanager
def open_run(config: RunConfig, output: Path | str, **options: Unpack[RunOptions]) -> Iterator[Run]:
    """A run in a folder that belongs to this process, new or continued; signals ask it to stop.

    Raises:
        TrainingError: as `RunFolder.owned`, `RunFolder.open` and `make_accelerator`.
        prvr.ConfigError: the configuration cannot be read back from its own `config.yaml`.
    """
    expect_readable(config)
    folder = RunFolder(Path(output))
    precision = config.train.precision
    resume = options.get("resume", False)
    trackers = options.get("trackers", ())
    with ExitStack() as stack:
        accelerator = stack.enter_context(make_accelerator(precision, folder.path, options.get("device"), trackers))
        in_main(accelerator, lambda: stack.enter_context(folder.owned(resume)))
        state = folder.open(config, resume)
        stop = stack.enter_context(listening())
        stack.enter_context(kept_memory(accelerator.device.type == "cpu"))
        stack.enter_context(matrix_products("no"))  # but for the steps of a run in TF32
        progress = options.get("progress", no_progress) if accelerator.is_main_process else no_progress
        yield Run(folder, accelerator, stop, progress, state, options.get("on_epoch"))


def curves_figure(history: Sequence[Mapping[str, Any]], title: str = "") -> "Figure":
    """Draws the loss terms (left) and the sum of recalls that selects (right) per epoch.

    Args:
        history: the lines of `metrics.jsonl`: mappings with `epoch`, `loss` (term to mean), and `sumr`, or
            `rsum` where R@100 is left out; `chance`, where there is one, is a dotted line.
        title: above the picture.
    """
    from matplotlib.figure import Figure  # not pyplot, which keeps global state and may look for a display

    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in history]
    for name in dict.fromkeys(name for line in history for name in line["loss"]):
        values = [line["loss"].get(name, float("nan")) for line in history]
        left.plot(epochs, values, ".-", label=name, linewidth=2 if name == "total" else 1)
    positive = all(value > 0 for line in history for value in line["loss"].values())
    left.set(xlabel="epoch", ylabel="loss (weighted terms)", yscale="log" if history and positive else "linear")
    measure = "rsum" if any("rsum" in line for line in history) else "sumr"
    scores = [line[measure] for line in history]
    right.plot(epochs, scores, ".-", color="black")
    right.set(xlabel="epoch", ylabel="Rsum, both directions" if measure == "rsum" else "SumR")
    if history:
        averaged = bool(history[-1].get("averaged"))
        saved = len(scores) - 1 if averaged else max(range(len(scores)), key=scores.__getitem__)
        right.plot(epochs[saved], scores[saved], "o", color="tab:red", label=f"saved: {scores[saved]:.1f}")
        if (chance := history[-1].get("chance")) is not None:
            right.axhline(chance, color="0.35", linestyle=":", linewidth=1, label=f"chance: {chance:.1f}")
        for axes in (left, right):
            axes.legend(fontsize="small")
            axes.grid(alpha=0.3)
    return figure
