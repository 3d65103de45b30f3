"""The scale of a library: whole commands over folders of many films, beside a process that only imports torch.

    python benchmarks/libraries.py --folder DATA                             # 1,000 films
    python benchmarks/libraries.py --folder DATA --films 1000 12000 50000    # 6 GB

Films are files of a few bytes, whose features (20 to 60 frames of --dim numbers) the library writes as it does those of
an encoder. Every command runs in a process of its own: `first` is the first search, without any cache; `second` the
next one; `update` and `verify` are `prvr library --update` and `--verify` with nothing new. What is printed is the time
of the processor as a multiple of that of `import torch; import prvr_search`, the peak of memory, and the peak without
pages of mapped files. Answers are kept in DATA, and compared with those of an earlier run there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from prvr.encoders import FeatureSpec, Identity
from prvr_search.films import Film
from prvr_search.films.info import FIELDS_VERSION
from prvr_search.films.listing import list_videos
from prvr_search.store.features import encoder_key, feature_file, write_features
from prvr_search.store.store import Store

DIM, RATE = int(os.environ.get("DIM", "512")), 2.0
NOTHING = ("-c", "import torch; import prvr_search")
PRVR = ("-m", "prvr.cli")
SENTENCE = "a dog catches a ball"


class Encoder:
    """Vectors of sentences, from a seed; no film is decoded."""

    dim = joint_dim = word_dim = DIM

    def __init__(self, name: str, device: object) -> None:
        self.identity = Identity(name, weights="1", preprocessing="none")

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels[:1, :1].mean((0, 1), dtype=np.float32)

    def encode(self, frames: np.ndarray) -> np.ndarray:
        return np.ones((len(frames), DIM), np.float32)

    def finish(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def words(self, text: str) -> np.ndarray:
        return np.stack([self.sentence(word) for word in text.split()])

    def sentence(self, text: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        vector = np.random.default_rng(seed).standard_normal(DIM, dtype=np.float32)
        return vector / np.linalg.norm(vector)


def write_library(base: Path, count: int) -> None:
    """Films, and the library that has encoded them."""
    films, spec = base / "films", FeatureSpec(Encoder(NAME, "cpu").identity, RATE, DIM, DIM)
    for number in range(count):
        path = films / f"{number // 500:03}" / f"{number:06}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"film {number}".encode())
    store, places = Store(base / "library"), []
    for number, video in enumerate(list_videos(films).videos):
        generator = np.random.default_rng(number)
        sha256 = hashlib.sha256(video.path.read_bytes()).hexdigest()
        rows = generator.standard_normal((generator.integers(20, 61), DIM), dtype=np.float32)
        rows += generator.standard_normal(DIM, dtype=np.float32)
        film = Film(
            sha256, duration=len(rows) / RATE, width=640, height=360, codec="h264", version=FIELDS_VERSION, spec=spec
        )
        write_features(feature_file(store.home, encoder_key(spec), sha256), film, rows, (), durable=False)
        places.append(video._replace(sha256=sha256))
    store.folders.see(films, places)
    with store.folders.changing(films) as folder:
        folder.encoder = spec


NAME = "libraries:Encoder"


def measured(command: list[str], base: Path) -> dict[str, Any]:
    """What a command costs: seconds of the processor, the peak of memory in bytes, and that without mapped files."""
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"XDG_CACHE_HOME": str(base / "cache"), "XDG_DATA_HOME": str(base / "data"), "PYTHONPATH": paths}
    process = subprocess.Popen(
        [sys.executable, *command], env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=base
    )
    peak, anonymous, out = 0, 0, b""
    status = Path(f"/proc/{process.pid}/status")
    while True:
        time.sleep(0.01)
        sizes = dict(line.split(":", 1) for line in status.read_text().splitlines())
        if "RssAnon" not in sizes:  # it has ended
            break
        peak, anonymous = int(sizes["VmHWM"].split()[0]), max(anonymous, int(sizes["RssAnon"].split()[0]))
    assert process.stdout is not None
    out = process.stdout.read()
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    assert process.returncode == 0, command
    return {"seconds": usage.ru_utime + usage.ru_stime, "peak": 1024 * peak, "anonymous": 1024 * anonymous, "out": out}


def main() -> None:
    from _harness import Spread, environment, option, parse_options, show, write_figures

    args = parse_options(
        __doc__,
        films=[1000],
        rounds=option(3, "of each command"),
        folder=option(Path("libraries"), "kept; the libraries in it are used again"),
        commands=["second", "first", "update", "verify"],
    )
    print(environment())
    rows, figures = [], []
    for count in args.films:
        base = args.folder.resolve() / str(count)
        if not (base / "library").exists():
            write_library(base, count)
        search = [*PRVR, "search", "films", SENTENCE, "--encoder", NAME, "--library", "library", "--json", "-"]
        upkeep = [*PRVR, "library", "films", "--encoder", NAME, "--library", "library"]
        commands = {"second": search, "first": search} | {x: [*upkeep, f"--{x}"] for x in ("update", "verify")}
        runs: dict[str, list[dict[str, Any]]] = {}
        measured(search, base)  # makes what `second` reads
        for _ in range(args.rounds):
            nothing = measured([*NOTHING], base)["seconds"]
            for name in args.commands:
                if name == "first":
                    shutil.rmtree(base / "cache", ignore_errors=True)
                done = measured(commands[name], base)
                runs.setdefault(name, []).append(done | {"ratio": done["seconds"] / nothing, "nothing": nothing})
                if commands[name] == search:
                    answers = base / "answers.json"
                    if not answers.exists():
                        answers.write_bytes(done["out"])
                    assert done["out"] == answers.read_bytes(), f"{name}: another answer than the first of {answers}"
        for name, of_name in runs.items():
            ratio = Spread.of([run["ratio"] for run in of_name])
            added = Spread.of([run["seconds"] - run["nothing"] for run in of_name])
            sizes = [f"{max(run[what] for run in of_name) / 2**20:,.0f}" for what in ("peak", "anonymous")]
            rows.append([f"{count:,}", name, ratio, *sizes])
            figures.append({"films": count, "command": name, "ratio": ratio, "added": added, "sizes": sizes})
    head = ["films", "command", "processor / import", "peak MB", "without mapped files"]
    show("whole commands, to a process that imports torch and prvr_search", head, rows)
    write_figures(args, figures)


if __name__ == "__main__":
    main()
