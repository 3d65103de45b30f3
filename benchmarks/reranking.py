"""Does re-ranking help? Frozen retrievers with and without it, with and without QB-Norm, and without diffusion.

    python benchmarks/reranking.py                                        # a small retriever of its own, one seed
    python benchmarks/reranking.py --runs RUN... --seeds 0 1 2 --epochs 20   # finished runs of `prvr train`

Over every retriever, for every seed: the re-ranker of DiffusionRet, and the control that the paper does not give, the
same network trained for the same steps as a one-step re-ranker without noise. Epoch and weight of both are chosen on
the split that selects; numbers are those of the reported split, means over seeds, both directions. Embeddings of a
retriever are computed once.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch
import yaml

from _harness import option, parse_options, show, write_figures
from prvr.config import load_config
from prvr.evaluation import EvaluationConfig, encode_split, evaluate
from prvr.evaluation.report import EvaluationReport
from prvr.models import load_pretrained
from prvr.stages import DiffusionStage, EncodedSplit, Pipeline, QBNormStage, load_rerankers
from prvr.training import open_splits, reranker_run_config, terminal_bar, train, train_reranker
from prvr.types import VideoEmbedding

SMALL = {
    "data.collection": "toy-tiny",
    "model.hidden": 32,
    "model.blocks": [{"space": "euclidean"}, {"space": "euclidean", "width": 2.0}],
    "model.registers.steps": 2,
    "loss.entailment": 0,
    "train.protocol": "val",
    "train.epochs": 6,
}
CONTROL = "one step, no diffusion"
WAYS = {"diffusion": "hybrid", CONTROL: "discriminative"}


@contextmanager
def runs_of(args: argparse.Namespace) -> Iterator[list[Path]]:
    """The runs that were named, or a small one made for the occasion."""
    if args.runs:
        yield args.runs
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "small"
        train(load_config("hybrid-toy", SMALL), output=run, device="cpu", progress=terminal_bar)
        yield [run]


def remembering() -> Callable[..., EncodedSplit]:
    """`encode_split` that computes a split once."""
    known: dict[tuple[str, int], EncodedSplit] = {}

    def encode(retriever: Any, split: Any, **options: Any) -> EncodedSplit:
        key = split.name, len(split)
        if key not in known:
            known[key] = encode_split(retriever, split, **options)
        return known[key]

    return encode


def settings(args: argparse.Namespace, strategy: str, seed: int, width: int) -> Any:
    values: dict[str, Any] = {"strategy": strategy, "train": {"epochs": args.epochs, "seed": seed}}
    values["candidates"] = {"num": args.candidates, "pool": 2 * args.candidates}
    values["reranker"] = {"candidates": args.candidates, "steps": args.steps}
    for pair in args.set:
        key, _, value = pair.partition("=")
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = yaml.safe_load(value)
    return reranker_run_config(values, width=width)


def numbers(report: EvaluationReport) -> dict[str, list[float]]:
    found = {}
    for direction in ("text_to_video", "video_to_text"):
        m = getattr(report, direction)
        found[direction] = [m.r1, m.r5, m.r10, m.r1 + m.r5 + m.r10, m.r100]
    return found


def over(run: Path, args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All ways of ranking over one retriever: a list with an entry for each seed."""
    config = load_config(run / "config.yaml")
    retriever, encode, device = load_pretrained(run / "best"), remembering(), torch.device(args.device)
    retriever.to(device)
    found: dict[str, list[dict[str, Any]]] = {"retriever": [], "QB-Norm": []}
    with closing(open_splits(config)) as splits, tempfile.TemporaryDirectory() as folder:
        encoded = encode(retriever, splits.report, device=device)
        training = encode(retriever, splits.train, device=device)
        qb_norm = QBNormStage(training.text, VideoEmbedding.cat(training.videos))

        def measured(*stages: Any) -> dict[str, list[float]]:
            config = EvaluationConfig(bootstrap=0)
            return numbers(evaluate(Pipeline(retriever, stages), splits.report, config, encoded=encoded))

        found["retriever"].append(measured())
        found["QB-Norm"].append(measured(qb_norm))
        for seed in args.seeds:
            for name, strategy in WAYS.items():
                output = Path(folder) / f"{strategy}-{seed}"
                result = train_reranker(
                    settings(args, strategy, seed, retriever.config.hidden),
                    retriever,
                    splits,
                    output=output,
                    device=device,
                    progress=terminal_bar,
                    encode=encode,
                )
                weights = {direction: best.weight for direction, best in result.best.items()}
                found.setdefault(name, []).append(numbers(result.reranked) | {"weights": weights})
                rerankers = load_rerankers(output)
                both = measured(qb_norm, DiffusionStage(rerankers))
                found.setdefault(f"QB-Norm, {name}", []).append(both)
    return found


def print_table(name: str, found: Mapping[str, Sequence[Mapping[str, Any]]], direction: str) -> None:
    lines = []
    for way, runs in found.items():
        rows = [run[direction] for run in runs]
        means = [f"{mean(values):.1f}" for values in zip(*rows, strict=True)]
        if len(rows) > 1:
            means[3] += f" ± {pstdev(row[3] for row in rows):.1f}"
        lines.append([way, *means])
    title = f"{name}, {direction.replace('_', ' ')}"
    show(
        title, ["way", "R@1", "R@5", "R@10", "Rsum", "R@100"], lines, note="mean over seeds; of Rsum the deviation too"
    )


def main() -> None:
    args = parse_options(
        __doc__,
        runs=option([], "finished runs of `prvr train`", type=Path),
        seeds=[0],
        epochs=3,
        candidates=option(None, "default: 32, or 8 without --runs", type=int),
        steps=option(50, "K"),
        set=option([], "keys of prvr.training.RerankerRunConfig", metavar="KEY=VALUE"),
        device="cpu",
    )
    if args.candidates is None:
        args.candidates = 32 if args.runs else 8
    logging.basicConfig(level=logging.WARNING)
    everything = {}
    with runs_of(args) as runs:
        for run in runs:
            found = over(run, args)
            everything[run.name] = found
            for direction in ("text_to_video", "video_to_text"):
                print_table(run.name, found, direction)
            for way in WAYS:
                print(f"{way}: weights chosen {[entry['weights'] for entry in found[way]]}")
    write_figures(args, everything)


if __name__ == "__main__":
    main()
