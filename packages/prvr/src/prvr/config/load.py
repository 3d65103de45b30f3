"""Reads configurations from presets, YAML files, dictionaries and dotted overrides, and writes them as YAML."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from prvr.config.losses import LOSSES, LossConfig, with_weights
from prvr.config.model import MODEL_PARTS, ModelConfig, model_parts
from prvr.config.registry import Chosen, missing_modules
from prvr.config.retrievers import RETRIEVERS
from prvr.config.run import Config
from prvr.errors import DataError, PrvrError, unknown_name
from prvr.reading import read_text, short

_T = TypeVar("_T")
_LARGEST = 1 << 20  # bytes of a configuration file
_SHOWN = 200  # characters of a value in a message
_DEEPEST = 100  # groups within groups
_REMOVED = dict.fromkeys(
    ("fit.features", "path.features"), ": Fourier features gave way to kernels, fit again with `prvr train`"
)
"""What takes the place of keys of earlier versions."""
_ABSENT = object()  # where one of two configurations has no such key
_PRESETS = Path(__file__).with_name("presets")
_FOLDERS = {"retrievers": _PRESETS, "rerankers": _PRESETS / "rerankers"}


class ConfigError(PrvrError, ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


def preset_names(kind: Literal["retrievers", "rerankers"] = "retrievers") -> list[str]:
    """Names of the presets that ship with prvr, sorted.

    Args:
        kind: what they configure: a retriever (`prvr.Config`), or a re-ranker over one
            (`prvr.published.diffusionret.RerankerRunConfig`).

    Examples:
        >>> "hlformer-tvr" in preset_names()
        True
        >>> preset_names("rerankers")
        ['diffusionret-stage2-paper', 'diffusionret-stage2-released']
    """
    return sorted(file.stem for file in _FOLDERS[kind].glob("*.yaml"))


def read_values(name_or_path: str | Path, derived: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The name of a preset or a YAML file, and its values laid over those of its `base`.

    Args:
        name_or_path: a preset of either kind by name, or a path that ends in `.yaml`.
        derived: the presets and files that name it as their base, directly or not.

    Raises:
        ConfigError: there is no such preset or file, it is not YAML, or a base of itself.
    """
    path, source = Path(name_or_path), str(name_or_path)
    if source in derived:
        raise ConfigError(f"{source}: is based on itself: {' -> '.join([*derived, source])}")
    is_file = path.suffix in (".yaml", ".yml")
    values = read_yaml_file(path) if is_file else read_yaml(preset_text(source), source)
    if "loss" in values:
        values["loss"] = with_weights(values["loss"])  # a number keeps the other settings of its loss
    if "base" not in values:
        return source, values
    base = values.pop("base")
    if not isinstance(base, str):
        raise ConfigError(f"{source}: base: expected the name of a preset or a YAML file, got {base!r}")
    # A file is named relative to the one that names it.
    place = path.parent / base if base.endswith((".yaml", ".yml")) else base
    below = read_values(place, (*derived, source))[1]
    if isinstance(below.get("imports"), list) and isinstance(values.get("imports"), list):
        values["imports"] = [*below["imports"], *values["imports"]]  # the parts of both are needed
    return source, _merged(below, values)


