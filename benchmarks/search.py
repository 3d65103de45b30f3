"""Search among many videos: each backend beside the exact one.

    python benchmarks/search.py                                              # about a minute
    python benchmarks/search.py --videos 10000 --backends exact faiss milvus:server

Vectors with the statistics of real ones (32 clips and --frames frames of 384 numbers per video) are written as an index
in a temporary folder (--folder names another, which is kept and used again). Every backend runs in a process of its
own: the time of its sync, of queries one by one, and its memory. `milvus:server` starts the server of the PyPI package
milvus; `milvus:http://...` uses one that runs. --nprobe takes several values. --json keeps what was measured; --table
makes one table of several such files.
The last table is for docs/scaling.md: ratios to the exact backend in the same run.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from _harness import alone, environment, memory_of, option, parse_options, show
from _vectors import bench_model, statistics, write_index


def megabytes(process: int | str) -> dict[str, float]:
    return {name: size / 2**20 for name, size in memory_of(process).items()}


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


def measure(folder: Path, backend: str, probes: list[int], queries: np.ndarray) -> dict[str, Any]:
    """Brings a backend up to date, then searches; runs in a process of its own."""
    from prvr.search.backends.faiss import probes_for
    from prvr.search.index import VideoIndex

    index = VideoIndex(folder, model=bench_model(queries), backend=backend)  # type: ignore[arg-type]
    start = time.perf_counter()
    found = index._in_step(index.source)
    result: dict[str, Any] = {"sync": time.perf_counter() - start, "lists": getattr(found, "lists", 0), "runs": []}
    if hasattr(found, "pending"):
        while found.pending():
            time.sleep(1)
        result["sync"] = time.perf_counter() - start  # its index is built in the background
    for nprobe in (probes or [0]) if backend != "exact" else [0]:
        if nprobe:
            found.nprobe = nprobe
        elif backend == "faiss":
            nprobe = min(found.lists, probes_for(found.lists))
        elif backend != "exact":
            nprobe = found.nprobe
        index.search("0")
        times, hits = [], []
        for number in range(len(queries)):
            start = time.perf_counter()
            hits.append([hit.video_id for hit in index.search(str(number)).hits])
            times.append(time.perf_counter() - start)
        result["runs"].append({"nprobe": nprobe, "times": times, "hits": hits})
    result["memory"] = megabytes("self")
    result["bytes"] = folder_bytes(folder / "backends" / backend.partition(":")[0])
    if backend.startswith("milvus:"):
        found.drop(index.source)
    index.close()
    return result


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


def child(folder: Path, backend: str, probes: list[int]) -> dict[str, Any]:
    """`measure` in a process of its own."""
    return alone(measure, folder, backend, probes, np.load(folder / "queries.npy"))


def run(folder: Path, backend: str, probes: list[int]) -> dict[str, Any]:
    if backend != "milvus:server":
        return child(folder, backend, probes)
    with tempfile.TemporaryDirectory(prefix="prvr-milvus-") as data, milvus_server(Path(data) / "data") as server:
        empty = folder_bytes(Path(data))
        result = child(folder, f"milvus:http://127.0.0.1:{server.listen_port}", probes)
        result["server"] = megabytes(server.server_proc.pid)
        result["bytes"] = folder_bytes(Path(data)) - empty
    return result


def rows(results: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of the table: ratios to the exact backend."""
    exact = results["backends"]["exact"]["runs"][0]
    base = np.percentile(exact["times"], [50, 95])
    for name, found in results["backends"].items():
        for each in found["runs"]:
            p50, p95 = np.percentile(each["times"], [50, 95])
            kept = [len(set(a) & set(b)) / len(b) for a, b in zip(each["hits"], exact["hits"], strict=True)]
            used = found["memory"].get("VmHWM", 0) + found.get("server", {}).get("VmHWM", 0)
            anon = found["memory"].get("RssAnon", 0) + found.get("server", {}).get("RssAnon", 0)
            yield [
                f"{results['videos']:,}",
                name,
                f"{each['nprobe']} of {found['lists']}" if each["nprobe"] else "",
                f"{found['sync'] / results['writing']:.2f}" if each["nprobe"] else "0",
                f"{p50 / base[0]:.3f}" if each["nprobe"] else "1",
                f"{p95 / base[1]:.3f}" if each["nprobe"] else "1",
                f"{np.mean(kept):.3f}",
                f"{found['bytes'] / results['videos']:,.0f}",
                f"{used:,.0f}",
                f"{anon:,.0f}",
            ]


HEADER = ["videos", "backend", "lists read", "sync / writing the index", "p50 / exact", "p95 / exact", "recall@10"]
HEADER += ["bytes per video beside the index", "peak MB, mapped files included", "MB of its own"]


def print_results(results: dict[str, Any]) -> None:
    print(f"\nwithin a video {results['within']:.2f}, across videos {results['across']:.2f} (cosines of clips)")
    each_video = results["index_bytes"] / results["videos"]
    print(f"index: {each_video:,.0f} bytes per video, written in {results['writing']:.1f} s")
    for name, found in results["backends"].items():
        print(f"{name}: sync {found['sync']:.1f} s")
        for each in found["runs"]:
            p50, p95 = 1000 * np.percentile(each["times"], [50, 95])
            print(f"    nprobe {each['nprobe']:4}   p50 {p50:8.1f} ms   p95 {p95:8.1f} ms")
    table([results])


def table(measured: list[dict[str, Any]]) -> None:
    show("ratios to the exact backend", HEADER, [row for results in measured for row in rows(results)])


def main() -> None:
    args = parse_options(
        __doc__,
        videos=1_000,
        frames=128,
        queries=50,
        dtype=option("float16", choices=["float16", "float32", "int8"]),
        backends=["exact", "faiss"],
        nprobe=option([], "lists to read; default: that of the backend", type=int),
        folder=option(None, "kept; the index in it is used again", type=Path),
        table=option([], "only print the table of such files", type=Path),
    )
    if args.table:
        table([json.loads(path.read_text()) for path in args.table])
        return
    print(environment())
    with tempfile.TemporaryDirectory(prefix="prvr-search-") as made:
        folder = args.folder or Path(made) / "index"
        about = folder / "about.json"
        if not about.exists():
            queries, writing = write_index(folder, args.videos, args.frames, args.queries, args.dtype)
            np.save(folder / "queries.npy", queries)
            size = folder_bytes(folder / "segments")
            about.write_text(json.dumps({"videos": args.videos, "writing": writing, "index_bytes": size}))
        within, across = statistics()
        results = json.loads(about.read_text()) | {"within": within, "across": across, "backends": {}}
        for backend in ["exact", *(name for name in args.backends if name != "exact")]:
            print(f"{backend} ...", flush=True)
            results["backends"][backend] = run(folder, backend, args.nprobe)
        results["processors"] = os.cpu_count()
        print_results(results)
        if args.json:
            args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
