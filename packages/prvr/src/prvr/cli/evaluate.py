"""`prvr evaluate`, `prvr compare` and `prvr pipeline`: metrics of a system, a paired test, and a system as a folder."""

import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from prvr.cli.console import CommandError, import_options, show_next, stdout
from prvr.cli.folders import chosen_data, device_of, open_corpus_of
from prvr.cli.options import (
    MODELS,
    Collection,
    Count,
    DataRoot,
    Device,
    Keys,
    Preset,
    Seed,
    Split,
    Stages,
    System,
    Transfer,
    app,
    parsed_keys,
)
from prvr.errors import PrvrError

if TYPE_CHECKING:
    import torch

    from prvr.config import Config
    from prvr.data import PackedSplit
    from prvr.evaluation.report import EvaluationReport
    from prvr.evaluation.zero_shot import Comparison
    from prvr.stages import FirstStage
    from prvr.systems import System as OpenSystem
    from prvr.types import Untrained

    Reports = Mapping[str, Mapping[str, EvaluationReport]]

logger = logging.getLogger(__name__)
_OF_DATA = frozenset(
    ("data.root", "data.collection", "data.feature", "data.eval_split", "data.cache_dir", "train.protocol")
)
"""Keys that say what a run reads."""
_TOY = "hybrid-toy"  # whose data are evaluated where no corpus is named


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of `prvr evaluate`.

    Args:
        table: the metrics to print: those of papers on partially relevant retrieval (prvr) or on text-to-video
            retrieval (t2v); auto chooses by the corpus
        ties: the rank of equal scores
        output: the file of the final report (default: evaluation.json in the folder of the system, with the stages'
            names appended)
        run_file: write the 100 best videos of each query after all stages: as JSON if FILE ends in .json, else in the
            format of TREC
        diagnose: also report whether each attention block uses content and registers
        unanswered: a split of the corpus whose queries no video answers: also report how well the best score tells
            them from the others
        graded: a file of TVR-Ranking's graded moments (test.json): also report nDCG@20 of moments
    """

    stage: Stages = field(default_factory=list)
    split: Split = None
    data_root: DataRoot = None
    collection: Collection = None
    preset: Preset = None
    transfer: Transfer = field(default_factory=list)
    table: Literal["auto", "prvr", "t2v"] = "auto"
    ties: Literal["worst", "mean", "best"] = "worst"
    output: Annotated[Path | None, Parameter(metavar="FILE.json")] = None
    run_file: Annotated[Path | None, Parameter(metavar="FILE")] = None
    diagnose: bool = False
    unanswered: Annotated[str | None, Parameter(metavar="SPLIT")] = None
    graded: Annotated[Path | None, Parameter(metavar="FILE.json")] = None
    device: Device = "auto"


@app.command(name="evaluate", group=MODELS)
def run(system: System, /, *, args: EvaluateOptions = EvaluateOptions(), keys: Keys) -> None:
    """Evaluate a trained model or a pipeline.

    Rank every video of a split for every query, and report recalls with confidence intervals. With stages, report the
    first stage alone and the ranking after each stage. --model.KEY VALUE changes a key of the trained model that does
    not change the shape of its weights, for example --model.clip_weight 0.7 --model.frame_weight 0.3.

    The model is compared with the kernel regression of its training split, unless --fit.baseline is never.

    SYSTEM may also be zero-shot or training-free, the joint encoder of a corpus alone, by frames or by moments.
    """
    from prvr.systems import open_system, parse_stage
    from prvr.types import UNTRAINED

    data = parsed_keys({}, data__root=args.data_root, data__collection=args.collection)
    if system in UNTRAINED:
        evaluate_alone(args, chosen_data(args.preset or _TOY, None, system, data), system, keys)
        return
    values = parsed_keys(keys)
    data |= {key: values.pop(key) for key in ("fit.baseline",) if key in values}
    for key in values:
        if not key.startswith("model."):
            raise CommandError(f"--{key}: only keys of the model (--model.KEY VALUE) can be changed after training.")
    model = {key.removeprefix("model."): value for key, value in values.items()}
    stages = [parse_stage(text) for text in args.stage]
    root = args.data_root if args.collection is None else None  # else it is that of another corpus
    opened = open_system(system, stages, device=device_of(args.device), model=model, root=root)
    config = chosen_data(args.preset, opened.config_file, system, data)
    (evaluate_targets if args.transfer else evaluate_split)(args, config, opened)


@app.command(group=MODELS)
def compare(run_a: str, run_b: str, /, *, samples: Count = 10_000, seed: Seed = 0) -> None:
    """Test whether one run ranks better than another.

    Compare two evaluations of the same queries with a paired test, whose resamples are drawn by video.

    Args:
        run_a: the folder of a run, or its evaluation.json
        run_b: the folder or the file of the other run
        samples: the number of resamples and permutations
    """
    from prvr.evaluation.compare import compare, comparison_table

    comparison = compare(Path(run_a), Path(run_b), samples=samples, seed=seed)
    stdout().print(comparison_table(comparison))


@app.command(group=MODELS)
def pipeline(
    system: System,
    /,
    *,
    output: Annotated[Path, Parameter(metavar="FOLDER")],
    stage: Stages = [],
    data_root: DataRoot = None,
    device: Device = "auto",
) -> None:
    """Save a first stage and its stages as one folder.

    Put a retriever and the stages that re-score its ranking into one folder, for `prvr evaluate` and other programs.
    SYSTEM may be a YAML file with the keys `first` and `stages`.

    Args:
        output: the folder to write, new or empty
    """
    from prvr.systems import open_system, parse_stage

    opened = open_system(system, [parse_stage(text) for text in stage], device=device_of(device), root=data_root)
    config = None if opened.config_file is None else opened.config_file.read_text(encoding="utf-8")
    opened.pipeline.save_pretrained(output, config)
    print("\n".join([*opened.pipeline.describe(), f"{output}: the pipeline"]))
    if config is not None:  # else a preset has to say what it reads
        show_next("prvr", "evaluate", output, *([] if data_root is None else ["--data-root", data_root]))


def evaluate_split(args: EvaluateOptions, config: "Config", system: "OpenSystem") -> None:
    """Evaluates on one split, prints the tables and writes a file for each report."""
    from prvr.evaluation.transfer import check_features
    from prvr.models import Retriever

    trained, split = system.config or config, args.split or config.data.eval_split
    is_other = config.data.collection != trained.data.collection
    if is_other and args.preset is None:  # the name of the features belongs to the corpus of the run
        config = replace(config, data=replace(config.data, feature=None))
    check_features(trained, config)
    evaluation, console = evaluated(args, system, config, split), stdout()
    differs = [config.data.collection] * is_other + [split] * (split != config.data.eval_split)
    written = write_reports(args, system.folder, evaluation, ["evaluation", *differs])

    def compared(report: "EvaluationReport") -> None:
        is_own = system.config is not None and not is_other
        fit = config.fit if is_own else replace(config.fit, baseline="never")
        first, device = system.pipeline.first, device_of(args.device)
        here = replace(config, model=first.config, fit=fit)
        show_baselines(console, here, report, split, retriever=first, device=device)
        if isinstance(first, Retriever) and first.path is not None:
            console.print(f"\nkernel path: {first.path.config.text}", soft_wrap=True)

    _show_all(console, evaluation, written, _ranks_sets(args, config), compared)
    if args.run_file is not None:
        print(f"{args.run_file}: the best videos of each query")


def evaluate_alone(args: EvaluateOptions, config: "Config", name: "Untrained", keys: "Keys") -> None:
    """Evaluates a retriever without parameters, prints the tables and writes a file for each kind of labels."""
    from prvr.data import pack
    from prvr.evaluation import EvaluationConfig
    from prvr.evaluation.zero_shot import evaluate_untrained
    from prvr.training.splits import cache_folder

    for option in [*_options(args, "stage", "transfer"), *(f"--{key}" for key in keys)]:
        raise CommandError(
            f"{option}: {name} has no parameters and takes no stages. For a model and its score together, evaluate the "
            f"model with --stage {name.replace('-', '_')}."
        )
    for option in _options(args, "run_file", "unanswered", "graded"):
        raise CommandError(f"{option}: not of {name}. Evaluate a model or a pipeline.")
    split, console = args.split or config.data.eval_split, stdout()
    how = EvaluationConfig(ties=args.ties, caption_sets=_ranks_sets(args, config))
    with closing(pack(open_corpus_of(config), split, cache_dir=cache_folder(config) / "packed")) as packed:
        reports = {
            labelled.labels: {name: evaluate_untrained(name, labelled, how)}
            for labelled in (packed, packed.with_dense_labels())
            if labelled is not None
        }
    about = ["evaluation", config.data.collection, *[split] * (split != config.data.eval_split)]
    written = write_reports(args, Path(name), reports, about)
    _show_all(console, reports, written, _ranks_sets(args, config))


def _options(args: EvaluateOptions, *names: str) -> list[str]:
    """Those of some options that have a value."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]


