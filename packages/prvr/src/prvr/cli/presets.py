"""`prvr presets` and `prvr describe`: the configurations that ship with prvr, and the cost of a system."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import prvr
from prvr.cli.console import CommandError, printing_to_stderr, stdout
from prvr.cli.options import MODELS, Count, Keys, app, parsed_keys

if TYPE_CHECKING:
    from prvr.config import AnyModelConfig, Config
    from prvr.training.cost import PartCost


_Json = Annotated[str | None, Parameter(name="--json", metavar="FILE")]


@app.command(group=MODELS)
def presets(name: str | None = None, /, *, resolved: bool = False) -> None:
    """List the presets, or print one.

    Args:
        name: the preset to print: its base, and what it changes of it
        resolved: print every key of it, with the defaults
    """
    from prvr.config import preset_text

    if name is not None:
        print(_resolved(name) if resolved else preset_text(name), end="")
        return
    if resolved:
        raise CommandError("--resolved: name the preset to print.")
    for preset in [*prvr.preset_names(), *prvr.preset_names("rerankers")]:
        comments = list(takewhile(lambda line: line.startswith("#"), preset_text(preset).splitlines()))
        print(preset, *(f"    {line.lstrip('# ')}" for line in comments[1:]), sep="\n")  # the first is the command


def _resolved(name: str) -> str:
    from prvr.config import config_to_dict, dump_config

    if name not in prvr.preset_names("rerankers"):
        return dump_config(prvr.load_config(name))
    from prvr.training import read_reranker_config

    values = config_to_dict(read_reranker_config(name, width=1))
    del values["reranker"]["width"]  # its retriever has one
    return dump_config(values)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Lengths:
    """What is counted.

    Args:
        frames: frames of each video (default: the maximum of the model)
        words: words of each query (default: the maximum of the model)
        captions: captions of each video in a training step
    """

    frames: Count | None = None
    words: Count | None = None
    captions: Count = 5


@app.command(name="describe", group=MODELS)
def run_describe(name: str, /, *, lengths: _Lengths = _Lengths(), json_file: _Json = None, keys: Keys) -> None:
    """Count the parameters and the operations of a system, by part.

    Count the parameters of each part, and the operations for one query, one video, a pair of them and a training step.
    Nothing is computed and no data are read. --KEY VALUE changes any key of the configuration.

    Args:
        name: a preset, a configuration file, a run, a folder written by save_pretrained, or a pipeline (a folder or a
            YAML file)
        json_file: write the numbers, for programs; `-` is standard output
    """
    from prvr.training.cost import PartCost, describe

    with printing_to_stderr(json_file == "-"):
        config, stages = _system(name, parsed_keys(keys))
        parts = describe(config, **asdict(lengths))
        costs = [cost for kind, settings, place in stages for cost in _stage(kind, settings, place, config, lengths)]
    total = PartCost.total(parts)
    if json_file is not None:
        values = {"name": name, "parts": parts, "total": total, "stages": costs}
        text = json.dumps(values, default=asdict, indent=2) + "\n"
        if json_file == "-":
            print(text, end="")
        else:
            Path(json_file).write_text(text, encoding="utf-8", newline="\n")
    if json_file != "-":
        _show(name, lengths, config, [*parts, total], costs)


def _show(
    name: str, args: _Lengths, config: "Config | AnyModelConfig", parts: "list[PartCost]", stages: "list[PartCost]"
) -> None:
    from prvr.evaluation.tables import new_table

    model = config.model if isinstance(config, prvr.Config) else config
    frames = min(args.frames or model.max_frames, model.max_frames)
    words = min(args.words or model.max_words, model.max_words)
    below = [f"{frames} frames and {words} words", "2 operations for each multiplication with its addition"]
    if isinstance(config, prvr.Config):
        captions = min(args.captions, config.data.captions_per_video or args.captions)
        below.append(f"a step: {config.train.batch_size} videos with {captions} captions each")
    columns = ("parameters", "a query", "a video", "a pair", "a step")
    table = new_table(name, "\n".join(below), ["part"], columns)
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
    rounded = int(float(f"{number:.3g}"))
    power = min((len(str(rounded)) - 1) // 3, 4)
    return f"{rounded / 1000**power:.3g} {' kMGT'[power]}".rstrip()


_Stages = Sequence[tuple[str, Any, Path | None]]


def _system(name: str, keys: Mapping[str, Any]) -> "tuple[Config | AnyModelConfig, _Stages]":
    """The configuration that a name stands for, and the stages over it: kind, settings and folder of each."""
    from prvr.config import ModelConfig, TokenModelConfig, read_yaml_file, validated
    from prvr.models.pretrained import read_model_config, shipped_model
    from prvr.stages import Pipeline
    from prvr.stages.pipelines import FIRST, read_stages
    from prvr.systems import read_system

    path = Path(name).expanduser()
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and "first" not in read_yaml_file(path):
        return prvr.load_config(path, keys), []
    if not is_file and not path.is_dir() and shipped_model(name) is None:
        return prvr.load_config(name, keys), []
    files = read_system(name)
    weights, stages = files.first, list(files.stages)
    if Pipeline.is_folder(weights):
        stages[:0] = read_stages(weights)
        weights = weights / FIRST
    if files.config_file is not None:
        return prvr.load_config(files.config_file, keys), stages
    if keys:
        raise CommandError(f"{name}: config.yaml is missing, so --{[*keys][-1]} cannot be changed.")
    model = read_model_config(weights)
    kind = TokenModelConfig if model.get("kind") == "tokens" else ModelConfig
    return validated(kind, model, str(weights / "config.json")), stages


def _stage(
    kind: str, settings: Any, place: Path | None, config: "Config | AnyModelConfig", lengths: _Lengths
) -> "list[PartCost]":
    """The cost of a stage; only re-rankers and second retrievers have parameters."""
    from prvr.stages import load_rerankers
    from prvr.training import is_reranker_run, read_reranker_config
    from prvr.training.cost import PartCost, describe, describe_reranker

    if kind == "retriever" and place is not None:
        parts = describe(_system(str(place), {})[0], **asdict(lengths))
        return [replace(cost, part=f"{kind}, {cost.part}") for cost in parts]
    if kind != "diffusion" or place is None:
        return [PartCost(kind)]
    trained = read_reranker_config(place / "config.yaml") if is_reranker_run(place) else None
    model = config.model if isinstance(config, prvr.Config) else config
    frames = min(lengths.frames or model.max_frames, model.max_frames)
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
