"""`prvr train --retriever RUN`: re-rankers over a retriever that is already trained."""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, show_next, stdout
from prvr.cli.folders import chosen_data, device_of, fresh_folder, latest_run, open_corpus_of, threads
from prvr.cli.options import more_keys, overrides
from prvr.config import config_leaves, config_to_dict, dump_config, preset_names, read_values
from prvr.config.load import set_key

if TYPE_CHECKING:
    from prvr.training import RerankerResult, RerankerRunConfig

_DATA = ("data.", "train.protocol", "train.holdout_fraction")
"""Keys that say which data the retriever was trained on, and not how the re-ranker is trained."""


def wants_reranker(args: Namespace) -> bool:
    """Whether a re-ranker is to be trained: a retriever is named, or a configuration or run of a re-ranker."""
    source = _source(args)
    if args.retriever is not None or source is None or (isinstance(source, Path) and not source.is_file()):
        return args.retriever is not None
    return "reranker" in read_values(source)[1]


def _source(args: Namespace) -> Path | str | None:
    """The configuration of a re-ranker that is named, a file or a preset, or that of the run that is resumed."""
    if args.preset in preset_names("rerankers"):
        if args.config is not None:
            raise CommandError("--preset and --config both configure the re-ranker: use one.")
        return str(args.preset)
    if args.config is not None:
        return Path(args.config)
    return Path(args.output) / "config.yaml" if args.resume and args.output is not None else None


def train_reranker(args: Namespace, quiet: bool) -> "RerankerResult | None":
    """Trains re-rankers as the command line says; with `--print-config` it prints the configuration and returns None.

    Raises:
        CommandError: no retriever is named, or a key of its own training is given.
    """
    from prvr.models import load_pretrained
    from prvr.models.pretrained import model_files
    from prvr.training import no_progress, open_splits, terminal_bar
    from prvr.training import train_reranker as run_training

    if args.resume and args.output is None:
        args.output = str(latest_run(Path("runs") / "reranker"))
    given = overrides(args)
    about_data = {key: value for key, value in given.items() if key.startswith(_DATA)}
    keys = {key: value for key, value in given.items() if key not in about_data} | more_keys(args)
    folder = _retriever_folder(args)
    weights, file = model_files(folder)
    retriever = load_pretrained(weights)
    preset = None if args.preset in preset_names("rerankers") else args.preset
    data = chosen_data(Namespace(preset=preset, **about_data), file, weights)
    data = replace(data, model=retriever.config)
    config = _reranker_config(args, keys, folder, retriever.config.hidden)
    if args.print_config:
        print(dump_config(config), end="")
        return None
    with ExitStack() as stack:
        output = args.output or stack.enter_context(fresh_folder(Path("runs") / config.name))
        stack.enter_context(threads(args.threads))
        open_corpus_of(data, quiet)
        return run_training(
            config,
            retriever,
            stack.enter_context(closing(open_splits(data))),
            output=output,
            resume=args.resume,
            device=device_of(args.device),
            progress=no_progress if quiet else terminal_bar,
            trackers=args.trackers,
        )


def _retriever_folder(args: Namespace) -> Path:
    if args.retriever is not None:
        from prvr.models.pretrained import shipped_model

        return shipped_model(args.retriever) or Path(args.retriever).expanduser().resolve()
    source = _source(args)
    known = None if source is None else read_values(source)[1].get("retriever")
    if not isinstance(known, str):
        raise CommandError(f"{source} names no retriever: name the run of a trained one with --retriever RUN.")
    return Path(known)


def _reranker_config(args: Namespace, keys: Mapping[str, str], folder: Path, width: int) -> "RerankerRunConfig":
    """The configuration of the run: that of the file, if there is one, with the keys of the command line."""
    from prvr.training import RerankerRunConfig, read_reranker_config, reranker_run_config

    for key in overrides(args):
        if key in keys and key not in config_leaves(RerankerRunConfig):
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
        f"{result.output / 'evaluation.json'}: re-ranked; evaluation_retriever.json beside it: the retriever alone",
    )
    show_next("prvr", "evaluate", result.output)
