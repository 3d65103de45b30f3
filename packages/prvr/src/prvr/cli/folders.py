"""What commands open: run folders, the corpus of a run, the device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, progress_bar

if TYPE_CHECKING:
    from prvr.config import Config
    from prvr.data import Corpus


@contextmanager
def fresh_folder(stem: Path, first: Path | None = None) -> Iterator[Path]:
    """Creates the first of `first`, `stem`-1, `stem`-2, ... that does not exist; removes it again if it stays empty.

    Args:
        stem: the path before the number.
        first: a name without a number, tried before them.
    """
    numbered = (stem.with_name(f"{stem.name}-{number}") for number in range(1, 10_000))
    for path in chain(() if first is None else (first,), numbered):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        break
    else:
        raise CommandError(f"{stem}-1 to {stem}-9999 already exist. Name another folder with --output.")
    try:
        yield path
    finally:
        from prvr.data.atomic import LOCK  # here, because it brings torch

        if {file.name for file in path.iterdir()} <= {LOCK}:
            (path / LOCK).unlink(missing_ok=True)
            path.rmdir()


def latest_run(stem: Path) -> Path:
    """The `stem`-N with the highest number.

    Raises:
        CommandError: there is none.
    """
    runs = [p for p in stem.parent.glob(f"{stem.name}-*") if p.name[len(stem.name) + 1 :].isdigit() and p.is_dir()]
    if not runs:
        raise CommandError(f"{stem}-N: no run to resume. Name its folder with --output.")
    return max(runs, key=lambda p: int(p.name[len(stem.name) + 1 :]))


def chosen_data(preset: str | None, file: Path | None, name: Path | str, keys: Mapping[str, Any]) -> "Config":
    """The configuration that says which data are read, with some keys changed.

    Args:
        preset: `--preset`, which replaces the file.
        file: `config.yaml` of the run, if there is one.
        name: the name of the model, for the message.
        keys: dotted keys and their values.

    Raises:
        CommandError: there is neither a preset nor a config.yaml.
    """
    from prvr.config import load_config

    source = preset or file
    if source is None:
        raise CommandError(
            f"{name}: config.yaml is missing, which says what data this model reads. Name a preset that reads the same "
            "data with --preset."
        )
    return load_config(source, keys)


def open_corpus_of(config: "Config") -> "Corpus":
    """The corpus of a run; a toy corpus that is not in the cache yet is made, with a progress bar.

    Raises:
        prvr.training.TrainingError: `data.root` is missing, and the collection is none that prvr makes.
        prvr.data.DataError: the files are missing or damaged, or the disk is full.
    """
    from prvr.training.splits import run_corpus

    with progress_bar(f"making {config.data.collection}, once") as progress:
        return run_corpus(config, progress)


def check_corpus(corpus: "Corpus") -> None:
    """Reads what commands read of a corpus after a training, so that damage is found before it.

    Raises:
        prvr.data.DataError: `corpus.json` or the list of its videos cannot be read, or it is a toy corpus of another
            version.
    """
    from prvr.corpora.caption_corpus import videos_folder
    from prvr.corpora.corpus_encoders import corpus_encoders

    for read in (corpus_encoders, videos_folder):
        read(corpus)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Limits torch to so many threads for a while; None leaves its choice, one per core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(name: str) -> Any:
    """Calls `prvr.data.on_device.choose_device`, whose import of torch takes time."""
    from prvr.data.on_device import choose_device

    return choose_device(name)
