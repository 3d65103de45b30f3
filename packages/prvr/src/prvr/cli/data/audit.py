"""`prvr data audit`: does the embedded corpus measure what it says it measures?"""

import logging
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import CommandError, device_of, leaf, stdout, threads
from prvr.cli.embedded import cached_corpus, collection_of
from prvr.cli.overrides import add_config_options, chosen_config, overrides
from prvr.config import Config

NAME = "audit"
HELP = "check the corpus against what it promises"
_MISSED = 1  # the exit code

logger = logging.getLogger(__name__)


def parser() -> ArgumentParser:
    """What it takes."""
    found = leaf(
        "prvr data audit [--data-root OUT] [--size demo] [--preset NAME] [--seeds 0 1 2] [--runs RUN ...] [--KEY X]",
        "Check the embedded corpus: its scene graphs, an oracle, chance, the joint encoder alone, models trained on it "
        "and on spoilt copies of it, each against its band. Exit code 1 if one is missed. Without --data-root: the "
        "corpus in the cache; without --preset: hybrid-embedded.",
    )
    found.add_argument("--size", default="demo", help="of the corpus: tiny, demo or bench")
    found.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="one training each")
    found.add_argument(
        "--runs", nargs="+", default=[], metavar="RUN", help="finished runs on this corpus: used as well"
    )
    found.add_argument(
        "--output", default="runs/audit", metavar="FOLDER", help="gets audit.json; its runs serve the next audit too"
    )
    found.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    add_config_options(found)
    return found


def run(args: Namespace) -> int:
    """Carries it out; gives the exit code."""
    config, folder = _config(args), Path(args.output)
    device = "cpu" if device_of(args.device).type == "cpu" else None
    from prvr.audit import audit, audit_table
    from prvr.data import open_corpus
    from prvr.training import no_progress, terminal_bar

    root = config.data.root
    corpus = cached_corpus(config, args.quiet) if root is None else open_corpus(root, config.data.collection)
    with threads(1):  # as in the demo
        report = audit(
            corpus,
            config,
            seeds=args.seeds,
            folder=folder,
            runs=args.runs,
            device=device,
            progress=lambda what, done, parts: logger.info("audit, %d of %d parts done; now: %s", done, parts, what),
            epochs=no_progress if args.quiet else terminal_bar,
        )
    report.to_json(folder / "audit.json")
    console = stdout()
    console.print(audit_table(report))
    console.print(f"\n{folder / 'audit.json'}: these numbers", markup=False, soft_wrap=True)
    return 0 if report.ok else _MISSED


def _config(args: Namespace) -> Config:
    """What is trained, on the corpus that --size names."""
    config = chosen_config(args, default="hybrid-embedded")
    if "data.collection" in overrides(args):
        raise CommandError("--data.collection: the audit reads an embedded corpus, name it with --size.")
    if any(seed < 0 for seed in args.seeds) or len(set(args.seeds)) < len(args.seeds):
        raise CommandError(f"--seeds {' '.join(map(str, args.seeds))}: expected different whole numbers from 0.")
    lost = [run for run in args.runs if not Path(run).is_dir()]
    if lost:
        raise CommandError(f"--runs {' '.join(lost)}: no such folder. Expected runs of `prvr train`.")
    return replace(config, data=replace(config.data, collection=collection_of(args.size)))
