"""What a kill costs: nothing that was there. Killed at drawn moments, run again, compared with a run left alone.

    python benchmarks/survival.py [--what train demo] [--kills 20] [--inside 5] [--seed 0]

train: a small hybrid (dropout, hard negatives, registers with Gaussian noise) with `prvr train`, saved after each step.
The moments of the `kill -9` are drawn over all saves of the run; `--inside` of them lie inside a write: there the
killer looks for the half-written file and kills as soon as it has the drawn share of its size. A kill that came too
late for that is repeated at the next save. After each, the last state must be readable; in the end weights, optimiser,
history, best checkpoint and evaluation must equal those of the straight run bit by bit.

demo: `prvr demo --quick` with a smaller model, killed at any time; every fourth time it begins without its corpus.
After each, in the same cache, what is there must be whole; in the end a demo must find what an undisturbed one found.

No half-written file may be left at the end of any of them. Exits with 1 otherwise.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "prvr"))

from commands import SMALL
from training_runs import same

from _harness import option, parse_options
from prvr.cli import main as prvr_command
from prvr.config import Config, dump_config, load_config
from prvr.data.atomic import HALF_WRITTEN
from prvr.training.checkpoint import load_state
from prvr_search.cli import demo

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
    changes |= {"data.collection": "toy-tiny", "data.captions_per_video": 2, "data.cache_dir": cache}
    changes |= {"fit.baseline": "never"}
    return load_config("hybrid-toy", changes)


def start(*words: str, prepare: Callable[[], None] = lambda: None) -> BaseProcess:
    """Begins a command in a fork of this process, where nothing is imported anew; `prepare` is called there before."""

    def act() -> None:
        prepare()
        sys.exit(command(words))

    process = get_context("fork").Process(target=act)
    process.start()
    return process


def command(words: Sequence[str]) -> int:
    with redirect_stdout(StringIO()):
        return prvr_command(words)


def training(config: Path, run: Path) -> list[str]:
    words = ["train", "--config", str(config), "--output", str(run), "-q", "--device", "cpu", "--threads", "1"]
    return words + ["--resume"] * run.exists()


def finish(process: BaseProcess) -> None:
    process.join()
    if process.exitcode != 0:
        sys.exit(f"the command ended with code {process.exitcode}")


def half_written(run: Path) -> Iterator[Path]:
    for folder in (run, run / "last"):
        try:
            yield from (Path(entry.path) for entry in os.scandir(folder) if HALF_WRITTEN in entry.name)
        except FileNotFoundError:
            continue


def version(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)


def saved(run: Path) -> int:
    """How many saves lie behind the state of a run; the state must be readable."""
    file = run / "last" / "state.pt"
    if not file.exists():
        return 0
    state = load_state(file)
    return state["epoch"] * SAVES + (state["position"] or {"step": 0})["step"]


def kill_at(process: BaseProcess, run: Path, moment: Moment) -> bool:
    """Kills the process at the moment; False if it was done before."""
    state = run / "last" / "state.pt"
    done, last, seen, gap = saved(run), time.perf_counter(), version(state), 0.0
    target = max(moment.save, done + 1)
    while process.is_alive():
        time.sleep(0.0005)  # far less than a write takes
        if (now := version(state)) != seen:
            seen, done = now, done + 1
            gap, last = time.perf_counter() - last, time.perf_counter()
        if moment.writing is None and done >= target:
            time.sleep(min(gap, 0.2) * moment.share)  # the first gap of a process has its start in it
            break
        if moment.writing is not None and done >= target - 1:
            enough = moment.share * size(state)
            names = [p.name for p in half_written(run) if not p.name.startswith("state.pt") or size(p) >= enough]
            if any(name.removeprefix(f"{HALF_WRITTEN}-").startswith(moment.writing) for name in names) or (
                names and done >= target
            ):
                break
    else:
        return False
    process.kill()
    process.join()
    return True


def size(path: Path) -> int:
    try:
        return sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0


def differences(straight: Path, torn: Path) -> list[str]:
    parts = (HALF_WRITTEN, "replaced")
    unfinished = (path.name for path in torn.rglob("*") if any(part in path.name for part in parts))
    problems = [f"{name} is left" for name in unfinished]
    left, right = (load_state(run / "last" / "state.pt") for run in (straight, torn))
    for state in (left, right):
        for line in state["history"]:
            del line["seconds"]
    problems += [f"{part} of the state differs" for part in left if not same(left[part], right[part])]
    names = ["best/model.safetensors", "best/objective.safetensors", "evaluation.json", "evaluation_ranks.npz"]
    problems += [f"{name} differs" for name in names if (straight / name).read_bytes() != (torn / name).read_bytes()]
    return problems


def train_survives(args: argparse.Namespace, rng: random.Random, folder: Path) -> bool:
    moments = draw(rng, args.kills, args.inside, args.epochs)
    config, straight, torn = (folder / name for name in ("config.yaml", "straight", "killed"))
    config.write_text(dump_config(configuration(args.epochs, args.cache_dir)), encoding="utf-8")
    if command(training(config, straight)) != 0:  # here, where it imports what the forks then need not
        sys.exit("the run that nobody disturbs has failed")
    count = inside = 0
    while moments:
        moment = moments.pop(0)
        if not kill_at(process := start(*training(config, torn)), torn, moment):
            finish(process)
            break
        count += 1
        left = list(half_written(torn))
        inside += bool(left)
        what = ", ".join(f"{p.name} ({size(p)} bytes)" for p in left) or "nothing half-written"
        behind = saved(torn)
        print(f"{count:3} {moment}: {what}; {behind} of {args.epochs * SAVES} saves are behind it", flush=True)
        if moment.writing is not None and not left:
            moments.insert(0, Moment(behind + 1, "", 0.0))
    finish(start(*training(config, torn)))
    wrong = differences(straight, torn)
    verdict = "; ".join(wrong) or "the end is equal bit by bit, nothing half-written is left"
    print(f"train: killed {count} times, {inside} inside a write; {verdict}\n")
    return not wrong and count >= args.kills and inside >= args.inside


def demo_survives(args: argparse.Namespace, rng: random.Random, folder: Path) -> bool:
    def begin_demo(cache: str, output: str) -> BaseProcess:
        def prepare() -> None:
            demo._VIDEOS = 2
            demo._QUICK |= SMALL | {"train.epochs": 1, "data.cache_dir": str(folder / cache)}

        return start("demo", "--quick", "--output", str(folder / output), prepare=prepare)

    began = time.perf_counter()
    finish(begin_demo("left-alone", "straight"))
    whole = time.perf_counter() - began
    good, done = True, 0
    while done < args.kills:
        if done % 4 == 0:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        process = begin_demo("cache", f"run-{done}")
        finish_within = rng.uniform(0, whole)
        process.join(finish_within)
        if not process.is_alive():
            finish(process)
            continue  # it was done before: draw again
        process.kill()
        process.join()
        run = folder / f"run-{done}"
        done += 1
        behind = saved(run)
        print(f"{done:3} after {finish_within:4.1f} of {whole:.1f} s: {behind} saves", flush=True)
    finish(begin_demo("cache", "last"))
    for name in ("evaluation.json", "evaluation_ranks.npz", "best/model.safetensors"):
        good &= (folder / "straight" / name).read_bytes() == (folder / "last" / name).read_bytes()
    print(f"demo: killed {done} times; {'the last one found the same' if good else 'THE LAST ONE DIFFERS'}\n")
    return good


def main(words: Sequence[str] | None = None) -> None:
    kinds = ["train", "demo"]
    args = parse_options(
        __doc__,
        words,
        what=option(kinds, "what is killed; default: all of it", choices=kinds),
        kills=option(20, "kills of each kind"),
        inside=option(5, "how many of them at least inside a write"),
        epochs=option(6, "epochs of train"),
        cache_dir=option(None, "where the toy corpus is, or is made; default: the user's cache"),
    )
    if not 0 <= args.inside <= args.kills < args.epochs * SAVES:
        sys.exit(f"expected inside <= kills < {args.epochs * SAVES} saves")
    good = True
    for name in args.what:
        print(f"{name}, seed {args.seed}: {args.kills} kills")
        rng = random.Random(f"{args.seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            good &= (train_survives if name == "train" else demo_survives)(args, rng, Path(folder))
    sys.exit(not good)


if __name__ == "__main__":
    main()
