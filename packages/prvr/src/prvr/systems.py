"""Systems by name: a run, a model, or a pipeline, and the data that it was trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from prvr.config import Config, config_to_dict, expect_imported, flat, load_config, read_yaml_file, yaml_value
from prvr.data import PackedSplit
from prvr.data.on_device import choose_device
from prvr.errors import InputError
from prvr.evaluation.encode import encode_split
from prvr.extensions import extensions
from prvr.models import load_pretrained, reconfigured
from prvr.models.pretrained import model_files, shipped_model
from prvr.stages import STAGES, EncodedSplit, Pipeline
from prvr.stages.pipelines import StageFiles, stage_settings
from prvr.types import UNTRAINED

__all__ = ["System", "SystemFiles", "choose_device", "open_system", "parse_stage", "read_system"]


@dataclass(frozen=True)
class System:
    """A pipeline, and the data that its first stage was trained on.

    Args:
        pipeline: ranks videos; a retriever alone has no stages.
        config_file: `config.yaml` of the run that trained the first stage; None if the model has none.
        folder: the folder of reports on the system.
        changed: keys of the first stage's configuration that differ from training, with their values.
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
        """A split, packed for the first stage; close it after use.

        Args:
            split: `train`, `val` or `test`.
            config: the configuration of the data; None for that of the run.

        Raises:
            InputError: there is no configuration.
            DataError: the data are missing or damaged, or the split does not exist.
        """
        from prvr.training import open_split

        if (config := config or self.config) is None:
            raise InputError(f"{self.folder}: config.yaml is missing, so the data are unknown: pass a configuration")
        # The weights decide on the model, the configuration only on the data.
        model = self.pipeline.first.config
        return open_split(replace(config, model=model), split)

    def parts(self) -> dict[str, Pipeline]:
        """The first stage alone, then with one stage after the other, by name."""
        first, stages = self.pipeline.first, self.pipeline.stages
        parts = {"first stage" if stages else "retriever": Pipeline(first)}
        return parts | {f"{n}. {stage.kind}": Pipeline(first, stages[:n]) for n, stage in enumerate(stages, 1)}


@dataclass(frozen=True)
class SystemFiles:
    """The files of a system, before anything is loaded.

    Args:
        first: the folder of the first stage's weights, or of a whole pipeline.
        config_file: `config.yaml` of the run that trained the first stage; None if the model has none.
        folder: the folder of reports on the system.
        stages: the stages over `first`.
    """

    first: Path
    config_file: Path | None
    folder: Path
    stages: tuple[StageFiles, ...] = ()


def read_system(name: Path | str, stages: Sequence[Mapping[str, Any]] = ()) -> SystemFiles:
    """The files of a system, for `open_system`, which documents the arguments and the errors."""
    path = Path(name).expanduser()
    if name in UNTRAINED:
        stage = str(name).replace("-", "_")
        raise InputError(
            f"{name}: the joint encoder alone is no trained model. Evaluate it with prvr evaluate {name}, search with "
            f"prvr search FOLDER --model {name}, or add its score to a trained model, as the stage {stage}."
        )
    if path.suffix in (".yaml", ".yml"):
        values = read_yaml_file(path)
        first, entries = values.get("first"), values.get("stages") or []
        expect_imported(values.pop("imports", None), str(path))
        if set(values) - {"first", "stages"} or not isinstance(first, str) or not isinstance(entries, list):
            raise InputError(
                f"{path}: expected the keys first, a run or a model, and stages, a list; got {', '.join(values)}"
            )
        files = read_system(first if shipped_model(first) else path.parent / Path(first).expanduser())
        files = replace(
            files, folder=path.parent, stages=(*files.stages, *_read_stages(entries, path.parent, str(path)))
        )
    elif Pipeline.is_folder(path):
        file = path / "config.yaml"
        files = SystemFiles(path, file if file.is_file() else None, path)
    elif trained := [over for read in extensions("systems", others=False) if (over := read(path)) is not None]:
        base, entry = trained[0]  # the first stage under a stage that a run has trained, and that stage
        files = read_system(base)
        files = replace(files, folder=path, stages=(*files.stages, *_read_stages([entry], path, "")))
    else:
        weights, file = model_files(shipped_model(name) or path)
        files = SystemFiles(weights, file, path)
    return replace(files, stages=(*files.stages, *_read_stages(stages, Path(), "--stage")))