def _show_all(
    console: Console,
    evaluation: "Reports",
    written: "Sequence[tuple[Path, EvaluationReport, str]]",
    text_to_video: bool,
    compared: "Callable[[EvaluationReport], object]" = lambda report: None,
) -> None:
    """Prints the tables of all reports, what they are compared with under the original labels, and their files."""
    from prvr.evaluation.tables import queries_table, systems_table

    for labels, reports in evaluation.items():
        if len(evaluation) > 1:
            console.print(f"\n{labels} labels")
        if (further := queries_table(reports)) is not None:
            console.print()
            console.print(further)
        if len(reports) > 1:
            console.print()
            console.print(systems_table(reports))
            continue
        (report,) = reports.values()
        show_report(console, report, text_to_video=text_to_video)
        if labels == "original":
            compared(report)
    console.print()
    for file, report, name in written:
        print(f"{file}: {name}" + f", {report.labels} labels" * (len(evaluation) > 1))


def evaluate_targets(args: EvaluateOptions, config: "Config", system: "OpenSystem") -> None:
    """Evaluates on the corpus of the run and on the targets, prints one table, and writes a file for each target."""
    from prvr.evaluation.transfer import corpus_on_disk, target_config, transfer_table

    for option in _options(args, "output", "run_file", "unanswered", "graded"):
        raise CommandError(f"{option} cannot be used with --transfer, which evaluates on several corpora.")
    folders = [Path(target).expanduser() for target in args.transfer]
    if len(set(folders)) < len(folders):
        raise CommandError(f"--transfer {' '.join(args.transfer)}: the same corpus twice.")
    chosen = [target_config(config, folder, args.split) for folder in folders]  # all, before any is evaluated
    split = args.split or config.data.eval_split
    name = f"{config.data.collection} {split}"
    if config.data.root is None or corpus_on_disk(config) is not None:
        sources = _rows(name, evaluated(args, system, config, split))
    else:
        sources = {name: None}
        logger.warning(
            "%s: %s does not exist, so the source is not evaluated.", config.data.root, config.data.collection
        )
    targets, files = dict[str, "EvaluationReport | None"](), []
    for folder, (target, split) in zip(folders, chosen, strict=True):
        alone = sum(other.name == folder.name for other in folders) == 1
        label = folder.name if alone else f"{folder.parent.name}/{folder.name}"
        evaluation = evaluated(args, system, target, split)
        targets |= _rows(f"{label} {split}", evaluation)
        about = ["evaluation_on", label.replace("/", "-"), split]
        files += [file for file, _, _ in write_reports(args, system.folder, evaluation, about)]
    console = stdout()
    console.print()
    console.print(transfer_table(sources, targets))
    console.print()
    for key, value in system.changed.items():
        print(f"changed after training: {key}={value}")
    for file in files:
        print(f"{file}: these results in both directions")


