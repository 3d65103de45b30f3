"""Link prediction in three graphs of networkx: hyperbolic space beside flat and spherical space, by a fixed rule.

    python benchmarks/links.py --out benchmarks/studies/links.jsonl  # goes on where it ended
    python benchmarks/links.py --show benchmarks/studies/links.jsonl

The rule and what came out: benchmarks/studies/links.md. Spaces are those of examples/wordnet_mammals.py.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import geoopt
import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor

from mammals import SEARCH_SEED, SEEDS, interval, read

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from wordnet_mammals import Space  # pyright: ignore[reportMissingImports]

GRAPHS = {
    "karate": nx.karate_club_graph,
    "miserables": nx.les_miserables_graph,
    "davis": nx.davis_southern_women_graph,
}
SPACES, DIMS = ("hyperbolic", "Euclidean", "spherical"), (2, 5)
RATES, STEPS, HIDDEN = (0.003, 0.01, 0.03, 0.1), 300, 0.2


def split(name: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs (p, 2) of nodes, which are joined, and which of these edges are hidden."""
    adjacency = torch.from_numpy(nx.to_numpy_array(GRAPHS[name]())) > 0
    pairs = torch.triu_indices(len(adjacency), len(adjacency), 1).T
    joined = adjacency[pairs[:, 0], pairs[:, 1]]
    edges = joined.nonzero().squeeze(1)
    order = torch.randperm(len(edges), generator=torch.Generator().manual_seed(seed))
    hidden = torch.zeros_like(joined)
    hidden[edges[order[: int(HIDDEN * len(edges))]]] = True
    return pairs, joined, hidden


def score(graph: str, name: str, dim: int, rate: float, seed: int) -> float:
    """Area under the curve of hidden edges against pairs that are not joined, after training on the other edges."""
    pairs, joined, hidden = split(graph, seed)
    torch.manual_seed(seed)
    count = int(pairs.max()) + 1
    space, reach = Space(name, count, dim), torch.nn.Parameter(torch.ones(()))
    optimiser = geoopt.optim.RiemannianAdam([*space.parameters(), reach], lr=rate)
    rows, known = torch.arange(count), (joined & ~hidden).float()
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(reach - space(rows)[pairs[:, 0], pairs[:, 1]], known).backward()
        optimiser.step()
    with torch.no_grad():
        distance = space(rows)[pairs[:, 0], pairs[:, 1]].double()
    apart = distance[~joined] - distance[hidden].unsqueeze(1)
    return ((apart > 0).double() + 0.5 * (apart == 0)).mean().item()


Done = dict[Any, dict[str, float]]


def best(graph: str, name: str, dim: int, done: Done) -> float:
    """The rate of the search with the best score."""
    return max(RATES, key=lambda rate: done[graph, name, dim, rate, SEARCH_SEED]["hidden"])


def keys(done: Done) -> Iterator[tuple[str, str, int, float, int]]:
    """(graph, space, dimension, rate, seed) of all runs in turn."""
    for cell in itertools.product(GRAPHS, SPACES, DIMS):
        yield from ((*cell, rate, SEARCH_SEED) for rate in RATES)
        yield from ((*cell, best(*cell, done), seed) for seed in SEEDS)


def show(done: Done) -> None:
    for graph, dim in itertools.product(GRAPHS, DIMS):
        ours: list[float] = []
        for name in SPACES:
            rate = best(graph, name, dim, done)
            values = [done[graph, name, dim, rate, seed]["hidden"] for seed in SEEDS]
            ours = ours or values
            apart = interval([a - b for a, b in zip(ours, values, strict=True)])
            print(f"{graph:10} {dim} {name:10} rate {rate:<5} {interval(values)}, hyperbolic minus this {apart}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("links.jsonl"))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done: Done = {**read(options.show or options.out)}
    for key in () if options.show else keys(done):
        if key not in done:
            done[key] = {"hidden": round(score(*key), 4)}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **done[key]}) + "\n")
    show(done)


if __name__ == "__main__":
    main()
