"""`prvr evaluate` and `prvr compare`: the metrics of a run, a model or a pipeline, and whether one ranks better."""

import logging
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from prvr.cli.console import CommandError, stdout
from prvr.cli.folders import chosen_data, device_of, open_corpus_of
from prvr.cli.options import Parser, more_keys, one_of, parsed_keys
from prvr.config import Config
from prvr.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport
    from prvr.evaluation.zero_shot import ZeroShotComparison
    from prvr.systems import System

    Reports = Mapping[str, Mapping[str, EvaluationReport]]

logger = logging.getLogger(__name__)


def register(prvr: Parser) -> None:
    """Adds the commands."""
    parser = prvr.command(
        "evaluate",
        run,
        "Evaluate a trained model or a pipeline",
        "SYSTEM [--stage KIND[:RUN][,KEY=VALUE]]... [--model.KEY VALUE ...] [--split NAME] [OPTIONS]",
        "Rank every video of a split for every query, and report recalls with their confidence intervals; with stages, "
        "of the first stage alone and after each stage. --model.KEY VALUE changes a key of the trained model that none "
        "of its weights depends on, for example --model.clip_weight 0.7 --model.frame_weight 0.3.",
    )
    parser.shared("system", "--stage", "--split", "--data-root", "--collection", "--preset", "--transfer")
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
    parser.accepts_keys = True
    parser = prvr.command(
        "compare",
        run_compare,
        "Test whether one run ranks better than another",
        "RUN_A RUN_B [OPTIONS]",
        "Compare two evaluations of the same queries with a paired test, whose resamples are drawn by video.",
    )
    parser.add_argument("run_a", metavar="RUN_A", help="the folder of a run, or its evaluation.json")
    parser.add_argument("run_b", metavar="RUN_B", help="the same of the other run")
    parser.option("--samples", default=10_000, help="the number of resamples and permutations")
    parser.shared("--seed")


def run(args: Namespace) -> None:
    """Evaluates, prints the tables and writes the numbers."""
    from prvr.systems import open_system, parse_stage

    keys = parsed_keys(more_keys(args))
    strange = [f"--{key}" for key in keys if not key.startswith("model.")]
    if strange:
        args.parser.refuse(strange)
    model = {key.removeprefix("model."): value for key, value in keys.items()}
    stages = [parse_stage(text) for text in args.stage]
    system = open_system(args.system, stages, device=device_of(args.device), model=model)
    config = chosen_data(args, system.config_file, args.system)
    (evaluate_targets if args.transfer else evaluate_split)(args, config, system)


def run_compare(args: Namespace) -> None:
    """Prints the comparison of two runs."""
    from prvr.evaluation.compare import compare, comparison_table

    comparison = compare(Path(args.run_a), Path(args.run_b), samples=args.samples, seed=args.seed)
    stdout().print(comparison_table(comparison))


def evaluate_split(args: Namespace, config: Config, system: "System") -> None:
    """Evaluates on one split, prints the tables and writes a file for each report."""
    from prvr.evaluation.tables import systems_table
    from prvr.evaluation.transfer import check_features

    trained, split = system.config or config, args.split or config.data.eval_split
    check_features(trained, config)
    found, console = evaluated(args, system, config, split), stdout()
    for labels, reports in found.items():
        if len(found) > 1:
            console.print(f"\n{labels} labels")
        if len(reports) > 1:
            console.print()
            console.print(systems_table(reports))
            continue
        (report,) = reports.values()
        show_report(console, report, text_to_video=_ranks_sets(args, config))
        if labels == "original":
            show_baselines(console, replace(config, model=system.pipeline.first.config), report, split)
    console.print()
    differs = [config.data.collection] * (config.data.collection != trained.data.collection)
    differs += [split] * (split != config.data.eval_split)
    for file, report, name in write_reports(args, system, found, ["evaluation", *differs]):
        print(f"{file}: {name}" + f", {report.labels} labels" * (len(found) > 1))


def evaluate_targets(args: Namespace, config: Config, system: "System") -> None:
    """Evaluates on the corpus of the run and on the targets, prints one table, and writes a file for each target."""
    from prvr.evaluation.transfer import corpus_on_disk, target_config, transfer_table

    if args.json is not None:
        raise CommandError("--json: --transfer writes a file for each target into RUN. Leave --json out.")
    folders = [Path(target).expanduser() for target in args.transfer]
    if len(set(folders)) < len(folders):
        raise CommandError(f"--transfer {' '.join(args.transfer)}: a corpus is named twice.")
    chosen = [target_config(config, folder, args.split) for folder in folders]  # all, before any is evaluated
    split = args.split or config.data.eval_split
    name = f"{config.data.collection} {split}"
    if config.data.root is None or corpus_on_disk(config) is not None:
        sources = _rows(name, evaluated(args, system, config, split))
    else:
        sources = {name: None}
        logger.warning("%s: %s does not exist, so the source is not scored.", config.data.root, config.data.collection)
    targets, files = dict[str, "EvaluationReport | None"](), []
    for folder, (target, split) in zip(folders, chosen, strict=True):
        alone = sum(other.name == folder.name for other in folders) == 1
        label = folder.name if alone else f"{folder.parent.name}/{folder.name}"
        found = evaluated(args, system, target, split)
        targets |= _rows(f"{label} {split}", found)
        about = ["evaluation_on", label.replace("/", "-"), split]
        files += [file for file, _, _ in write_reports(args, system, found, about)]
    console = stdout()
    console.print()
    console.print(transfer_table(sources, targets))
    console.print()
    for key, value in system.changed.items():
        print(f"changed after training: {key}={value}")
    for file in files:
        print(f"{file}: these numbers and both directions")


