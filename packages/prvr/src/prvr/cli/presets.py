"""`prvr presets` and `prvr describe`: what configurations say, and what the systems that they make cost."""

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, stdout
from prvr.cli.options import Parser, more_keys, parsed_keys, positive
from prvr.config import (
    AnyModelConfig,
    Config,
    ModelConfig,
    TokenModelConfig,
    config_to_dict,
    dump_config,
    load_config,
    preset_names,
    preset_text,
    read_yaml_file,
    validated,
)

if TYPE_CHECKING:
    from prvr.training.cost import PartCost


def register(prvr: Parser) -> None:
    """Adds the commands."""
    parser = prvr.command("presets", run_presets, "List the presets, or print one", "[NAME] [--resolved]")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the preset to print: what it changes of its base, which it names"
    )
    parser.add_argument("--resolved", action="store_true", help="print every key of it, with the defaults")
    parser = prvr.command(
        "describe",
        run_describe,
        "Count the parameters and the arithmetic of a system, by part",
        "NAME [--KEY VALUE ...] [OPTIONS]",
        "Count the parameters of each part, and the operations for one query, one video, a pair of them and a training "
        "step. Nothing is computed and no data are read. --KEY VALUE changes any key of the configuration.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a preset, a configuration file, a run, a folder of save_pretrained, a pipeline's folder or its YAML file",
    )
    parser.add_argument(
        "--frames", type=positive, metavar="N", help="frames of each video; by default, the most that the model reads"
    )
    parser.add_argument(
        "--words", type=positive, metavar="N", help="words of each query; by default, the most that the model reads"
    )
    parser.option("--captions", default=5, type=positive, metavar="N", help="captions of each video in a training step")
    parser.add_argument("--json", metavar="FILE", help="write the numbers, for programs; `-` is standard output")
    parser.accepts_keys = True


def run_presets(args: Namespace) -> None:
    """Prints the list, or the preset."""
    if args.name is not None:
        print(_resolved(args.name) if args.resolved else preset_text(args.name), end="")
        return
    if args.resolved:
        raise CommandError("--resolved: name the preset to print.")
    for name in [*preset_names(), *preset_names("rerankers")]:
        comments = list(takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines()))
        print(name, *(f"    {line.lstrip('# ')}" for line in comments[1:]), sep="\n")  # the first is the command


def _resolved(name: str) -> str:
    if name not in preset_names("rerankers"):
        return dump_config(load_config(name))
    from prvr.training import read_reranker_config

    values = config_to_dict(read_reranker_config(name, width=1))
    del values["reranker"]["width"]  # its retriever has one
    return dump_config(values)


def run_describe(args: Namespace) -> None:
    """Counts, and prints a table or writes JSON."""
    from prvr.training.cost import PartCost, describe

    config, stages = _system(args.name, parsed_keys(more_keys(args)))
    parts = describe(config, frames=args.frames, words=args.words, captions=args.captions)
    described = [cost for kind, settings, place in stages for cost in _stage(kind, settings, place, config, args)]
    total = PartCost.total(parts)
    if args.json is not None:
        values = {"name": args.name, "parts": parts, "total": total, "stages": described}
        text = json.dumps(values, default=asdict, indent=2) + "\n"
        if args.json == "-":
            print(text, end="")
        else:
            Path(args.json).write_text(text, encoding="utf-8", newline="\n")
    if args.json != "-":
        _show(args, config, [*parts, total], described)


def _show(args: Namespace, config: Config | AnyModelConfig, parts: "list[PartCost]", stages: "list[PartCost]") -> None:
    from prvr.evaluation.tables import new_table

    model = config.model if isinstance(config, Config) else config
    frames = min(args.frames or model.max_frames, model.max_frames)
    words = min(args.words or model.max_words, model.max_words)
    below = [f"{frames} frames and {words} words", "2 operations for each multiplication with its addition"]
    if isinstance(config, Config):
        captions = min(args.captions, config.data.captions_per_video or args.captions)
        below.append(f"a step: {config.train.batch_size} videos with {captions} captions each")
    columns = ("parameters", "a query", "a video", "a pair", "a step")
    table = new_table(args.name, "\n".join(below), ["part"], columns)
    for cost in parts:
        table.add_row(*_cells(cost), end_section=cost.part == "training step")
    table.add_section()
    for cost in stages:
        table.add_row(*_cells(cost))
    stdout().print(table)


def _cells(cost: "PartCost") -> list[str]:
    numbers = (cost.parameters, cost.query, cost.video, cost.pair, cost.step)
    return [cost.part, *(_short(number) if number else "-" for number in numbers)]


def _short(number: int) -> str:
    """Three digits and a prefix.

    Examples:
        >>> _short(962), _short(36_140_000), _short(2_254_000_000_000)
        ('962', '36.1 M', '2.25 T')
    """
    value = float(number)
    for prefix in ("", " k", " M", " G", " T"):
        if value < 999.5 or prefix == " T":
            return f"{value:.3g}{prefix}"
        value /= 1000
    raise AssertionError


_Stages = list[tuple[str, Any, Path | None]]


def _system(name: str, keys: Mapping[str, Any]) -> tuple[Config | AnyModelConfig, _Stages]:
    """The configuration that a name stands for, and the stages over it: kind, settings and folder of each."""
    from prvr.models.pretrained import read_model_config, shipped_model
    from prvr.stages import Pipeline
    from prvr.stages.pipelines import FIRST, read_stages
    from prvr.systems import read_system

    path = Path(name).expanduser()
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and "first" not in read_yaml_file(path):
        return load_config(path, keys), []
    if not is_file and not path.is_dir() and shipped_model(name) is None:
        return load_config(name, keys), []
    files = read_system(name)
    weights, stages = files.first, list(files.stages)
    if Pipeline.is_folder(weights):
        stages[:0] = read_stages(weights)
        weights = weights / FIRST
    if files.config_file is not None:
        return load_config(files.config_file, keys), stages
    if keys:
        raise CommandError(f"{name}: has no config.yaml, so --{next(iter(keys))} cannot change it.")
    model = read_model_config(weights)
    kind = TokenModelConfig if model.get("kind") == "tokens" else ModelConfig
    return validated(kind, model, str(weights / "config.json")), stages


def _stage(
    kind: str, settings: Any, place: Path | None, config: Config | AnyModelConfig, args: Namespace
) -> "list[PartCost]":
    """What a stage costs; only re-rankers and second retrievers have parameters."""
    from prvr.stages import load_rerankers
    from prvr.training import is_reranker_run, read_reranker_config
    from prvr.training.cost import PartCost, describe, describe_reranker

    if kind == "retriever" and place is not None:
        parts = describe(_system(str(place), {})[0], frames=args.frames, words=args.words, captions=args.captions)
        return [replace(cost, part=f"{kind}, {cost.part}") for cost in parts]
    if kind != "diffusion" or place is None:
        return [PartCost(kind)]
    trained = read_reranker_config(place / "config.yaml") if is_reranker_run(place) else None
    model = config.model if isinstance(config, Config) else config
    frames = min(args.frames or model.max_frames, model.max_frames)
    rows = {"frames": frames, "clips": model.num_clips, "both": frames + model.num_clips}
    return [
        describe_reranker(
            reranker.config,
            direction,
            rows[reranker.config.tokens],
            top_k=settings.top_k,
            num_steps=settings.num_steps,
            step=trained and (trained.train.batch_size, trained.candidates.num),
        )
        for direction, reranker in load_rerankers(place).items()
    ]
