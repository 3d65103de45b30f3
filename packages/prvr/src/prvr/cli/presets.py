"""`prvr presets`: the configurations that ship with prvr."""

from itertools import takewhile
from pathlib import Path

import prvr
from prvr.cli.console import CommandError
from prvr.cli.options import MODELS, app
from prvr.extensions import extensions
from prvr.reading import read_text


@app.command(group=MODELS)
def presets(name: str | None = None, /, *, resolved: bool = False) -> None:
    """List the presets, or print one.

    Args:
        name: the preset, or the .yaml file, to print: its base, and what it changes of it
        resolved: print every key of it, with the defaults
    """
    from prvr.config import preset_text

    if name is not None:
        is_file = name.endswith((".yaml", ".yml"))
        print(_resolved(name) if resolved else read_text(Path(name)) if is_file else preset_text(name), end="")
        return
    if resolved:
        raise CommandError("--resolved: name the preset to print.")
    for preset in [*prvr.preset_names(), *prvr.preset_names("rerankers")]:
        comments = list(takewhile(lambda line: line.startswith("#"), preset_text(preset).splitlines()))
        print(preset, *(f"    {line.lstrip('# ')}" for line in comments[1:]), sep="\n")  # the first is the command


def _resolved(name: str) -> str:
    from prvr.config import dump_config

    for resolve in extensions("presets", others=False):
        if (values := resolve(name)) is not None:
            return dump_config(values)
    return dump_config(prvr.load_config(name))
