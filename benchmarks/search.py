"""Search among many videos: each backend beside the plain matrix product that every exact search contains.

    python benchmarks/search.py                                              # about a minute
    python benchmarks/search.py --videos 1000 10000 --backends exact milvus:server
    python benchmarks/search.py --frames 240 --videos 1000 --models "single frames" zero-shot --backends exact

Vectors with the statistics of real ones (32 clips and --frames frames of 384 numbers per video) are written as an index
in a temporary folder (--folder names another, which is kept and used again). Every contender runs in a process of its
own, and they take turns: `plain` multiplies every query with every vector as it is stored, no more; `plain32` with
float32 vectors in memory; `exact` and `milvus:...` are whole searches for the ten best videos.
`milvus:server` starts the server of the PyPI package milvus; `milvus:http://...` uses one that runs. With one thread,
times are those of the processor, which leaves out what a server computes. Ratios are those to the first contender.
--models compares indexes of the same frames: all frames, with their means or alone, and 32 clips of each video; or
adaptive moments, one for every 3.7 frames. --json keeps what was measured; --table makes one table of several files.
"""

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _harness import (
    Comparison,
    Contender,
    Spread,
    Tasks,
    alone,
    clock,
    compare,
    environment,
    memory_of,
    option,
    parse_options,
    percentiles,
    returned,
    show,
)
from _vectors import KINDS, bench_model, open_index, statistics, write_index
from prvr_search.vectors.files import open_vectors

K = 10


def plain(folder: Path, queries: int, float32: bool, kind: str) -> Tasks:
    """The product of each query with all rows that count, file by file: what is left if nothing else costs anything."""
    names = [name for name, weight in zip(("clips", "frames"), KINDS[kind][1:3], strict=True) if weight]
    (place,) = {path.parent for path in folder.glob("*/*.vectors")}
    blocks = [file.read() for file in open_vectors(place)]
    rows = [torch.from_numpy(np.concatenate([block[name] for block in blocks])) for name in names]
    rows = [matrix.float() for matrix in rows] if float32 else rows
    texts = torch.from_numpy(np.load(folder / "queries.npy")[:queries]).to(rows[0].dtype)
    now = clock()

    def search() -> dict[str, float]:
        times = []
        for text in texts:
            start = now()
            for matrix in rows:
                text[None] @ matrix.mT
            times.append(now() - start)
        return percentiles(times) | memory_of("self")

    return {"search": search}


def searched(folder: Path, queries: int, backend: str, server: int | None, kind: str) -> Tasks:
    """Whole searches by a backend that is brought up to date first."""
    model, now = bench_model(np.load(folder / "queries.npy")[:queries], kind), clock()
    about = json.loads((folder / "about.json").read_text())
    index = open_index(folder, model, backend, about["videos"], about["frames"])
    start = now()
    index._in_step(index.snapshot)
    sync, expected = now() - start, json.loads((folder / "exact.json").read_text())

    def search() -> dict[str, float]:
        times, recalls = [], []
        for number, ids in enumerate(expected[:queries]):
            start = now()
            hits = index.search(str(number), K).hits
            times.append(now() - start)
            recalls.append(len({hit.video_id for hit in hits} & set(ids)) / len(ids))
        used = [memory_of("self"), *([] if server is None else [memory_of(server)])]
        sizes = {name: sum(entry[name] for entry in used) for name in used[0]}
        return percentiles(times) | sizes | {"recall": float(np.mean(recalls)), "sync": sync}

    index.search("0", K)
    return {"search": search}


def exact_hits(folder: Path, kind: str, videos: int, frames: int) -> list[list[str]]:
    """What should be found, by the scores of all videos, a group of queries at a time."""
    queries = np.load(folder / "queries.npy")
    index = open_index(folder, bench_model(queries, kind), "exact", videos, frames)
    return [[hit.video_id for hit in result.hits] for result in index.search_many([*map(str, range(len(queries)))], K)]


@contextmanager
def milvus_server(folder: Path) -> Iterator[Any]:
    from milvus import MilvusServer

    server = MilvusServer()
    server.set_base_dir(str(folder))
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.cleanup()