def open_system(
    name: Path | str,
    stages: Sequence[Mapping[str, Any]] = (),
    *,
    device: torch.device | str | None = None,
    model: Mapping[str, Any] | None = None,
    root: Path | str | None = None,
) -> System:
    """The system of a name.

    Args:
        name: a run of `prvr train`, of a retriever or of a re-ranker; a folder of `save_pretrained`, of a retriever or
            of a pipeline; a model that ships with prvr, by its name as a string (`toy-world`); or a YAML file. The file
            has the keys `first`, a run or a model, and `stages`, a list of objects with the key `kind`, the key `run`
            for trained stages, and settings. Paths are relative to the folder of the file. `imports` may list modules
            of your own, which have to be imported before, see `docs/own-part.md`.
        stages: further stages, in the same form as in the file.
        device: where the bank of a stage is computed; None for the CPU.
        model: keys of the first stage's configuration to change, see `prvr.models.reconfigured`.
        root: folder that holds the corpus of the run, where a stage reads it; None: that of the configuration.

    Raises:
        DataError: the run, model or file does not exist, or is damaged.
        prvr.ConfigError: the settings of a stage are invalid.
        InputError: an unknown kind of stage, a wrong order of stages, or changes that the weights or the folder of a
            pipeline do not allow.
    """
    files = read_system(name, stages)
    if Pipeline.is_folder(files.first):
        if model:
            raise InputError(
                f"{files.first}: the stages of this folder were made for its first stage, so {', '.join(model)} cannot "
                "be changed: pass the run or the YAML file that the folder was made from"
            )
        system = System(Pipeline.from_pretrained(files.first), files.config_file, files.folder)
    else:
        trained = load_pretrained(files.first).eval()
        first = reconfigured(trained, model) if model else trained
        system = System(Pipeline(first), files.config_file, files.folder, _changes(trained.config, first.config))
    first, loaded = system.pipeline.first, system.pipeline.stages

    def encode(split: str) -> EncodedSplit:
        config = system.config
        if root is not None and config is not None:
            config = replace(config, data=replace(config.data, root=str(root)))
        with system.open_split(split, config) as packed:
            return encode_split(first, packed, device=device)

    added = [STAGES[kind].part.load(settings, folder, encode) for kind, settings, folder in files.stages]
    return replace(system, pipeline=Pipeline(first, [*loaded, *added])) if added else system


def parse_stage(text: str) -> dict[str, Any]:
    """A stage from one line: `KIND`, `KIND:RUN`, and settings as `,KEY=VALUE`.

    Raises:
        InputError: a part is not a setting.

    Examples:
        >>> parse_stage("diffusion:runs/reranker-1,top_k=50")
        {'kind': 'diffusion', 'run': 'runs/reranker-1', 'top_k': 50}
    """
    head, *settings = text.split(",")
    kind, _, run = head.partition(":")
    stage: dict[str, Any] = {"kind": kind} | ({"run": run} if run else {})
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"stage {text!r}: expected KEY=VALUE after the comma, got {setting!r}")
        stage[key] = yaml_value(value, f"stage {text!r}: {key}")
    return stage


def _changes(trained: Any, changed: Any) -> dict[str, Any]:
    """The keys of two configurations of a model with different values, and the values of the second."""
    before, after = (flat(config_to_dict(config)) for config in (trained, changed))
    return {f"model.{key}": value for key, value in after.items() if before.get(key) != value}


def _read_stages(entries: Sequence[Any], base: Path, source: str) -> list[StageFiles]:
    """The stages of a list; paths of runs are relative to `base`."""
    stages = []
    for number, values in enumerate(entries, 1):
        options = dict(values) if isinstance(values, Mapping) else values
        run = options.pop("run", None) if isinstance(options, dict) else None
        kind, settings = stage_settings(options, f"{source}: stage {number}")
        if STAGES[kind].part.trained and run is None:
            raise InputError(f"a {kind} stage needs the key run, a run of `prvr train`: {kind}:RUN")
        if run is not None and not STAGES[kind].part.trained:
            raise InputError(f"a {kind} stage is not trained, got the run {run}: remove it")
        folder = None if run is None else shipped_model(run) or base / Path(run).expanduser()
        stages.append(StageFiles(kind, settings, folder))
    return stages
