"""The model that ships with prvr: it belongs to this version of the toy world, has a name, and finds films."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from prvr.config import load_config
from prvr.data import DataError, open_corpus
from prvr.data.hashes import HASHES
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.zero_shot import compare_baselines, untrained_baselines
from prvr.models import load_pretrained
from prvr.models.pretrained import ABOUT, SHIPPED, WEIGHTS, shipped_model
from prvr.systems import open_system
from prvr.toy import load_encoder
from prvr.toy.toy_corpus import GENERATOR, VERSION
from prvr.training import open_split

NAME = "toy-world"


def test_it_is_of_this_version_and_says_how_it_was_made() -> None:
    with safe_open(SHIPPED / NAME / WEIGHTS, "pt") as file:
        about = json.loads(file.metadata()[ABOUT])
    again = "Run scripts/train_toy_world.py: the toy world or its encoder has changed."
    assert (about["corpus"], about["corpus_version"]) == (GENERATOR, VERSION), again
    assert about["encoder_sha256"] == load_encoder().sha256, again
    assert about["made_by"] == "scripts/train_toy_world.py"
    assert about["corpus_seed"] > 1_000_000  # of a corpus that nobody makes by chance: its videos are in no other
    assert sum(path.stat().st_size for path in (SHIPPED / NAME).iterdir()) <= 5_000_000
    assert (SHIPPED / NAME / HASHES).is_file()


def test_it_is_better_than_zero_shot_on_videos_that_it_was_not_trained_on(toy_root: Path, toy_cache: Path) -> None:
    corpus = open_corpus(toy_root, "toy-tiny")
    changes = {"data.collection": corpus.name, "data.cache_dir": str(toy_cache)}
    with open_split(load_config(SHIPPED / NAME / "config.yaml", changes), "test") as split:
        report = evaluate(load_pretrained(NAME), split, EvaluationConfig(bootstrap=0))
        beside = compare_baselines(report, split, untrained_baselines(report, split))
    assert beside.sumr["zero-shot"].value > 0  # few videos, most of which differ in one detail: p is large
    assert beside.model.r1 > beside.baselines["zero-shot"].r1
    assert {"model", "zero-shot"} <= {*beside.above_chance}


def test_its_name_comes_before_a_folder_and_a_path_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    assert shipped_model(NAME) == SHIPPED / NAME
    system = open_system(NAME)
    assert system.config is not None
    assert (system.config.name, system.config.data.collection) == (NAME, "toy-demo")
    for path in (f"./{NAME}", str(tmp_path / NAME)):
        assert shipped_model(path) is None
    with pytest.raises(DataError, match=r"neither a run of .* nor a folder"):
        open_system(Path(NAME))
    (tmp_path / "both.yaml").write_text(f"first: {NAME}\nstages:\n- kind: retriever\n  run: {NAME}\n")
    assert len(open_system("both.yaml").pipeline.stages) == 1