def evaluated(args: EvaluateOptions, system: "OpenSystem", config: "Config", split: str) -> "Reports":
    """The reports of the first stage alone and after each stage, by name; under the original labels of the corpus, and
    under dense ones where it has them.
    """
    from prvr.evaluation import EvaluationConfig, evaluate, write_run
    from prvr.evaluation.rejection import rejection
    from prvr.extensions import extension
    from prvr.training.record import changed_data

    device = device_of(args.device)
    how = EvaluationConfig.of_run(config.train, ties=args.ties, caption_sets=_ranks_sets(args, config))
    open_corpus_of(config)
    file, trained = system.config_file, system.config
    if file is not None and trained is not None and trained.data.collection == config.data.collection:
        for what in changed_data(file.parent, config):
            logger.warning("%s: the %s are not those that the model was trained on", config.data.collection, what)
    graded = None if args.graded is None else extension("graded", "--graded")(args.graded)
    with ExitStack() as opened:
        packed, *others = (
            opened.enter_context(closing(system.open_split(name, config)))
            for name in (split, args.unanswered)
            if name is not None
        )
        watched = extension("attention", "--diagnose") if args.diagnose else lambda _: nullcontext([])
        with watched(system.pipeline.first) as blocks:
            encoded = how.encode(system.pipeline, packed, device)
        unanswered = [how.encode(system.pipeline, other, device) for other in others]
        reports = {
            labelled.labels: {
                name: replace(
                    evaluate(part, labelled, how, encoded=encoded, device=device),
                    changed=dict(system.changed),
                    blocks=tuple(blocks),
                    rejection=next((rejection(part, encoded, other, how.seed) for other in unanswered), None),
                    graded={} if graded is None else graded(part, packed, encoded, how.seed),
                )
                for name, part in system.parts().items()
            }
            for labelled in (packed, packed.with_dense_labels())
            if labelled is not None
        }
        if args.run_file is not None:
            write_run(args.run_file, system.pipeline, encoded, names=packed.query_names, device=device)
    return reports


