"""What the tests of training share: a tiny configuration, hooks that act inside an epoch, comparisons."""

import itertools
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from prvr.config import Config, validated
from prvr.training import RunResult, Splits, resume, train

DIFFUSION = {
    "optim__name": "bert_adam",
    "model__registers": {"kind": "diffusion", "num": 2, "steps": 3},
    "loss__diffusion": 0.1,
    "loss__prior_kl": 1e-3,
    "loss__entailment": 1e-3,
}
"""Everything that draws: dropout, hard negatives, registers with Gaussian noise."""


def make_config(cache: str, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "tiny",
        "model": {"video_dim": 512, "query_dim": 48, "hidden": 16, "heads": 2, "num_clips": 8, "max_frames": 16},
        "optim": {"lr": 3e-3},
        "data": {"collection": "toy-tiny", "cache_dir": cache},
        "train": {"epochs": 2, "batch_size": 16, "hard_negatives_from": 1},
        "fit": {"baseline": "never"},
    }
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            values.setdefault(group, {})[name] = value
        else:
            values[group] = value
    return validated(Config, values)


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"train__epochs": 1},
    "adamw": {"optim__name": "adamw", "data__captions_per_video": 2},
    "bert_adam": DIFFUSION,
    "chunks": {"train__chunk_videos": 5, **DIFFUSION},
    "average": {"train__average": 2, "optim__lr": 0.01, **DIFFUSION},
    "kernel": {
        "model__start": "kernel",
        "fit": {
            "kernel": "gaussian",
            "windows": [[2, 4]],
            "widths": [1.0],
            "penalties": [1.0],
            "temperatures": [0.1],
            "landmarks": 100,
        },
    },
}


class StraightRuns(dict[str, RunResult]):
    """By their names in `RUNS`, runs that nobody disturbs: trained by the process that asks first, read by the others.

    Args:
        folder: the same for all processes.
        cache: for `make_config`.
        splits: those of `make_config`.
    """

    def __init__(self, folder: Path, cache: str, splits: Splits) -> None:
        self.folder, self.cache, self.splits = folder, cache, splits
        folder.mkdir(exist_ok=True)

    def __missing__(self, name: str) -> RunResult:
        result = self.folder / f"{name}.pickle"
        with FileLock(self.folder / f"{name}.lock"):
            if not result.exists():
                config = make_config(self.cache, **RUNS[name])
                done = train(config, output=self.folder / name, splits=self.splits, device="cpu")
                result.write_bytes(pickle.dumps(done))
        self[name] = pickle.loads(result.read_bytes())
        return self[name]


class Runs:
    """Runs on the CPU in the folder of a test, on the splits of `make_config`.

    Args:
        folder: where they are written.
        cache: for `make_config`.
        splits: those of `make_config`.
    """

    def __init__(self, folder: Path, cache: str, splits: Splits) -> None:
        self.folder, self.cache, self.splits = folder, cache, splits

    @property
    def path(self) -> Path:
        """Of the run that has no other name."""
        return self.folder / "run"

    def config(self, **changes: Any) -> Config:
        return make_config(self.cache, **changes)

    def train(self, config: Config | None = None, name: str = "run", **options: Any) -> RunResult:
        """Options with "__" in their names are changes for `make_config`, all others are those of `train`."""
        changes = {key: options.pop(key) for key in [*options] if "__" in key}
        output = self.folder / name
        return train(config or self.config(**changes), output=output, splits=self.splits, device="cpu", **options)

    def resume(self, name: str = "run", **options: Any) -> RunResult:
        return resume(self.folder / name, splits=self.splits, device="cpu", **options)

    def stop(self, epoch: int, step: int | None = None, config: Config | None = None, **options: Any) -> None:
        """Trains until a step of an epoch (from 1), which raises KeyboardInterrupt before it is saved."""
        with pytest.raises(KeyboardInterrupt):
            self.train(config, progress=StopInEpoch(epoch, interrupt, step), **options)


def losses(history: Any) -> list[dict[str, float]]:
    return [line["loss"] for line in history]


@contextmanager
def steps_counter(counts: list[int], title: str, steps: int) -> Iterator[Any]:
    counts.append(steps)
    yield lambda terms: None


class StopInEpoch:
    """A progress hook that acts in the middle of one epoch, as a user or the system might.

    Args:
        number: of the epoch, counted from 1 in this process.
        act: what it does.
        step: after which step that this process takes in the epoch, from 0; None = each.
    """

    def __init__(self, number: int, act: Any, step: int | None = None) -> None:
        self.number, self.act, self.step, self.seen = number, act, step, 0

    @contextmanager
    def __call__(self, title: str, steps: int) -> Iterator[Any]:
        self.seen += 1
        count = itertools.count()

        def report(terms: Any) -> None:
            step = next(count)
            if self.seen == self.number and self.step in (None, step):
                self.act()

        yield report


def interrupt() -> None:
    raise KeyboardInterrupt


def state_of(run: Path) -> dict[str, Any]:
    """The saved state, with the weights of retriever and objective under their own names too."""
    state = torch.load(run / "last" / "state.pt", weights_only=False)  # our own file, five times as fast
    model = state["networks"].get("model", {})
    for part in ("retriever", "objective"):
        state[part] = {name.partition(".")[2]: weight for name, weight in model.items() if name.startswith(part)}
    return state


def same(left: Any, right: Any) -> bool:
    """Bitwise, through nested containers."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def same_end(left: Path, right: Path) -> bool:
    """Whether two runs have ended in the same weights, optimiser, schedule and saved model, bit by bit."""
    a, b = state_of(left), state_of(right)
    parts = ("retriever", "objective", "optimizer", "scheduler", "average", "epoch", "best")
    names = ("model.safetensors", "objective.safetensors")
    files = [[(run / "best" / name).read_bytes() for name in names] for run in (left, right)]
    return files[0] == files[1] and same({part: a[part] for part in parts}, {part: b[part] for part in parts})


def half_written(run: Path) -> list[Path]:
    """Files that a write has left unfinished."""
    return [path for path in run.rglob("*") if re.search("tmp|replaced|unfinished", path.name)]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files of this process may not grow beyond `size` bytes: what a full disk or a quota does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
