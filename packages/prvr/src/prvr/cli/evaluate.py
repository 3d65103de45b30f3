"""`prvr evaluate`: all metrics of a run, a model or a pipeline on a split."""

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import stdout
from prvr.cli.folders import chosen_data, device_of, open_corpus_of
from prvr.cli.options import Parser, one_of
from prvr.cli.reports import name_parts, show_baselines, show_report
from prvr.cli.transfer import show_transfer
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport
    from prvr.pipeline import System


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "evaluate",
        run,
        "Evaluate a trained model or a pipeline",
        "SYSTEM [--stage KIND[:RUN][,KEY=VALUE]]... [--split NAME] [--data-root ROOT] [OPTIONS]",
        "Rank every video of a split for every query, and report recalls with their confidence intervals; with stages, "
        "of the first stage alone and after each stage.",
    )
    parser.shared(
        "run",
        metavar="SYSTEM",
        help="a run of `prvr train`, a folder of save_pretrained, a pipeline's folder, or its YAML file",
    )
    parser.shared("--stage", "--split", "--data-root", "--collection", "--preset", "--transfer")
    parser.add_argument(
        "--table",
        **one_of("auto", "prvr", "t2v"),
        default="auto",
        help="the metrics to print: those of papers on partially relevant retrieval (prvr) or on text-to-video "
        "retrieval (t2v); `auto`, the default, goes by the corpus",
    )
    parser.option("--ties", **one_of("worst", "mean", "best"), default="worst", help="the rank among equal scores")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="the file of the last report, after all stages; by default, evaluation.json, or a name that says more",
    )
    parser.shared("--device")


def run(args: Namespace) -> None:
    """Evaluates, prints the tables and writes the numbers."""
    from prvr.evaluation.tables import systems_table
    from prvr.evaluation.transfer import check_features
    from prvr.pipeline import open_system, parse_stage

    system = open_system(args.run, [parse_stage(text) for text in args.stage], device=device_of(args.device))
    config = chosen_data(args, system.config_file, args.run)
    trained = system.config or config
    if args.transfer:
        show_transfer(args, config, system, _evaluate)
        return
    check_features(trained, config)
    split = args.split or config.data.eval_split
    reports = _evaluate(args, system, config, split)
    *_, last = reports.values()
    console = stdout()
    if len(reports) > 1:
        console.print()
        console.print(systems_table(reports))
    else:
        show_report(console, last, text_to_video=_ranks_sets(args, config))
        show_baselines(console, replace(config, model=system.pipeline.first.config), last, split)  # pyright: ignore[reportAttributeAccessIssue]
    console.print()
    differs = [config.data.collection] * (config.data.collection != trained.data.collection)
    differs += [split] * (split != config.data.eval_split) + [args.ties] * (args.ties != "worst")
    targets = [
        system.folder / ("_".join(["evaluation", *([] if len(reports) == 1 else parts), *differs]) + ".json")
        for parts in name_parts(args.stage, len(reports))
    ]
    if args.json is not None:
        targets[-1] = Path(args.json)
    for (name, report), target in zip(reports.items(), targets, strict=True):
        report.to_json(target)
        print(f"{target}: {name}")


def _ranks_sets(args: Namespace, config: Config) -> bool:
    """Whether sets of captions are ranked too, as papers on text-to-video retrieval do: asked for, or one of their
    benchmarks.
    """
    from prvr.corpora import benchmark_of
    from prvr.evaluation.transfer import corpus_on_disk

    corpus = corpus_on_disk(config) if args.table == "auto" else None
    return args.table == "t2v" or (corpus is not None and benchmark_of(corpus) is not None)


def _evaluate(args: Namespace, system: "System", config: Config, split: str) -> "dict[str, EvaluationReport]":
    """The reports of the first stage alone and after each stage, by name."""
    from prvr.evaluation import EvaluationConfig, encode_split, evaluate
    from prvr.training import open_split

    first: Any = system.pipeline.first
    device, train = device_of(args.device), config.train
    # The weights say what the model is; the configuration only where and how the data are read.
    config = replace(config, model=first.config)
    open_corpus_of(config, args.quiet)
    sizes: dict[str, Any] = {"video_batch": train.eval_videos, "query_batch": train.eval_queries, "seed": train.seed}
    how = EvaluationConfig(ties=args.ties, caption_sets=_ranks_sets(args, config), **sizes)
    with closing(open_split(config, split)) as packed:
        encoded = encode_split(system.pipeline, packed, device=device, **sizes)
        return {
            name: evaluate(
                part, packed, how, encoded=replace(encoded, stages=encoded.stages[: len(part.stages)]), device=device
            )
            for name, part in system.parts().items()
        }
