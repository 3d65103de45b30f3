"""What several clients at once cost each of them: latencies of searches on loopback, as ratios to one client.

    python benchmarks/serve.py [--clients 8] [--seconds 60] [--videos 20] [--folder FOLDER]

A server in a process of its own, clients as threads of this one, each with a connection that it keeps. Every client
asks the next query as soon as it has an answer. Without --folder, videos are drawn (no training).
"""

import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from _harness import environment, option, parse_options, show, write_figures
from prvr.toy import write_corpus
from prvr_search.films.toy_videos import write_videos

QUERIES = [f"a {colour} {shape} {does}" for colour in ("red", "blue") for shape in ("circle", "square", "star")
           for does in ("rises", "spins", "moves to the left")]  # fmt: skip


def make_videos(work: Path, videos: int) -> Path:
    corpus = write_corpus(work, "tiny")
    return write_videos(corpus, corpus.split("test").video_ids[:videos])


def ask(address: str, until: float, turn: int) -> tuple[list[float], int]:
    """Latencies of one client in seconds, and how many answers were none."""
    times, errors = [], 0
    with httpx2.Client(base_url=address, timeout=60) as client:
        while time.perf_counter() < until:
            start = time.perf_counter()
            answer = client.get("/api/search", params={"q": QUERIES[turn % len(QUERIES)]})
            times.append(time.perf_counter() - start)
            errors += answer.status_code != 200
            turn += 1
    return times, errors


def load(address: str, clients: int, seconds: float) -> tuple[list[float], int]:
    until = time.perf_counter() + seconds
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda number: ask(address, until, 5 * number), range(clients)))
    return sorted(time for times, _ in answers for time in times), sum(errors for _, errors in answers)


def main() -> None:
    args = parse_options(
        __doc__,
        clients=8,
        seconds=option(60.0, "with all clients; half of it with one"),
        videos=20,
        folder=option(None, "of videos; default: drawn ones", type=Path),
    )
    print(environment())
    with tempfile.TemporaryDirectory() as work:
        folder = args.folder or make_videos(Path(work), args.videos)
        command = [
            sys.executable,
            "-m",
            "prvr.cli",
            "serve",
            str(folder),
            "--library",
            f"{work}/library",
            "--port",
            "0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                address = server.stdout.readline().split()[0]
                load(address, 1, 2.0)  # what is read for the first time
                (single, failed_single), (many, failed) = (
                    load(address, 1, args.seconds / 2),
                    load(address, args.clients, args.seconds),
                )
            finally:
                server.terminate()

    def quantile(times: list[float], part: float) -> float:
        return times[int(part * len(times))]

    rate_single, rate = len(single) / (args.seconds / 2), len(many) / args.seconds
    rows = [["answers per second", rate / rate_single]]
    rows += [
        [f"latency, {name}", quantile(many, q) / quantile(single, q)] for name, q in (("median", 0.5), ("95 %", 0.95))
    ]
    show(f"{args.clients} clients over one", ["what", "ratio"], rows)
    print(f"errors: {failed_single} of {len(single)} with one client, {failed} of {len(many)} with {args.clients}")
    print(
        f"spread with one client, 95 % of them to the median: {quantile(single, 0.95) / statistics.median(single):.2f}"
    )
    write_figures(args, {"one": single, "many": many, "errors": [failed_single, failed]})


if __name__ == "__main__":
    main()