def measure(folders: dict[str, Path], args: Any) -> Comparison:
    """All contenders on one index, or on that of each model."""
    contenders = []
    with ExitStack() as stack:
        for kind, backend in product(folders, args.backends):
            folder = folders[kind]
            name = backend if len(folders) == 1 else f"{kind}, {backend}"
            if backend.startswith("plain"):
                contenders.append(Contender(name, plain, (folder, args.queries, backend == "plain32", kind)))
                continue
            address, process = backend, None
            if backend == "milvus:server":
                data = stack.enter_context(tempfile.TemporaryDirectory(prefix="prvr-milvus-"))
                server = stack.enter_context(milvus_server(Path(data) / "data"))
                address, process = f"milvus:http://127.0.0.1:{server.listen_port}", server.server_proc.pid
            contenders.append(Contender(name, searched, (folder, args.queries, address, process, kind)))
        return compare(contenders, rounds=args.rounds, measure=returned, threads=args.threads)


def rows_of(about: dict[str, Any], comparison: Comparison) -> Iterator[list[Any]]:
    first = next(iter(comparison.measured["search"]))
    for name, rounds in comparison.measured["search"].items():
        last = dict(rounds[-1])
        yield [
            f"{about['videos']:,}",
            name,
            *(comparison.ratio("search", name, first, p) for p in ("p50", "p95")),
            f"{last['recall']:.3f}" if "recall" in last else "",
            f"{last['sync'] / about['writing']:.2f}" if "sync" in last else "",
            *(f"{last.get(size, 0) / 2**20:,.0f}" for size in ("VmHWM", "RssAnon")),
        ]


def table(measured: list[dict[str, Any]]) -> None:
    """Ratios to the first contender in the same rounds, and how times grow from one size to the next."""
    runs = [
        (entry["about"], Comparison(entry["measured"]))
        for entry in sorted(measured, key=lambda entry: entry["about"]["videos"])
    ]
    head = ["videos", "contender", "p50 / first", "p95 / first", "recall@10", "sync / making the index"]
    head += ["peak MB, mapped files included", "MB of its own"]
    show(
        "ratios to the first contender", head, [row for about, comparison in runs for row in rows_of(about, comparison)]
    )
    names = dict.fromkeys(name for _, comparison in runs for name in comparison.measured["search"])
    grown = []
    for name in names:
        points = [
            (about["videos"], Spread.of(comparison.values("search", name, "p50")).low)
            for about, comparison in runs
            if name in comparison.measured["search"]
        ]
        steps = [f"{a[0]:,} to {b[0]:,}: {math.log(b[1] / a[1], b[0] / a[0]):.2f}" for a, b in pairwise(points)]
        grown.append([name, "; ".join(steps), "; ".join(f"{1000 * low:.1f}" for _, low in points)])
    show("growth: the exponent of the number of videos", ["contender", "exponent of p50", "lowest p50, ms"], grown)


def main() -> None:
    args = parse_options(
        __doc__,
        videos=[1_000],
        frames=128,
        queries=50,
        rounds=5,
        backends=["plain", "plain32", "exact"],
        models=option(["trained"], choices=list(KINDS)),
        folder=option(None, "kept; the indexes in it are used again", type=Path),
        table=option([], "only print the tables of such files", type=Path),
    )
    if args.table:
        table([entry for path in args.table for entry in json.loads(path.read_text())])
        return
    print(environment(), "\ncosines of clips: within a video {:.2f}, across videos {:.2f}".format(*statistics()))
    measured = []
    with tempfile.TemporaryDirectory(prefix="prvr-search-") as temporary:
        for videos in args.videos:
            folders = {}
            for kind in args.models:
                suffix = "" if kind == "trained" else f"-{kind}"
                folders[kind] = folder = (args.folder or Path(temporary)) / f"{videos}{suffix}"
                if not (folder / "about.json").exists():
                    queries, writing = write_index(folder, videos, args.frames, args.queries, kind)
                    np.save(folder / "queries.npy", queries)
                    (folder / "exact.json").write_text(json.dumps(alone(exact_hits, folder, kind, videos, args.frames)))
                    about = {"videos": videos, "frames": args.frames, "writing": writing}
                    (folder / "about.json").write_text(json.dumps(about))
                each = sum(path.stat().st_size for path in folder.rglob("*.vectors")) / videos
                print(f"{videos:,} videos, {kind}: {each:,.0f} bytes per video in the index ...", flush=True)
            about = json.loads((folders[args.models[0]] / "about.json").read_text())
            measured.append({"about": about, "measured": measure(folders, args).figures()})
            if args.json:
                args.json.write_text(json.dumps(measured))
    table(measured)


if __name__ == "__main__":
    main()
