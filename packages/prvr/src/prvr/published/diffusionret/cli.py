"""The commands of re-rankers: their training, their presets, and their runs as systems."""

import os
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import prvr
from prvr.cli.console import CommandError, is_quiet, show_next, stdout
from prvr.cli.folders import chosen_data, device_of, fresh_folder, latest_run, open_corpus_of, threads
from prvr.cli.train import TrainOptions, print_config

_DATA = ("data.", "train.protocol", "train.holdout_fraction")
"""Keys that say which data the retriever was trained on, and not how the re-ranker is trained."""


def train(args: TrainOptions, keys: Mapping[str, Any]) -> bool:
    """Trains re-rankers, where the options of `prvr train` name a retriever or a configuration of re-rankers.

    With `--print-config` it prints the configuration of the training.

    Args:
        args: the options of the command.
        keys: the keys of the command line.

    Returns:
        Whether they do.

    Raises:
        CommandError: no retriever is named, or a key of the retriever's own training is set.
    """
    name = _source(args)
    if args.retriever is None and name is None:
        return False
    from prvr.config import config_leaves, read_values
    from prvr.config.load import set_key
    from prvr.evaluation.tables import systems_table
    from prvr.models import load_pretrained
    from prvr.models.pretrained import model_files, shipped_model
    from prvr.published.diffusionret import RerankerRunConfig, reranker_run_config, train_reranker
    from prvr.training import no_progress, open_splits, terminal_bar

    source, values = read_values(name) if name is not None else ("the command line", dict[str, Any]())
    folder = args.retriever or values.get("retriever")
    if not isinstance(folder, str):
        raise CommandError(f"{source}: no retriever. Name the run of a trained retriever with --retriever RUN.")
    folder = shipped_model(folder) or Path(folder).expanduser().resolve()
    weights, file = model_files(folder)
    retriever = load_pretrained(weights)
    about_data = dict[str, Any]()
    for key, value in keys.items():
        if key.startswith(_DATA):
            about_data[key] = value
            continue
        if key in config_leaves(prvr.Config) and key not in config_leaves(RerankerRunConfig):
            raise CommandError(f"--{key} is a key of the retriever, which is already trained.")
        set_key(values, key, value, f"--{key}")
    preset = None if args.preset == name else args.preset  # of a retriever on the same data
    data = replace(chosen_data(preset, file, weights, about_data), model=retriever.config)
    values["retriever"] = str(folder)
    config = reranker_run_config(values, width=retriever.config.width, source=source)
    if args.print_config:
        print_config(config)
        return True
    output = latest_run(Path("runs") / config.name) if args.resume and args.output is None else args.output
    with threads(args.threads):
        open_corpus_of(data)
        made = nullcontext(output) if output else fresh_folder(Path("runs") / config.name)
        with closing(open_splits(data)) as splits, made as run:
            result = train_reranker(
                config,
                retriever,
                splits,
                output=run,
                resume=args.resume,
                device=device_of(args.device),
                progress=no_progress if is_quiet() else terminal_bar,
                trackers=args.trackers,
            )
    if os.environ.get("RANK", "0") != "0":
        return True
    console = stdout()
    console.print()
    console.print(systems_table({"retriever": result.retriever, "re-ranked": result.reranked}))
    for direction, best in result.best.items():
        print(
            f"{direction}: epoch {best.epoch} (from 0) and weight {best.weight:g} were selected, Rsum {best.rsum:.1f}"
        )
    print(
        f"\n{result.output / 'best'}: the re-rankers\n"
        f"{result.output / 'evaluation.json'}: re-ranked; evaluation_retriever.json: the retriever alone"
    )
    names = {"data.root": "--data-root", "data.collection": "--collection"}
    words = [word for key, option in names.items() if key in keys for word in (option, keys[key])]
    if preset is not None:
        words += ["--preset", preset]
    show_next("prvr", "evaluate", result.output, *words)
    return True


def _source(args: TrainOptions) -> str | None:
    """The configuration of a re-ranker: a preset, a file, or that of the run that is resumed; None if none is named."""
    from prvr.config import read_values

    if args.preset in prvr.preset_names("rerankers"):
        if args.config is not None:
            raise CommandError("--preset and --config exclude each other: both configure the re-ranker.")
        return args.preset
    file = args.config
    if file is None and args.resume and args.output is not None:
        file = str(Path(args.output, "config.yaml"))
    if file is None or args.retriever is not None:
        return file
    return file if Path(file).is_file() and "reranker" in read_values(file)[1] else None
