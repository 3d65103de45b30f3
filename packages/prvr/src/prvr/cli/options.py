"""The application that every command registers with, and the options that several commands share."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
    validators,
)

import prvr
from prvr.cli.console import CommandError, imported, printing_to_stderr, stdout
from prvr.errors import import_named

MODELS = Group("Train and evaluate models", sort_key=1)
CORPORA = Group("Prepare data", sort_key=2)
EVERYWHERE = Group("Global options", sort_key=9)
"""The sections of `prvr --help`."""

_HELP = """\
Train and evaluate models for partially relevant video retrieval, and search videos with them.

Exit codes: 0 success; 1 a bug in prvr, or a library that is damaged or cannot be written; 2 an error in the \
arguments, the configuration or the data; 130 interrupted (Ctrl-C); 141 output pipe closed (`prvr presets | head`); \
143 terminated (SIGTERM) during training, after the state was saved.
"""
_TEXTS = (str, str | None)
_RAISE: dict[str, Any] = {"exit_on_error": False, "print_error": False}
_KEY = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)


def _shown_default(value: Any) -> str | None:
    return None if value is None or value is False or value in ([], ()) else str(value)


def _versions() -> str:
    """The versions of the four packages, which go together."""
    lines = [f"prvr {prvr.__version__}"]
    for name in ("prvr-search", "lorentz-nn", "regdiff"):
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "\n".join(lines)


app = App(
    name="prvr",
    help=_HELP,
    help_format="markdown",
    version=_versions,
    version_format="plaintext",
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=_shown_default),
)
"""The application; a command is a function under `@app.command`."""


def bind(words: Sequence[str]) -> "partial[int | None]":
    """The command that the words name, with its arguments.

    Words such as `--train.epochs 3` are keys of a configuration. A command that takes them has an argument `keys`.

    Args:
        words: the words after `prvr`.

    Raises:
        CommandError: the words cannot be parsed, or name a group of commands.
    """
    rest, keys = _split_keys(words)
    try:
        command, bound, ignored = app.parse_args(rest, console=stdout(), **_RAISE)
        if "keys" in ignored:
            bound.arguments["keys"] = keys
        elif keys:
            app.parse_args(words, **_RAISE)  # refuses them
    except CycloptsError as error:
        raise usage_error(error) from error
    if command.__name__ == "help_print":
        if not {"--help", "-h"}.intersection(words):
            group = " ".join(words)
            raise CommandError(f"expected a command after `prvr {group}`. See prvr {group} --help.")
        if "train" in words:
            app["train"].help_epilogue = keys_help()
    return partial(command, *bound.args, **bound.kwargs)


def usage_error(error: CycloptsError) -> CommandError:
    """The message for words that cannot be parsed: what is wrong with them, and where help is."""
    from pydantic import ValidationError

    message = str(error)
    if isinstance(error, UnknownOptionError) and error.command_chain == ("train",) and not message.endswith("?"):
        from prvr.config import config_leaves, similar_keys

        close = [
            f"--{key}"
            for key in similar_keys((error.token.keyword or error.token.value).strip("-"), config_leaves(prvr.Config))
        ]
        message = message.rstrip(".") + f"; did you mean {' or '.join(close)}?" * bool(close)
    if isinstance(error, UnusedCliTokensError):
        message = f"unexpected argument {(error.unused_tokens or [''])[0]}"
    if isinstance(error.__cause__, ValidationError):  # of settings that pydantic checks
        problems = [(problem["loc"][0], problem["msg"], problem["input"]) for problem in error.__cause__.errors()]
        message = "; ".join(f"--{name}: {text}, got {value!r}" for name, text, value in problems)
    if isinstance(error, MissingArgumentError) and error.keyword and error.argument is not None:
        value = (error.argument.parameter.metavar or "a value").replace("|", " or ")
        message = f"{error.keyword}: expected {value} after it"
    message = re.sub(r'^Command "[^"]*" parameter (\S+) requires an argument', r"\1 is required", message)
    stop = "" if message.endswith(("?", ".")) else "."
    command = " ".join(["prvr", *(error.command_chain or ())])
    return CommandError(f"{message}{stop} See {command} --help.")


def _split_keys(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without the keys of a configuration, and these keys with their values."""
    rest, keys, position = list[str](), dict[str, str](), 0
    while position < len(words):
        match = _KEY.fullmatch(words[position])
        if words[position] == "--":
            return [*rest, *words[position:]], keys
        if words[position] == "-" and rest and re.fullmatch("--[a-z]+", rest[-1]):
            rest[-1] += "=-"  # cyclopts takes a bare - for an option
        elif match is None:
            rest.append(words[position])
        elif match[2] is not None:
            keys[match[1]] = match[2]
        elif position + 1 < len(words):
            position += 1
            keys[match[1]] = words[position]
        else:
            raise CommandError(f"{words[position]}: expected a value after it.")
        position += 1
    return rest, keys


def _whole(text: str) -> int:
    try:
        return int(text)  # cyclopts would round 1.5
    except ValueError as error:
        raise ValueError(f"expected a whole number, got {text!r}") from error


