"""What a kill in the middle of changing an index costs: nothing that was there. Killed at drawn moments, run again.

    python benchmarks/index_survival.py [--kills 20] [--inside 10] [--seed 0] [--videos 30]

Once for `prvr index add` (an index is made, 30 videos go into it), once for `update` (10 new videos, 10 that have
changed, 5 that are gone). Each kill (SIGKILL of a process of its own) starts from the same state. `--inside` of them
lie inside a write: after half of a file, after all of it but before it has its name, or right after the renaming. The
others fall at any time. After each the index must be the old one, the new one or one in between, `verify` must find
nothing, a search must find every video; then the same command, run again, must give the index of a run that nobody
disturbed, file by file and hit by hit. Exits with 1 otherwise.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "prvr"))

from kills_at_writes import at_write
from search_files import contents
from search_kills import POINTS, QUERY, Case, adding, half_written, killed, small_segments, updating

from prvr.search import VideoIndex, verify_index

WRITES = {"half written": 60, "written": 60, "renamed": 12}
"""How many of each there are at least, of 30 videos."""


def begin(case: Case, index: Path) -> Path:
    if case.before is not None:
        shutil.copytree(case.before, index)
    return index


def found(index: Path) -> str:
    """What the kill left: is it whole, and how much of it is there."""
    if not (index / "index.json").exists():
        return "no index yet"
    with VideoIndex.open(index) as opened:
        hits = len(opened.search(QUERY, 999).hits)
        wrong = [*verify_index(index), *(["a video is not found"] if hits != len(opened) else [])]
        return "; ".join(wrong) or f"{len(opened)} videos"


def equal(index: Path, straight: Path) -> bool:
    with VideoIndex.open(index) as left, VideoIndex.open(straight) as right:
        same = contents(left) == contents(right) and left.search(QUERY, 999) == right.search(QUERY, 999)
    return same and verify_index(index) == ()


def run(name: str, case: Case, rng: random.Random, kills: int, inside: int, folder: Path) -> bool:
    straight = begin(case, folder / "straight")
    start = time.perf_counter()
    assert not killed(case, straight, lambda: None)
    whole = time.perf_counter() - start
    print(f"{name}: {found(straight)} in the end, nobody disturbing")
    moments: list[tuple[str, int]] = [("any time", 0)] * (kills - inside)
    for i in range(inside):
        point = POINTS[i % len(POINTS)]
        moments.append((point, rng.randrange(1, WRITES[point] + 1)))
    rng.shuffle(moments)
    good, landed, done = True, 0, 0
    while moments:
        point, write = moments.pop(0)
        index = begin(case, folder / f"index-{done}")
        if point == "any time":
            died = killed(case, index, lambda: None, after=rng.uniform(0, whole))
        else:
            died = killed(case, index, at_write(write, point))
        if not died:  # it was done before: draw again
            shutil.rmtree(index)
            moments.append((point, max(1, write // 2)))
            continue
        done += 1
        left = half_written(index)
        landed += bool(left)
        after = found(index)
        case.act(index)
        same = equal(index, straight)
        good &= same and (after == "no index yet" or after.endswith("videos"))
        what = ", ".join(p.name[:18] for p in left) or "nothing"
        where = point if point == "any time" else f"{point}, write {write}"
        print(
            f"{done:3} {where:24} {after:14} left over: {what:40} run again: {'equal' if same else 'DIFFERS'}",
            flush=True,
        )
        shutil.rmtree(index)
        for path in folder.glob(".prvr-tmp-*"):
            shutil.rmtree(path)
    print(f"{name}: killed {done} times, {landed} inside a write; {'all is well' if good else 'SOMETHING WAS LOST'}\n")
    return good and done >= kills and landed >= inside


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9 at drawn moments of prvr index add and update")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--inside", type=int, default=10, help="how many of them at least inside a write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--videos", type=int, default=30)
    args = parser.parse_args()
    if not 0 <= args.inside <= args.kills or args.videos < 30:
        parser.error("expected inside <= kills, and at least 30 videos")
    print(f"seed {args.seed}: {args.kills} kills each, {args.inside} of them inside a write")
    rng, good = random.Random(args.seed), True
    small_segments()
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("add", adding), ("update", updating)):
            place = Path(folder) / name
            place.mkdir()
            good &= run(name, make(place, args.videos), rng, args.kills, args.inside, place)
    sys.exit(not good)


if __name__ == "__main__":
    main()
