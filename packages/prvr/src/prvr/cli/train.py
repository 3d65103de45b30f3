"""`prvr train`: trains a configuration, or re-rankers over a retriever that is trained, into a run folder."""

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prvr.cli.console import CommandError, is_quiet, load, show_next, stdout
from prvr.cli.evaluate import show_baselines, show_report
from prvr.cli.folders import chosen_data, device_of, fresh_folder, latest_run, open_corpus_of, threads
from prvr.cli.options import (
    MODELS,
    Device,
    Keys,
    Several,
    Threads,
    app,
    chosen_config,
    keys_help,
    parsed_keys,
)
from prvr.config import (
    Config,
    ModelConfig,
    config_leaves,
    config_to_dict,
    dump_config,
    load_config,
    preset_names,
    read_values,
)
from prvr.config.load import set_key

if TYPE_CHECKING:
    from prvr.evaluation.zero_shot import ZeroShotComparison
    from prvr.training import RerankerResult, RerankerRunConfig, RunResult

_DATA = ("data.", "train.protocol", "train.holdout_fraction")
"""Keys that say which data the retriever was trained on, and not how the re-ranker is trained."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `prvr train`.

    Args:
        preset: the name of a preset; `prvr presets` lists them
        config: a configuration file, instead of a preset
        data_root: the folder of the corpora; the same as --data.root
        name: the name of the configuration
        output: the run folder, new or empty (default: runs/NAME-N)
        resume: continue the run in --output, or the latest run of the preset
        print_config: print the whole configuration and exit
        trackers: trackers of accelerate, for example tensorboard
        strategy: of a re-ranker: hybrid, generative or discriminative
        directions: of a re-ranker: [t2v], [v2t] or [t2v, v2t]
        retriever: train a re-ranker over the trained retriever of this run. Keys are then those of
            prvr.training.RerankerRunConfig, for example --reranker.steps 50
    """

    preset: Annotated[str | None, Parameter(metavar="NAME")] = None
    config: Annotated[str | None, Parameter(metavar="FILE.yaml")] = None
    retriever: Annotated[str | None, Parameter(metavar="RUN")] = None
    data_root: Annotated[str | None, Parameter(metavar="ROOT")] = None
    output: Annotated[str | None, Parameter(metavar="RUN")] = None
    resume: bool = False
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    strategy: Annotated[str | None, Parameter(metavar="NAME")] = None
    directions: Annotated[str | None, Parameter(metavar="LIST")] = None
    print_config: bool = False
    device: Device = "auto"
    threads: Threads = None
    trackers: Annotated[list[str], Several, Parameter(metavar="NAME")] = field(default_factory=list)


@app.command(name="train", group=MODELS, help_epilogue=keys_help())
def run(*, args: TrainOptions = TrainOptions(), keys: Keys) -> None:
    """Train a retriever or a re-ranker.

    Train a model and write its configuration, metrics, curves, and the best and the last checkpoint to the run folder.
    """
    rank, processes = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    shortcuts = {"name": args.name, "strategy": args.strategy, "directions": args.directions}
    keys = parsed_keys(keys, data__root=args.data_root, **shortcuts)
    if processes > 1 and args.output is None and not args.print_config:
        raise CommandError(f"--output: {processes} processes write one run folder. Name it.")
    if rank > 0:  # of the processes that torchrun started, one prints
        logging.getLogger("prvr").setLevel(logging.WARNING)
    if wants_reranker(args):
        result = train_reranker(args, keys)
        if result is not None and rank == 0:
            show_reranker(result)
        return
    config, output = _resumed(args, keys) if args.resume else (chosen_config(args.preset, args.config, keys), None)
    if args.print_config:
        print(dump_config(config), end="")
        return
    with ExitStack() as stack:
        if output is None:
            stem = Path("runs") / config.name
            output = stack.enter_context(fresh_folder(stem)) if args.output is None else Path(args.output)
        stack.enter_context(threads(args.threads))
        trained = train(config, output, args.device, resume=args.resume, trackers=args.trackers)
    if rank == 0:
        console = stdout()
        show_report(console, trained.report)
        written = load_config(trained.output / "config.yaml")
        beside = show_baselines(console, written, trained.report)
        show_folder(trained)
        show_next(*_next(written, trained.output, beside))


