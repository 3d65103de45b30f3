"""Every table of the papers at toy size, once undisturbed and once killed at drawn moments: the same tables.

    python benchmarks/papers.py --root CORPORA [--corpus tvr] [--kills 10] [--seed 0] [--keep FOLDER]

CORPORA holds a corpus in the public layout, which stands for every data set. All tables and figures run on it with one
epoch and 32 hidden units: those of HLFormer and DreamPRVR as one study, those of DiffusionRet as another. The killed
study is a process that gets `kill -9` after a drawn share of the time that the undisturbed one took, is started again,
and so on; then it runs to its end. Exits with 1 if a table differs.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import option, parse_options
from prvr.data import open_corpus
from prvr.papers import data_sets, read_table, table_names

SMALL = {"train.epochs": 1, "train.batch_size": 50, "model.hidden": 32}
FAMILIES = {
    "retrievers": ("hlformer dreamprvr", SMALL | {"model.lorentz_dim": 31}),
    "diffusionret": (
        "diffusionret",
        SMALL | {"model.frame_projection": "linear", "stage.train.epochs": 1, "stage.train.batch_size": 200},
    ),
}
"""Names of tables by their beginning, and the keys of all their rows."""


def words(family: str, args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The tables of a family, and the options of a study of them."""
    beginnings, keys = FAMILIES[family]
    tables = [name for name in table_names() if name.split("-")[0] in beginnings.split()]
    corpus = open_corpus(args.root, args.corpus)
    keys = keys | dict(zip(("model.video_dim", "model.query_dim"), corpus.dims(), strict=True))
    sets = dict.fromkeys(name for table in tables for name in read_table(table).sets)
    known = data_sets()
    if family == "retrievers":  # their data sets differ in settings alone: one of them is enough
        sets = ["tvr"]
    found = [*(word for name in sets for word in ("--corpus", f"{name}={args.corpus}")), "--data-root", str(args.root)]
    found += ["--sets", *(name for name in sets if name in known)]
    return tables, found + [word for key, value in keys.items() for word in (f"--{key}", str(value))]


def started(verb: str, tables: list[str], study: Path, more: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "prvr.cli", "papers", verb, *tables, "--output", str(study), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    out, said = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, process.args))}\nended with {process.returncode}: {said[-2000:]}")  # type: ignore[arg-type]
    return out


def shown(tables: list[str], study: Path, sets: list[str]) -> str:
    return finished(started("show", tables, study, ["--format", "markdown", *sets])).replace(str(study), "STUDY")


def survives(family: str, args: argparse.Namespace, rng: random.Random, folder: Path) -> bool:
    tables, more = words(family, args)
    more += ["-q", "--threads", "1", "--device", "cpu"]
    begin = time.perf_counter()
    finished(started("run", tables, folder / "straight", more))
    whole, kills = time.perf_counter() - begin, 0
    for _ in range(args.kills):
        process = started("run", tables, folder / "killed", more)
        try:
            process.wait(whole * rng.uniform(0.02, 2 / args.kills))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        if process.returncode == 0:
            break
    finished(started("run", tables, folder / "killed", more))
    place = more.index("--sets")
    sets = more[place : next(i for i in range(place + 1, len(more)) if more[i].startswith("-"))]
    same = shown(tables, folder / "straight", sets) == shown(tables, folder / "killed", sets)
    runs = len(list((folder / "straight" / "results").glob("*.yaml")))
    size = sum(path.stat().st_size for path in (folder / "straight" / "results").glob("*") if path.suffix != ".png")
    print(
        f"{family}: {len(tables)} tables, {runs} runs, {size / runs / 1024:.0f} KiB a run without pictures; killed "
        f"{kills} times: {'the same tables' if same else 'other tables'}"
    )
    return same and kills == args.kills


def main() -> None:
    args = parse_options(
        __doc__,
        root=option(Path("corpora"), "the folder that holds the corpus", type=Path),
        corpus="tvr",
        kills=10,
        seed=0,
        family=option(None, "default: both", choices=tuple(FAMILIES), action="append"),
        keep=option(None, "keep the studies in this folder", type=Path),
    )
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        fine = [survives(family, args, rng, folder / family) for family in args.family or FAMILIES]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
