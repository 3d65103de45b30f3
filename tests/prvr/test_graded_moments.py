"""TVR-Ranking's labels: nDCG of moments by hand, of a system, and files in the authors' layout."""

import json
import shutil
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import explained
from retrievers import MeanPooling
from runs_of_retrievers import write_run

from prvr.cli import main
from prvr.data import PackSettings, open_corpus, pack
from prvr.errors import DataError
from prvr.evaluation import EvaluationReport, encode_split, find_moments
from prvr.evaluation.lists import IOUS
from prvr.evaluation.rejection import rejection_auroc
from prvr.papers.graded_moments import GradedMoment as Graded
from prvr.papers.graded_moments import mean_ndcg, ndcg, read_labels


def test_by_hand(tmp_path: Path) -> None:
    moment = {"pair_id": 0, "video_name": "a", "timestamp": [0.0, 10.0], "duration": 90.02, "caption": "x"}
    others = [{"video_name": "a", "timestamp": [8, 18], "relevance": 2}, {"video_name": "b", "timestamp": [5.0, 9.0]}]
    moments = [moment | {"similarity": 1.0, "relevance": 4}, others[0], others[1] | {"relevance": 1}]
    path = tmp_path / "test.json"
    path.write_text(json.dumps([{"query_id": 54251, "query": "a man", "relevant_moment": moments}]))
    labels = read_labels(path)
    graded = labels["54251"]
    assert graded[0] == Graded("a", (0.0, 10.0), 4.0)
    ideal = 15 + 3 / log2(3) + 1 / 2
    found = [("b", 5.0, 9.0), ("a", 1.0, 9.0), ("a", 0.0, 10.0), ("c", 0.0, 1.0), ("a", 9.0, 18.0)]
    # the third overlaps most with what the second has taken, and not enough with what is left
    assert ndcg(found, graded, 0.5) == pytest.approx((1 + 15 / log2(3) + 3 / log2(6)) / ideal)
    assert ndcg(found, graded, 0.5, k=1) == pytest.approx(1 / 15)
    assert ndcg(found, graded, 0.8) == pytest.approx((1 + 15 / log2(4) + 3 / log2(6)) / ideal)  # 0.8 is not above 0.8
    assert ndcg(found, [Graded("a", (0.0, 9.0), 0.0)], 0.5) == 0.0
    path.write_text(json.dumps([{"query_id": 1, "relevant_moment": [{"video_name": "a"}]}]))
    with pytest.raises(DataError, match=r"query 1: relevant_moment\.0\.timestamp"):
        read_labels(path)


def test_of_a_system(packed) -> None:
    model = MeanPooling(packed.feature_dim, packed.query_dim)
    found = find_moments(model, packed, range(3), 20)
    labels = {
        each.query_id: [
            Graded(hit.video_id, (hit.start, hit.end), 4 - min(place, 4))
            for place, hit in enumerate(each.hits)
            if hit.start is not None and hit.end is not None
        ]
        for each in found
    }
    assert mean_ndcg(labels, model, packed) == pytest.approx({str(iou): 1.0 for iou in IOUS})
    with pytest.raises(DataError, match="none of its"):
        mean_ndcg({"another": []}, model, packed)


def test_evaluate_reports_queries_without_an_answer_and_graded_moments(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the first stage and after a stage, which has the test videos alone to rank for queries of other videos."""
    texts = shutil.copytree(toy_root / "toy-tiny", tmp_path / "data" / "toy-tiny") / "TextData"
    shutil.copy(texts / "toy-tinyval.caption.txt", texts / "toy-tinyunanswered.caption.txt")
    folder, retriever = write_run(tmp_path / "run", tmp_path / "data", "toy-tiny")
    sampled: Any = {"cache_dir": tmp_path / "cache", "settings": PackSettings.of(retriever.config, keep_last=True)}
    with pack(open_corpus(tmp_path / "data", "toy-tiny"), "test", **sampled) as packed:
        encoded, own = encode_split(retriever, packed), packed.query_ids[7]
        (found,) = find_moments(retriever, packed, [7], 20, encoded=encoded)
    (texts / "toy-tiny_own_ids.jsonl").write_text(json.dumps({"cap_id": own, "id": "4711"}) + "\n")
    moments = [
        {"video_name": hit.video_id, "timestamp": [hit.start, hit.end], "relevance": 3 - place}
        for place, hit in enumerate(found.hits[:4])
    ]
    (tmp_path / "test.json").write_text(json.dumps([{"query_id": 4711, "relevant_moment": moments}]))
    options = ["--unanswered", "unanswered", "--graded", str(tmp_path / "test.json")]
    staged = ["--stage", "qb_norm", "--output", str(tmp_path / "last.json")]
    assert main(["evaluate", str(folder), *options, *staged, "--device", "cpu", "-q"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    first = EvaluationReport.from_json(folder / "evaluation_retriever.json")
    last = EvaluationReport.from_json(tmp_path / "last.json")
    assert first.graded == pytest.approx({"0.3": 1.0, "0.5": 1.0, "0.7": 1.0})
    with pack(open_corpus(tmp_path / "data", "toy-tiny"), "val", **sampled) as packed:
        other = encode_split(retriever, packed)
    with torch.no_grad():
        scores = [
            torch.cat([retriever.score(text, part).total for part in encoded.videos], 1).amax(1).numpy()
            for text in (encoded.text, other.text)
        ]
    assert first.rejection is not None
    assert last.rejection is not None
    assert (first.rejection.auroc, first.rejection.interval) == rejection_auroc(scores[0], scores[1])
    assert first.rejection.queries == last.rejection.queries == len(other.text)
    assert first.rejection.auroc != last.rejection.auroc
    assert f"{len(other.text)} queries without an answer {first.rejection.auroc:.3f}" in out
    assert "nDCG@20 of moments, IoU > 0.7 1.000" in out
    for option in ("--unanswered", "--graded"):
        assert f"{option}: not of zero-shot" in explained(["evaluate", "zero-shot", option, "x"], capsys)
        with_others = ["evaluate", str(folder), "--transfer", "y", option, "x"]
        assert f"{option} cannot be used with --transfer" in explained(with_others, capsys)
