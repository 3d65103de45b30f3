"""What approximate indexes find of the ten nearest neighbours that `lorentz.topk` finds, at growing radius.

A tree-like set in 16 dimensions: 500 places up to the radius of the row, 40 points near each. faiss searches the
transform (-x0, x), whose inner product with a query is <q, x>_L: exactly, in float32 (flat), in one tenth of the cells
(IVF), along a graph (HNSW), and in codes of eight bits (SQ8). A last column gives the time of sorting all distances by
that of `topk`. Usage: python benchmarks/lorentz_neighbours.py
"""

import faiss
import torch
from torch import Tensor

import lorentz
from _harness import Contender, compare, parse_options, show

DIM, PLACES, EACH, QUERIES, K = 16, 500, 40, 200, 10
RADII = (1.0, 2.0, 4.0, 6.0, 8.0)
INDEXES = ("Flat", "IVF141,Flat", "HNSW32", "SQ8")


def clumps(radius: float) -> tuple[Tensor, Tensor]:
    """Queries (200, 17) among points (20,000, 17)."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(PLACES, DIM, generator=generator).double(), dim=-1)
    lengths = radius * torch.rand(PLACES, 1, generator=generator).double() ** 0.25
    near = lorentz.expmap0(0.125 * torch.randn(PLACES, EACH, DIM, generator=generator).double())
    points = lorentz.gyro_add(lorentz.expmap0(directions * lengths).unsqueeze(1), near).flatten(0, 1).float()
    return points[torch.randperm(len(points), generator=generator)[:QUERIES]], points


def found(name: str, queries: Tensor, points: Tensor) -> Tensor:
    """Rows of the ten best of a faiss index."""
    index = faiss.index_factory(DIM + 1, name, faiss.METRIC_INNER_PRODUCT)
    transformed = torch.cat([-points[:, :1], points[:, 1:]], dim=-1).numpy()
    index.train(transformed)
    index.add(transformed)
    if name.startswith("IVF"):
        index.nprobe = 14
    elif name.startswith("HNSW"):
        index.hnsw.efSearch = 64
    return torch.from_numpy(index.search(queries.numpy(), K)[1])


def searched() -> dict:
    queries, points = clumps(4.0)
    return {"topk": lambda: lorentz.topk(queries, points, K)}


def sorted_all() -> dict:
    queries, points = clumps(4.0)
    return {"topk": lambda: lorentz.pairwise_dist(queries, points, exact=True).topk(K, largest=False)}


def main() -> None:
    parse_options(__doc__)
    faiss.omp_set_num_threads(1)
    rows = []
    for radius in RADII:
        queries, points = clumps(radius)
        truth = lorentz.topk(queries, points, K)[1]
        results = [found(name, queries, points) for name in INDEXES]
        shares = [(each.unsqueeze(-1) == truth.unsqueeze(1)).any(-1).float().mean().item() for each in results]
        rows.append([f"{radius:g}", *(f"{share:.2f}" for share in shares)])
    show("share of the ten nearest that is found", ["radius", "flat", "IVF", "HNSW", "SQ8"], rows)
    comparison = compare([Contender("all", sorted_all), Contender("topk", searched)])
    show("time", ["", "all distances / topk"], [["200 queries", comparison.ratio("topk", "all", "topk")]])


if __name__ == "__main__":
    main()
