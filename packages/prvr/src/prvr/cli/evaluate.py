"""`prvr evaluate`: all metrics of a trained model on a split."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from prvr.cli.console import CommandError, device_of, leaf, show_report, stdout
from prvr.cli.embedded import cached_corpus
from prvr.cli.folders import load_retriever, model_folder
from prvr.cli.overrides import chosen_config
from prvr.config import Config

NAME = "evaluate"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr evaluate RUN [--split test] [--data-root ROOT] [--collection NAME] [--ties worst] [--json FILE]",
        "Rank every video of a split for every query, and report recalls with their intervals.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a folder of save_pretrained")
    parser.add_argument("--split", help="default: the one that the configuration reports")
    parser.add_argument("--data-root", metavar="ROOT", help="folder that holds the corpus (default: the run's)")
    parser.add_argument("--collection", metavar="NAME", help="another than the configuration names")
    parser.add_argument("--preset", metavar="NAME", help="of the data, for a model folder without config.yaml")
    parser.add_argument("--ties", choices=["worst", "mean", "best"], default="worst", help="how equal scores count")
    parser.add_argument("--json", metavar="FILE", help="default: in RUN, evaluation.json or evaluation_SPLIT_TIES.json")
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="auto")
    subcommands.add_subcommand(NAME, parser, help="all metrics of a trained model")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    folder = Path(args.run)
    weights, file = model_folder(folder)
    config = _config(args, weights, file)
    split_name = args.split or config.data.eval_split
    report = _evaluate(args, config, weights, split_name)
    console = stdout()
    show_report(console, report)
    parts = [split_name] * (split_name != config.data.eval_split) + [args.ties] * (args.ties != "worst")
    target = folder / ("_".join(["evaluation", *parts]) + ".json") if args.json is None else Path(args.json)
    target.parent.mkdir(parents=True, exist_ok=True)
    report.to_json(target)
    console.print(f"\n{target}: these numbers", markup=False, soft_wrap=True)


def _config(args: Namespace, weights: Path, file: Path | None) -> Config:
    if file is None and args.preset is None:
        raise CommandError(
            f"{weights}: no config.yaml says which data this model reads. Name a preset of the same data with --preset."
        )
    known = Namespace(preset=args.preset, config=None, data_root=args.data_root)
    if args.collection is not None:
        known["data.collection"] = args.collection
    return chosen_config(known, default=file)


def _evaluate(args: Namespace, config: Config, weights: Path, split_name: str) -> Any:
    from prvr.evaluation import evaluate
    from prvr.training import open_split

    device = device_of(args.device)
    retriever = load_retriever(weights)
    # The weights say what the model is; the configuration only where and how the data are read.
    config = replace(config, model=retriever.config)
    if config.data.root is None:
        cached_corpus(config, args.quiet)
    with closing(open_split(config, split_name)) as split:
        return evaluate(
            retriever,
            split,
            device=device,
            video_batch=config.train.eval_videos,
            query_batch=config.train.eval_queries,
            ties=args.ties,
            seed=config.train.seed,
        )
