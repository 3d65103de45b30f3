"""Systems by name: a run, a model, a pipeline as a folder or as a YAML file, with the configuration of their data."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from prvr.config import Config, config_leaves, config_to_dict, load_config, read_yaml_file, yaml_value
from prvr.data import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import encode_split
from prvr.models import load_pretrained, reconfigured
from prvr.models.pretrained import model_files, shipped_model
from prvr.stages import STAGES, EncodedSplit, Pipeline
from prvr.stages.pipeline import stage_settings

__all__ = ["System", "SystemFiles", "open_system", "parse_stage", "read_system"]


@dataclass(frozen=True)
class System:
    """What ranks videos, and the data that its first stage was trained on.

    Args:
        pipeline: a retriever alone is one without stages.
        config_file: `config.yaml` of the run that trained the first stage; None where there is none beside it.
        folder: where reports on it are written.
        changed: keys of the first stage's configuration that are not as they were in training, with their values.
    """

    pipeline: Pipeline
    config_file: Path | None
    folder: Path
    changed: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def config(self) -> Config | None:
        """Configuration of the run that trained the first stage."""
        return None if self.config_file is None else load_config(self.config_file)

    def open_split(self, split: str, config: Config | None = None) -> PackedSplit:
        """A split, packed as the first stage reads it; close it after use.

        Args:
            split: `train`, `val` or `test`.
            config: says where and how the data are read; default: that of the run.

        Raises:
            InputError: there is no configuration.
            DataError: the data are missing or damaged, or there is no such split.
        """
        from prvr.training import open_split

        if (config := config or self.config) is None:
            raise InputError(f"{self.folder}: no config.yaml says which data this model reads: give a configuration")
        # The weights say what the model is; the configuration only where and how the data are read.
        model: Any = self.pipeline.first.config  # pyright: ignore[reportAttributeAccessIssue]
        return open_split(replace(config, model=model), split)

    def parts(self) -> dict[str, Pipeline]:
        """The first stage alone, then with one more stage after the other, by name."""
        stages = self.pipeline.stages
        found = {"first stage" if stages else "retriever": Pipeline(self.pipeline.first)}
        for number, stage in enumerate(stages, 1):
            found[f"{number}. {stage.kind}"] = Pipeline(self.pipeline.first, stages[:number])
        return found


@dataclass(frozen=True)
class SystemFiles:
    """What the name of a system stands for, before anything is loaded.

    Args:
        first: the folder of the first stage's weights, or of a whole pipeline.
        config_file: `config.yaml` of the run that trained the first stage; None where there is none beside it.
        folder: where reports on the system are written.
        stages: kind, settings and folder of each stage over `first`; None for a stage that needs no folder.
    """

    first: Path
    config_file: Path | None
    folder: Path
    stages: tuple[tuple[str, Any, Path | None], ...] = ()


def read_system(name: Path | str, stages: Sequence[Mapping[str, Any]] = ()) -> SystemFiles:
    """The files of a system, for `open_system`, which describes the arguments and the errors."""
    from prvr.training import is_reranker_run, read_reranker_config  # a search of an index need not wait for it

    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        values = read_yaml_file(path)
        if set(values) - {"first", "stages"} or not isinstance(values.get("first"), str):
            raise InputError(
                f"{path}: expected the keys first, a run or a model, and stages, a list; got {', '.join(values)}"
            )
        listed = values.get("stages") or []
        if not isinstance(listed, list):
            raise InputError(f"{path}: stages: expected a list, got {type(listed).__name__}")
        first: str = values["first"]
        found = read_system(first if shipped_model(first) else path.parent / Path(first).expanduser())
        more, folder = _read_stages(listed, path.parent, str(path)), path.parent
    elif Pipeline.is_folder(path):
        file = path / "config.yaml"
        found, more, folder = SystemFiles(path, file if file.is_file() else None, path), [], path
    elif is_reranker_run(path):
        base = read_reranker_config(path / "config.yaml").retriever
        if base is None:
            raise InputError(f"{path / 'config.yaml'}: does not say over which retriever its re-rankers were trained")
        found, more, folder = (
            read_system(base),
            _read_stages([{"kind": "diffusion", "run": path.resolve()}], path, ""),
            path,
        )
    else:
        weights, file = model_files(shipped_model(name) or path)
        found, more, folder = SystemFiles(weights, file, path), [], path
    more += _read_stages(stages, Path(), "--stage")
    return replace(found, folder=folder, stages=(*found.stages, *more))


def open_system(
    name: Path | str,
    stages: Sequence[Mapping[str, Any]] = (),
    *,
    device: torch.device | str | None = None,
    model: Mapping[str, Any] | None = None,
) -> System:
    """The system that a name stands for.

    Args:
        name: a run of `prvr train`, of a retriever or of a stage; a folder of save_pretrained, of a retriever or of a
            pipeline; a model that ships with prvr, by its name as a string (`toy-world`); or a YAML file with the
            keys `first`, a run or a model, and `stages`, a list of objects with the key `kind`, for trained ones the
            key `run`, and settings. Paths start from the folder of the file.
        stages: put after those that the name stands for, in the same form as in the file.
        device: where the bank of a stage is computed; default: the CPU.
        model: keys of the first stage's configuration to change, see `prvr.models.reconfigured`; its stages are put
            over the changed one.

    Raises:
        DataError: there is no such run, model or file, or it is damaged.
        prvr.ConfigError: the settings of a stage cannot be used.
        InputError: an unknown kind of stage, stages in an order that has no meaning, or changes that the weights or a
            pipeline's folder do not allow.
    """
    files = read_system(name, stages)
    if not Pipeline.is_folder(files.first):
        trained = load_pretrained(files.first).eval()
        used = reconfigured(trained, model) if model else trained
        system = System(Pipeline(used), files.config_file, files.folder, _changed(trained.config, used.config))
    elif model:
        raise InputError(
            f"{files.first}: the stages of this folder were made over its first stage as it is, so {', '.join(model)} "
            "cannot be changed: name the run or the YAML file that the folder was made from"
        )
    else:
        system = System(Pipeline.from_pretrained(files.first), files.config_file, files.folder)
    below = system.pipeline

    def encode(split: str) -> EncodedSplit:
        with closing(system.open_split(split)) as packed:
            return encode_split(below.first, packed, device=device)

    built = [STAGES[kind].part.build(settings, place, encode) for kind, settings, place in files.stages]
    return replace(system, pipeline=Pipeline(below.first, [*below.stages, *built])) if built else system


def parse_stage(text: str) -> dict[str, Any]:
    """A stage from one line: `KIND`, `KIND:RUN`, and settings as `,KEY=VALUE`.

    Raises:
        InputError: a part is no setting.

    Examples:
        >>> parse_stage("diffusion:runs/reranker-1,top_k=50")
        {'kind': 'diffusion', 'run': 'runs/reranker-1', 'top_k': 50}
    """
    head, *settings = text.split(",")
    kind, _, run = head.partition(":")
    found: dict[str, Any] = {"kind": kind} | ({"run": run} if run else {})
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"stage {text!r}: expected KEY=VALUE after the comma, got {setting!r}")
        found[key] = yaml_value(value, f"stage {text!r}: {key}")
    return found


def _changed(trained: Any, used: Any) -> dict[str, Any]:
    """The keys of two configurations of a model whose values differ, with those of the second."""
    found: dict[str, Any] = {}
    for key in config_leaves(type(trained)):
        before, after = config_to_dict(trained), config_to_dict(used)
        for part in key.split("."):
            before, after = before[part], after[part]
        if before != after:
            found[f"model.{key}"] = after
    return found


def _read_stages(listed: Sequence[Any], base: Path, source: str) -> list[tuple[str, Any, Path | None]]:
    """Kind, settings and folder of each stage of a list; runs start from `base`."""
    found = []
    for number, values in enumerate(listed, 1):
        given = dict(values) if isinstance(values, Mapping) else values
        run = given.pop("run", None) if isinstance(given, dict) else None
        kind, settings = stage_settings(given, f"{source}: stage {number}")
        found.append((kind, settings, None if run is None else shipped_model(run) or base / Path(run).expanduser()))
    return found
