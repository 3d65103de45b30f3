"""Dense labels: added to a corpus, and evaluation under them beside that under the original labels."""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import cells, explained
from runs_of_retrievers import write_run
from torch import Tensor

from prvr.cli import main
from prvr.data import PackedSplit, open_corpus
from prvr.evaluation import EvaluationReport, encode_split
from prvr.evaluation.lists import graded_gain
from prvr.evaluation.metrics import Ties
from prvr.models import AnyRetriever
from prvr.training import open_split


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, toy_root: Path) -> Path:
    """A copy of toy-tiny whose test queries have dense labels: every other one, without its own video at times."""
    root = tmp_path_factory.mktemp("dense")
    shutil.copytree(toy_root / "toy-tiny", root / "toy-tiny")
    split = open_corpus(root, "toy-tiny").split("test")
    gallery, records = split.video_ids, []
    for number, caption in enumerate(split.captions[::2]):
        others = [gallery[(3 * number + step) % len(gallery)] for step in (1, 2, 4)]
        records.append({"query_id": caption.id, "gt_video_ids": others[: 1 + number % 3]})
        records[-1]["gt_video_ids"] += [caption.video_id] * (number % 2)
    (root / "labels.json").write_text(json.dumps(records))
    assert main(["convert", "labels", str(root / "toy-tiny"), str(root / "labels.json")]) == 0
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> tuple[Path, AnyRetriever]:
    return write_run(root / "run", root, "toy-tiny")


@pytest.fixture(scope="module")
def split(run: tuple[Path, AnyRetriever]) -> Iterator[PackedSplit]:
    from prvr.config import load_config

    with closing(open_split(load_config(run[0] / "config.yaml"), "test")) as packed:
        yield packed


def whole_matrix(retriever: Any, split: PackedSplit) -> Tensor:
    encoded = encode_split(retriever.eval(), split)
    with torch.no_grad():
        return torch.cat([retriever.score(encoded.text, part).total for part in encoded.videos], 1)


def slow_ranks(scores: Tensor, right: Sequence[set[int]]) -> list[int]:
    """1 + the number of wrong columns that score at least as high as the best right one, row by row."""
    found = []
    for row, good in zip(scores.tolist(), right, strict=True):
        if good:
            best = max(row[column] for column in good)
            found.append(1 + sum(score >= best for column, score in enumerate(row) if column not in good))
    return found


def test_ranks_under_dense_labels_are_those_of_the_best_right_one(
    root: Path, run: tuple[Path, AnyRetriever], split: PackedSplit, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, retriever = run
    assert main(["evaluate", str(folder), "--device", "cpu", "-q"]) == 0
    out = capsys.readouterr().out
    assert "toy-tiny test: 100 queries, 20 videos, dense labels" in cells(out)
    records = json.loads((root / "labels.json").read_text())
    number = {video: i for i, video in enumerate(split.video_ids)}
    dense = {record["query_id"]: {number[video] for video in record["gt_video_ids"]} for record in records}
    right = [dense.get(query, set(own)) for query, own in zip(split.query_ids, split.relevant, strict=True)]
    scores = whole_matrix(retriever, split)
    found = EvaluationReport.from_json(folder / "evaluation_dense_labels.json")
    assert found.labels == "dense"
    assert found.ranks.tolist() == slow_ranks(scores, right)
    asked = [{query for query, videos in enumerate(right) if video in videos} for video in range(len(split))]
    assert found.video_ranks.tolist() == slow_ranks(scores.T, asked)
    original = EvaluationReport.from_json(folder / "evaluation.json")
    assert original.labels == "original"
    assert original.ranks.tolist() == slow_ranks(scores, [set(own) for own in split.relevant])
    assert found.chance > original.chance
    assert found.lists is not None
    assert found.lists.right == pytest.approx(sum(map(len, right)) / len(right))
    own = sum(v in videos for v, videos in zip(found.query_to_video.tolist(), right, strict=True))
    assert [part.moments[0].queries for part in (original, found)] == [len(right), own]  # right in its own video only
    said = explained(["compare", *(str(folder / f"evaluation{name}.json") for name in ("", "_dense_labels"))], capsys)
    assert "with labels 'original'" in said


CAPTIONS = {"test": [("a", 0), ("a", 1), ("b", 0)], "val": [("a", 0), ("b", 0)], "train": [("c", 0)]}


@pytest.fixture
def films(tmp_path: Path) -> Path:
    folder = tmp_path / "films"
    (folder / "TextData").mkdir(parents=True)
    for split, some in CAPTIONS.items():
        text = "".join(f"{video}#enc#{number} something\n" for video, number in some)
        (folder / "TextData" / f"films{split}.caption.txt").write_text(text)
    return folder


@pytest.mark.parametrize("form", ["lines", "array"])
def test_both_forms_of_labels(films: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"query_id": "a#enc#0", "gt_video_ids": ["b", "a", "b"], "score": 1},
        {"query_id": "b#enc#0", "gt_video_ids": ["a"]},
        {"query_id": "a#enc#1", "gt_video_ids": []},
    ]
    text = json.dumps(records) if form == "array" else "\n".join(map(json.dumps, records))
    (tmp_path / "labels.json").write_text(text)
    assert main(["convert", "labels", str(films), str(tmp_path / "labels.json")]) == 0
    shown = cells(capsys.readouterr().out)
    assert "test 3 2 1 1.5" in shown  # an empty list is no label
    assert "val 2 2 1 1.5" in shown  # splits may share captions
    assert "train" not in shown
    lines = (films / "TextData" / "films_dense_labels.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"cap_id": "a#enc#0", "vids": ["a", "b"]},
        {"cap_id": "b#enc#0", "vids": ["a"]},
    ]


