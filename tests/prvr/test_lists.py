"""Metrics of whole lists: mAP and nDCG against ir-measures, moment retrieval against a plain loop, and both by hand."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import torch
from commands import explained
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from ir_measures import AP, Success, nDCG
from retrievers import MeanPooling
from runs_of_retrievers import write_run
from torch import Tensor

from prvr.cli import main
from prvr.data import Caption, MomentTimes, PackSettings, TextData, open_corpus, pack, write_layout
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.evaluation.lists import IOUS, positives_places
from prvr.evaluation.significance import bootstrap_intervals
from prvr.scoring import best_moment, ranked_moments, ranked_spans
from prvr.stages import EncodedSplit
from prvr.types import Scores, VideoEmbedding

VIDEOS, STEPS, SECONDS = 12, 20, 40.0


class Lines(MeanPooling):
    """Scores each step of each video as it is told; a query and a video are known by their numbers.

    A frame is (video, step). A video scores as its best step.
    """

    def __init__(self, lines: Tensor) -> None:
        super().__init__(2, 1)
        self.lines = lines  # (q, v, t)

    def score(self, text: Tensor, video: VideoEmbedding) -> Scores:
        assert video.frames is not None
        number, step = video.frames[..., 0].long(), video.frames[..., 1].long()
        return Scores(self.lines[text[:, 0].long()][:, number, step].amax(2))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three queries for each of 12 videos of 40 s; query v#0 also fits the next video, and v#2 has no known moment.

    Queries of two in three videos have several.
    """
    root, generator = tmp_path_factory.mktemp("lists"), np.random.default_rng(3)
    captions = [Caption(f"v{v}#{k}", f"v{v}", f"sentence {v} {k}") for v in range(VIDEOS) for k in range(3)]
    moments = {}
    for caption in captions:
        start = 2.0 * generator.integers(0, 14)
        stop = start + 2.0 * generator.integers(1, 7)
        timed = not caption.id.endswith("#2")
        more = ((30.0, 36.0), (2.0, 8.0))[: int(caption.id[1:-2]) % 3] if timed else ()
        moments[caption.id] = MomentTimes(*(start, stop) if timed else (np.nan, np.nan), SECONDS, more)
    relevance = {f"v{v}#0": {f"v{v}", f"v{(v + 1) % VIDEOS}"} for v in range(VIDEOS)}
    write_layout(
        root / "mine",
        TextData(captions={"test": captions}, moments=moments, relevance=relevance),
        videos=((f"v{v}", generator.normal(size=(STEPS, 4))) for v in range(VIDEOS)),
        queries=((caption.id, generator.normal(size=(2, 3))) for caption in captions),
    )
    with pack(open_corpus(root, "mine"), "test", cache_dir=root, settings=PackSettings(clips=4)) as packed:
        yield packed


def encoded_as_numbers(split: Any, size: int) -> EncodedSplit:
    number = torch.arange(1.0 * VIDEOS)[:, None].expand(VIDEOS, STEPS)
    frames = torch.stack([number, torch.arange(1.0 * STEPS).expand(VIDEOS, STEPS)], 2)
    everything = torch.ones(VIDEOS, STEPS, dtype=torch.bool)
    parts = [
        VideoEmbedding(torch.zeros(len(some), 4, 2), some, mask)
        for some, mask in zip(frames.split(size), everything.split(size), strict=True)
    ]
    return EncodedSplit(torch.arange(1.0 * len(split.query_ids))[:, None], tuple(parts))


def slow_moments(line: list[float]) -> list[tuple[int, int, float]]:
    """Moments of one video, best first, step by step."""
    usual, rest, runs = sorted(line)[(len(line) - 1) // 2], dict(enumerate(line)), []
    while rest:
        place = max(rest, key=lambda step: (rest[step], -step))
        if runs and rest[place] <= usual:
            break
        level, first, last = (rest[place] + 2 * usual) / 3, place, place
        while first > 0 and line[first - 1] >= level:
            first -= 1
        while last + 1 < len(line) and line[last + 1] >= level:
            last += 1
        runs.append((first, last + 1, rest[place]))
        rest = {step: score for step, score in rest.items() if not first <= step <= last}
    best: list[tuple[int, int, float]] = []
    for start, stop, score in runs:  # the best one first
        if all(iou(start, stop, first, last) <= 0.5 for first, last, _ in best):
            best.append((start, stop, score))
    return best


def iou(start: float, stop: float, first: float, last: float) -> float:
    shared = max(0.0, min(stop, last) - max(start, first))
    return shared / (stop - start + last - first - shared)


@given(npst.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1, width=16), unique=True))
def test_moments_of_a_video_agree_with_a_loop_and_begin_with_the_best(line: np.ndarray) -> None:
    moments = ranked_moments(torch.from_numpy(np.stack([line, -line])))
    for row, scores in enumerate((line, -line)):
        listed = [
            (start, stop, score)
            for start, stop, score, valid in zip(
                *(part[row].tolist() for part in (moments.start, moments.stop, moments.score, moments.valid)),
                strict=True,
            )
            if valid
        ]
        assert listed == slow_moments(scores.tolist())
        assert listed[0][:2] == best_moment(torch.from_numpy(scores), float(len(line)))


