"""`prvr convert`: checkpoints of the authors' code as a folder for `from_pretrained`; the other kinds stand beside."""

import shutil
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli import benchmark, captions
from prvr.cli.console import CommandError, stdout
from prvr.cli.options import Parser, one_of
from prvr.config import Config, dump_config, load_config

if TYPE_CHECKING:
    from prvr.models import Retriever
    from prvr.objective import Objective

DATASETS = ("tvr", "activitynet", "charades")
_CARD = """---
library_name: prvr
tags:
- partially-relevant-video-retrieval
- text-to-video-retrieval
---

# {name}

Converted from `{source}`, a checkpoint of the authors' code of {system}, made for `{dataset}`: {video_dim}-wide frame
features, {query_dim}-wide word features. Its parts are those of the released code, numerical habits included.

```python
from prvr.models import Retriever

retriever = Retriever.from_pretrained("path/to/this/folder")
```

`prvr evaluate FOLDER --data-root ROOT` scores it. `objective.safetensors` holds the parameters of the losses, which
retrieval does not need.
"""


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "convert",
        "Convert released checkpoints, captions or benchmarks",
        "Convert released checkpoints, your own captions or public benchmarks into what the other commands read.",
    )
    parser = group.command(
        "checkpoint",
        run,
        "Convert a checkpoint of the authors' code",
        "FILE --dataset NAME --out DIR",
        "Convert a checkpoint of HLFormer, DreamPRVR or GMMFormer, as the authors' code saves it, into a folder that "
        "`Retriever.from_pretrained` and `prvr evaluate` read.",
    )
    parser.add_argument("file", metavar="FILE", help="the checkpoint, for example best.ckpt")
    parser.add_argument("--dataset", required=True, **one_of(*DATASETS), help="the data set that it was trained on")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, new or empty")
    captions.register(group)
    benchmark.register(group)


def run(args: Namespace) -> None:
    """Converts a checkpoint and says how to evaluate it."""
    found = convert_checkpoint(Path(args.file), args.dataset, Path(args.out))
    parameters = sum(p.numel() for p in found.retriever.parameters())
    stdout().print(
        f"{args.out}: {found.system}, {parameters:,} parameters, configuration {found.source}.\n"
        f"Evaluate it: prvr evaluate {args.out} --data-root ROOT",
        markup=False,
        soft_wrap=True,
    )


@dataclass(frozen=True)
class Converted:
    """What a checkpoint became."""

    retriever: "Retriever"
    objective: "Objective"
    config: Config
    system: str
    source: str
    """Where the configuration is from, for people."""


def convert_checkpoint(file: Path, dataset: str, out: Path) -> Converted:
    """Reads a checkpoint of the authors' code and writes `out`, whole or not at all.

    `out` gets the retriever as `save_pretrained` writes it, `objective.safetensors`, and a `config.yaml` with the
    preset of the data set around the model and the losses of the checkpoint.

    Args:
        file: with a dictionary as described in `read_checkpoint`.
        dataset: "tvr", "activitynet" or "charades".
        out: a folder that is new or empty.

    Raises:
        CommandError: the file holds something else, is of another data set, or `out` is taken.
        prvr.released.CheckpointError: the tensors are not those of one of the three systems.
    """
    from prvr.cli.checkpoint import published_config, read_checkpoint
    from prvr.released import CheckpointError, load_released
    from prvr.released.checkpoint import system_of

    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise CommandError(f"--out {out}: already holds something. Name a new folder.")
    state, theirs = read_checkpoint(file)
    collection = theirs.get("collection", dataset)
    if collection in DATASETS and collection != dataset:
        raise CommandError(f"{file}: was trained on {collection}, but --dataset says {dataset}.")
    try:
        system = system_of(state, theirs)
        preset = load_config(f"{system.removesuffix('_Net').lower()}-{dataset}")
        retriever, objective = load_released(state, published_config(system, preset, state) | theirs)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error
    config = replace(preset, model=retriever.config, loss=objective.config)
    source = "from the checkpoint" if theirs else f"as published ({preset.name}), sizes from the tensors"
    converted = Converted(retriever, objective, config, system.removesuffix("_Net"), source)
    _write(converted, out, file.name, dataset)
    return converted


def _write(converted: Converted, out: Path, source: str, dataset: str) -> None:
    from safetensors.torch import save_file

    from prvr.data.files import publish, temporary_folder

    config = converted.config
    card = _CARD.format(
        name=config.name,
        source=source,
        system=converted.system,
        dataset=dataset,
        video_dim=config.model.video_dim,
        query_dim=config.model.query_dim,
    )
    with temporary_folder(out) as folder:
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8", newline="\n")
        converted.retriever.save_pretrained(folder)  # keeps a README.md that is there
        tensors = {name: t.detach().contiguous() for name, t in converted.objective.state_dict().items()}
        save_file(tensors, folder / "objective.safetensors")
        for file in folder.glob("*.safetensors"):
            shutil.copymode(folder / "README.md", file)  # safetensors makes them private to the user
        if out.is_dir():
            out.rmdir()  # empty, or it would have been refused
        if not publish(folder, out, is_good=lambda _: True):
            raise CommandError(f"--out {out}: another process has just made it. Name a new folder.")
