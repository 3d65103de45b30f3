"""Does the toy corpus measure what it says? Chance, oracle, zero-shot, trained models, and controls, with bands.

    python benchmarks/audit.py [--size demo] [--preset hybrid-toy] [--seeds 0 1 2]

The world is counted again from its scene graphs. Then R@1 of chance, of an oracle that reads the sentences and sees the
scene graphs, of the encoder alone, and of the preset trained with each seed; with time reversed; and where nothing
should be left to find: videos exchanged, trained on shuffled pairs, trained on lengths alone. Last, features of videos
that went through MP4 files. Finished runs in the output folder are used again. Ends with 1 where a band is missed.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np
import torch

from _harness import option, parse_options, show, write_figures
from prvr import load_config
from prvr.config import Config
from prvr.data import COLLECTIONS, Corpus, PackedSplit, write_corpus
from prvr.data.layout import read_relevance
from prvr.data.synthetic import read_toy_scenes
from prvr.data.synthetic.world import PUSHES
from prvr.evaluation import EvaluationConfig, EvaluationReport, report_from_scores
from prvr.evaluation.metrics import chance_recall
from prvr.evaluation.zero_shot import zero_shot_scores
from prvr.training import EpochProgress, no_progress, open_split, terminal_bar
from toy_world.runs import TEST, Trained, adapted, fair_recall, finish, measure, score_matrix, trained
from toy_world.variants import (
    Transform,
    decoded,
    exchanged,
    lengths_only,
    reversed_in_time,
    shuffled,
    write_variant,
)
from toy_world.world import AuditRow, file_rows, oracle_scores, world_rows

TRAINED = 15.0, 65.0
ORACLE, MP4_SUMR = 99.0, 2.0
ERRORS = 3.0  # standard errors that chance is allowed


def audit(
    corpus: Corpus,
    config: Config,
    *,
    seeds: Sequence[int],
    folder: Path,
    device: str = "cpu",
    progress: EpochProgress = no_progress,
) -> Iterator[AuditRow]:
    """Measures everything, row by row.

    Args:
        corpus: a toy corpus of any size; the bands are meant for `demo`.
        config: what is trained, on this corpus, whichever it names.
        seeds: one run each.
        folder: runs are kept there.
        device: the matrices are small: one thread of a CPU is the fastest.
        progress: shows the steps of an epoch.
    """
    scenes, no_intervals = read_toy_scenes(corpus), EvaluationConfig(bootstrap=0)
    relevance = read_relevance(corpus.text_file("relevance"))
    folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def variant(splits: Sequence[str], transform: Transform) -> Iterator[tuple[Config, PackedSplit]]:
        with TemporaryDirectory(prefix="audit-", dir=folder) as scratch:
            other = adapted(
                config, write_variant(corpus, scratch, splits, transform), Path(scratch) / "cache", seeds[0]
            )
            with open_split(other, TEST) as split:
                yield other, split

    def control(key: str, name: str, run: Trained, split: PackedSplit) -> AuditRow:
        r1 = fair_recall(score_matrix(run, split, device), torch.from_numpy(split.relevant_matrix))
        value = {"r1": r1, "chance": chance, "low": low, "high": high}
        return AuditRow(key, name, f"{r1:.1f}", f"{low:.1f} - {high:.1f}", low <= r1 <= high, value)

    yield from world_rows(scenes, relevance, COLLECTIONS.get(corpus.name))
    yield from file_rows(corpus, scenes)
    with open_split(adapted(config, corpus, folder / "packed", seeds[0]), TEST) as test:
        chance, low, high = chance_band(test)
        yield AuditRow("chance", "R@1 of chance", f"{chance:.1f}", "-", None, chance)
        videos = {video.id: video for video in scenes[TEST].videos}
        scores = torch.from_numpy(oracle_scores(test.captions, [videos[name] for name in test.video_ids]))
        r1 = report_from_scores(scores, test, no_intervals).text_to_video.r1
        yield AuditRow("oracle", "R@1 of an oracle", f"{r1:.1f}", f">= {ORACLE:g}", r1 >= ORACLE, r1)
        runs = []
        for seed in seeds:
            own = adapted(config, corpus, folder / "packed", seed)
            runs.append(trained(own, finish(own, corpus, folder / "runs", device, progress), test, device))
        zero = report_from_scores(zero_shot_scores(corpus, TEST), test, no_intervals).text_to_video
        band = {"low": 2 * chance, "high": max(run.r1 for run in runs) / 2}
        yield AuditRow(
            "zero_shot",
            "R@1 of zero-shot",
            f"{zero.r1:.1f}",
            f"> {band['low']:.1f}, < {band['high']:.1f}",
            band["low"] < zero.r1 < band["high"],
            {"r1": zero.r1, "sumr": zero.sumr} | band,
        )
        low_r1, high_r1 = TRAINED
        yield AuditRow(
            "trained",
            "R@1 trained, by seed",
            ", ".join(f"{run.r1:.1f}" for run in runs),
            f"{low_r1:g} - {high_r1:g}",
            all(low_r1 <= run.r1 <= high_r1 for run in runs),
            {str(run.config.train.seed): {"r1": run.r1, "sumr": run.report.text_to_video.sumr} for run in runs},
        )

        # A push is left out: what it looks like backwards is not its opposite.
        action = {sentence.id: sentence.claim.action for sentence in scenes[TEST].sentences}
        asks = np.array([action[name] not in PUSHES for name in test.query_ids])
        with variant((TEST,), reversed_in_time) as (_, split):
            turned = [measure(run.retriever, run.config, split, device) for run in runs]
        groups = [run.report for run in runs], turned
        before, after = (mean(recall(report, asks) for report in reports) for reports in groups)
        value = {"r1": before, "r1_reversed": after, "queries": int(asks.sum())}
        name, band = "R@1 on directions, time reversed", f"<= {before / 2:.1f}"
        yield AuditRow("reversed", name, f"{before:.1f} -> {after:.1f}", band, after <= before / 2, value)

        with variant((TEST,), exchanged(shuffled(corpus, (TEST,), seeds[0]))) as (_, split):
            yield control("swapped", "R@1 with videos exchanged", runs[0], split)
        others = exchanged(shuffled(corpus, [name for name in corpus.splits if name != TEST], seeds[0]))
        for key, name, transform in (
            ("shuffled", "R@1 trained on shuffled pairs", others),
            ("lengths", "R@1 trained on lengths alone", lengths_only),
        ):
            with variant(corpus.splits, transform) as (other, split):
                run = finish(other, corpus, folder / "runs" / key, device, progress)
                yield control(key, name, trained(other, run, split, device), split)

        with variant((TEST,), decoded(scenes[TEST].videos)) as (_, split):
            after = measure(runs[0].retriever, runs[0].config, split, device).text_to_video.sumr
        before, name = runs[0].report.text_to_video.sumr, "SumR, videos read from MP4 files"
        value, ok = {"sumr": before, "sumr_mp4": after}, abs(after - before) <= MP4_SUMR
        yield AuditRow("mp4", name, f"{before:.1f} -> {after:.1f}", f"within {MP4_SUMR:g}", ok, value)


def chance_band(split: PackedSplit) -> tuple[float, float, float]:
    """R@1 of chance in percent, and the band around it.

    Three standard errors to either side, where the sentences of a video count as one: what a model puts first for one
    of them it may well put first for all.
    """
    chance = chance_recall(len(split), torch.tensor([len(videos) for videos in split.relevant]), 1)
    error = ERRORS * sqrt(chance * (100 - chance) / len(split))
    return chance, max(0.0, chance - error), min(100.0, chance + error)


def recall(report: EvaluationReport, asks: np.ndarray) -> float:
    """R@1 of some queries, in percent."""
    return 100 * float((report.ranks[asks] <= 1).mean())


def main() -> None:
    args = parse_options(
        __doc__,
        size=option("demo", "tiny, demo or bench; the bands are meant for demo"),
        preset="hybrid-toy",
        epochs=option(None, "default: the preset's", type=int),
        seeds=[0, 1, 2],
        output="runs/audit",
    )
    config = load_config(args.preset, {} if args.epochs is None else {"train.epochs": args.epochs})
    corpus, rows = write_corpus(args.output, args.size), []
    for row in audit(corpus, config, seeds=args.seeds, folder=Path(args.output), progress=terminal_bar):
        print(f"{row.name}: {row.found}", file=sys.stderr)
        rows.append(row)
    marks = {None: "-", True: "yes", False: "no"}
    table = [[row.name, row.found, row.band, marks[row.ok]] for row in rows]
    show(f"audit of {corpus.name}, {config.name}", ["measure", "found", "band", "ok"], table)
    write_figures(args, {row.key: row.value for row in rows})
    sys.exit(any(row.ok is False for row in rows))


if __name__ == "__main__":
    main()