def write_reports(
    args: EvaluateOptions, folder: Path, evaluation: "Reports", about: Sequence[str]
) -> "list[tuple[Path, EvaluationReport, str]]":
    """Writes a file for each report into a folder, or the last ones where `--output` says.

    Returns:
        The file, the report and the name of each.
    """
    written = []
    for labels, reports in evaluation.items():
        changed = next(iter(reports.values())).changed.items()
        how = [args.ties] * (args.ties != "worst")
        how += ["-".join(re.findall(r"[\w.]+", f"{key[6:]} {value}")) for key, value in changed]
        dense = ["dense_labels"] * (labels == "dense")
        parts = name_parts(args.stage, len(reports))
        files = [folder / f"{'_'.join([*about, *added, *how, *dense])}.json" for added in parts]
        if args.output is not None:
            files[-1] = args.output.with_stem("_".join([args.output.stem, *dense]))
        for file, (name, report) in zip(files, reports.items(), strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)  # of a model that ships with prvr, a folder of its name
            report.to_json(file)
            written.append((file, report, name))
    return written


def _ranks_sets(args: EvaluateOptions, config: "Config") -> bool:
    """Whether sets of captions are ranked too, as papers on text-to-video retrieval do."""
    from prvr.evaluation.transfer import corpus_on_disk

    corpus = corpus_on_disk(config) if args.table == "auto" else None
    return args.table == "t2v" or (corpus is not None and corpus.is_benchmark)


def _rows(name: str, evaluation: "Reports") -> "dict[str, EvaluationReport | None]":
    """The reports by name, with the stages if there are several, and the labels if they are dense."""
    return {
        ", ".join([name] + [part] * (len(reports) > 1) + [f"{labels} labels"] * (labels == "dense")): report
        for labels, reports in evaluation.items()
        for part, report in reports.items()
    }


