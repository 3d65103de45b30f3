"""What the documentation has from the code: commands, configuration, losses, encoders, tables of papers and errors.

MkDocs calls it when it builds the site (`hooks` in mkdocs.yml). The page of the command line is made whole, and tables
where a page says `<!-- table: NAME -->`; they are in no other place. A key of the configuration or an error without a
sentence ends the build. `python scripts/reference.py NAME` prints one.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

import prvr
import prvr_search
from prvr.cli import add_commands, app
from prvr.config import LOSSES
from prvr.config.load import records_of
from prvr.config.losses import BATCH_NEEDS, NEEDS, LossConfig
from prvr.config.registry import Registry
from prvr.encoders import ENCODERS
from prvr.errors import PrvrError
from prvr.papers import read_table, table_names
from prvr.published.diffusionret.run_config import RerankerRunConfig

ROOT = Path(__file__).resolve().parent.parent


def commands() -> str:
    """The help of every command."""
    add_commands()
    return app.generate_docs(flatten_commands=True).replace("# prvr", "# Command line", 1)


# --- configuration ----------------------------------------------------------------------------------------------------


@cache
def sentences(record: type) -> dict[str, str]:
    """The text below each field of a class and of those that it derives from."""
    found: dict[str, str] = {}
    for kind in reversed(record.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(text.value.value)  # type: ignore[union-attr]
    return found


def registry_of(marks: list[Any]) -> Registry[Any] | None:
    """The registry whose names a value may have, by the marks of its field."""
    cells = [cell for mark in marks for cell in (getattr(getattr(mark, "func", None), "__closure__", None) or ())]
    return next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, Registry)), None)


def allowed(kind: Any, marks: list[Any]) -> str:
    """The values of a type, in the words of the configuration."""
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        return allowed(kind, [*more, *marks])
    if registry := registry_of(marks):
        return ", ".join(f"`{name}`" for name in registry.names)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(allowed(one, marks if number == 0 else []) for number, one in enumerate(get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {allowed(get_args(kind)[0], [])}"
    marks = [inner for mark in marks for inner in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    limits = [f"{sign} {getattr(mark, name)}" for mark in marks for name, sign in signs.items() if hasattr(mark, name)]
    names = {str: "text", bool: "true, false", NoneType: "null"}
    return " ".join([names.get(kind, getattr(kind, "__name__", str(kind))), ", ".join(limits)]).strip()


def shown(default: Any) -> str:
    if isinstance(default, FieldInfo):
        default = default.get_default(call_default_factory=True)
    if default is dataclasses.MISSING or repr(default) == "PydanticUndefined":
        return "required"
    return "null" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def keys(record: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, allowed values, default and meaning of every value of a record."""
    if record is LossConfig:
        for entry in LOSSES:
            yield from keys(entry.settings, f"{prefix}{entry.name}.")
        return
    for field in dataclasses.fields(record):
        inside, key = records_of(field.type), prefix + field.name
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if inside:
            for kind in inside:
                yield from keys(kind, f"{key}.")
        elif "." in key:
            meaning = [sentences(record).get(field.name, "")]
            if registry := registry_of(list(getattr(field.type, "__metadata__", ()))):
                said = [entry for entry in registry if f"{entry.name}: " not in meaning[0]]
                meaning += [f"`{entry.name}`: {entry.description}" for entry in said]
            marks = default.metadata if isinstance(default, FieldInfo) else []
            yield key, allowed(field.type, marks), shown(default), " ".join(" ".join(meaning).split())


def configuration() -> str:
    """A table per section: each key with its values, its default and what it means."""
    text = []
    rows: dict[str, tuple[str, str, str]] = {}
    for record in (prvr.Config, RerankerRunConfig):
        for key, values, default, meaning in keys(record):
            if key not in rows or not rows[key][2]:
                rows[key] = values, default, meaning
    missing = [key for key, row in rows.items() if not row[2]]
    if missing:
        raise SystemExit(f"configuration keys without a sentence below their field: {', '.join(missing)}")
    sections = dict.fromkeys(
        ".".join(key.split(".")[:2] if key.startswith("loss.") else key.split(".")[:1]) for key in rows
    )
    for section in sections:
        text += [
            f"## {section}",
            "",
            *([LOSSES[section.removeprefix("loss.")].description, ""] if "." in section else []),
        ]
        text += ["| key | values | default | meaning |", "|---|---|---|---|"]
        for key, row in rows.items():
            if key.startswith(section + "."):
                text.append(f"| `{key}` | {' | '.join(cell.replace('|', '/') for cell in row)} |")
        text.append("")
    return "\n".join(text)


