"""`prvr train`: trains a configuration, or re-rankers over a retriever that is trained, into a run folder."""

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import prvr
from prvr.cli.console import CommandError, is_quiet, load, show_next, stdout
from prvr.cli.evaluate import show_baselines, show_report
from prvr.cli.folders import check_corpus, device_of, fresh_folder, latest_run, open_corpus_of, threads
from prvr.cli.options import (
    MODELS,
    Device,
    Keys,
    Name,
    Several,
    Threads,
    app,
    chosen_config,
    import_listed,
    parsed_keys,
)
from prvr.extensions import extensions

if TYPE_CHECKING:
    from prvr.evaluation.zero_shot import Comparison
    from prvr.training import RunResult


_Run = Annotated[str | None, Parameter(metavar="RUN")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `prvr train`.

    Args:
        preset: the name of a preset, see `prvr presets`
        config: a configuration file, instead of a preset
        data_root: the folder of the corpora; the same as --data.root
        name: the name of the configuration
        output: the run folder, new or empty (default: runs/NAME-N)
        resume: continue the run in --output, or the latest run of the preset; with --preset or --config, a run that is
            not there is started
        print_config: print the whole configuration and exit
        trackers: experiment trackers of accelerate, for example tensorboard
        strategy: re-ranker strategy: hybrid, generative or discriminative
        directions: re-ranker directions: [t2v], [v2t] or [t2v, v2t]
        retriever: train a re-ranker over the trained retriever of this run. Keys are then those of
            a RerankerRunConfig, for example --reranker.steps 50
    """

    preset: Name = None
    config: Annotated[str | None, Parameter(metavar="FILE.yaml")] = None
    retriever: _Run = None
    data_root: Annotated[str | None, Parameter(metavar="ROOT")] = None
    output: _Run = None
    resume: bool = False
    name: Name = None
    strategy: Name = None
    directions: Annotated[str | None, Parameter(metavar="LIST")] = None
    print_config: bool = False
    device: Device = "auto"
    threads: Threads = None
    trackers: Annotated[list[str], Several, Parameter(metavar="NAME")] = field(default_factory=list)


@app.command(name="train", group=MODELS)
def run(*, args: TrainOptions = TrainOptions(), keys: Keys) -> None:
    """Train a retriever or a re-ranker.

    Train a model and write its configuration, metrics, curves, and the best and the last checkpoint to the run folder.
    """
    if args.config is not None:
        import_listed(args.config)
    rank, processes = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    shortcuts = {"name": args.name, "strategy": args.strategy, "directions": args.directions}
    values = parsed_keys(keys, data__root=args.data_root, **shortcuts)
    if processes > 1 and args.output is None and not args.print_config:
        raise CommandError(f"--output: {processes} processes write one run folder. Name it.")
    if rank > 0:  # of the processes that torchrun started, one prints
        logging.getLogger("prvr").setLevel(logging.WARNING)
    if any(train_other(args, values) for train_other in extensions("train", others=False)):
        return
    with ExitStack() as stack:
        config, output = _chosen_run(args, values)
        if args.print_config:
            print_config(config)
            return
        if output is None:
            output = stack.enter_context(fresh_folder(Path("runs") / config.name))
        stack.enter_context(threads(args.threads))
        trained = train(config, output, args.device, resume=args.resume, trackers=args.trackers)
    if rank == 0:
        from prvr.models import load_pretrained

        console = stdout()
        written = prvr.load_config(trained.output / "config.yaml")
        show_report(console, trained.report, by_group=False)
        is_fitted = getattr(written.model, "start", "drawn") == "kernel"
        best = load_pretrained(trained.output / "best") if is_fitted else None
        device = device_of(args.device)
        comparison = show_baselines(console, written, trained.report, retriever=best, device=device)
        show_folder(trained, is_fitted=is_fitted)
        show_next(*_next(written, trained.output, comparison))


def _chosen_run(args: TrainOptions, keys: Mapping[str, Any]) -> "tuple[prvr.Config, Path | None]":
    """The configuration and the folder; a resumed run has its own configuration, unless one is named."""
    output = None if args.output is None else Path(args.output)
    if args.resume and args.preset is None and args.config is None:
        if output is None:
            raise CommandError("--resume: name the run folder with --output, or its preset with --preset.")
        return prvr.load_config(output / "config.yaml", keys), output
    config = chosen_config(args.preset, args.config, keys)
    return config, latest_run(Path("runs") / config.name) if args.resume and output is None else output


def print_config(config: Any) -> None:
    """Prints a whole configuration, as `--print-config` does."""
    from prvr.config import dump_config

    print(dump_config(config), end="")


def train(
    config: "prvr.Config",
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

    if config.data.root is not None:  # so that the run can be resumed and evaluated from any folder
        root = Path(config.data.root).expanduser().resolve()
        config = replace(config, data=replace(config.data, root=str(root)))
    check_corpus(open_corpus_of(config))
    return run_training(
        config,
        output=output,
        resume=resume,
        device="cpu" if device_of(device).type == "cpu" else None,
        progress=no_progress if is_quiet() else terminal_bar,
        trackers=trackers or [],
    )


def show_folder(result: "RunResult", *, is_fitted: bool = False) -> None:
    """Prints where the results are, and of a run without epochs whether its model was fitted in closed form."""
    stopped = ", stopped early" if result.stopped_early else ""
    averaged = result.history[-1].get("averaged", ()) if result.history else ()
    best = f"best epoch: {result.best_epoch}" if result.best_epoch >= 0 else "best: the initial model"
    if averaged:
        best = f"saved model: mean of the weights of epochs {averaged[0]} to {averaged[-1]}"
    epochs = f"{result.epochs} epoch{'s' * (result.epochs != 1)}"
    summary = f"{epochs}{stopped}; {best} (counted from 0)."
    if not result.epochs:
        summary = f"No epochs: the model is {'fitted in closed form' if is_fitted else 'not trained'}."
    print(
        f"\n{summary} Curves: {result.output / 'curves.png'}\n"
        f"{result.output / 'best'}: the model, for prvr.models.load_pretrained\n"
        f"{result.output / 'evaluation.json'}: the results, also by group; prvr evaluate prints all tables"
    )


def _next(config: "prvr.Config", output: Path, comparison: "Comparison | None") -> list[object]:
    """The search of the videos that the model was trained on, where they are known; else its evaluation."""
    from prvr.config import ModelConfig
    from prvr.corpora.caption_corpus import videos_folder
    from prvr.corpora.corpus_encoders import corpus_encoders
    from prvr.training.splits import run_corpus

    corpus = run_corpus(config)
    videos, encoders = videos_folder(corpus), corpus_encoders(corpus)
    if videos is None or encoders is None or not isinstance(config.model, ModelConfig):  # no index holds other models
        return ["prvr", "evaluate", output]
    sentence = corpus.split(config.data.eval_split).captions[0].text
    model = ["--model", output] if comparison is None or comparison.model_wins else []
    return ["prvr", "search", videos, sentence, *model, "--encoder", encoders.frames.name]