def parsed_by(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """The parameter of an option whose one word a function parses."""
    return Parameter(converter=lambda _, tokens: parse(tokens[0].value), n_tokens=1, metavar=metavar)


Whole = Annotated[int, parsed_by(_whole, "N")]
Count = Annotated[Whole, Parameter(validator=validators.Number(gte=1))]
PictureFile = Annotated[
    Path, Parameter(validator=validators.Path(ext=("png", "pdf", "svg"), dir_okay=False), metavar="FILE.png")
]
Several = Parameter(consume_multiple=True)
"""Of an option that takes all values up to the next option."""
Keys = Annotated[dict[str, str], Parameter(parse=False)]
"""The keys of a configuration on the command line, by their dotted names."""
System = Annotated[
    str,
    Parameter(
        help="a run of `prvr train`, a folder written by save_pretrained, a pipeline (a folder or a YAML file), or "
        "toy-world, the model that ships with prvr"
    ),
]
Stages = Annotated[
    list[str],
    Parameter(
        name="--stage",
        metavar="KIND[:RUN][,KEY=VALUE]",
        help="a stage that re-scores the ranking, for example `qb_norm` or `diffusion:runs/reranker-1,top_k=50`; "
        "can be repeated",
    ),
]
Name = Annotated[str | None, Parameter(metavar="NAME")]
Split = Annotated[
    str | None, Parameter(metavar="NAME", help="the split (default: the one that the configuration reports)")
]
DataRoot = Annotated[str | None, Parameter(metavar="ROOT", help="the folder of the corpora (default: that of the run)")]
Collection = Annotated[str | None, Parameter(metavar="NAME", help="the corpus (default: the one of the configuration)")]
Preset = Annotated[
    str | None, Parameter(metavar="NAME", help="a preset that reads the same data, if the model has no config.yaml")
]
Transfer = Annotated[
    list[str],
    Several,
    Parameter(metavar="ROOT/COLLECTION", help="also evaluate on these corpora, on which the model was not trained"),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="the device; auto uses a GPU if there is one")]
Seed = Annotated[Whole, Parameter(help="the random seed")]
Threads = Annotated[
    Count | None, Parameter(help="number of CPU threads; 1 is fastest for small models on a busy machine")
]


def keys_help() -> str:
    """The keys of the configuration, as the end of a help page."""
    from prvr.config import config_leaves

    lines = "\n".join(f"--{key} {_metavar(kind)}" for key, kind in config_leaves(prvr.Config).items() if "." in key)
    return f"Keys of the configuration (`prvr presets NAME --resolved` prints their values):\n```text\n{lines}\n```"


def _metavar(kind: Any) -> str:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    return (
        f"{{{','.join(map(str, choices))}}}"
        if choices
        else {int: "N", float: "X", bool: "{true,false}"}.get(getattr(kind, "__origin__", kind), "VALUE")
    )


def parsed_keys(keys: Mapping[str, str], **shortcuts: str | None) -> dict[str, Any]:
    """The keys of the command line with their values, which are written as YAML; texts are taken as they are.

    Args:
        keys: as `bind` gives them.
        shortcuts: values of further keys, whose dots are written as two underscores; None leaves a key out.

    Raises:
        prvr.ConfigError: a value is not YAML.

    Examples:
        >>> parsed_keys({"train.precision": "no", "train.epochs": "3"}, data__root="a: b", data__feature=None)
        {'data.root': 'a: b', 'train.precision': 'no', 'train.epochs': 3}
    """
    from prvr.config import config_leaves, yaml_value

    kinds = config_leaves(prvr.Config).items()
    texts = {key for key, kind in kinds if get_origin(kind) is Literal or kind in _TEXTS}
    values = {key.replace("__", "."): value for key, value in shortcuts.items() if value is not None} | dict(keys)
    return {
        key: value if key in texts and value != "null" else yaml_value(value, f"--{key}")
        for key, value in values.items()
    }


def import_parts(names: Iterable[str]) -> None:
    """Imports modules of parts from Python's path or the working folder.

    Args:
        names: modules, or names that installed packages give theirs as entry points of the group `prvr.parts`.

    Raises:
        CommandError: there is no such module. Whatever a module itself raises is passed on.
    """
    from prvr.config import module_of

    for name in names:
        module = module_of(name)
        try:
            with printing_to_stderr():
                import_named(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # a module that it imports is missing
            raise CommandError(
                f"--import {name}: no such module. Install it, add its folder to PYTHONPATH, or run in its folder."
            ) from error


def import_listed(file: str, any_of: frozenset[str] = frozenset()) -> None:
    """Imports the modules that a configuration or a table of the user, a YAML file, lists under `imports`.

    Not those of a `config.yaml`: runs and pipelines have files of this name, and they may come from elsewhere.

    Args:
        file: the path, or the name of what comes with prvr.
        any_of: keys of which one has to be there, or the file is of another kind.
    """
    path = Path(file)
    if path.suffix not in (".yaml", ".yml") or path.stem == "config":
        return
    from prvr.config import ConfigError, read_yaml_file

    values = {}
    with suppress(ConfigError):  # the command says what is wrong with its file
        values = read_yaml_file(path)
    names = values.get("imports")
    if isinstance(names, list) and (not any_of or values.keys() & any_of):
        names = [name for name in names if isinstance(name, str)]
        import_parts(names)
        imported.extend(names)


def chosen_config(preset: str | None, config: str | None, keys: Mapping[str, Any]) -> "prvr.Config":
    """The configuration that `--preset` or `--config` names, with some keys changed.

    Raises:
        CommandError: both or none of them are given.
        prvr.ConfigError: an unknown preset or key, or a bad value.
    """
    if preset is not None and config is not None:
        raise CommandError(
            "--preset and --config exclude each other. Use one, and change single keys with --KEY VALUE."
        )
    if config is not None and Path(config).suffix not in (".yaml", ".yml"):
        raise CommandError(f"--config {config}: expected a file that ends in .yaml. Name a preset with --preset.")
    source = preset or config
    if source is None:
        raise CommandError("Use --preset or --config. `prvr presets` lists the presets.")
    return prvr.load_config(source, keys)
