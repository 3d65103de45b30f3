"""`prvr evaluate`: all metrics of a trained model on a split."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from prvr.cli.beside import show_beside
from prvr.cli.console import CommandError, device_of, leaf, show_report, stdout
from prvr.cli.embedded import cached_corpus
from prvr.cli.folders import load_retriever, model_folder, report_file
from prvr.cli.overrides import chosen_config
from prvr.cli.reranked import add_rerank_options, reports_of, show_reranked, wants_reranking, wants_sets
from prvr.cli.transfer import check_features, show_transfer
from prvr.config import Config, load_config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport

NAME = "evaluate"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr evaluate RUN [--split test] [--data-root ROOT] [--collection NAME] [--ties worst] [--json FILE] "
        "[--rerank RUN] [--qb-norm]",
        "Rank every video of a split for every query, and report recalls with their intervals.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a folder of save_pretrained")
    parser.add_argument("--split", help="default: the one that the configuration reports")
    parser.add_argument("--data-root", metavar="ROOT", help="folder that holds the corpus (default: the run's)")
    parser.add_argument("--collection", metavar="NAME", help="another than the configuration names")
    parser.add_argument("--preset", metavar="NAME", help="of the data, for a model folder without config.yaml")
    parser.add_argument(
        "--transfer", nargs="+", metavar="ROOT/COLLECTION", help="other corpora to test on, beside the run's own"
    )
    parser.add_argument(
        "--table",
        choices=["auto", "prvr", "t2v"],
        default="auto",
        help="t2v: that of text-to-video papers",
    )
    add_rerank_options(parser)
    parser.add_argument("--ties", choices=["worst", "mean", "best"], default="worst", help="how equal scores count")
    parser.add_argument(
        "--json", metavar="FILE", help="default: in RUN, evaluation.json or evaluation_COLLECTION_SPLIT_TIES.json"
    )
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="auto")
    subcommands.add_subcommand(NAME, parser, help="all metrics of a trained model")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    folder = Path(args.run)
    weights, file = model_folder(folder)
    config = _config(args, weights, file)
    trained = load_config(file) if file is not None else config
    if args.transfer:
        show_transfer(args, config, weights, reports_of if wants_reranking(args) else _alone)
        return
    check_features(trained, config)
    split_name = args.split or config.data.eval_split
    if wants_reranking(args):
        show_reranked(args, trained, config, weights, split_name)
        return
    report = _evaluate(args, config, weights, split_name)
    console = stdout()
    show_report(console, report, text_to_video=wants_sets(args, config))
    show_beside(console, replace(config, model=load_retriever(weights).config), report, split_name)
    target = report_file(args, trained, config, split_name)
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


def _alone(args: Namespace, config: Config, weights: Path, split_name: str) -> "dict[str, EvaluationReport]":
    return {"retriever": _evaluate(args, config, weights, split_name)}


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
            caption_sets=wants_sets(args, config),
        )
