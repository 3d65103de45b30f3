"""`prvr evaluate RUN --transfer ...`: one model on the corpus it was trained on and on others."""

import logging
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.console import CommandError, stdout
from prvr.cli.reports import name_parts
from prvr.config import Config

if TYPE_CHECKING:
    from prvr.evaluation.report import EvaluationReport
    from prvr.evaluation.transfer import Domain
    from prvr.pipeline import System

__all__ = ["show_transfer"]

logger = logging.getLogger(__name__)

Evaluate = Callable[[Namespace, "System", Config, str], "Mapping[str, EvaluationReport]"]


def show_transfer(args: Namespace, trained: Config, system: "System", evaluate: Evaluate) -> None:
    """Evaluates on the source and on each target, prints one table, and writes a file for each.

    Args:
        args: of the command.
        trained: the configuration of the run.
        system: the model, or the pipeline.
        evaluate: a function of (args, system, configuration, split) that returns reports by name, first that of the
            first stage alone.
    """
    from prvr.evaluation.transfer import Domain, corpus_on_disk, target_config, transfer_table

    if args.json is not None:
        raise CommandError("--json: --transfer writes a file for each target into RUN. Leave --json out.")
    folders = [Path(target).expanduser() for target in args.transfer]
    if len(set(folders)) < len(folders):
        raise CommandError(f"--transfer {' '.join(args.transfer)}: a corpus is named twice.")
    chosen = [target_config(trained, folder, args.split) for folder in folders]  # all, before any is evaluated
    split = args.split or trained.data.eval_split
    at_hand = trained.data.root is None or corpus_on_disk(trained) is not None
    name = f"{trained.data.collection} {split}"
    sources = _domains(name, evaluate(args, system, trained, split)) if at_hand else [Domain(name, None)]
    if not at_hand:
        logger.warning(
            "%s: %s does not exist, so the source is not scored.", trained.data.root, trained.data.collection
        )
    targets, files = [], []
    for folder, (config, split) in zip(folders, chosen, strict=True):
        label = _label(folder, folders)
        reports = evaluate(args, system, config, split)
        targets += _domains(f"{label} {split}", reports)
        for report, added in zip(reports.values(), name_parts(args.stage, len(reports)), strict=True):
            parts = ["evaluation_on", label.replace("/", "-"), split, *(added if len(reports) > 1 else [])]
            parts += [args.ties] * (args.ties != "worst")
            files.append(system.folder / f"{'_'.join(parts)}.json")
            report.to_json(files[-1])
    console = stdout()
    console.print()
    console.print(transfer_table(sources, targets))
    console.print()
    for file in files:
        print(f"{file}: these numbers and both directions")


def _domains(name: str, reports: "Mapping[str, EvaluationReport]") -> "list[Domain]":
    """A row for each report, named after its variant if there are several."""
    from prvr.evaluation.transfer import Domain

    return [Domain(f"{name}, {of}" if len(reports) > 1 else name, report) for of, report in reports.items()]


def _label(folder: Path, all_folders: Sequence[Path]) -> str:
    """The name of a corpus, with that of its parent folder if another corpus has the same name."""
    alone = sum(other.name == folder.name for other in all_folders) == 1
    return folder.name if alone else f"{folder.parent.name}/{folder.name}"
