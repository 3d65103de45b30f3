"""Where runs and models lie."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.models import AnyRetriever

__all__ = ["QB_BETA", "fresh_folder", "latest_run", "load_retriever", "model_folder", "report_file", "variant_parts"]

QB_BETA = 20.0
"""The default of `--qb-beta`."""


@contextmanager
def fresh_folder(stem: Path, first: Path | None = None) -> Iterator[Path]:
    """Claims the first of `first`, `stem`-1, `stem`-2, ... that nobody has; taken away again if nothing is put in.

    Args:
        stem: of the numbered names.
        first: a name without a number that is tried before them.
    """
    numbered = (stem.with_name(f"{stem.name}-{number}") for number in range(1, 10_000))
    for path in chain(() if first is None else (first,), numbered):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        break
    else:
        raise CommandError(f"{stem}-1 to {stem}-9999 are all taken: name a folder with --output.")
    try:
        yield path
    finally:
        from prvr.data.files import LOCK  # here, because it brings torch

        if {one.name for one in path.iterdir()} <= {LOCK}:
            (path / LOCK).unlink(missing_ok=True)
            path.rmdir()


def latest_run(stem: Path) -> Path:
    """The `stem`-N with the highest number.

    Raises:
        CommandError: there is none.
    """
    found = [p for p in stem.parent.glob(f"{stem.name}-*") if p.name[len(stem.name) + 1 :].isdigit() and p.is_dir()]
    if not found:
        raise CommandError(f"{stem}-N: there is no such run to resume. Name its folder with --output.")
    return max(found, key=lambda p: int(p.name[len(stem.name) + 1 :]))


def model_folder(path: Path) -> tuple[Path, Path | None]:
    """The folder of the weights and the `config.yaml` that goes with them, for a run folder or a model folder.

    Raises:
        CommandError: it is neither.
    """
    if not path.is_dir():
        raise CommandError(f"{path}: no such folder. Expected a run of `prvr train` or a folder of save_pretrained.")
    weights = next((p for p in (path, path / "best") if (p / "model.safetensors").is_file()), None)
    if weights is None:
        raise CommandError(
            f"{path}: neither a run nor a model: there is no model.safetensors in it or in its best/. "
            "Train at least one epoch, or name another folder."
        )
    beside = [weights / "config.yaml"] + ([weights.parent / "config.yaml"] if weights.name == "best" else [])
    return weights, next((p for p in beside if p.is_file()), None)


def report_file(args: Namespace, trained: Config, asked: Config, split: str, of: Sequence[str] = ()) -> Path:
    """Where `prvr evaluate` writes: `--json`, or a file in the run that names whatever is not the usual.

    Args:
        args: `run`, `json` and `ties`.
        trained: configuration of the run.
        asked: the same with the data that were asked for.
        split: that was ranked.
        of: what was put on top of the retriever, with the options that change it.
    """
    if args.json is not None:
        target = Path(args.json)
    else:
        parts = ["evaluation", *of, *[asked.data.collection] * (asked.data.collection != trained.data.collection)]
        parts += [split] * (split != asked.data.eval_split) + [args.ties] * (args.ties != "worst")
        target = Path(args.run) / ("_".join(parts) + ".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def variant_parts(args: Namespace, name: str) -> list[str]:
    """What the file of a way of ranking is called for: its parts, the run of the re-ranker, and the options given.

    Args:
        args: the options of `--rerank` and `--qb-norm`.
        name: retriever, QB-Norm, re-ranked, or both.

    Example:
        >>> given = Namespace(rerank="runs/r-1/best", top=5, steps=None, weight=None, rerank_seed=0, qb_beta=20.0)
        >>> variant_parts(given, "QB-Norm, re-ranked"), variant_parts(given, "retriever")
        (['rerank', 'r-1', 'top5', 'qbnorm'], ['retriever'])
    """
    parts = []
    if "re-ranked" in name:
        run = Path(args.rerank).resolve()
        given = {"top": args.top, "steps": args.steps, "weight": args.weight, "seed": args.rerank_seed or None}
        parts += ["rerank", run.parent.name if run.name == "best" else run.name]
        parts += [f"{key}{value}" for key, value in given.items() if value is not None]
    if "QB-Norm" in name:
        parts += ["qbnorm", *[f"beta{args.qb_beta}"] * (args.qb_beta != QB_BETA)]
    return parts or ["retriever"]


def load_retriever(weights: Path) -> "AnyRetriever":
    """A retriever from a folder of `save_pretrained`.

    Raises:
        prvr.data.DataError: its files are damaged or do not belong together.
    """
    from prvr.models import load_pretrained

    return load_pretrained(weights)