def test_moments_by_hand() -> None:
    line = torch.tensor([[0.0, 0.0, 0.9, 0.0, 0.0, 0.3, 0.3, 0.6, 0.3, 0.0, 0.0]])
    moments = ranked_moments(line)  # 0.6 asks for 0.2 of its neighbours
    parts = (moments.start, moments.stop, moments.valid)
    assert [part.tolist() for part in parts] == [[[2, 5]], [[3, 9]], [[True, True]]]
    line = torch.tensor([[0.0, 0.0, 0.0, 0.9, 0.8, 0.25, 0.0, 0.0]])  # the step of 0.25 asks for itself and both others
    assert ranked_moments(line).valid.tolist() == [[True, False]]  # 3 to 6 holds 3 to 5: two thirds of it
    assert ranked_moments(line, overlap=0.7).valid.tolist() == [[True, True]]
    line = torch.tensor([[1.0, 0.9, 0.9, 0.3, 0.2, 0.09, 0.05, 0.05, *[0.0] * 12]])
    assert ranked_moments(line).valid.tolist() == [[True, False, True]]  # what is left out leaves out nothing itself
    assert ranked_moments(torch.zeros(1, 4)).stop.tolist() == [[4]]  # nothing stands out: the whole video


@pytest.mark.parametrize("ties", ["worst", "mean", "best"])
@pytest.mark.parametrize("size", [1, 5, 12])
def test_moment_retrieval_is_what_its_definition_says(split: Any, ties: Any, size: int) -> None:
    """Recall of the right moment among all moments, one query at a time, on a grid of scores with many ties."""
    generator = np.random.default_rng(size)
    lines = torch.from_numpy(generator.integers(0, 7, (3 * VIDEOS, VIDEOS, STEPS)) / 4.0)
    for query, own in enumerate(split.query_to_video.tolist()):  # often, but not always, above what else there is
        if not np.isnan(start := split.moments.start[query] / 2):
            lines[query, own, int(start) : int(split.moments.end[query] / 2)] += generator.integers(0, 5) / 4
    model, encoded = Lines(lines), encoded_as_numbers(split, size)
    report = evaluate(model, split, EvaluationConfig(ties=ties, bootstrap=50, seed=3, query_batch=7), encoded=encoded)
    ranks: dict[tuple[str, float], list[float]] = {(task, bound): [] for task in ("vcmr", "svmr") for bound in IOUS}
    share = {"worst": 1.0, "mean": 0.5, "best": 0.0}[ties]
    for query, own in enumerate(split.query_to_video.tolist()):
        windows = split.windows[:, query].tolist()
        if np.isnan(windows[0][0]):
            continue
        everywhere = {video: slow_moments(lines[query, video].tolist()) for video in range(VIDEOS)}
        for (task, bound), places in ranks.items():
            right, wrong = [], []
            for video, moments in everywhere.items():
                if video != own and (task == "svmr" or video in split.relevant[query]):
                    continue
                for start, stop, score in moments:
                    hit = video == own and max(iou(2.0 * start, 2.0 * stop, *true) for true in windows) >= bound
                    (right if hit else wrong).append(score)
            best = max(right, default=np.inf)
            place = 1 + sum(score > best for score in wrong) + share * sum(score == best for score in wrong)
            places.append(place if right else np.inf)
    owners = split.query_to_video[~np.isnan(split.moments.start)]
    assert {(one.task, one.iou): one.queries for one in report.moments} == dict.fromkeys(ranks, 2 * VIDEOS)
    for one in report.moments:
        expected = [100 * np.mean([rank <= k for rank in ranks[one.task, one.iou]]) for k in (1, 5, 10, 100)]
        assert [one.r1, one.r5, one.r10, one.r100] == pytest.approx(expected)
        interval = bootstrap_intervals(np.array(ranks[one.task, one.iou]), owners, samples=50, seed=3)
        assert one.intervals == {name: interval[name] for name in ("r1", "r5", "r10", "r100")}
    assert any(0 < one.r1 < one.r100 < 100 for one in report.moments if one.task == "vcmr")
    timed = np.flatnonzero(~np.isnan(split.moments.start))
    answers = {"whole": [(0.0, 1.0)], "middle": [(1 / 3, 2 / 3)], "random": [*combinations(np.arange(33) / 32, 2)]}
    for one in report.baselines:
        some, hits, model = 0, dict.fromkeys(answers, 0.0), 0
        for place, query in enumerate(timed):
            windows, own = split.windows[:, query].tolist(), split.query_to_video[query]
            if one.below < 1 and (windows[0][1] - windows[0][0]) / SECONDS >= one.below:
                continue
            scores, some = lines[query].amax(1), some + 1
            wrong = max(float(scores[video]) for video in range(VIDEOS) if video not in split.relevant[query])
            first = float(scores[own]) > wrong or (ties == "best" and float(scores[own]) == wrong)
            model += ranks[one.task, one.iou][place] <= 1
            for name, spans in answers.items():
                found = [max(iou(a * SECONDS, b * SECONDS, *true) for true in windows) >= one.iou for a, b in spans]
                hits[name] += np.mean(found) * (first or one.task == "svmr")
        assert (one.queries, one.model) == (some, 100 * model / some)  # to the last digit, as in the table above
        assert {name: getattr(one, name) for name in hits} == pytest.approx(
            {n: 100 * h / some for n, h in hits.items()}
        )
    assert len(report.baselines) == 12


