"""The script that searches large galleries, on small ones: what it writes, what it finds, and what it refuses."""

import json
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from runs_of_retrievers import write_run

import _gallery
import pipeline
from prvr.data import open_corpus
from prvr.errors import InputError
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.pipeline import open_system
from prvr.search import VideoIndex, open_model
from prvr.video import VideoStore
from prvr.video.store import write_entry, write_header

ZERO_SHOT = "stages:\n- {kind: zero_shot, top_k: 4, weight: 3.0}\n"


@pytest.fixture
def run(tmp_path: Path, toy_root: Path) -> Path:
    return write_run(tmp_path / "run", toy_root, "toy-tiny")[0]


def options(system: Path, **changes: object) -> Namespace:
    return Namespace(**{"system": str(system), "seed": 0, "queries": 100, "gigabytes": 1.0} | changes)


def test_other_videos_are_shots_of_training_videos_in_a_row(toy_root: Path) -> None:
    corpus = open_corpus(toy_root, "toy-tiny")
    real, training = corpus.split("test").video_ids, corpus.split("train").video_ids
    made = list(_gallery.gallery_videos(corpus, "test", 26))
    assert [entry.id for entry, _ in made[: len(real)]] == list(real)
    assert len({entry.sha256 for entry, _ in made}) == 26
    with corpus.open_features() as features:
        known = {row.tobytes(): (video, i) for video in training for i, row in enumerate(features.read(video))}
        lengths = {len(features.read(video)) for video in training}
    for entry, rows in made[len(real) :]:
        places = [known[row.tobytes()] for row in rows]
        cuts = sum(b != (a[0], a[1] + 1) for a, b in pairwise(places))
        assert 0 < cuts <= entry.duration / 3  # shots have at least three seconds
        assert entry.frames == len(rows) in lengths
    again = list(_gallery.gallery_videos(corpus, "test", 26))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(made, again, strict=True))
    with pytest.raises(InputError, match="expected at least 20"):
        next(_gallery.gallery_videos(corpus, "test", 19))


def test_a_gallery_is_the_index_of_a_store_with_its_videos(
    run: Path, tmp_path: Path, toy_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_gallery, "PER_SEGMENT", 12)
    about = pipeline.written(tmp_path / "made", options(run, queries=5), 27, "float16")
    corpus, store = open_corpus(toy_root, "toy-tiny"), tmp_path / "store"
    header = _gallery.header_of(corpus)
    (store / "videos").mkdir(parents=True)
    write_header(store, header)
    for entry, rows in _gallery.gallery_videos(corpus, "test", 27):
        write_entry(store, header, entry, rows)
    with VideoIndex.create(tmp_path / "index", open_model(run, header), header) as index:
        index.add(VideoStore(store))
        with VideoIndex.open(tmp_path / "made/index") as made:
            assert made.verify() == ()
            assert (made.info().segments, len(made)) == (3, 27)
            assert about["bytes"]["frames"] > about["bytes"]["clips"] == pytest.approx(32 * 16 * 2 + 128 * 3 / 27)
            assert sum(about["bytes"].values()) == pytest.approx(made.info().bytes / 27)
            for text, answers in pipeline.queries_of(tmp_path / "made"):
                expected, found = index.search(text, 27).hits, made.search(text, 27).hits
                np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=2e-3)
                assert set(answers) < {hit.video_id for hit in found}
    with pytest.raises(InputError, match="GB of disk; --gigabytes allows more"):
        pipeline.written(tmp_path / "large", options(run, gigabytes=1e-6), 27, "float16")


def test_searches_and_the_full_score_rank_as_evaluation_does(run: Path, tmp_path: Path) -> None:
    system = tmp_path / "system.yaml"
    system.write_text(f"first: {run}\n{ZERO_SHOT}", encoding="utf-8")
    folder = tmp_path / "made"
    about = pipeline.written(folder, options(system), 20, "float32")
    assert about["stages"] == ["zero_shot over the best 4, both directions"]
    full = pipeline.full_score(folder, 100)
    (folder / "full.json").write_text(json.dumps(full))
    expected = {}
    for name, text in (("all stages", ZERO_SHOT), ("full score", ZERO_SHOT.replace("4", "all")), ("first stage", "")):
        system.write_text(f"first: {run}\n{text}", encoding="utf-8")
        opened = open_system(system)
        with opened.open_split("test") as split:
            ranks = evaluate(opened.pipeline, split, EvaluationConfig(bootstrap=0)).ranks
        expected[name] = [100 * float((ranks <= k).mean()) for k in (1, 10)]
    found = {name: pipeline.searched(folder, name == "all stages", "exact")["search"]() for name in expected}
    found["full score"] = pipeline.judged(folder, full["found"])
    assert {name: [one["R@1"], one["R@10"]] for name, one in found.items()} == expected
    assert expected["first stage"] != expected["all stages"] != expected["full score"]
    assert 0 < found["first stage"]["recall@10"] < found["full score"]["recall@10"] == 1
    assert pipeline.plain(folder)["search"]().keys() < found["all stages"].keys()


def test_words_are_compared_with_every_video_in_the_full_score(tmp_path: Path, toy_root: Path) -> None:
    run, _ = write_run(tmp_path / "run", toy_root, "toy-tiny", **{"model.frame_query": "words"})
    pipeline.written(tmp_path, options(run, queries=6), 30, "int8")
    model = pipeline.scoring_all(VideoIndex.open(tmp_path / "index").model)
    assert model.pipeline.describe() == ("retriever over everything, both directions",)
    full = pipeline.full_score(tmp_path, 3)
    assert [len(ids) for ids in full["found"]] == [10] * 3
    (tmp_path / "full.json").write_text(json.dumps(full))
    figures = pipeline.searched(tmp_path, True, "exact")["search"]()
    assert figures["recall@10"] == 1  # the best 200 of 30 are all
    assert np.isfinite(list(figures.values())).all()
