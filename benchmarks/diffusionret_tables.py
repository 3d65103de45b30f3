"""Tables 3 (a to f) and 4 of DiffusionRet, each as one command, on simulated embeddings.

    python benchmarks/diffusionret_tables.py                       # all of them, small
    python benchmarks/diffusionret_tables.py --table 4 --galleries 1000 3000 5000 --queries 1000
    python benchmarks/diffusionret_tables.py --table e --train-steps 10 50 100 1000 --updates 2000 --seeds 0 1 2

Simulated: every video is a few topics, each frame shows one of them with noise, a query asks for one topic of its
video. The retriever compares by one half of the coordinates; the re-ranker reads all, so that there is something to
gain. The numbers say what the settings do here; they are not those of the paper, whose data are not at hand.
Table 4 gives times as ratios to scoring alone.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from _harness import Spread, environment, option, parse_options, peak, seconds, show
from prvr.evaluation.metrics import RetrievalMetrics, ranks
from prvr.scoring import max_scores
from prvr.stages import CandidateReranker, RerankerCompat, RerankerConfig

WIDTH, FRAMES, TOPICS = 64, 12, 3
TABLES = ("a", "b", "c", "d", "e", "f", "4")


@dataclass(frozen=True)
class Simulated:
    """Queries `(q, d)`, frames `(v, f, d)` and their mask; query i was written for video i."""

    text: Tensor
    frames: Tensor
    mask: Tensor

    def scores(self, rows: slice = slice(None)) -> Tensor:
        """The scores of a retriever that sees half of the coordinates."""
        half = WIDTH // 2
        return max_scores(self.text[rows, :half], self.frames[..., :half].contiguous(), self.mask, dots=False)[0]


def simulate(size: int, seed: int, device: torch.device, noise: float = 1.0) -> Simulated:
    draw = torch.Generator().manual_seed(seed)
    topics = torch.randn(size, TOPICS, WIDTH, generator=draw)
    shown = torch.randint(TOPICS, (size, FRAMES), generator=draw)
    frames = topics.gather(1, shown[..., None].expand(-1, -1, WIDTH))
    frames = frames + noise * torch.randn(frames.shape, generator=draw)
    text = topics[torch.arange(size), shown[:, 0]] + noise * torch.randn(size, WIDTH, generator=draw)
    lengths = torch.randint(FRAMES // 2, FRAMES + 1, (size, 1), generator=draw)
    mask = torch.arange(FRAMES) < lengths
    return Simulated(F.normalize(text, dim=-1).to(device), F.normalize(frames, dim=-1).to(device), mask.to(device))


def trained(config: RerankerConfig, data: Simulated, updates: int, batch: int, seed: int) -> CandidateReranker:
    """A re-ranker after some updates with the other items of a batch as candidates, as the released code has it."""
    torch.manual_seed(seed)
    reranker = CandidateReranker(config).to(data.text.device)
    with torch.no_grad():
        for linear in (reranker.denoiser.query, reranker.denoiser.key):
            linear.weight.copy_(3 * torch.eye(WIDTH))
    optimizer = torch.optim.Adam(reranker.parameters(), 1e-3)
    draw, noise = torch.Generator().manual_seed(seed), torch.Generator(data.text.device).manual_seed(seed)
    right = torch.eye(batch, dtype=torch.bool, device=data.text.device)
    for _ in range(updates):
        rows = torch.randperm(len(data.text), generator=draw)[:batch].to(data.text.device)
        loss = reranker.loss(right, data.text[rows], data.frames[rows], data.mask[rows], generator=noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return reranker.eval()


def base(**changes: Any) -> RerankerConfig:
    return RerankerConfig(**{"width": WIDTH, "attention_temperature": 0.1, "candidates": 32} | changes)


def metrics(scores: Tensor) -> RetrievalMetrics:
    right = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
    return RetrievalMetrics.from_ranks(ranks(scores, right).cpu())


def row(found: list[RetrievalMetrics]) -> list[str]:
    columns = ([m.r1 for m in found], [m.r5 for m in found], [m.r10 for m in found], [m.mnr for m in found])
    return [f"{mean(column):.1f}" for column in columns]


def measured(args: argparse.Namespace, change: dict[str, Any], **asked: Any) -> list[RetrievalMetrics]:
    """A setting, for every seed."""
    found = []
    for seed in args.seeds:
        train, test = (simulate(args.gallery, 2 * seed + part, args.device) for part in (0, 1))
        reranker = trained(base(**change), train, args.updates, args.batch, seed)
        found.append(metrics(reranker.rerank(test.scores(), test.text, test.frames, test.mask, seed=seed, **asked)))
    return found


def show_settings(title: str, settings: dict[str, Callable[[], list[RetrievalMetrics]]]) -> None:
    show(title, ["setting", "R@1", "R@5", "R@10", "MnR"], [[name, *row(find())] for name, find in settings.items()])


SETTINGS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "a": ("3a: loss of the generator", {"MSE": {"loss": "mse"}, "KL": {}}),
    "b": ("3b: sampler", {"DDPM": {"sampler": "ddpm"}, "DDIM": {}}),
    "c": ("3c: schedule of beta", {"linear": {"schedule": "linear"}, "cosine": {}}),
    "f": ("3f: scale of beta", {f"{scale:g}": {"beta_scale": scale} for scale in (0.1, 0.5, 1.0, 1.5, 2.0)}),
}
"""Tables with a row for each setting: title, and by row what differs from `base`."""


def settings(letter: str, args: argparse.Namespace) -> None:
    title, changes = SETTINGS[letter]
    show_settings(title, {name: partial(measured, args, change) for name, change in changes.items()})


def strategies(args: argparse.Namespace) -> None:
    def retriever() -> list[RetrievalMetrics]:
        return [metrics(simulate(args.gallery, 2 * seed + 1, args.device).scores()) for seed in args.seeds]

    released = RerankerCompat(decoder="released")
    ways = {
        "generative: the generator alone orders the candidates": {"combine": "alone"},
        "discriminative: the retriever alone": None,
        "hybrid: both": {},
        "hybrid, decoder as released": {"compat": released},
        "control: one step, no diffusion, both": {"process": "one_step"},
    }
    find = {name: retriever if change is None else partial(measured, args, change) for name, change in ways.items()}
    show_settings("3d: strategy", find)


def steps(args: argparse.Namespace) -> None:
    rows = []
    for number in args.train_steps:
        cells = []
        for taken in args.train_steps:
            try:
                cells.append(f"{mean(m.r1 for m in measured(args, {'steps': number}, num_steps=taken)):.1f}")
            except ValueError:
                cells.append("x")
        rows.append([str(number), *cells])
    title = "3e: R@1 by steps trained (rows) and taken (columns)"
    show(title, ["trained", *map(str, args.train_steps)], rows, note="x: refused, never trained")


def mebibytes(run: Callable[[], Any], device: torch.device) -> str:
    """The most memory of a call in MiB, of the GPU or of the whole process."""
    return f"{peak(run, device)[1] / 2**20:.0f}"


def table_4(args: argparse.Namespace) -> None:
    train = simulate(args.gallery, 0, args.device)
    reranker = trained(base(), train, args.updates, args.batch, 0)
    head = [f"{what}, {size:,}" for size in args.galleries for what in ("time", "memory", "R@1")]
    rows: dict[str, list[str]] = {}
    for size in args.galleries:
        test = simulate(size, 1, args.device)
        some = slice(0, min(args.queries, size))
        scores = test.scores(some)

        def alone(test: Simulated = test, some: slice = some) -> Tensor:
            return test.scores(some)

        def reranked(count: int, test: Simulated = test, some: slice = some, scores: Tensor = scores) -> Tensor:
            return reranker.rerank(scores, test.text[some], test.frames, test.mask, num_steps=count)

        rows.setdefault("-", []).extend(["1.00", mebibytes(alone, args.device), f"{metrics(scores).r1:.1f}"])
        for count in args.sampling_steps:
            way = partial(reranked, count)
            pairs = [(seconds(way, args.device)[1], seconds(alone, args.device)[1]) for _ in range(3)]
            ratio = Spread.of([1 + slow / fast for slow, fast in pairs])
            cells = [str(ratio), mebibytes(way, args.device), f"{metrics(way()).r1:.1f}"]
            rows.setdefault(str(count), []).extend(cells)
    title = "4: time against scoring alone, peak memory (MiB), R@1"
    note = f"{args.queries} queries in batches, 32 candidates each; on a CPU memory is that of the whole process"
    show(title, ["steps", *head], [[name, *cells] for name, cells in rows.items()], note=note)


def main() -> None:
    args = parse_options(
        __doc__,
        table=option(None, "default: all", choices=TABLES, action="append"),
        gallery=option(400, "videos of table 3, in training and in test"),
        updates=60,
        batch=64,
        seeds=[0],
        train_steps=option([10, 50], "numbers of trained steps in table 3e"),
        galleries=option([500], "sizes of the gallery in table 4"),
        queries=option(128, "queries in table 4"),
        sampling_steps=option([1, 3, 5, 10, 30, 50], "numbers of sampling steps in table 4"),
        device=option(torch.device("cpu"), type=torch.device),
    )
    print(environment(str(args.device)))
    others = {"d": strategies, "e": steps, "4": table_4}
    for table in args.table or TABLES:
        others.get(table, partial(settings, table))(args)


if __name__ == "__main__":
    main()
