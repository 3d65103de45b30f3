"""The example of TVR-Ranking's labels: nDCG of moments by hand, of a system, and files in the authors' layout."""

import json
import runpy
from math import log2
from pathlib import Path

import pytest
from retrievers import MeanPooling

from prvr.errors import DataError
from prvr.evaluation import find_moments

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "graded_moments.py"))
Graded, ndcg, mean_ndcg = EXAMPLE["GradedMoment"], EXAMPLE["ndcg"], EXAMPLE["mean_ndcg"]


def test_by_hand(tmp_path: Path) -> None:
    moment = {"pair_id": 0, "video_name": "a", "timestamp": [0.0, 10.0], "duration": 90.02, "caption": "x"}
    others = [{"video_name": "a", "timestamp": [8, 18], "relevance": 2}, {"video_name": "b", "timestamp": [5.0, 9.0]}]
    moments = [moment | {"similarity": 1.0, "relevance": 4}, others[0], others[1] | {"relevance": 1}]
    path = tmp_path / "test.json"
    path.write_text(json.dumps([{"query_id": 54251, "query": "a man", "relevant_moment": moments}]))
    labels = EXAMPLE["read_labels"](path)
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
        EXAMPLE["read_labels"](path)


def test_of_a_system(packed) -> None:
    model = MeanPooling(packed.feature_dim, packed.query_dim)
    found = find_moments(model, packed, range(3), 20)
    labels = {
        each.query_id: [
            Graded(hit.video_id, (hit.start, hit.end), 4 - min(place, 4)) for place, hit in enumerate(each.hits)
        ]
        for each in found
    }
    assert mean_ndcg(model, packed, labels) == pytest.approx(dict.fromkeys(EXAMPLE["IOUS"], 1.0))
    with pytest.raises(DataError, match="none of its"):
        mean_ndcg(model, packed, {"another": []})