def _merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values of a base with others in their place: groups of keys are merged, lists and values replaced."""
    merged = dict(base)
    for key, value in values.items():
        group = merged.get(key)
        merged[key] = _merged(group, value) if isinstance(group, dict) and isinstance(value, dict) else value
    return merged


def preset_text(name: str) -> str:
    """The YAML of a preset, as it ships: what differs from its base, or from the defaults.

    Raises:
        ConfigError: there is no such preset; names those with the closest names.
    """
    files = {file.stem: file for folder in _FOLDERS.values() for file in sorted(folder.glob("*.yaml"))}
    name = re.sub("^linear-", "kernel-", name)  # as earlier versions called them
    if name not in files:
        raise ConfigError(unknown_name("preset", name, files))
    return files[name].read_text(encoding="utf-8")


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        ConfigError: there is no such file, it is no file or too large, or as `read_yaml`.
    """
    try:
        return read_yaml(read_text(path, _LARGEST), str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {path} does not exist") from error
    except DataError as error:
        raise ConfigError(f"configuration file {error}") from error


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # nine times as fast


def _expect_flat(text: str, loader: Any) -> None:
    """Refuses aliases, a few of which stand for more values than memory holds, NUL, which no path may hold, and depth.

    Raises:
        YAMLError: as said, or the text is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError("nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"{event.anchor!r}: aliases are not supported, write the value out")
        if isinstance(event, yaml.ScalarEvent) and "\0" in event.value:
            raise yaml.YAMLError(f"{event.value!r}: NUL characters are not supported")


def yaml_value(text: str, source: str) -> Any:
    """The value of a YAML text without aliases, nested at most 100 deep.

    Raises:
        ConfigError: it is not YAML, holds an alias, or is nested too deeply.

    Examples:
        >>> yaml_value("[1, 2.5, on]", "example")
        [1, 2.5, True]
        >>> yaml_value("[&a 1, *a]", "example")
        Traceback (most recent call last):
        ...
        prvr.config.load.ConfigError: example is not valid YAML: 'a': aliases are not supported, write the value out
    """
    try:
        try:
            _expect_flat(text, _LOADER)
        except yaml.YAMLError:
            _expect_flat(text, yaml.SafeLoader)  # its messages show the line
        return yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{source} is not valid YAML: {error}") from error


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """The keys and values of a YAML text.

    Raises:
        ConfigError: as `yaml_value`, or it holds something else.
    """
    values = yaml_value(text, source)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        kind = "keys that are not strings" if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"{source}: expected a mapping of keys, got {kind}")
    return values


def set_key(values: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Sets a dotted key of nested dictionaries; the keys of a group are merged with those that are there.

    Args:
        values: the dictionaries, which are changed.
        key: for example `train.epochs`; `loss.NAME` is short for `loss.NAME.weight`.
        value: the value, taken as it is, or a group of keys.
        source: where the key comes from, for messages.

    Raises:
        ConfigError: the key lies below a value.
    """
    *parents, last = key.split(".")
    if parents == ["loss"]:
        value = with_weights({last: value})[last]
    if key == "loss":
        value = with_weights(value)
    node = values
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {parent!r} is a value, not a group of keys")
        node = child
    group = node.get(last)
    node[last] = _merged(group, value) if isinstance(group, dict) and isinstance(value, dict) else value


def records_of(kind: Any) -> tuple[Any, ...]:
    """The dataclasses that the value of a field may be: none, one, or those of a choice.

    Examples:
        >>> [record.__name__ for record in records_of(Config.__dataclass_fields__["model"].type)]
        ['ModelConfig', 'TokenModelConfig']
    """
    if get_origin(kind) is Annotated:
        if chosen := [mark for mark in kind.__metadata__ if isinstance(mark, Chosen)]:
            return chosen[0].records
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return tuple(record for part in get_args(kind) for record in records_of(part))
    return (kind,) if dataclasses.is_dataclass(kind) else ()


def config_leaves(kind: Any, prefix: str = "") -> dict[str, Any]:
    """The dotted keys of all values of a record, with their types; of a choice of records each key once.

    Examples:
        >>> "model.registers.num" in config_leaves(Config)
        True
    """
    if kind is LossConfig:
        fields: dict[str, Any] = {entry.name: entry.settings for entry in LOSSES}
    else:
        fields = {field.name: field.type for field in dataclasses.fields(kind)}
    leaves: dict[str, Any] = {}
    for name, value in fields.items():
        records = records_of(value)
        if kind is LossConfig:
            leaves[prefix + name] = float  # short for the weight
        for record in records:
            inside = config_leaves(record, f"{prefix}{name}.")
            leaves |= {key: kind for key, kind in inside.items() if key not in leaves}
        if not records:
            leaves.setdefault(prefix + name, value)
    return leaves


def similar_keys(key: str, keys: Iterable[str]) -> list[str]:
    """At most two keys that may have been meant: those of which it is a part, else the most similar.

    Examples:
        >>> similar_keys("lr", config_leaves(Config))
        ['optim.lr']
    """
    keys = list(keys)
    return [name for name in keys if f".{key}." in f"{name}."][:2] or get_close_matches(key, keys, n=2)


def validated(kind: type[_T], values: Mapping[str, Any], source: str = "configuration") -> _T:
    """A configuration record from nested dictionaries.

    Args:
        kind: the dataclass.
        values: its fields; those of records inside it as dictionaries.
        source: where the values come from, for messages.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range; the message names each. Or a module that
            registers a part is not imported: a file may come from elsewhere, and reading it must not run code.
    """
    if "imports" in getattr(kind, "__dataclass_fields__", ()):
        expect_imported(values.get("imports"), source)
    try:
        return TypeAdapter(kind).validate_python(_plain(values))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(map(str, problem["loc"]))
            if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                keys, where, model = config_leaves(kind), "", values.get("model")
                if key.startswith("model.") and isinstance(model, Mapping) and str(model.get("kind")) in RETRIEVERS:
                    keys = config_leaves(RETRIEVERS[str(model["kind"])].settings, "model.")
                    where = f" of a model of kind {model['kind']}"
                close = similar_keys(key, keys)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                hint = next((text for name, text in _REMOVED.items() if key.endswith(name)), hint)
                lines.append(f"unknown key {key!r}{where}{hint}")
            elif problem["type"] in ("missing", "missing_argument"):
                lines.append(f"{key} is required")
            else:
                value = problem["input"]
                is_named = problem["type"] == "value_error" and short(value, _SHOWN) in problem["msg"]
                shown = "" if is_named or isinstance(value, dict | Config) else f", got {short(value, _SHOWN)}"
                lines.append(f"{key}: " * bool(key) + problem["msg"].removeprefix("Value error, ") + shown)
        if any(problem["type"] == "extra_forbidden" for problem in error.errors()):  # a loss that is not registered
            end = "" if lines[-1].endswith("?") else "."
            lines[-1] += f"{end} For your own loss, pass --import MODULE, or import its module first"
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def expect_imported(modules: Any, source: str) -> None:
    """Refuses a file that names modules which are not imported: it may come from elsewhere, and must not run code.

    Args:
        modules: what the file names under `imports`.
        source: the file, for the message.

    Raises:
        ConfigError: the message names the missing ones.
    """
    missing = missing_modules(modules)
    if missing:
        raise ConfigError(
            f"{source}: uses parts of {', '.join(missing)}, which is not imported. If you trust it, add "
            f"{' '.join(f'--import {name}' for name in missing)}, or import it in Python first"
        )


def _plain(value: Any) -> Any:
    """Dictionaries and lists for those of other libraries, such as OmegaConf's."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple)
    return [_plain(item) for item in value] if is_list else value


def load_config(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None, *, shared: bool = False
) -> Config:
    """A preset by name, or a YAML file by path, with dotted overrides.

    Args:
        name_or_path: one of `preset_names()`, or a path that ends in `.yaml`. The file names what differs from its
            `base`, which is a preset or a file beside it; without a base, what differs from the defaults.
        overrides: for example `{"train.epochs": 5, "model.registers.num": 4}` or `{"train": {"epochs": 5}}`; values are
            taken as they are.
        shared: the overrides are those of several configurations: a key that no block or fusion of this one reads is
            not refused.

    Raises:
        ConfigError: unknown preset, missing file, a base of itself, unknown key, a value out of range, or a key
            without effect.

    Examples:
        >>> load_config("hlformer-tvr", {"train.epochs": 5}).train.epochs
        5
    """
    source, values = read_values(name_or_path)
    if "reranker" in values:
        raise ConfigError(f"{source} configures a re-ranker: name the run of its retriever with --retriever RUN")
    for key, value in (overrides or {}).items():
        set_key(values, key, _plain(value), f"override {key!r}")
    try:
        config = validated(Config, values, source)
    except ConfigError:
        validated(Config, read_values(name_or_path)[1], source)  # raises where the file itself is wrong
        given = ", ".join(f"{key}={short(value)}" for key, value in (overrides or {}).items())
        config = validated(Config, values, f"{given} over {source}")
    if isinstance(config.model, ModelConfig) and not shared:
        _expect_read(config.model, flat(overrides or {}), source)
    return config


def _expect_read(model: ModelConfig, overrides: Mapping[str, Any], source: str) -> None:
    """Refuses overrides that only parts read that the model does not have.

    A preset may hold such keys, for those that are based on it; a key that somebody sets must have an effect.
    """
    parts = model_parts(model)
    for key, value in overrides.items():
        entries = [(registry, entry) for registry in MODEL_PARTS for entry in registry]
        readers = [(r, entry.name) for r, entry in entries if key.removeprefix("model.") in entry.needs]
        if readers and parts.isdisjoint(readers):
            names = " or ".join(f"{registry.what}={name!r}" for registry, name in readers)
            raise ConfigError(
                f"{key}={value!r} has no effect on {source}: only {names} reads it. Remove it, or choose such a part"
            )


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dictionaries and lists: what YAML and JSON can hold."""
    return to_jsonable_python(config)


def flat(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, whose keys are joined.

    Examples:
        >>> flat({"optim": {"lr": 0.1}, "name": "run"})
        {'optim.lr': 0.1, 'name': 'run'}
    """
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, separator, name + separator) if isinstance(value, Mapping) else {name: value}
    return leaves


def expect_readable(config: Any) -> None:
    """Refuses a configuration that would not be read back from the run's `config.yaml` as it is.

    Raises:
        ConfigError: a value would change; the message names its key. Or the text cannot be read, as `validated`.
    """
    read = validated(type(config), yaml_value(dump_config(config), "config.yaml"), "config.yaml")
    if read != config:
        before = flat(config_to_dict(config))
        after = flat(config_to_dict(read))
        keys = [key for key in {**before, **after} if before.get(key, _ABSENT) != after.get(key, _ABSENT)]
        names = [field.name for field in dataclasses.fields(config)]
        keys = keys or [name for name in names if getattr(config, name) != getattr(read, name)]  # of another class
        raise ConfigError(
            f"{', '.join(keys)}: cannot be read back from config.yaml. Register losses before the configuration "
            "is made, and give settings types that YAML can hold"
        )


def dump_config(config: Any) -> str:
    """A resolved configuration record as YAML; `load_config` reads a `Config` back to an equal one."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