def name_parts(stages: Sequence[str], reports: int) -> list[list[str]]:
    """The words of each report's file name: none if there is one report, else the stages so far.

    Args:
        stages: the values of `--stage`; the stages before these belong to the system.
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
    names = []
    for text in stages:
        kind, *rest = re.split("[:,]", text, maxsplit=1)
        words = "".join(rest).replace("/best", "").rsplit("/", 1)[-1]
        names.append("-".join([kind, *re.findall(r"[\w.]+", words)]))
    own = reports - 1 - len(names)
    after = [names[: number - own] if number > own else [f"stage{number}"] for number in range(1, reports)]
    if not names:
        after[-1] = []
    return [["retriever"], *after]


def show_report(
    console: Console, report: "EvaluationReport", *, text_to_video: bool = False, by_group: bool = True
) -> None:
    """Prints the tables of an evaluation.

    Args:
        console: the console to print on.
        report: the report of the evaluation.
        text_to_video: print the table of papers on text-to-video retrieval instead of the main table.
        by_group: also print the tables by moment-to-video ratio and by kind of query.
    """
    from prvr.evaluation import tables

    first = tables.text_video_table(report) if text_to_video else tables.metrics_table(report)
    others = (tables.moments_table, tables.moment_baselines_table, *[tables.groups_table, tables.tags_table] * by_group)
    for table in (tables.blocks_table(report), first, *(make(report) for make in others)):  # a long one comes first
        if table is not None:
            console.print()
            console.print(table)


def show_baselines(
    console: Console,
    config: "Config",
    report: "EvaluationReport",
    split: str | None = None,
    *,
    note: str | None = None,
    retriever: "FirstStage | None" = None,
    device: "torch.device | str" = "cpu",
) -> "Comparison | None":
    """Prints a report next to chance, zero-shot and kernel regression, as far as the corpus allows.

    Where a comparison cannot be made, the reason is printed. None is returned where none is made.

    Args:
        console: the console to print on.
        config: the configuration of the run, which says where the data are.
        report: the evaluation of the model.
        split: the split of the report; by default, the one that the configuration reports.
        note: printed below the table.
        retriever: the model, where it is at hand: its kernel path is not fitted again.
        device: where kernel regression is fitted and evaluated.
    """
    from prvr.evaluation import EvaluationConfig, evaluate
    from prvr.evaluation.tables import baselines_table
    from prvr.evaluation.zero_shot import compare_baselines, has_zero_shot, untrained_baselines
    from prvr.training import kernel_baseline, open_split
    from prvr.training.splits import run_corpus

    with ExitStack() as stack:

        @cache
        def packed() -> "PackedSplit":
            return stack.enter_context(closing(open_split(config, split or config.data.eval_split)))

        def zero_shot() -> "dict[str, EvaluationReport]":
            return untrained_baselines(report, packed()) if has_zero_shot(run_corpus(config)) else {}

        def kernel() -> "dict[str, EvaluationReport]":
            return {
                name: evaluate(path, packed(), EvaluationConfig(ties=report.ties, seed=report.seed), device=device)
                for name, path in kernel_baseline(config, retriever, device).items()
            }

        baselines: dict[str, EvaluationReport] = {}
        for name, evaluations in (("zero-shot", zero_shot), ("kernel", kernel)):
            try:
                baselines |= evaluations()
            except PrvrError as error:  # the report itself is complete without it
                console.print(f"\nno comparison with {name}: {error}", markup=False, soft_wrap=True)
        if not baselines:
            return None
        comparison = compare_baselines(report, packed(), baselines)
    console.print()
    console.print(baselines_table(comparison, note))
    if comparison.kernel_wins:
        console.print(*_kernel_advice(config), sep="\n", markup=False, soft_wrap=True)
    return comparison


def _kernel_advice(config: "Config") -> list[str]:
    """The command that fits kernel regression to the data of a run, and the option that adds it to its model if it can.

    Examples:
        >>> import prvr
        >>> keys = {"data.root": "my data", "data.collection": "films", "data.feature": None}
        >>> print(*_kernel_advice(prvr.load_config("hybrid-clip", keys)), sep="\\n")
        Kernel regression:
        prvr train --preset kernel-tvr --data.collection films --data.root 'my data' --data.feature null
        --train.protocol holdout
        or with your model: add --model.start kernel to the command that trained it
    """
    from prvr.config import config_to_dict, flat, load_config, preset_names, validated

    preset = f"kernel-{config.data.collection.split('-', 1)[0]}"
    preset = preset if preset in preset_names() else "kernel-tvr"
    other, values = flat(config_to_dict(load_config(preset))), config_to_dict(config)
    own = {key: value for key, value in flat(values).items() if key in _OF_DATA and value != other[key]}
    keys = [word for key, value in own.items() for word in (f"--{key}", "null" if value is None else str(value))]
    advice = ["Kernel regression:", shlex.join(["prvr", "train", "--preset", preset, *keys, *import_options()])]
    if values["model"].get("start") != "kernel":
        values["model"]["start"] = "kernel"
        with suppress(PrvrError):  # not every model has such a start
            validated(type(config), values)
            advice.append("or with your model: add --model.start kernel to the command that trained it")
    return advice