def test_labels_that_do_not_fit_are_refused(films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for query, videos, named in (
        ("z#enc#0", ["a"], "query ids that are in no split: 1, among them ['z#enc#0']"),
        ("a#enc#1", ["a", "y", "c"], "their query: 2, among them ['c', 'y']"),
        (3, ["a"], "record 1: got {'query_id': 3"),
    ):
        (tmp_path / "labels.json").write_text(json.dumps([{"query_id": query, "gt_video_ids": videos}]))
        said = explained(["convert", "labels", str(films), str(tmp_path / "labels.json")], capsys)
        assert named in said
    assert not (films / "TextData" / "films_dense_labels.jsonl").exists()


def loop_gain(scores: list[float], gains: list[float]) -> float:
    order = sorted(range(len(scores)), key=lambda video: (-scores[video], gains[video]))
    total = sum(gains[video] / math.log2(2 + place) for place, video in enumerate(order))
    return total / sum(gain / math.log2(2 + place) for place, gain in enumerate(sorted(gains, reverse=True)))


def test_levels_of_relevance_are_gains(root: Path, run: tuple[Path, AnyRetriever], split: PackedSplit) -> None:
    other = root / "graded"
    shutil.copytree(root / "toy-tiny", other / "toy-tiny")
    (other / "toy-tiny" / "TextData" / "toy-tiny_dense_labels.jsonl").unlink()
    queries, videos = split.query_ids, split.video_ids
    records = [
        {"query_id": query, "gt_video_ids": [videos[(n + step) % 20] for step in range(4)], "levels": [n % 5, 4, 0, 1]}
        for n, query in enumerate(queries)
    ]
    (other / "labels.json").write_text(json.dumps(records))
    assert main(["convert", "labels", str(other / "toy-tiny"), str(other / "labels.json")]) == 0
    report = other / "evaluation.json"
    options = ["--device", "cpu", "-q", "--data-root", str(other), "--output", str(report)]
    assert main(["evaluate", str(run[0]), *options]) == 0
    found = EvaluationReport.from_json(report.with_name("evaluation_dense_labels.json"))
    expected = []
    for n, row in enumerate(whole_matrix(run[1], split).tolist()):
        gains = [0.0] * 20
        for step, level in enumerate((n % 5, 4, 0, 1)):
            gains[(n + step) % 20] = 2.0**level - 1
        expected.append(loop_gain(row, gains))
    assert found.lists is not None
    assert found.lists.ndcg == pytest.approx(100 * sum(expected) / len(expected), abs=1e-6)
    assert found.lists.right == pytest.approx(2.8)  # those of level 0 are not right


@pytest.mark.parametrize("ties", ["worst", "mean", "best"])
def test_ties_of_graded_videos(ties: Ties) -> None:
    """Four at the same score: gains in the least favourable order, the most favourable one, or the mean of the two."""
    gains = torch.tensor([[1.0, 0.0, 3.0, 7.0]], dtype=torch.float64)
    worst, best = (loop_gain([0.0, -1.0, -2.0, -3.0], order) for order in ([0, 1, 3, 7], [7, 3, 1, 0]))
    expected = {"worst": worst, "mean": (worst + best) / 2, "best": best}[ties]
    assert graded_gain(torch.zeros(1, 4), gains, ties).item() == pytest.approx(expected)
