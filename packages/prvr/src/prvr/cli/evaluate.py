"""`prvr evaluate`: all metrics of a trained model on a split."""

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import stdout
from prvr.cli.folders import config_of_run, device_of, open_corpus_of
from prvr.cli.options import Parser, one_of
from prvr.cli.reports import report_file, show_baselines, show_report
from prvr.cli.reranked import add_rerank_options, reports_of, show_reranked, wants_reranking, wants_sets
from prvr.cli.transfer import check_features, show_transfer
from prvr.config import Config, load_config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "evaluate",
        run,
        "Evaluate a trained model",
        "RUN [--split NAME] [--data-root ROOT] [--rerank RUN] [--qb-norm] [OPTIONS]",
        "Rank every video of a split for every query, and report recalls with their confidence intervals.",
    )
    parser.shared("run", help="the folder of a run of `prvr train`, or a folder of save_pretrained")
    parser.shared("--split", "--data-root")
    parser.shared("--collection", "--preset", "--transfer")
    parser.add_argument(
        "--table",
        **one_of("auto", "prvr", "t2v"),
        default="auto",
        help="the metrics to print: those of papers on partially relevant retrieval (prvr) or on text-to-video "
        "retrieval (t2v); `auto`, the default, goes by the corpus",
    )
    add_rerank_options(parser)
    parser.add_argument(
        "--ties",
        **one_of("worst", "mean", "best"),
        default="worst",
        help="the rank among equal scores (default: worst)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="the file to write; by default, RUN/evaluation.json, or a name that says more"
    )
    parser.shared("--device")


def run(args: Namespace) -> None:
    """Evaluates, prints the tables and writes the numbers."""
    from prvr.models import load_pretrained
    from prvr.models.pretrained import model_files

    config, weights = config_of_run(args, Path(args.run))
    file = model_files(weights)[1]
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
    show_baselines(console, replace(config, model=load_pretrained(weights).config), report, split_name)
    target = report_file(args, trained, config, split_name)
    report.to_json(target)
    print(f"\n{target}: these numbers")


def _alone(args: Namespace, config: Config, weights: Path, split_name: str) -> "dict[str, EvaluationReport]":
    return {"retriever": _evaluate(args, config, weights, split_name)}


def _evaluate(args: Namespace, config: Config, weights: Path, split_name: str) -> Any:
    from prvr.evaluation import evaluate
    from prvr.models import load_pretrained
    from prvr.training import open_split

    device = device_of(args.device)
    retriever = load_pretrained(weights)
    # The weights say what the model is; the configuration only where and how the data are read.
    config = replace(config, model=retriever.config)
    open_corpus_of(config, args.quiet)
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
