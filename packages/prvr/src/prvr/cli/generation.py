"""`prvr train --stage generation`: a re-ranker over a retriever that is trained already."""

import os
from argparse import Namespace
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, stdout
from prvr.cli.folders import config_of_run, device_of, fresh_folder, latest_run, open_corpus_of, threads
from prvr.cli.options import Parser, one_of, overrides
from prvr.config import Config, yaml_value

if TYPE_CHECKING:
    from prvr.models import AnyRetriever
    from prvr.training import RerankerResult, RerankerRunConfig

__all__ = ["add_stage_options", "train_generation", "wants_generation"]

_OF_THE_RETRIEVER = ("data.", "train.protocol", "train.holdout_fraction")


def add_stage_options(parser: Parser) -> None:
    """Adds `--stage`, `--retriever` and `--generation`."""
    parser.add_argument(
        "--stage",
        **one_of("discrimination", "generation"),
        default="discrimination",
        help="discrimination (default) trains a retriever; generation trains a re-ranker over the one of --retriever",
    )
    parser.add_argument(
        "--retriever", metavar="RUN", help="for --stage generation: the run of a trained retriever, or its best/"
    )
    parser.add_argument(
        "--generation",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="for --stage generation: keys of prvr.training.RerankerRunConfig, e.g. train.epochs=5 reranker.steps=50",
    )


def wants_generation(args: Namespace) -> bool:
    """Whether stage 2 is meant: it says so, or the run that is resumed is one.

    Raises:
        CommandError: options of stage 2 without it.
    """
    if args.stage == "generation":
        return True
    if args.resume and args.output is not None and (Path(args.output) / "config.yaml").is_file():
        from prvr.training import is_reranker_run

        if is_reranker_run(Path(args.output)):
            return True
    if args.retriever is not None or args.generation:
        raise CommandError("--retriever and --generation belong to stage 2: add --stage generation.")
    return False


def train_generation(args: Namespace) -> None:
    """Trains the re-ranker and prints its tables."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CommandError("--stage generation trains in one process: start it without torchrun.")
    if args.trackers:
        raise CommandError("--trackers: stage generation has none; its numbers are in metrics.jsonl.")
    if args.resume and args.output is None:
        args.output = str(latest_run(Path("runs") / "reranker"))
    from prvr.models import load_pretrained

    folder = _retriever_folder(args)
    data, weights = _data_config(args, folder)
    retriever = load_pretrained(weights)
    data = replace(data, model=retriever.config)
    config = _stage_config(args, folder, retriever)
    with ExitStack() as stack:
        output = args.output
        if output is None:
            output = stack.enter_context(fresh_folder(Path("runs") / config.name))
        stack.enter_context(threads(args.threads))
        result = _train(args, config, data, retriever, Path(output))
    _show(result)


def _train(
    args: Namespace, config: "RerankerRunConfig", data: Config, retriever: "AnyRetriever", output: Path
) -> "RerankerResult":
    from prvr.training import no_progress, open_splits, terminal_bar, train_reranker

    open_corpus_of(data, args.quiet)
    with closing(open_splits(data)) as splits:
        return train_reranker(
            config,
            retriever,
            splits,
            output=output,
            resume=args.resume,
            device=device_of(args.device),
            progress=no_progress if args.quiet else terminal_bar,
        )


def _retriever_folder(args: Namespace) -> Path:
    if args.retriever is not None:
        return Path(args.retriever).expanduser().resolve()
    if args.resume:
        from prvr.training import read_reranker_config

        known = read_reranker_config(Path(args.output) / "config.yaml").retriever
        if known is not None:
            return Path(known)
    raise CommandError("--stage generation: name the trained retriever with --retriever RUN.")


def _data_config(args: Namespace, folder: Path) -> tuple[Config, Path]:
    """The configuration of the retriever, with the changes to its data, and the folder of its weights."""
    given = overrides(args)
    strange = [key for key in given if not key.startswith(_OF_THE_RETRIEVER)]
    if strange:
        raise CommandError(
            f"--{strange[0]} is of stage 1, and the retriever is trained already. Keys of stage 2 are given as "
            "--generation KEY=VALUE, e.g. --generation optim.lr=1e-4 train.epochs=5."
        )
    return config_of_run(args, folder)


def _stage_config(args: Namespace, folder: Path, retriever: "AnyRetriever") -> "RerankerRunConfig":
    from prvr.training import read_reranker_config, reranker_run_config

    source = "--generation"
    values: dict[str, Any] = {}
    path = args.config
    if path is None and args.resume:
        path = Path(args.output) / "config.yaml"
    if path is not None:
        from prvr.config import config_to_dict

        values, source = config_to_dict(read_reranker_config(Path(path), retriever.config.hidden)), str(path)
        values["reranker"]["trained_on"] = None
    for pair in args.generation:
        key, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--generation {pair}: expected KEY=VALUE, e.g. train.epochs=5.")
        _put(values, key, yaml_value(value, f"override {key!r}"))
    values["retriever"] = str(folder)
    return reranker_run_config(values, width=retriever.config.hidden, source=source)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        node = values.setdefault(parent, {})
        if not isinstance(node, dict):
            raise CommandError(f"--generation {key}: {parent!r} is a value, not a group of keys.")
        values = node
    values[last] = value


def _show(result: "RerankerResult") -> None:
    from prvr.evaluation.tables import systems_table

    console = stdout()
    reports = {"retriever": result.retriever, "re-ranked": result.reranked}
    console.print()
    console.print(systems_table(reports, f"{result.reranked.split}: {len(result.reranked.query_ids):,} queries"))
    for direction, best in result.best.items():
        print(
            f"{direction}: epoch {best.epoch} (from 0) and weight {best.weight:g} were selected, Rsum {best.rsum:.1f}",
        )
    print(
        f"\n{result.output / 'best'}: the re-rankers, for `prvr evaluate {result.output}`\n"
        f"{result.output / 'evaluation.json'}: re-ranked; evaluation_retriever.json beside it: the retriever alone",
    )