def evaluated(args: Namespace, system: "System", config: Config, split: str) -> "Reports":
    """The reports of the first stage alone and after each stage, by name; under the original labels of the corpus, and
    under dense ones where it has them.
    """
    from prvr.evaluation import EvaluationConfig, encode_split, evaluate

    device = device_of(args.device)
    how = EvaluationConfig.of_run(config.train, ties=args.ties, caption_sets=_ranks_sets(args, config))
    open_corpus_of(config, args.quiet)
    with closing(system.open_split(split, config)) as packed:
        encoded = encode_split(
            system.pipeline,
            packed,
            device=device,
            video_batch=how.video_batch,
            query_batch=how.query_batch,
            seed=how.seed,
        )
        return {
            labelled.labels: {
                name: replace(
                    evaluate(part, labelled, how, encoded=encoded, device=device), changed=dict(system.changed)
                )
                for name, part in system.parts().items()
            }
            for labelled in (packed, packed.with_dense_labels())
            if labelled is not None
        }


def write_reports(
    args: Namespace, system: "System", found: "Reports", about: Sequence[str]
) -> "list[tuple[Path, EvaluationReport, str]]":
    """Writes a file for each report into the folder of the system, or the last ones where `--json` says.

    Returns:
        The file, the report and the name of each.
    """
    changed = ["-".join(re.findall(r"[\w.]+", f"{key[6:]} {value}")) for key, value in system.changed.items()]
    how = [args.ties] * (args.ties != "worst") + changed
    written = []
    for labels, reports in found.items():
        dense = ["dense_labels"] * (labels == "dense")
        parts = name_parts(args.stage, len(reports))
        files = [system.folder / f"{'_'.join([*about, *added, *how, *dense])}.json" for added in parts]
        if args.json is not None:
            files[-1] = Path(args.json).with_stem("_".join([Path(args.json).stem, *dense]))
        for file, (name, report) in zip(files, reports.items(), strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)  # of a model that ships with prvr, a folder of its name
            report.to_json(file)
            written.append((file, report, name))
    return written


def _ranks_sets(args: Namespace, config: Config) -> bool:
    """Whether sets of captions are ranked too, as papers on text-to-video retrieval do: asked for, or one of their
    benchmarks.
    """
    from prvr.corpora import benchmark_of
    from prvr.evaluation.transfer import corpus_on_disk

    corpus = corpus_on_disk(config) if args.table == "auto" else None
    return args.table == "t2v" or (corpus is not None and benchmark_of(corpus) is not None)


def _rows(name: str, found: "Reports") -> "dict[str, EvaluationReport | None]":
    """The reports by name, which says the stages if there are several, and the labels if they are dense."""
    return {
        ", ".join([name] + [part] * (len(reports) > 1) + [f"{labels} labels"] * (labels == "dense")): report
        for labels, reports in found.items()
        for part, report in reports.items()
    }


def name_parts(stages: Sequence[str], reports: int) -> list[list[str]]:
    """What names the file of each report: nothing if there is one, else the first stage alone or the stages so far.

    Args:
        stages: `--stage` as it was given; the stages before these belong to the system.
        reports: the number of reports.

    Examples:
        >>> name_parts([], 1)
        [[]]
        >>> name_parts(["qb_norm", "diffusion:runs/r-1/best,top_k=5"], 3)
        [['retriever'], ['qb_norm'], ['qb_norm', 'diffusion-r-1-top_k-5']]
        >>> name_parts([], 3)
        [['retriever'], ['stage1'], []]
    """
    if reports == 1:
        return [[]]
    given = []
    for text in stages:
        kind, *rest = re.split("[:,]", text, maxsplit=1)
        words = "".join(rest).replace("/best", "").rsplit("/", 1)[-1]
        given.append("-".join([kind, *re.findall(r"[\w.]+", words)]))
    own = reports - 1 - len(given)
    after = [given[: number - own] if number > own else [f"stage{number}"] for number in range(1, reports)]
    if not given:
        after[-1] = []
    return [["retriever"], *after]


def show_report(console: Console, report: "EvaluationReport", *, text_to_video: bool = False) -> None:
    """Prints the tables of an evaluation; `text_to_video` puts that of papers on text-to-video retrieval first."""
    from prvr.evaluation.tables import groups_table, metrics_table, tags_table, text_video_table

    first = text_video_table(report) if text_to_video else metrics_table(report)
    for table in (first, groups_table(report), tags_table(report)):
        if table is not None:
            console.print()
            console.print(table)


def show_baselines(
    console: Console,
    config: Config,
    report: "EvaluationReport",
    split: str | None = None,
    note: str | None = None,
) -> "ZeroShotComparison | None":
    """Prints a report beside chance and zero-shot, if the corpus names a joint encoder; the public ones do not.

    If the comparison cannot be made, the reason is printed instead of the table, and None is returned.

    Args:
        console: the console to print on.
        config: the configuration of the run, which says where the data are.
        report: the evaluation of the model.
        split: the split of the report; by default, the one that the configuration reports.
        note: printed below the table.
    """
    from prvr.evaluation.tables import zero_shot_table
    from prvr.evaluation.zero_shot import compare_zero_shot, has_zero_shot
    from prvr.training import open_split
    from prvr.training.data import run_corpus

    try:
        corpus = run_corpus(config)
        if not has_zero_shot(corpus):
            return None
        with closing(open_split(config, split or config.data.eval_split)) as packed:
            comparison = compare_zero_shot(report, corpus, packed)
    except (DataError, MissingExtraError) as error:  # the report itself is complete without it
        console.print(f"\nno comparison with zero-shot: {error}", markup=False, soft_wrap=True)
        return None
    console.print()
    console.print(zero_shot_table(comparison, note))
    return comparison
