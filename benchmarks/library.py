"""What a library costs, this checkout over another one: bytes on disk, and processor time of the first searches.

    python benchmarks/library.py --other CHECKOUT [--videos 12] [--rounds 5]

Each round is a new home and the same drawn videos: the first search encodes them, the second finds them encoded. Each
search is a process of its own; the checkouts take turns. Bytes are those of the user's data and cache folders.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _harness import ROOT, environment, option, parse_options
from prvr.data.synthetic import write_short_videos
from prvr.video import open_video

MODELS = {"zero-shot": ["--encoder", "toy"], "toy-world": ["--encoder", "toy", "--model", "toy-world"]}


def search(checkout: Path, home: Path, films: Path, options: list[str]) -> float:
    """Seconds of processor time of one search."""
    sources = [str(checkout / "packages" / name / "src") for name in ("lorentz", "regdiff", "prvr")]
    places = {"XDG_DATA_HOME": str(home / "data"), "XDG_CACHE_HOME": str(home / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "prvr.cli", "search", str(films), "a red square", *options, "-q", "--paths"]
    subprocess.run(
        command,
        env=os.environ | places | {"PYTHONPATH": os.pathsep.join(sources)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    args = parse_options(__doc__, other=option(None, "the other checkout", type=Path), videos=12, rounds=5)
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        films = Path(name) / "films"
        write_short_videos(films, args.videos, seed=0)
        hours = 0.0
        for path in films.iterdir():
            with open_video(path) as video:
                hours += (video.info.duration or 0) / 3600
        for model, options in MODELS.items():
            figures: dict[str, list[list[float]]] = {"this": [], "other": []}
            for turn in range(args.rounds):
                for which, checkout in (("this", ROOT), ("other", args.other.resolve())):
                    home = Path(name) / f"{model}-{which}-{turn}"
                    times = [search(checkout, home, films, options) for _ in range(2)]
                    figures[which].append([*times, size(home) / 1e6 / hours])
            for place, what in enumerate(("first search", "second search", "MB per hour of video")):
                this, other = ([row[place] for row in figures[which]] for which in ("this", "other"))
                ratios = sorted(a / b for a, b in zip(this, other, strict=True))
                print(f"{model}, {what}: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
