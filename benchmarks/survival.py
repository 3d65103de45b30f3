"""What a killed training run loses: nothing. Killed at random moments, resumed, compared with a straight run.

    python benchmarks/survival.py [--kills 20] [--inside 5] [--seed 0] [--epochs 6]

Trains a small hybrid (dropout, hard negatives, registers with Gaussian noise) with `prvr train`, saved after each step.
The moments of the `kill -9` are drawn from the seed, over all saves of the run; `--inside` of them lie inside a write:
there the killer looks for the half-written file and kills as soon as it has the drawn share of its size. A kill that
came too late for that is repeated at the next save. After each, the last state must be readable; in the end weights,
optimiser, history, best checkpoint and evaluation must equal those of the straight run bit by bit, and no half-written
file may be left. Exits with 1 otherwise.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prvr.config import Config, dump_config, load_config
from prvr.data.atomic import HALF_WRITTEN
from prvr.training.checkpoint import load_state

STEPS = 6  # per epoch: 60 videos by 10
SAVES = STEPS + 1  # per epoch: after each step, and when the epoch is evaluated


@dataclass(frozen=True)
class Moment:
    """When a run is killed: at one of its saves, counted from 1.

    Args:
        save: its number.
        writing: what must be half-written then, by the start of its name ("" = anything); None: after the save.
        share: after a save, how long it waits, of the time between two saves; inside the write of a state, how much of
            it is written, of the size of the one before.
    """

    save: int
    writing: str | None
    share: float

    def __str__(self) -> str:
        epoch, step = divmod(self.save - 1, SAVES)
        where = f"epoch {epoch}, " + (f"step {step}" if step < STEPS else "its end")
        return f"{where:16} {'after the save' if self.writing is None else 'in a write'}"


def draw(rng: random.Random, kills: int, inside: int, epochs: int) -> list[Moment]:
    saves = sorted(rng.sample(range(1, epochs * SAVES), kills))
    writes = set(rng.sample(range(kills), inside))
    return [
        Moment(save, rng.choice(["state.pt", "best", "curves.png", ""]) if i in writes else None, rng.random())
        for i, save in enumerate(saves)
    ]


def configuration(epochs: int, cache: str | None) -> Config:
    small = {"hidden": 32, "heads": 2, "lorentz_dim": 31, "max_frames": 40, "registers.steps": 3}
    train = {"epochs": epochs, "batch_size": 10, "hard_negatives_from": 1, "patience": 100, "checkpoint_every": 1}
    changes: dict[str, Any] = {f"model.{key}": value for key, value in small.items()}
    changes |= {f"train.{key}": value for key, value in train.items()}
    changes |= {"model.blocks": [{"space": "euclidean"}, {"space": "lorentz", "width": 2.0}]}
    changes |= {"data.collection": "embedded-tiny", "data.captions_per_video": 2, "data.cache_dir": cache}
    return load_config("hybrid-embedded", changes)


def start(config: Path, run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "prvr.cli", "train", "--config", str(config), "--output", str(run), "-q"]
    command += ["--device", "cpu", "--threads", "1", *(["--resume"] if run.exists() else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the run ended with code {process.returncode}:\n{errors}")


def half_written(run: Path) -> Iterator[Path]:
    for folder in (run, run / "last"):
        try:
            yield from (Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(HALF_WRITTEN))
        except FileNotFoundError:
            continue


def version(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def saved(run: Path) -> int:
    """How many saves lie behind the state of a run; the state must be readable."""
    file = run / "last" / "state.pt"
    if not file.exists():
        return 0
    state = load_state(file)
    return state["epoch"] * SAVES + (state["position"] or {"step": 0})["step"]


def kill_at(process: subprocess.Popen[str], run: Path, moment: Moment) -> bool:
    """Kills the process at the moment; False if it was done before."""
    state = run / "last" / "state.pt"
    done, last, seen, gap = saved(run), time.perf_counter(), version(state), 0.0
    target = max(moment.save, done + 1)
    while process.poll() is None:
        if (now := version(state)) != seen:
            seen, done = now, done + 1
            gap, last = time.perf_counter() - last, time.perf_counter()
        if moment.writing is None and done >= target:
            time.sleep(min(gap, 0.2) * moment.share)  # the first gap of a process has its start in it
            break
        if moment.writing is not None and done >= target - 1:
            enough = moment.share * size(state)
            found = [p.name for p in half_written(run) if not p.name.startswith("state.pt") or size(p) >= enough]
            if any(name.startswith(moment.writing) for name in found) or (found and done >= target):
                break
    else:
        return False
    process.kill()
    process.wait()
    return True


def size(path: Path) -> int:
    try:
        return sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0


def differences(straight: Path, killed: Path) -> list[str]:
    unfinished = (path.name for path in killed.rglob("*") if HALF_WRITTEN in path.name or "replaced" in path.name)
    found = [f"{name} is left" for name in unfinished]
    left, right = (load_state(run / "last" / "state.pt") for run in (straight, killed))
    for state in (left, right):
        for line in state["history"]:
            del line["seconds"]
    found += [f"{part} of the state differs" for part in left if not same(left[part], right[part])]
    names = ["best/model.safetensors", "best/objective.safetensors", "evaluation.json", "evaluation_ranks.npz"]
    found += [f"{name} differs" for name in names if (straight / name).read_bytes() != (killed / name).read_bytes()]
    return found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9 at random moments of a training run, resumed each time")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--inside", type=int, default=5, help="how many of them at least inside a write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--cache-dir", help="where the embedded corpus is, or is made; default: the user's cache")
    args = parser.parse_args()
    if not 0 <= args.inside <= args.kills < args.epochs * SAVES:
        parser.error(f"expected inside <= kills < {args.epochs * SAVES} saves")
    rng = random.Random(args.seed)
    moments = draw(rng, args.kills, args.inside, args.epochs)
    print(f"seed {args.seed}: {args.kills} kills, {args.inside} in a write, {args.epochs} epochs of {STEPS} steps")
    with tempfile.TemporaryDirectory() as folder:
        config, straight, killed = (Path(folder) / name for name in ("config.yaml", "straight", "killed"))
        config.write_text(dump_config(configuration(args.epochs, args.cache_dir)), encoding="utf-8")
        finish(start(config, straight))
        count = inside = 0
        while moments:
            moment = moments.pop(0)
            if not kill_at(process := start(config, killed), killed, moment):
                finish(process)
                break
            count += 1
            left = list(half_written(killed))
            inside += bool(left)
            what = ", ".join(f"{p.name} ({size(p)} bytes)" for p in left) or "nothing half-written"
            behind = saved(killed)
            print(f"{count:3} {moment}: {what}; {behind} of {args.epochs * SAVES} saves are behind it", flush=True)
            if moment.writing is not None and not left:
                moments.insert(0, Moment(behind + 1, "", 0.0))
        finish(start(config, killed))
        wrong = differences(straight, killed)
    verdict = "; ".join(wrong) or "the end is equal bit by bit, nothing half-written is left"
    print(f"killed {count} times, {inside} inside a write; {verdict}")
    sys.exit(bool(wrong or count < args.kills or inside < args.inside))


if __name__ == "__main__":
    main()
