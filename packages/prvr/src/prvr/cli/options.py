"""How commands declare their options, and what is said about arguments that cannot be read."""

import json
import re
import sys
from argparse import SUPPRESS, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prvr.cli.console import CommandError
from prvr.config import Config, config_leaves, load_config, yaml_value
from prvr.errors import unknown_name

Run = Callable[[Namespace], int | None]


def _numeric(kind: type[int] | type[float], expected: str) -> Callable[[str], Any]:
    """The type of an option that takes a number; other texts raise `ArgumentTypeError`."""

    def parse(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError as error:
            raise ArgumentTypeError(f"expected {expected}, got {text!r}") from error

    return parse


whole_number = _numeric(int, "a whole number")
number = _numeric(float, "a number")


def positive(text: str) -> int:
    """The type of an option that takes a whole number from 1.

    Raises:
        ArgumentTypeError: the text is something else.
    """
    value = whole_number(text)
    if value < 1:
        raise ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def seconds(text: str) -> float:
    """The type of an argument that takes a time or a duration: seconds, M:SS or H:MM:SS, with or without a fraction.

    Raises:
        ArgumentTypeError: the text is something else.

    Examples:
        >>> seconds("90"), seconds("12:30"), seconds("1:02:03.5")
        (90.0, 750.0, 3723.5)
    """
    if not re.fullmatch(r"\s*(\d{1,6}|(\d{1,4}:)?\d{1,4}:[0-5]\d)(\.\d{1,9})?\s*", text, re.ASCII):
        raise ArgumentTypeError(f"expected seconds, or a time like 12:30 or 1:02:03.5, got {text!r}")
    found = 0.0
    for part in text.split(":"):
        found = 60 * found + float(part)
    return found


def date(text: str) -> datetime:
    """The type of an option that takes a date, with or without a time; local, if it names no zone.

    Raises:
        ArgumentTypeError: the text is something else.

    Examples:
        >>> date("2026-03-01").isoformat()
        '2026-03-01T00:00:00'
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected a date like 2026-03-01 or 2026-03-01T18:30, got {text!r}") from error


def png_file(text: str) -> Path:
    """The type of an option that names a picture to write.

    Raises:
        ArgumentTypeError: the name ends otherwise, or is that of a folder.
    """
    path = Path(text)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ArgumentTypeError(f"expected a file that ends in .png, got {text!r}")
    return path


def quoted(text: str) -> str:
    """The type of an option for a text of the configuration: a YAML string, because a bare `no` would be False.

    Examples:
        >>> quoted("no"), quoted("null")
        ('"no"', 'null')
    """
    return text if text == "null" else json.dumps(text)


def one_of(*names: str) -> dict[str, Any]:
    """How an option that takes one of several names is declared.

    Examples:
        >>> one_of("worst", "mean", "best")["type"]("men")
        Traceback (most recent call last):
        ...
        argparse.ArgumentTypeError: unknown value 'men'; did you mean mean? Known: worst, mean, best
    """

    def name(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(unknown_name("value", text, names))
        return text

    return {"type": name, "metavar": f"{{{','.join(names)}}}"}


_SHARED: dict[str, dict[str, Any]] = {
    "index": {"metavar": "INDEX", "help": "the folder of the index"},
    "system": {
        "metavar": "SYSTEM",
        "help": "a run of `prvr train`, a folder of save_pretrained, a pipeline's folder, its YAML file, or a model "
        "that ships with prvr: toy-world",
    },
    "--data-root": {
        "dest": "data.root",
        "type": quoted,
        "default": SUPPRESS,
        "metavar": "ROOT",
        "help": "the folder that holds the corpus; by default, that of the run",
    },
    "--collection": {
        "dest": "data.collection",
        "type": quoted,
        "default": SUPPRESS,
        "metavar": "NAME",
        "help": "the corpus, if it is not the one of the configuration",
    },
    "--preset": {"metavar": "NAME", "help": "a preset of the same data, if RUN has no config.yaml"},
    "--stage": {
        "action": "append",
        "default": [],
        "metavar": "KIND[:RUN][,KEY=VALUE]",
        "help": "a stage that re-scores the ranking, for example `qb_norm` or `diffusion:runs/reranker-1,top_k=50`; "
        "repeat it for more stages",
    },
    "--split": {"help": "the split to use; by default, the one that the configuration reports"},
    "--device": {
        **one_of("auto", "cpu", "cuda"),
        "default": "auto",
        "help": "where to compute; `auto`, the default, takes a GPU if there is one",
    },
    "--seed": {"type": whole_number, "default": 0, "help": "the seed of all random numbers (default: 0)"},
    "--threads": {
        "type": positive,
        "metavar": "N",
        "help": "CPU threads; 1 is best for small models on a busy machine",
    },
    "--transfer": {
        "nargs": "+",
        "default": (),
        "metavar": "ROOT/COLLECTION",
        "help": "use these corpora too, on which the run was not trained",
    },
    "--store": {"required": True, "metavar": "STORE", "help": "the features that `prvr extract` wrote"},
    "--text": {
        "metavar": "ENCODER",
        "help": "the encoder of the sentences: a name on the Hugging Face hub, a folder, or MODULE:CLASS",
    },
    "--encoder": {"metavar": "NAME"},
    "--download": {
        "action": "store_true",
        "help": "download the encoder from the Hugging Face hub without asking, if it is not on this computer",
    },
    "--backend": {
        "default": "auto",
        "metavar": "NAME",
        "help": "what proposes candidates: exact, faiss, milvus or milvus:ADDRESS; `auto`, the default, goes by size",
    },
    "--size": {
        **one_of("tiny", "demo", "bench", "large"),
        "default": "demo",
        "help": "the size of the corpus: 100, 720 (default) or 2700 videos, or 500 more test videos (large)",
    },
}
"""Arguments that several commands take, declared once."""


class Parser(ArgumentParser):
    """The parser of one command, or of a group of commands.

    It raises `CommandError` where `ArgumentParser` would end the process, and understands no abbreviated options.
    """

    def __init__(self, **texts: Any) -> None:
        super().__init__(allow_abbrev=False, exit_on_error=False, **texts)
        self._commands: dict[str, Parser] = {}
        self._adding: Any = None
        self.accepts_keys = False
        """Whether unknown words are left in `Namespace.unknown`, as keys of a configuration that is read later."""

    def group(self, name: str, summary: str, description: str) -> "Parser":
        """Adds a command that has commands of its own.

        Args:
            name: the word that is typed.
            summary: its line in the list of commands.
            description: the paragraph in its own help.
        """
        return self._add(name, summary, usage=f"{self.prog} {name} COMMAND [OPTIONS]", description=description)

    def command(self, name: str, run: Run, summary: str, usage: str, description: str | None = None) -> "Parser":
        """Adds a command, with the options that every command has.

        Args:
            name: the word that is typed.
            run: what it does; returns the exit code, None for 0.
            summary: its line in the list of commands.
            usage: its arguments, after the name.
            description: the paragraph in its own help; by default the summary.
        """
        full = f"{self.prog} {name} {usage}".replace("\n", f"\n       {self.prog} {name} ")
        found = self._add(name, summary, usage=full, description=description or f"{summary}.")
        found.add_argument(
            "-v", "--verbose", action="count", default=0, help="show more of the log; -vv also shows tracebacks"
        )
        found.add_argument("-q", "--quiet", action="store_true", help="show results, warnings and errors only")
        found.set_defaults(execute=run, parser=found)
        return found

    def _add(self, name: str, summary: str, **texts: Any) -> "Parser":
        if self._adding is None:
            self._adding = self.add_subparsers(title="commands", metavar="COMMAND", prog=self.prog)
        self._commands[name] = self._adding.add_parser(name, help=summary, **texts)
        return self._commands[name]

    def shared(self, *names: str, **changes: Any) -> None:
        """Adds arguments that several commands have, such as `--device`.

        Args:
            names: the names under which this module declares them.
            changes: what differs from their declaration, for example another `help`.
        """
        for name in names:
            self.add_argument(name, **_SHARED[name] | changes)

    def option(self, *names: str, default: Any, help: str, **declaration: Any) -> None:
        """Adds an option with a default, which gives its type and is shown at the end of its help.

        Args:
            names: the words that are typed, for example `-k` and `--top`.
            default: a number or a text.
            help: what the option is for.
            declaration: further arguments of `add_argument`.
        """
        declaration.setdefault("type", {int: whole_number, float: number}.get(type(default), str))
        shown = f"{default:g}" if isinstance(default, float) else default
        self.add_argument(*names, default=default, help=f"{help} (default: {shown})", **declaration)

    def parse(self, words: Sequence[str]) -> Namespace:
        """The arguments of the command that was asked for; its function is `execute`.

        Raises:
            CommandError: they cannot be read.
        """
        args, unknown = self.parse_known_args(words)
        if unknown and not args.parser.accepts_keys:
            args.parser.refuse(unknown)
        args.unknown = unknown
        return args

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # what argparse calls for commands too
        """Parse the words of a command line; an unknown command is refused with the closest known one."""
        words = sys.argv[1:] if args is None else list(args)
        if self._commands and not words:
            self.error(f"expected a command, one of {', '.join(self._commands)}")
        if self._commands and words[0] not in self._commands and not words[0].startswith("-"):
            self.error(unknown_name("command", words[0], self._commands))
        try:
            return super().parse_known_args(words, namespace)
        except ArgumentError as error:
            self.error(f"{error.argument_name}: {error.message}" if error.argument_name else error.message)

    def refuse(self, words: Sequence[str]) -> None:
        """Explains words that the command does not have.

        Raises:
            CommandError: always.
        """
        options = [name for action in self._actions for name in action.option_strings]
        strange = next((word for word in words if word.startswith("-")), words[0])
        close = get_close_matches(strange.split("=")[0], options, n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        self.error(f"unknown argument {strange}{hint}")

    def error(self, message: str) -> Any:
        """Refuses the arguments.

        Raises:
            CommandError: always.
        """
        stop = "" if message.endswith("?") else "."
        raise CommandError(f"{message.rstrip('.')}{stop} See {self.prog} --help.")


_METAVARS = {int: "N", float: "X", bool: "{true,false}"}


def add_config_options(parser: Parser) -> None:
    """Adds `--preset`, `--config`, `--data-root` and an option for every key of the configuration."""
    parser.shared("--preset", help="the name of a preset; `prvr presets` lists them")
    parser.add_argument("--config", metavar="FILE.yaml", help="a configuration file, instead of a preset")
    parser.shared("--data-root", help="the folder that holds the corpus; the same as --data.root")
    group = parser.add_argument_group("keys of the configuration (`prvr presets NAME --resolved` prints their values)")
    for key, kind in config_leaves(Config).items():
        choice = get_origin(kind) is Literal
        group.add_argument(
            f"--{key}",
            type=quoted if choice or kind in (str, str | None) else str,
            metavar=f"{{{','.join(get_args(kind))}}}" if choice else _METAVARS.get(kind, "VALUE"),
            default=SUPPRESS,
        )


def overrides(args: Namespace) -> dict[str, Any]:
    """The keys of the configuration on the command line, with their values."""
    keys = config_leaves(Config)
    return parsed_keys({key: value for key, value in vars(args).items() if key in keys})


def parsed_keys(texts: Mapping[str, str]) -> dict[str, Any]:
    """The values of keys on the command line, which are written as YAML.

    Raises:
        prvr.ConfigError: a value is not YAML.
    """
    return {key: yaml_value(text, f"--{key}") for key, text in texts.items()}


def more_keys(args: Namespace) -> dict[str, str]:
    """The keys on the command line that no option declares, of a parser that `accepts_keys`, with values as YAML.

    Raises:
        CommandError: a word that is neither `--KEY VALUE` nor `--KEY=VALUE`.
    """
    found, words = dict[str, str](), iter(args.unknown)
    for word in words:
        name, equals, value = word.partition("=")
        given = value if equals else next(words, None)
        if not name.startswith("--") or given is None:
            args.parser.refuse([word])
        found[name.removeprefix("--")] = str(given)
    return found


def chosen_config(args: Namespace) -> Config:
    """The configuration that `--preset` or `--config` names, with its overrides.

    Raises:
        CommandError: both or none of them are given.
        prvr.ConfigError: an unknown preset or key, or a bad value.
    """
    if args.preset is not None and args.config is not None:
        raise CommandError("--preset and --config are both given: use one, and change single keys with --KEY VALUE.")
    if args.config is not None and Path(args.config).suffix not in (".yaml", ".yml"):
        raise CommandError(f"--config {args.config}: expected a file that ends in .yaml; a preset's name is --preset.")
    source = args.preset or args.config
    if source is None:
        raise CommandError("neither --preset nor --config is given. `prvr presets` lists the presets.")
    return load_config(source, overrides(args))