def test_a_run_file_gives_other_programs_the_numbers_of_the_report(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = write_run(tmp_path / "run", toy_root, "toy-tiny")
    for name in ("lists.trec", "sub/lists.json"):
        options = ["--stage", "qb_norm", "--output", str(tmp_path / "last.json"), "--run-file", str(tmp_path / name)]
        assert main(["evaluate", str(folder), *options, "--device", "cpu", "-q"]) == 0
        assert f"{tmp_path / name}: the best videos of each query" in capsys.readouterr().out
    report = EvaluationReport.from_json(tmp_path / "last.json")
    split = open_corpus(toy_root, "toy-tiny").split("test")
    qrels = {caption.id: dict.fromkeys(split.relevant(caption), 1) for caption in split.captions}
    run = {query: dict[str, float]() for query in report.query_ids}
    for one in ir_measures.read_trec_run(str(tmp_path / "lists.trec")):
        run[one.query_id][one.doc_id] = one.score
    assert run == json.loads((tmp_path / "sub" / "lists.json").read_text())
    measures = [Success @ 1, Success @ 5, Success @ 10, AP, nDCG]
    values, metrics, lists = ir_measures.calc_aggregate(measures, qrels, run), report.text_to_video, report.lists
    assert lists is not None
    expected = (metrics.r1, metrics.r5, metrics.r10, lists.map, lists.ndcg)
    assert [100 * values[one] for one in measures] == pytest.approx(expected, abs=1e-6)
    command = ["evaluate", str(folder), "--transfer", str(toy_root / "toy-tiny"), "--run-file", "x"]
    assert "--run-file cannot be used with --transfer" in explained(command, capsys)


@given(
    npst.arrays(np.float64, (5, 9), elements=st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0])),
    npst.arrays(np.bool_, (5, 9)),
    st.sampled_from(["worst", "mean", "best"]),
)
def test_places_of_relevant_videos_agree_with_a_loop(scores: np.ndarray, relevant: np.ndarray, ties: Any) -> None:
    relevant[:, 0] = True
    ranks = positives_places(torch.from_numpy(scores), torch.from_numpy(relevant), ties)
    share = {"worst": 1.0, "mean": 0.5, "best": 0.0}[ties]
    for row, right, places in zip(scores, relevant, ranks, strict=True):
        own, wrong = np.sort(row[right])[::-1], row[~right]
        expected = [n + sum(wrong > score) + share * sum(wrong == score) for n, score in enumerate(own, 1)]
        assert places[: len(own)].tolist() == expected
        assert bool(places[len(own) :].isnan().all())


@given(npst.arrays(np.float64, 8, elements=st.floats(-1, 1, width=16), unique=True), st.integers(0, 10**6))
def test_moments_of_clips_that_say_where_they_lie_agree_with_a_loop(scores: np.ndarray, seed: int) -> None:
    spans = np.sort(np.random.default_rng(seed).integers(0, 15, (8, 2)), 1) / 16 + [0, 1 / 16]
    lists, best = ranked_spans(torch.from_numpy(scores[None]), torch.from_numpy(spans)), list[int]()
    for clip in np.argsort(-scores, kind="stable"):
        if all(iou(*spans[clip], *spans[other]) <= 0.5 for other in best):
            best.append(clip)
    assert lists.start[lists.valid].tolist() == spans[best, 0].tolist()
    assert lists.score[lists.valid].tolist() == scores[best].tolist()
