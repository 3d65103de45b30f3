"""Reads configurations from presets, YAML files, dictionaries and dotted overrides, and writes them as YAML."""

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from prvr.config.model import ModelConfig, expect_read
from prvr.config.run import Config
from prvr.errors import DataError, InputError, PrvrError, unknown_name
from prvr.reading import read_text, short

_T = TypeVar("_T")
_LARGEST = 1 << 20  # bytes of a configuration file
_SHOWN = 200  # characters of a value in a message
_FOLDERS: dict[Literal["retrievers", "rerankers"], str] = {
    "retrievers": "config/presets",
    "rerankers": "config/presets/rerankers",
}


class ConfigError(PrvrError, ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


def preset_names(kind: Literal["retrievers", "rerankers"] = "retrievers") -> list[str]:
    """Names of the presets that ship with prvr, sorted.

    Args:
        kind: what they configure: a retriever (`prvr.Config`), or a re-ranker over one
            (`prvr.training.RerankerRunConfig`).

    Examples:
        >>> "hlformer-tvr" in preset_names()
        True
        >>> preset_names("rerankers")
        ['diffusionret-stage2-paper', 'diffusionret-stage2-released']
    """
    folder = resources.files("prvr") / _FOLDERS[kind]
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_values(name_or_path: str | Path, heirs: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The name of a preset or a YAML file, and its values laid over those of its `base`.

    Args:
        name_or_path: a preset of either kind by name, or a path that ends in `.yaml`.
        heirs: those that name it as their base, directly or not.

    Raises:
        ConfigError: there is no such preset or file, it is not YAML, or a base of itself.
    """
    path, source = Path(name_or_path), str(name_or_path)
    if source in heirs:
        raise ConfigError(f"{source}: is based on itself: {' -> '.join([*heirs, source])}")
    is_file = path.suffix in (".yaml", ".yml")
    values = read_yaml_file(path) if is_file else read_yaml(preset_text(source), source)
    if "base" not in values:
        return source, values
    base = values.pop("base")
    if not isinstance(base, str):
        raise ConfigError(f"{source}: base: expected the name of a preset or a YAML file, got {base!r}")
    beside = base.endswith((".yaml", ".yml"))  # a file is named relative to the one that names it
    return source, _laid_over(read_values(path.parent / base if beside else base, (*heirs, source))[1], values)


def _laid_over(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values of a base with others in their place: groups of keys are merged, lists and values replaced."""
    merged = dict(base)
    for key, value in values.items():
        known = merged.get(key)
        merged[key] = _laid_over(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def preset_text(name: str) -> str:
    """The YAML of a preset, as it ships: what differs from its base, or from the defaults.

    Raises:
        ConfigError: there is no such preset; names those with the closest names.
    """
    found = {one: folder for kind, folder in _FOLDERS.items() for one in preset_names(kind)}
    if name not in found:
        raise ConfigError(unknown_name("preset", name, found))
    return (resources.files("prvr") / found[name] / f"{name}.yaml").read_text(encoding="utf-8")


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


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few nested ones stand for more values than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"{self.get_event().anchor!r}: aliases are not supported, write the value out")
        return super().compose_node(parent, index)


def yaml_value(text: str, source: str) -> Any:
    """The value of a YAML text without aliases.

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
        return yaml.load(text, _PlainLoader)  # a SafeLoader
    except RecursionError as error:
        raise ConfigError(f"{source} is not valid YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{source} is not valid YAML: {error}") from error


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """The keys and values of a YAML text.

    Raises:
        ConfigError: as `yaml_value`, or it holds something else.
    """
    values = yaml_value(text, source)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        found = "keys that are no words" if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"{source}: expected a mapping of keys, got {found}")
    return values


def set_key(values: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Sets a dotted key of nested dictionaries.

    Args:
        values: the dictionaries, which are changed.
        key: for example `train.epochs`.
        value: the value; a string is read as YAML.
        source: where the key comes from, for messages.

    Raises:
        ConfigError: the key lies below a value, or the string is not YAML.
    """
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {parent!r} is a value, not a group of keys")
        node = child
    node[last] = yaml_value(value, source) if isinstance(value, str) else value


def records_of(kind: Any) -> tuple[Any, ...]:
    """The dataclasses that the value of a field may be: none, one, or those of a choice.

    Examples:
        >>> [record.__name__ for record in records_of(Config.__dataclass_fields__["model"].type)]
        ['ModelConfig', 'TokenModelConfig']
    """
    if get_origin(kind) is Annotated:
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
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        records = records_of(field.type)
        for record in records:
            inside = config_leaves(record, f"{prefix}{field.name}.")
            found |= {key: kind for key, kind in inside.items() if key not in found}
        if not records:
            found.setdefault(prefix + field.name, field.type)
    return found


def _key(place: tuple[int | str, ...]) -> str:
    """The dotted key of a location of pydantic, without the tag of the record that a model was validated as."""
    named = place[:1] == ("model",) and place[1:2] in (("pooled",), ("tokens",))
    return ".".join(str(part) for part in (place[:1] + place[2:] if named else place))


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """A validated `Config` from nested dictionaries; see `validated`."""
    return validated(Config, values)


def validated(kind: type[_T], values: Mapping[str, Any], source: str = "configuration") -> _T:
    """A configuration record from nested dictionaries.

    Args:
        kind: the dataclass.
        values: its fields; those of records inside it as dictionaries.
        source: where the values come from, for messages.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range; the message names each.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = _key(problem["loc"])
            if problem["type"] == "unexpected_keyword_argument":
                close = get_close_matches(key, config_leaves(kind), n=2)
                lines.append(f"unknown key {key!r}" + (f"; did you mean {' or '.join(close)}?" if close else ""))
            elif problem["type"] in ("missing", "missing_argument"):
                lines.append(f"{key} is required")
            else:
                given = problem["input"]
                shown = "" if isinstance(given, dict | Config) else f", got {short(given, _SHOWN)}"
                lines.append(f"{key}: " * bool(key) + problem["msg"].removeprefix("Value error, ") + shown)
        raise ConfigError(f"{source}: " + "; ".join(lines)) from error


def load_config(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None, *, shared: bool = False
) -> Config:
    """A preset by name, or a YAML file by path, with dotted overrides.

    Args:
        name_or_path: one of `preset_names()`, or a path that ends in `.yaml`. The file names what differs from its
            `base`, which is a preset or a file beside it; without a base, what differs from the defaults.
        overrides: for example `{"train.epochs": 5, "model.registers.num": 4}`; strings are read as YAML.
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
        set_key(values, key, value, f"override {key!r}")
    config = validated(Config, values, source)
    if isinstance(config.model, ModelConfig) and not shared:
        try:
            expect_read(config.model, [key.removeprefix("model.") for key in overrides or ()])
        except InputError as error:
            raise ConfigError(f"{source}: {error}") from error
    return config


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dictionaries and lists: what YAML and JSON can hold."""
    return to_jsonable_python(config)


def dump_config(config: Any) -> str:
    """A resolved configuration record as YAML; `load_config` reads a `Config` back to an equal one."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
