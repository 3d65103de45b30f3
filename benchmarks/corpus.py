"""Train several retrievers with one budget and several seeds, print a table, and draw their learning curves.

The picture shows the mean of the seeds as a line and all of them as a band, with chance and zero-shot; its numbers lie
beside it as JSON.

    python benchmarks/corpus.py                                                    # embedded presets, embedded corpus
    python benchmarks/corpus.py --seeds 0 1 2 --also embedded-large                # and the large test of the same runs
    python benchmarks/corpus.py --data-root ROOT --collection tvr --epochs 4 --presets hlformer dreamprvr hybrid

With --data-root, a corpus in the public layout within a small budget: hidden 128, 4 heads, 8 blocks, Lorentz width
127, batch 32, lr 3e-4, dropout 0.2, hard negatives from epoch 2. The best epoch on the split "val" is scored once on
"test". Far from convergence: for comparing, not for ranking.
"""

import argparse
import json
import statistics
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from _harness import option, parse_options, show
from prvr import Config, load_config
from prvr.data import open_corpus
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate, report_from_scores
from prvr.evaluation.zero_shot import has_zero_shot, zero_shot_scores
from prvr.pipeline import open_system
from prvr.plot import Curve, save_figure, sweep_figure
from prvr.training import open_split, terminal_bar, train
from prvr.training.data import run_corpus

BUDGET = {
    "model.hidden": 128,
    "model.heads": 4,
    "model.lorentz_dim": 127,
    "model.input_dropout": 0.2,
    "model.dropout": 0.2,
    "data.feature": None,
    "optim.lr": 3e-4,
    "train.batch_size": 32,
    "train.hard_negatives_from": 2,
    "train.patience": 1000,
    "train.protocol": "val",
}


def configuration(preset: str, seed: int, args: argparse.Namespace) -> Config:
    """The embedded preset as it is, or the paper's preset within the budget, with widths read from the corpus."""
    given = {"train.seed": seed, "data.cache_dir": str(args.output)}
    if args.epochs is not None:
        given["train.epochs"] = args.epochs
    given |= dict(item.split("=", 1) for item in args.set)
    if args.data_root is None:
        return load_config(f"{preset}-embedded", {"data.collection": args.collection} | given)
    video_dim, query_dim = open_corpus(args.data_root, args.collection).dims()
    widths = {"model.video_dim": video_dim, "model.query_dim": query_dim}
    where = {"data.collection": args.collection, "data.root": str(args.data_root)}
    return load_config(f"{preset}-{args.like}", BUDGET | widths | where | given)


def run(preset: str, seed: int, args: argparse.Namespace) -> dict:
    folder, config = Path(args.output) / f"{preset}-{args.collection}-{seed}", configuration(preset, seed, args)
    if not (args.keep and (folder / "evaluation.json").is_file()):
        train(config, output=folder, device=args.device, progress=terminal_bar)
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    reports = {args.collection: EvaluationReport.from_json(folder / "evaluation.json")}
    reports |= {name: tested(folder, config, name, args.device) for name in args.also}
    return {"preset": preset, "seed": seed, "history": history, "reports": reports}


def tested(run: Path, config: Config, collection: str, device: str | None) -> EvaluationReport:
    """A run on the test split of another corpus."""
    system = open_system(run, device=device)
    other = replace(config, data=replace(config.data, collection=collection))
    with closing(system.open_split("test", other)) as split:
        return evaluate(system.pipeline, split, EvaluationConfig.of_run(config.train, bootstrap=0), device=device)


def references(config: Config) -> dict[str, Any]:
    """SumR on the split `val` by chance and, where the corpus has a joint encoder, zero-shot."""
    corpus = run_corpus(config)
    with closing(open_split(config, "val")) as split:
        scores = zero_shot_scores(corpus, "val") if has_zero_shot(corpus) else None
        none = torch.zeros(len(split.query_ids), len(split))
        report = report_from_scores(none if scores is None else scores, split, EvaluationConfig(bootstrap=0))
    return {"chance": report.chance} | ({} if scores is None else {"zero_shot": report.text_to_video.sumr})


def main() -> None:
    args = parse_options(
        __doc__,
        data_root=option(None, "default: the embedded corpus"),
        collection="embedded-demo",
        also=option([], "other corpora to test the same runs on, for example embedded-large"),
        presets=["gmmformer", "hlformer", "dreamprvr", "hybrid"],
        like=option("tvr", "suffix of the presets whose loss weights are taken"),
        seeds=[0],
        epochs=option(None, "default: the preset's", type=int),
        output="runs/corpus",
        device=None,
        set=option([], "further overrides, key=value"),
        keep=option(False, "do not train a finished run again"),
    )
    results = [run(preset, seed, args) for preset in args.presets for seed in args.seeds]

    rows, curves = {collection: [] for collection in (args.collection, *args.also)}, {}
    for preset in args.presets:
        mine = [r for r in results if r["preset"] == preset]
        for collection, lines in rows.items():
            cells = []
            for name in ("r1", "r5", "r10", "r100", "sumr"):
                values = [getattr(r["reports"][collection].text_to_video, name) for r in mine]
                spread = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.1f}{spread}")
            lines.append([preset, *cells])
        epochs = list(zip(*([line["selection"]["sumr"] for line in r["history"]] for r in mine), strict=True))
        curves[preset] = Curve(range(1, len(epochs) + 1), epochs)
    for collection, lines in rows.items():
        title = f"{collection}, text to video, {len(args.seeds)} seeds"
        show(title, ["preset", "R@1", "R@5", "R@10", "R@100", "SumR"], lines)
    lines = references(configuration(args.presets[0], args.seeds[0], args))
    picture = Path(args.output) / f"curves-{args.collection}.png"
    figure = sweep_figure(curves, xlabel="epoch", ylabel="SumR on val", title=args.collection, **lines)
    save_figure(figure, picture, dpi=120)
    numbers = lines | {preset: curve.values for preset, curve in curves.items()}
    picture.with_suffix(".json").write_text(json.dumps(numbers), encoding="utf-8")
    print(f"learning curves: {picture}")


if __name__ == "__main__":
    main()
