"""`prvr evaluate`: all metrics of a run, a model or a pipeline, on its own corpus and on others."""

import logging
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, stdout
from prvr.cli.folders import chosen_data, device_of, open_split_of
from prvr.cli.options import Parser, more_keys, one_of
from prvr.cli.reports import show_baselines, show_report
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport
    from prvr.evaluation.transfer import Domain
    from prvr.pipeline import System

logger = logging.getLogger(__name__)


def register(prvr: Parser) -> None:
    """Adds the command."""
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


def run(args: Namespace) -> None:
    """Evaluates, prints the tables and writes the numbers."""
    from prvr.pipeline import open_system, parse_stage

    model = _model_keys(args)
    stages = [parse_stage(text) for text in args.stage]
    system = open_system(args.system, stages, device=device_of(args.device), model=model)
    config = chosen_data(args, system.config_file, args.system)
    if args.transfer:
        show_transfer(args, config, system)
    else:
        show_split(args, config, system)


def _model_keys(args: Namespace) -> dict[str, str]:
    """The keys of the model that the command line changes, without `model.`."""
    keys = more_keys(args)
    strange = [f"--{key}" for key in keys if not key.startswith("model.")]
    if strange:
        args.parser.refuse(strange)
    return {key.removeprefix("model."): value for key, value in keys.items()}


def show_split(args: Namespace, config: Config, system: "System") -> None:
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
            show_baselines(console, replace(config, model=system.pipeline.first.config), report, split)  # pyright: ignore[reportAttributeAccessIssue]
    console.print()
    differs = [config.data.collection] * (config.data.collection != trained.data.collection)
    differs += [split] * (split != config.data.eval_split) + _how(args, system)
    for labels, reports in found.items():
        dense = ["dense_labels"] * (labels == "dense")
        targets = [
            system.folder / f"{'_'.join(['evaluation', *parts, *differs, *dense])}.json"
            for parts in name_parts(args.stage, len(reports))
        ]
        if args.json is not None:
            targets[-1] = Path(args.json).with_stem("_".join([Path(args.json).stem, *dense]))
        for (name, report), target in zip(reports.items(), targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)  # of a model that ships with prvr, a folder of its name
            report.to_json(target)
            print(f"{target}: {name}" + f", {labels} labels" * (len(found) > 1))


def show_transfer(args: Namespace, config: Config, system: "System") -> None:
    """Evaluates on the corpus of the run and on the targets, prints one table, and writes a file for each target."""
    from prvr.evaluation.transfer import Domain, corpus_on_disk, target_config, transfer_table

    if args.json is not None:
        raise CommandError("--json: --transfer writes a file for each target into RUN. Leave --json out.")
    folders = [Path(target).expanduser() for target in args.transfer]
    if len(set(folders)) < len(folders):
        raise CommandError(f"--transfer {' '.join(args.transfer)}: a corpus is named twice.")
    chosen = [target_config(config, folder, args.split) for folder in folders]  # all, before any is evaluated
    split = args.split or config.data.eval_split
    name = f"{config.data.collection} {split}"
    if config.data.root is None or corpus_on_disk(config) is not None:
        sources = _domains(name, evaluated(args, system, config, split))
    else:
        sources = [Domain(name, None)]
        logger.warning("%s: %s does not exist, so the source is not scored.", config.data.root, config.data.collection)
    targets, files = [], []
    for folder, (target, split) in zip(folders, chosen, strict=True):
        label, found = _label(folder, folders), evaluated(args, system, target, split)
        targets += _domains(f"{label} {split}", found)
        for labels, reports in found.items():
            for report, added in zip(reports.values(), name_parts(args.stage, len(reports)), strict=True):
                parts = ["evaluation_on", label.replace("/", "-"), split, *added, *_how(args, system)]
                parts += ["dense_labels"] * (labels == "dense")
                files.append(system.folder / f"{'_'.join(parts)}.json")
                report.to_json(files[-1])
    console = stdout()
    console.print()
    console.print(transfer_table(sources, targets))
    console.print()
    for key, value in system.changed.items():
        print(f"changed after training: {key}={value}")
    for file in files:
        print(f"{file}: these numbers and both directions")


def evaluated(
    args: Namespace, system: "System", config: Config, split: str
) -> "dict[str, dict[str, EvaluationReport]]":
    """The reports of the first stage alone and after each stage, by name; under the original labels of the corpus, and
    under dense ones where it has them.
    """
    from prvr.evaluation import EvaluationConfig, encode_split, evaluate

    device = device_of(args.device)
    how = EvaluationConfig.of_run(config.train, ties=args.ties, caption_sets=_ranks_sets(args, config))
    with open_split_of(system, config, split, args.quiet) as packed:
        encoded = encode_split(
            system.pipeline,
            packed,
            device=device,
            video_batch=how.video_batch,
            query_batch=how.query_batch,
            seed=how.seed,
        )
        dense = packed.with_dense_labels()
        return {
            labelled.labels: {
                name: replace(
                    evaluate(part, labelled, how, encoded=encoded, device=device), changed=dict(system.changed)
                )
                for name, part in system.parts().items()
            }
            for labelled in (packed, dense)
            if labelled is not None
        }


def _how(args: Namespace, system: "System") -> list[str]:
    """What names the file of a report that was not made in the usual way: how ties count, changed keys."""
    changed = ["-".join(re.findall(r"[\w.]+", f"{key[6:]} {value}")) for key, value in system.changed.items()]
    return [args.ties] * (args.ties != "worst") + changed


def _ranks_sets(args: Namespace, config: Config) -> bool:
    """Whether sets of captions are ranked too, as papers on text-to-video retrieval do: asked for, or one of their
    benchmarks.
    """
    from prvr.corpora import benchmark_of
    from prvr.evaluation.transfer import corpus_on_disk

    corpus = corpus_on_disk(config) if args.table == "auto" else None
    return args.table == "t2v" or (corpus is not None and benchmark_of(corpus) is not None)


def _domains(name: str, found: "Mapping[str, Mapping[str, EvaluationReport]]") -> "list[Domain]":
    """A row for each report, which names its stages if there are several, and its labels if they are dense."""
    from prvr.evaluation.transfer import Domain

    return [
        Domain(", ".join([name] + [part] * (len(reports) > 1) + [f"{labels} labels"] * (labels == "dense")), report)
        for labels, reports in found.items()
        for part, report in reports.items()
    ]


def _label(folder: Path, all_folders: Sequence[Path]) -> str:
    """The name of a corpus, with that of its parent folder if another corpus has the same name."""
    alone = sum(other.name == folder.name for other in all_folders) == 1
    return folder.name if alone else f"{folder.parent.name}/{folder.name}"


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
