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

__all__ = ["System", "open_system", "parse_stage"]


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
            pipeline; a model that ships with prvr, by its name as a string (`drawn-world`); or a YAML file with the
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
        found = open_system(
            first if shipped_model(first) else path.parent / Path(first).expanduser(), device=device, model=model
        )
        found = _extended(found, listed, path.parent, path.parent, device, str(path))
    elif Pipeline.is_folder(path):
        if model:
            raise InputError(
                f"{path}: the stages of this folder were made over its first stage as it is, so {', '.join(model)} "
                "cannot be changed: name the run or the YAML file that the folder was made from"
            )
        file = path / "config.yaml"
        found = System(Pipeline.from_pretrained(path), file if file.is_file() else None, path)
    elif is_reranker_run(path):
        base = read_reranker_config(path / "config.yaml").retriever
        if base is None:
            raise InputError(f"{path / 'config.yaml'}: does not say over which retriever its re-rankers were trained")
        found = open_system(base, device=device, model=model)
        found = _extended(found, [{"kind": "diffusion", "run": str(path.resolve())}], path, path, device, str(path))
    else:
        weights, file = model_files(shipped_model(name) or path)
        trained = load_pretrained(weights).eval()
        used = reconfigured(trained, model) if model else trained
        found = System(Pipeline(used), file, path, _changed(trained.config, used.config))
    return _extended(found, stages, Path(), found.folder, device, "--stage") if stages else found


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


def _extended(
    system: System,
    stages: Sequence[Any],
    base: Path,
    folder: Path,
    device: torch.device | str | None,
    source: str,
) -> System:
    """The system with more stages; runs start from `base`."""

    def encode(split: str) -> EncodedSplit:
        with closing(system.open_split(split)) as packed:
            return encode_split(system.pipeline.first, packed, device=device)

    built = []
    for number, values in enumerate(stages, 1):
        given = dict(values) if isinstance(values, Mapping) else values
        run = given.pop("run", None) if isinstance(given, dict) else None
        kind, settings = stage_settings(given, f"{source}: stage {number}")
        place = None if run is None else shipped_model(run) or base / Path(run).expanduser()
        built.append(STAGES[kind].part.build(settings, place, encode))
    pipeline = Pipeline(system.pipeline.first, [*system.pipeline.stages, *built])
    return replace(system, pipeline=pipeline, folder=folder)