# --- losses, encoders, errors -----------------------------------------------------------------------------------------


def losses() -> str:
    """A table of the losses."""
    needs = NEEDS | BATCH_NEEDS | {"pooled": "one vector per query", "last_words": "words, one process"}
    text = ["| `loss.` | what it does | weight | needs |", "|---|---|---|---|"]
    for entry in LOSSES:
        wanted = "; ".join(needs.get(need, need) for need in entry.needs)
        text.append(
            f"| [`{entry.name}`](configuration.md#loss{entry.name}) | {entry.description} "
            f"| {entry.settings().weight:g} | {wanted} |"
        )
    return "\n".join([*text, ""])


def encoders() -> str:
    """A table of the encoders that features can be made with."""
    text = ["| `--encoder` | frames or clips | sentences | what it is |", "|---|---|---|---|"]
    for entry in ENCODERS:
        family = entry.part
        sides = ["yes" if side else "" for side in (family.frames, family.text)]
        name = f"{entry.name}:MODEL" if family.prefixed else entry.name
        text.append(f"| `{name}` | {' | '.join(sides)} | {entry.description} |")
    return "\n".join([*text, ""])


def first_paragraphs(text: str) -> str:
    """A docstring up to its sections, on one line."""
    return " ".join(re.split(r"\n\w+:\n", inspect.cleandoc(text))[0].split())


def errors() -> str:
    """A table of all error classes, with their causes and remedies."""
    text = ["| class | what it means, and what to do |", "|---|---|"]
    for package in (prvr, prvr_search):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, waiting = [], [PrvrError]
    while waiting:
        kind = waiting.pop(0)
        found.append(kind)
        waiting += sorted(kind.__subclasses__(), key=lambda each: each.__name__)
    for kind in dict.fromkeys(found):
        if kind.__module__.startswith(("prvr", "prvr_search")):
            if kind.__doc__ is None or "__doc__" not in vars(kind):
                raise SystemExit(f"{kind.__name__} has no docstring")
            text.append(f"| `{kind.__module__}.{kind.__name__}` | {first_paragraphs(kind.__doc__)} |")
    return "\n".join([*text, ""])


def papers() -> str:
    """A table of the tables and figures of papers that prvr runs."""
    text = ["| `prvr papers run` | paper | what |", "|---|---|---|"]
    for name in table_names():
        table = read_table(name)
        item = f"{table.paper.partition(' (')[0]} {table.item}".strip()
        text.append(f"| `{name}` | {item} | {table.title} |")
    return "\n".join([*text, ""])


def gpu() -> str:
    """A table of what a card measured, from the lines of the study."""
    text = ["| preset | precision | a step, s | the steps of an epoch, s | peak memory, GB |", "|---|---|---|---|---|"]
    preset = ""
    for line in (ROOT / "benchmarks" / "studies" / "h200.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        preset = found.get("preset", preset)
        if found.get("question") == "epoch":
            result, precision = found["result"], found["precision"].replace("no", "float32")
            seconds = f"{result['step_seconds']:.3f} | {result['epoch_seconds']:.1f}"
            text.append(f"| `{preset}` | {precision} | {seconds} | {result['peak_bytes'] / 1e9:.0f} |")
    return "\n".join([*text, ""])


TABLES = {
    "configuration": configuration,
    "losses": losses,
    "encoders": encoders,
    "errors": errors,
    "papers": papers,
    "gpu": gpu,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page of the command line, which has no text of its own."""
    files.append(File.generated(config, "cli.md", content=commands()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts tables where a page says `<!-- table: NAME -->`."""
    return re.sub(r"<!-- table: (\w+) -->", lambda match: TABLES[match[1]](), markdown)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(commands() if name == "cli" else TABLES[name]())