def _next(config: Config, output: Path, beside: "ZeroShotComparison | None") -> list[object]:
    """The search of the videos that the model was trained on, where they are known; else its evaluation."""
    from prvr.corpora.caption_corpus import videos_folder
    from prvr.corpora.corpus_encoders import corpus_encoders
    from prvr.training.splits import run_corpus

    corpus = run_corpus(config)
    videos, encoders = videos_folder(corpus), corpus_encoders(corpus)
    if videos is None or encoders is None or not isinstance(config.model, ModelConfig):  # no index holds other models
        return ["prvr", "evaluate", output]
    sentence = corpus.split(config.data.eval_split).captions[0].text
    model = [] if beside is not None and beside.zero_shot_wins else ["--model", output]
    return ["prvr", "search", videos, sentence, *model, "--encoder", encoders.frames.name]


def _resumed(args: TrainOptions, keys: Mapping[str, Any]) -> tuple[Config, Path]:
    """The configuration and the folder of the run to continue; the configuration is its own, unless one is named."""
    named = args.preset is not None or args.config is not None
    config = chosen_config(args.preset, args.config, keys) if named else None
    if args.output is not None:
        output = Path(args.output)
    elif config is not None:
        output = latest_run(Path("runs") / config.name)
    else:
        raise CommandError("--resume: name the run folder with --output, or its preset with --preset.")
    if config is None and not (output / "config.yaml").is_file():
        raise CommandError(f"{output / 'config.yaml'}: no such file, so there is no run to resume.")
    return config or load_config(output / "config.yaml", keys), output


def train(
    config: Config,
    output: Path,
    device: str = "auto",
    *,
    resume: bool = False,
    trackers: list[str] | None = None,
) -> "RunResult":
    """Trains with a progress bar, as `prvr train` and `prvr demo` do."""
    load("prvr.training")
    from prvr.training import no_progress, terminal_bar
    from prvr.training import train as run_training
    from prvr.training.run_folder import RunFolder

    on_cpu = device_of(device).type == "cpu"
    if config.data.root is None:
        if not resume:  # a taken folder is refused now, not after a corpus was made
            RunFolder(output).check(resume=False)
        open_corpus_of(config)
    else:  # so that the run can be resumed and evaluated from any folder
        root = Path(config.data.root).expanduser().resolve()
        config = replace(config, data=replace(config.data, root=str(root)))
    return run_training(
        config,
        output=output,
        resume=resume,
        device="cpu" if on_cpu else None,
        progress=no_progress if is_quiet() else terminal_bar,
        trackers=trackers or [],
    )


def show_folder(result: "RunResult") -> None:
    """Prints where the results are."""
    stopped = ", stopped early" if result.stopped_early else ""
    averaged = result.history[-1].get("averaged", ()) if result.history else ()
    best = f"best epoch: {result.best_epoch}"
    if averaged:
        best = f"saved model: mean of the weights of epochs {averaged[0]} to {averaged[-1]}"
    summary = f"{result.epochs} epochs{stopped}; {best} (counted from 0)."
    print(
        f"\n{summary if result.epochs else 'No epochs: the model is not trained.'}\n"
        f"{result.output / 'best'}: the model, for prvr.models.load_pretrained\n"
        f"{result.output / 'curves.png'}: loss and SumR by epoch\n"
        f"{result.output / 'evaluation.json'}: these results, next to metrics.jsonl and config.yaml"
    )


def wants_reranker(args: TrainOptions) -> bool:
    """Whether to train a re-ranker: a retriever is named, or a configuration or run of a re-ranker."""
    source = _source(args)
    if args.retriever is not None or source is None or (isinstance(source, Path) and not source.is_file()):
        return args.retriever is not None
    return "reranker" in read_values(source)[1]


