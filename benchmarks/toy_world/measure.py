"""Measures everything that the bands of a toy corpus are about, and puts it beside them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import torch

from prvr.config import Config
from prvr.data import COLLECTIONS, Corpus, PackedSplit
from prvr.data.layout import read_relevance
from prvr.data.synthetic import Scenes, read_toy_scenes
from prvr.data.synthetic.world import PUSHES
from prvr.errors import InputError, MissingExtraError
from prvr.evaluation import EvaluationConfig, EvaluationReport, report_from_scores
from prvr.evaluation.metrics import chance_recall
from prvr.evaluation.zero_shot import zero_shot_scores
from prvr.training import EpochProgress, no_progress, open_split
from toy_world.report import AuditReport
from toy_world.runs import (
    TEST,
    Trained,
    adapted,
    fair_recall,
    finish,
    measure,
    same_but_for_places,
    score_matrix,
    take_over,
    trained,
)
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
ORACLE = 99.0
MP4_SUMR = 2.0
ERRORS = 3.0  # standard errors that chance is allowed
Progress = Callable[[str, int, int], None]


def audit(
    corpus: Corpus,
    config: Config,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    folder: Path | str,
    runs: Sequence[Path | str] = (),
    device: str | None = "cpu",
    progress: Progress | None = None,
    epochs: EpochProgress = no_progress,
) -> AuditReport:
    """Checks that a toy corpus measures what it says: nothing is raised for a missed band, it is reported.

    The world is counted anew from its scene graphs. Then R@1 of chance, of an oracle that reads the sentences and sees
    the scene graphs, of the joint encoder alone, and of models trained with each seed; with time reversed; and where
    nothing should be left to find: videos exchanged, trained on shuffled pairs, trained on nothing but lengths. Last,
    features of videos that went through MP4 files.

    Args:
        corpus: a toy corpus of any size; the bands are meant for `demo`.
        config: what is trained, on this corpus, whichever it names.
        seeds: one run each.
        folder: runs are kept there, and used again by the next audit; temporary files go there too.
        runs: folders of finished runs. One of this configuration on this corpus takes the place of its seed, and all
            that were trained on this corpus count for the best model.
        device: as in `prvr.training.train`. The matrices are small: one thread of a CPU is the fastest.
        progress: called with (what is done next, parts done, parts in all).
        epochs: shows the steps of an epoch.

    Raises:
        ValueError: no seed.
        prvr.data.DataError: the corpus is none of prvr's own, or the disk is full.
        prvr.training.TrainingError: a run fails.
    """
    if not seeds:
        raise InputError("audit: seeds is empty; give at least one, for example (0, 1, 2)")
    folder = Path(folder)
    scenes = read_toy_scenes(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    with open_split(adapted(config, corpus, folder / "packed", seeds[0]), TEST) as test:
        job = _Audit(corpus, config, tuple(seeds), folder, device, epochs, scenes, test)
        rows = job.run(runs, progress or (lambda what, done, total: None))
    return AuditReport(corpus.name, config.name, rows)


@dataclass(frozen=True)
class _Audit:
    corpus: Corpus
    config: Config
    seeds: tuple[int, ...]
    folder: Path
    device: str | None
    epochs: EpochProgress
    scenes: dict[str, Scenes]
    test: PackedSplit

    def run(self, given: Sequence[Path | str], progress: Progress) -> tuple[AuditRow, ...]:
        parts = len(self.seeds) + 7

        def next_is(what: str, done: int) -> None:
            progress(what, done, parts)

        next_is("scene graphs", 0)
        rows = [*self._world(), self._chance_row(), self._oracle()]
        next_is("runs", 1)
        known = take_over(given, self.corpus, self.folder / "packed", self.device)
        own = []
        for number, seed in enumerate(self.seeds):
            next_is(f"training, seed {seed}", 2 + number)
            own.append(self._trained(seed, known))
        done = 2 + len(own)
        next_is("time reversed", done)
        rows += [self._zero_shot([*own, *known]), self._trained_row(own), *self._others(own, known)]
        rows.append(self._reversed(own))
        next_is("videos exchanged", done + 1)
        rows.append(self._swapped(own[0]))
        next_is("training on shuffled pairs", done + 2)
        rows.append(self._shuffled())
        next_is("training on lengths", done + 3)
        rows.append(self._lengths())
        next_is("MP4 files", done + 4)
        rows.append(self._mp4(own[0]))
        next_is("done", parts)
        return tuple(rows)

    def _world(self) -> tuple[AuditRow, ...]:
        relevance = read_relevance(self.corpus.text_file("relevance"))
        world = world_rows(self.scenes, relevance, COLLECTIONS.get(self.corpus.name))
        return (*world, *file_rows(self.corpus, self.scenes))

    def _oracle(self) -> AuditRow:
        videos = {video.id: video for video in self.scenes[TEST].videos}
        scores = oracle_scores(self.test.captions, [videos[name] for name in self.test.video_ids])
        found = report_from_scores(torch.from_numpy(scores), self.test, EvaluationConfig(bootstrap=0)).text_to_video.r1
        return AuditRow("oracle", "R@1 of an oracle", f"{found:.1f}", f">= {ORACLE:g}", found >= ORACLE, found)

    def _zero_shot(self, models: Sequence[Trained]) -> AuditRow:
        scores = zero_shot_scores(self.corpus, TEST)
        found = report_from_scores(scores, self.test, EvaluationConfig(bootstrap=0)).text_to_video
        low, high = 2 * self._chance[0], max(model.r1 for model in models) / 2
        ok = low < found.r1 < high
        value = {"r1": found.r1, "sumr": found.sumr, "low": low, "high": high}
        return AuditRow("zero_shot", "R@1 of zero-shot", f"{found.r1:.1f}", f"> {low:.1f}, < {high:.1f}", ok, value)

    def _trained(self, seed: int, known: Sequence[Trained]) -> Trained:
        config = adapted(self.config, self.corpus, self.folder / "packed", seed)
        same = [run for run in known if same_but_for_places(run, config)]
        if same:
            return same[0]
        run = finish(config, self.corpus, self.folder / "runs", self.device, self.epochs)
        return trained(config, run, self.test, self.device)

    def _trained_row(self, own: Sequence[Trained]) -> AuditRow:
        low, high = TRAINED
        shown = ", ".join(f"{run.r1:.1f}" for run in own)
        ok = all(low <= run.r1 <= high for run in own)
        value = {
            str(seed): {"r1": run.r1, "sumr": run.report.text_to_video.sumr}
            for seed, run in zip(self.seeds, own, strict=True)
        }
        return AuditRow("trained", "R@1 trained, by seed", shown, f"{low:g} - {high:g}", ok, value)

    def _others(self, own: Sequence[Trained], known: Sequence[Trained]) -> list[AuditRow]:
        others = [run for run in known if run not in own]
        if not others:
            return []
        shown = ", ".join(f"{run.config.name} {run.r1:.1f}" for run in others)
        value = {str(run.folder): {"r1": run.r1, "sumr": run.report.text_to_video.sumr} for run in others}
        return [AuditRow("others", "R@1 of other runs", shown, "-", None, value)]

    def _reversed(self, own: Sequence[Trained]) -> AuditRow:
        """A push is left out: what it looks like backwards is not its opposite."""
        action = {sentence.id: sentence.claim.action for sentence in self.scenes[TEST].sentences}
        asks = np.array([action[name] not in PUSHES for name in self.test.query_ids])
        reports = [run.report for run in own]
        with self._variant((TEST,), reversed_in_time) as config, open_split(config, TEST) as split:
            turned = [measure(run.retriever, run.config, split, self.device) for run in own]
        before, after = (float(np.mean([_recall(report, asks) for report in some])) for some in (reports, turned))
        value = {"r1": before, "r1_reversed": after, "queries": int(asks.sum())}
        found, band = f"{before:.1f} -> {after:.1f}", f"<= {before / 2:.1f}"
        return AuditRow("reversed", "R@1 on directions, time reversed", found, band, after <= before / 2, value)

    def _swapped(self, run: Trained) -> AuditRow:
        others = exchanged(shuffled(self.corpus, (TEST,), self.seeds[0]))
        with self._variant((TEST,), others) as config, open_split(config, TEST) as split:
            return self._control("swapped", "R@1 with videos exchanged", run, split)

    def _shuffled(self) -> AuditRow:
        splits = [name for name in self.corpus.splits if name != TEST]
        others = shuffled(self.corpus, splits, self.seeds[0])
        return self._trained_control("shuffled", "R@1 trained on shuffled pairs", exchanged(others))

    def _lengths(self) -> AuditRow:
        return self._trained_control("lengths", "R@1 trained on lengths alone", lengths_only)

    def _trained_control(self, key: str, name: str, transform: Transform) -> AuditRow:
        """Learns from a variant of all splits, and is evaluated on its test split."""
        with self._variant(self.corpus.splits, transform) as config:
            folder = finish(config, self.corpus, self.folder / "runs" / key, self.device, self.epochs)
            with open_split(config, TEST) as split:
                return self._control(key, name, trained(config, folder, split, self.device), split)

    def _control(self, key: str, name: str, run: Trained, split: PackedSplit) -> AuditRow:
        found = fair_recall(score_matrix(run, split, self.device), torch.from_numpy(split.relevant_matrix))
        chance, low, high = self._chance
        value = {"r1": found, "chance": chance, "low": low, "high": high}
        return AuditRow(key, name, f"{found:.1f}", f"{low:.1f} - {high:.1f}", low <= found <= high, value)

    def _mp4(self, run: Trained) -> AuditRow:
        before = run.report.text_to_video.sumr
        name, band = "SumR, videos read from MP4 files", f"within {MP4_SUMR:g}"
        try:
            transform = decoded(self.scenes[TEST].videos)
            with self._variant((TEST,), transform) as config, open_split(config, TEST) as split:
                after = measure(run.retriever, run.config, split, self.device).text_to_video.sumr
        except MissingExtraError as error:
            return AuditRow("mp4", name, f"skipped: {error}", band, None, None)
        found, value = f"{before:.1f} -> {after:.1f}", {"sumr": before, "sumr_mp4": after}
        return AuditRow("mp4", name, found, band, abs(after - before) <= MP4_SUMR, value)

    @contextmanager
    def _variant(self, splits: Sequence[str], transform: Transform) -> Iterator[Config]:
        """The configuration, for a variant that stands on the disk as long as it is needed."""
        with tempfile.TemporaryDirectory(prefix="audit-", dir=self.folder) as scratch:
            corpus = write_variant(self.corpus, scratch, splits, transform)
            yield adapted(self.config, corpus, Path(scratch) / "packed", self.seeds[0])

    @property
    def _chance(self) -> tuple[float, float, float]:
        """R@1 of chance in percent, and the band around it.

        Three standard errors to either side, where the sentences of a video count as one: what a model puts first for
        one of them it may well put first for all.
        """
        sizes = torch.tensor([len(videos) for videos in self.test.relevant])
        chance = chance_recall(len(self.test), sizes, 1)
        error = ERRORS * sqrt(chance * (100 - chance) / len(self.test))
        return chance, max(0.0, chance - error), min(100.0, chance + error)

    def _chance_row(self) -> AuditRow:
        return AuditRow("chance", "R@1 of chance", f"{self._chance[0]:.1f}", "-", None, self._chance[0])


def _recall(report: EvaluationReport, asks: np.ndarray) -> float:
    """R@1 of some queries, in percent."""
    return 100 * float((report.ranks[asks] <= 1).mean())
