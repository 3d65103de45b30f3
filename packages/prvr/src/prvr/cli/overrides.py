"""Every key of a configuration as a dotted option: `--preset hlformer-tvr --optim.lr 1e-4`."""

import json
from pathlib import Path
from typing import Any

from jsonargparse import SUPPRESS, ArgumentParser, Namespace

from prvr.cli.console import CommandError
from prvr.config import Config, config_leaves, load_config

__all__ = ["add_config_options", "chosen_config", "overrides"]


def add_config_options(parser: ArgumentParser) -> None:
    """Adds `--preset`, `--config`, `--data-root` and an option for every key."""
    parser.add_argument("--preset", metavar="NAME", help="one of `prvr presets`")
    parser.add_argument("--config", metavar="FILE.yaml", help="a configuration of your own, instead of a preset")
    parser.add_argument("--data-root", metavar="ROOT", help="folder that holds the corpus; short for --data.root")
    group = parser.add_argument_group("any key of the configuration (values of a preset: prvr presets NAME)")
    for key, kind in config_leaves(Config).items():
        group.add_argument(f"--{key}", type=kind, default=SUPPRESS)


def overrides(args: Namespace) -> dict[str, Any]:
    """The keys of the configuration that stand on the command line.

    Raises:
        CommandError: the folder of the data is given twice.
    """
    known, given = config_leaves(Config), {}
    for key, value in args.items():
        if key in known:
            # load_config reads strings as YAML ("no" would be False there); these have their type already.
            given[key] = json.dumps(value) if isinstance(value, str) else _plain(value)
    if args.get("data_root") is not None:
        if "data.root" in given:
            raise CommandError("--data-root and --data.root are the same: give one of them.")
        given["data.root"] = json.dumps(args.data_root)
    return given


def _plain(value: Any) -> Any:
    if isinstance(value, Namespace):
        return value.as_dict()
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def chosen_config(args: Namespace, default: str | Path | None = None) -> Config:
    """The preset or file that was named, with its overrides.

    Args:
        args: of a parser with `add_config_options`.
        default: what to read where neither is named.

    Raises:
        CommandError: both are named, or none and there is no default.
        prvr.ConfigError: an unknown preset or key, or a bad value.
    """
    if args.preset is not None and args.config is not None:
        raise CommandError("--preset and --config are both given: use one, and change single keys by --KEY VALUE.")
    if args.config is not None and Path(args.config).suffix not in (".yaml", ".yml"):
        raise CommandError(f"--config {args.config}: expected a file that ends in .yaml; a preset's name is --preset.")
    source = args.preset or args.config or default
    if source is None:
        raise CommandError("neither --preset nor --config is given. `prvr presets` lists the presets.")
    return load_config(source, overrides(args))
