"""Reports on disk: whole, the same when read again, and told apart from damaged ones."""

import json
import random
from dataclasses import replace

import pytest
from retrievers import MeanPooling

from prvr.data import open_corpus, pack
from prvr.errors import DataError
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.report import EvaluationReport


@pytest.fixture(scope="module")
def split(embedded_root, embedded_cache):
    corpus = open_corpus(embedded_root, "embedded-tiny")
    with pack(corpus, "test", cache_dir=embedded_cache / "packed") as packed:
        yield packed


@pytest.fixture
def model(split):
    return MeanPooling(split.feature_dim, split.query_dim)


def test_report_survives_its_files(model, split, tmp_path):
    report = evaluate(model, split, EvaluationConfig(ties="mean", bootstrap=30))
    report.to_json(tmp_path / "run" / "evaluation.json")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["evaluation.json", "evaluation_ranks.npz"]
    read = EvaluationReport.from_json(tmp_path / "run" / "evaluation.json")
    assert read == report
    for name in ("ranks", "video_ranks", "query_to_video"):
        assert getattr(read, name).tolist() == getattr(report, name).tolist()
    shown = json.loads((tmp_path / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert shown["text_to_video"]["sumr"] == report.text_to_video.sumr
    assert shown["intervals"]["sumr"]["level"] == 0.95


def test_unusual_ids_survive(model, split, tmp_path):
    report = evaluate(model, split, EvaluationConfig(bootstrap=0))
    strange = ("日本語 #1#enc#0", "a\u2028b#enc#0", "x" * 300, *report.query_ids[3:])
    replace(report, query_ids=strange).to_json(tmp_path / "e.json")
    assert EvaluationReport.from_json(tmp_path / "e.json").query_ids == strange


def damage_json(folder):
    text = (folder / "evaluation.json").read_text(encoding="utf-8")
    (folder / "evaluation.json").write_text(text[:100], encoding="utf-8")


def damage_key(folder):
    values = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    del values["text_to_video"]
    (folder / "evaluation.json").write_text(json.dumps(values), encoding="utf-8")


def other_format(folder):
    values = json.loads((folder / "evaluation.json").read_text(encoding="utf-8")) | {"format": 99}
    (folder / "evaluation.json").write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "evaluation.json").unlink(), "no such file. Evaluate first"),
        (lambda folder: (folder / "evaluation_ranks.npz").unlink(), "evaluation_ranks.npz: no such file"),
        (lambda folder: (folder / "evaluation_ranks.npz").write_bytes(b"PK"), "does not belong to evaluation.json"),
        (damage_json, "evaluation.json: not valid JSON"),
        (damage_key, "does not match its own hash"),
        (other_format, "format 99"),
    ],
)
def test_damaged_files_are_named(model, split, tmp_path, damage, message):
    evaluate(model, split, EvaluationConfig(bootstrap=0)).to_json(tmp_path / "evaluation.json")
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        EvaluationReport.from_json(tmp_path / "evaluation.json")


@pytest.mark.parametrize("blocked", ["evaluation_ranks.npz", "evaluation.json"])
def test_a_failed_write_says_so_and_leaves_nothing_half_written(model, split, tmp_path, blocked):
    (tmp_path / blocked).mkdir()  # a file cannot replace a folder
    report = evaluate(model, split, EvaluationConfig(bootstrap=0))
    with pytest.raises(DataError, match=rf"{blocked}: cannot be written"):
        report.to_json(tmp_path / "evaluation.json")
    assert not list(tmp_path.glob(".*"))


def test_what_is_read_of_a_damaged_evaluation_is_what_was_written(model, split, tmp_path):
    report, path, rng = (
        evaluate(model, split, EvaluationConfig(bootstrap=10)),
        tmp_path / "evaluation.json",
        random.Random(20261122),
    )
    report.to_json(path)
    whole, refused = path.read_bytes(), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert EvaluationReport.from_json(path) == report
        except DataError:
            refused += 1
    assert refused > 100  # the others hit blanks


def test_an_evaluation_of_an_older_version_is_read(model, split, tmp_path):
    report, path = evaluate(model, split, EvaluationConfig(bootstrap=10)), tmp_path / "evaluation.json"
    report.to_json(path)
    values = json.loads(path.read_text()) | {"format": 2}
    del values["sha256"], values["video_to_sets"]
    path.write_text(json.dumps(values))
    assert EvaluationReport.from_json(path) == report


def test_ranks_of_another_evaluation_are_noticed(model, split, tmp_path):
    report = evaluate(model, split, EvaluationConfig(bootstrap=0))
    report.to_json(tmp_path / "evaluation.json")
    replace(report, ranks=report.ranks + 1).to_json(tmp_path / "other.json")
    (tmp_path / "other_ranks.npz").replace(tmp_path / "evaluation_ranks.npz")
    with pytest.raises(DataError, match=r"does not belong to evaluation\.json"):
        EvaluationReport.from_json(tmp_path / "evaluation.json")