def _source(args: TrainOptions) -> Path | str | None:
    """The configuration of a re-ranker that is named, a file or a preset, or that of the run that is resumed."""
    if args.preset in preset_names("rerankers"):
        if args.config is not None:
            raise CommandError("--preset and --config exclude each other: both configure the re-ranker.")
        return str(args.preset)
    if args.config is not None:
        return Path(args.config)
    return Path(args.output) / "config.yaml" if args.resume and args.output is not None else None


def train_reranker(args: TrainOptions, keys: Mapping[str, Any]) -> "RerankerResult | None":
    """Trains re-rankers; with `--print-config` it prints the configuration and returns None.

    Raises:
        CommandError: no retriever is named, or a key of the retriever's own training is set.
    """
    from prvr.models import load_pretrained
    from prvr.models.pretrained import model_files
    from prvr.training import no_progress, open_splits, terminal_bar
    from prvr.training import train_reranker as run_training

    if args.resume and args.output is None:
        args = replace(args, output=str(latest_run(Path("runs") / "reranker")))
    about_data = {key: value for key, value in keys.items() if key.startswith(_DATA)}
    keys = {key: value for key, value in keys.items() if key not in about_data}
    folder = _retriever_folder(args)
    weights, file = model_files(folder)
    retriever = load_pretrained(weights)
    preset = None if args.preset in preset_names("rerankers") else args.preset
    data = chosen_data(preset, file, weights, about_data)
    data = replace(data, model=retriever.config)
    config = _reranker_config(args, keys, folder, retriever.config.hidden)
    if args.print_config:
        print(dump_config(config), end="")
        return None
    with ExitStack() as stack:
        output = args.output or stack.enter_context(fresh_folder(Path("runs") / config.name))
        stack.enter_context(threads(args.threads))
        open_corpus_of(data)
        return run_training(
            config,
            retriever,
            stack.enter_context(closing(open_splits(data))),
            output=output,
            resume=args.resume,
            device=device_of(args.device),
            progress=no_progress if is_quiet() else terminal_bar,
            trackers=args.trackers,
        )


def _retriever_folder(args: TrainOptions) -> Path:
    if args.retriever is not None:
        from prvr.models.pretrained import shipped_model

        return shipped_model(args.retriever) or Path(args.retriever).expanduser().resolve()
    source = _source(args)
    retriever = None if source is None else read_values(source)[1].get("retriever")
    if not isinstance(retriever, str):
        raise CommandError(f"{source}: no retriever. Name the run of a trained retriever with --retriever RUN.")
    return Path(retriever)


def _reranker_config(args: TrainOptions, keys: Mapping[str, Any], folder: Path, width: int) -> "RerankerRunConfig":
    """The configuration of the run: the file's, if there is one, with the keys of the command line."""
    from prvr.training import RerankerRunConfig, read_reranker_config, reranker_run_config

    for key in keys:
        if key in config_leaves(Config) and key not in config_leaves(RerankerRunConfig):
            raise CommandError(f"--{key} is a key of the retriever, which is already trained.")
    source, values = _source(args), dict[str, Any]()
    if source is not None:
        values = config_to_dict(read_reranker_config(source, width))
    for key, value in keys.items():
        set_key(values, key, value, f"--{key}")
    values["retriever"] = str(folder)
    return reranker_run_config(values, width=width, source=str(source or "the command line"))


def show_reranker(result: "RerankerResult") -> None:
    """Prints the retriever with and without the re-rankers, and where the results are."""
    from prvr.evaluation.tables import systems_table

    console = stdout()
    reports = {"retriever": result.retriever, "re-ranked": result.reranked}
    console.print()
    console.print(systems_table(reports))
    for direction, best in result.best.items():
        print(
            f"{direction}: epoch {best.epoch} (from 0) and weight {best.weight:g} were selected, Rsum {best.rsum:.1f}",
        )
    print(
        f"\n{result.output / 'best'}: the re-rankers\n"
        f"{result.output / 'evaluation.json'}: re-ranked; evaluation_retriever.json: the retriever alone",
    )
    show_next("prvr", "evaluate", result.output)
