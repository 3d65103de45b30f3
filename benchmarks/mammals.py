"""Mammals of WordNet 3.0: hyperbolic space beside flat, spherical and product spaces, by a fixed rule.

    python benchmarks/mammals.py --out benchmarks/studies/wordnet-mammals.jsonl  # goes on where it ended
    python benchmarks/mammals.py --show benchmarks/studies/wordnet-mammals.jsonl

The rule and what came out: benchmarks/studies/wordnet-mammals.md. Data, spaces, loss and score are the example's.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from wordnet_mammals import (  # pyright: ignore[reportMissingImports]
    fit,
    hidden_pairs,
    mammals,
    mean_average_precision,
)

SPACES, DIMS = ("hyperbolic", "Euclidean", "spherical", "product"), (5, 2, 10, 50)
RATES, SEARCH_SEED, SEEDS, STEPS = (0.01, 0.03, 0.1, 0.3), 100, range(5), 1000
SCORES = ("trained", "hidden")
Key = tuple[str, int, float, int]
Done = dict[Key, dict[str, float]]


def best(name: str, dim: int, done: Done) -> float:
    """The rate of the search with the best score of trained pairs."""
    return max(RATES, key=lambda rate: done[name, dim, rate, SEARCH_SEED]["trained"])


def keys(done: Done) -> Iterator[Key]:
    """(space, dimension, rate, seed) of all runs in turn."""
    for dim, name in itertools.product(DIMS, SPACES):
        yield from ((name, dim, rate, SEARCH_SEED) for rate in RATES)
        yield from ((name, dim, best(name, dim, done), seed) for seed in SEEDS)


def read(path: Path) -> Done:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {tuple(row.pop("key")): row for row in rows}


def interval(values: list[float]) -> str:
    """Mean and half of its 95 % interval (t of four degrees of freedom)."""
    return f"{statistics.mean(values):+.3f} ± {2.776 * statistics.stdev(values) / len(values) ** 0.5:.3f}"


def show(done: Done) -> None:
    for dim, score in itertools.product(DIMS, SCORES):
        ours: list[float] = []
        for name in SPACES:
            if any((name, dim, rate, SEARCH_SEED) not in done for rate in RATES):
                continue
            rate = best(name, dim, done)
            values = [done[key][score] for seed in SEEDS if (key := (name, dim, rate, seed)) in done]
            if len(values) < len(SEEDS):
                continue
            ours = ours or values
            apart = interval([a - b for a, b in zip(ours, values, strict=True)])
            print(f"{dim:2} {score:8} {name:11} rate {rate:<5}{interval(values)}, hyperbolic minus this {apart}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("wordnet-mammals.jsonl"))
    parser.add_argument("--show", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    options = parser.parse_args()
    if options.show:
        show(read(options.show))
        return
    torch.set_num_threads(1)
    _, bases, above = mammals()
    hidden, begun = hidden_pairs(bases, above), time.monotonic()
    known = above & ~hidden
    done = read(options.out)
    for key in keys(done):
        if key in done:
            continue
        if time.monotonic() - begun > options.seconds:
            break
        name, dim, rate, seed = key
        space = fit(name, dim, known, rate, seed, STEPS)
        pairs = {"trained": (known, hidden), "hidden": (hidden, known)}
        done[key] = {score: round(mean_average_precision(space, *pairs[score]), 4) for score in SCORES}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **done[key]}) + "\n")


if __name__ == "__main__":
    main()
