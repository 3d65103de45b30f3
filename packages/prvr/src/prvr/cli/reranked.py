"""`prvr evaluate --rerank RUN --qb-norm`: a retriever with what is put on top of it, beside itself."""

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, stdout
from prvr.cli.folders import device_of, open_corpus_of
from prvr.cli.generation import variants_table
from prvr.cli.options import Parser, number, whole_number
from prvr.cli.reports import QB_BETA, report_file, variant_parts
from prvr.cli.transfer import corpus_of
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport

__all__ = ["add_rerank_options", "reports_of", "show_reranked", "wants_reranking", "wants_sets"]


def add_rerank_options(parser: Parser) -> None:
    """Adds `--rerank`, its options, and `--qb-norm`."""
    group = parser.add_argument_group("re-ranking")
    group.add_argument(
        "--rerank", metavar="RUN", help="a run of `prvr train --stage generation` that was trained over this retriever"
    )
    group.add_argument(
        "--top", type=whole_number, metavar="K", help="the number of candidates to re-rank; by default, that of the run"
    )
    group.add_argument(
        "--steps", type=whole_number, metavar="N", help="the steps of the sampler, at most those of training"
    )
    group.add_argument(
        "--weight",
        type=number,
        metavar="W",
        help="the weight of the generated probability; by default, that of the run",
    )
    group.add_argument(
        "--rerank-seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="the seed of the noise that sampling starts from (default: 0)",
    )
    group.add_argument(
        "--qb-norm",
        action="store_true",
        help="normalise the scores with a bank of training queries (QB-Norm) before re-ranking",
    )
    group.add_argument(
        "--qb-beta",
        type=number,
        default=QB_BETA,
        metavar="B",
        help="the inverse temperature of --qb-norm (default: 20)",
    )


def wants_reranking(args: Namespace) -> bool:
    """Whether one of them was asked for.

    Raises:
        CommandError: options of `--rerank` without it.
    """
    if args.rerank is None:
        for name in ("top", "steps", "weight"):
            if getattr(args, name) is not None:
                raise CommandError(f"--{name} is an option of --rerank RUN, which is missing.")
    return args.rerank is not None or args.qb_norm


def wants_sets(args: Namespace, config: Config) -> bool:
    """Whether sets of captions are ranked too, as papers on text-to-video retrieval do: asked for, or one of their
    benchmarks.
    """
    from prvr.corpora import benchmark_of

    corpus = corpus_of(config) if args.table == "auto" else None
    return args.table == "t2v" or (corpus is not None and benchmark_of(corpus) is not None)


def show_reranked(args: Namespace, trained: Config, config: Config, weights: Path, split_name: str) -> None:
    """Evaluates the retriever alone and with all that was asked for, prints all and writes each to a file of its own.

    `--json` names the file of the last, on which everything is; the others go into the run.
    """
    reports = reports_of(args, config, weights, split_name)
    *_, last = reports.values()
    console = stdout()
    console.print()
    title = f"{last.split}: {len(last.query_ids):,} queries, {len(last.video_ids):,} videos"
    console.print(variants_table(reports, title))
    console.print()
    for name, report in reports.items():
        named = args if report is last else Namespace(run=args.run, ties=args.ties, json=None)
        target = report_file(named, trained, config, split_name, variant_parts(args, name))
        report.to_json(target)
        print(f"{target}: {name}")


def reports_of(args: Namespace, config: Config, weights: Path, split_name: str) -> "dict[str, EvaluationReport]":
    """The reports of the retriever alone, first, and of all that was asked for, by name."""
    from prvr.evaluation import evaluate
    from prvr.evaluation.encode import encode_split, evaluation_mode
    from prvr.generation import SplitScores, evaluate_reranked, training_banks
    from prvr.generation.evaluation import expect_fits
    from prvr.models import load_pretrained
    from prvr.training import load_rerankers, open_split

    device, retriever, train = device_of(args.device), load_pretrained(weights), config.train
    rerankers = load_rerankers(args.rerank) if args.rerank is not None else {}
    config = replace(config, model=retriever.config)
    open_corpus_of(config, args.quiet)
    sizes: dict[str, Any] = {"video_batch": train.eval_videos, "query_batch": train.eval_queries, "seed": train.seed}
    with closing(open_split(config, split_name)) as split:
        expect_fits(retriever, split, rerankers, args.top, args.steps)
        encoded = encode_split(retriever, split, device=device, **sizes)
        options: dict[str, Any] = {"encoded": encoded, "device": device, "ties": args.ties}
        options["caption_sets"] = wants_sets(args, config)
        reports = {"retriever": evaluate(retriever, split, **options, **sizes)}
        banks = None
        if args.qb_norm:
            with closing(open_split(config, "train")) as training:
                bank = encode_split(retriever, training, device=device, **sizes)
            scores = SplitScores(retriever, encoded, split)
            with evaluation_mode(retriever, device, train.seed):
                banks = training_banks(retriever, bank, scores, beta=args.qb_beta)
            reports["QB-Norm"] = evaluate_reranked(retriever, split, {}, banks=banks, **options)
        if rerankers:
            asked = {"weight": args.weight, "top_k": args.top, "num_steps": args.steps, "seed": args.rerank_seed}
            reports["re-ranked"] = evaluate_reranked(retriever, split, rerankers, **asked, **options)
            if banks is not None:
                reports["QB-Norm, re-ranked"] = evaluate_reranked(
                    retriever, split, rerankers, banks=banks, **asked, **options
                )
    return reports
