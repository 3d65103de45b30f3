"""Whole runs on the toy corpus with a tiny retriever: what a run writes, repeats and refuses."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import DIFFUSION, RUNS, Runs, StraightRuns, losses, make_config, state_of

from prvr.config import load_config
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.models import Retriever
from prvr.training import RunResult, TrainingError, open_split, open_splits, train
from prvr.training.processes import make_accelerator
from prvr.training.splits import training_batches


def test_a_run_leaves_a_folder_that_agrees_with_its_result(runs: Runs, straight: RunResult) -> None:
    config, result, run = runs.config(), straight, straight.output
    found = sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())
    assert [name for name in found if name != ".lock"] == [  # which filelock removes or leaves, by its release
        "best/README.md",
        "best/config.json",
        "best/model.safetensors",
        "best/objective.safetensors",
        "best/sha256.txt",
        "config.yaml",
        "curves.png",
        "evaluation.json",
        "evaluation_ranks.npz",
        "last/state.pt",
        "metrics.jsonl",
    ]
    assert load_config(run / "config.yaml") == config
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(result.history)
    assert [line["epoch"] for line in lines] == [0, 1]
    assert [line["negatives"] for line in lines] == ["random", "hard"]
    scores = [line["sumr"] for line in lines]
    assert result.best_score == max(scores) == scores[result.best_epoch]
    assert result.report.text_to_video.sumr == result.best_score  # protocol paper: selected on what is reported
    assert EvaluationReport.from_json(run / "evaluation.json") == result.report
    loaded = Retriever.from_pretrained(run / "best")
    again = evaluate(loaded, runs.splits.report, EvaluationConfig(bootstrap=0, seed=config.train.seed))
    assert (again.ranks == result.report.ranks).all()


def test_the_seed_decides_every_number(runs: Runs, straight_runs: StraightRuns) -> None:
    first = straight_runs["short"]
    torch.manual_seed(2)  # whatever stands in the global generator
    for seed in (0, 1):
        second = runs.train(name=str(seed), train__epochs=1, train__seed=seed)
        assert (losses(first.history) == losses(second.history)) == (seed == 0)


def test_holdout_selects_on_training_videos_and_scores_the_reported_split_once(tmp_path: Path, cache: str) -> None:
    config = make_config(cache, train__protocol="holdout", train__holdout_fraction=0.2)
    parts = open_splits(config)
    ids = [split.video_ids for split in (parts.train, parts.selection)]
    whole = open_split(config, "train")
    assert sorted([*ids[0], *ids[1]]) == sorted(whole.video_ids)
    result = train(config, output=tmp_path, splits=parts, device="cpu")
    best = Retriever.from_pretrained(tmp_path / "best")
    assert result.best_score == evaluate(best, parts.selection, EvaluationConfig(bootstrap=0)).text_to_video.sumr
    assert result.report.text_to_video == evaluate(best, parts.report, EvaluationConfig(bootstrap=0)).text_to_video
    parts.close()


def test_val_selects_on_a_split_that_is_neither_learned_nor_reported(cache: str) -> None:
    config = make_config(cache, train__protocol="val")
    with closing(open_splits(config)) as parts:
        ids = [split.video_ids for split in (parts.train, parts.selection, parts.report)]
    assert ids == [open_split(config, name).video_ids for name in ("train", "val", "test")]
    assert not set(ids[1]) & {*ids[0], *ids[2]}


def test_early_stopping_counts_epochs_without_a_better_score(runs: Runs) -> None:
    """As the authors' code counts: training stops at the first epoch beyond the patience, not with its last."""
    config = runs.config(train__epochs=9, train__patience=2, optim__lr=1e-12)
    result = runs.train(config)
    assert (result.epochs, result.best_epoch, result.stopped_early) == (4, 0, True)
    again = runs.resume()
    assert (again.epochs, again.stopped_early) == (4, True)


def test_on_epoch_reads_each_saved_line_and_ends_a_run_as_its_last_epoch_does(runs: Runs) -> None:
    seen: list[tuple[int, float]] = []

    def on_epoch(line: Mapping[str, Any]) -> bool:
        lines = (runs.path / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1]) == line == json.loads(json.dumps(line))
        seen.append((line["epoch"], line["sumr"]))
        return line["epoch"] == 1

    result = runs.train(train__epochs=4, on_epoch=on_epoch)
    assert seen == [(line["epoch"], line["sumr"]) for line in result.history]
    assert (result.epochs, result.stopped_early) == (2, True)
    again = runs.resume(on_epoch=on_epoch)  # finished: it is not trained further, or its report would not be its own
    assert (again.epochs, again.stopped_early, again.report, len(seen)) == (2, True, result.report, 2)


@pytest.mark.parametrize(("videos", "steps"), [(16, 1), (17, 1), (18, 2), (2, 1)])
def test_a_last_batch_of_one_video_is_left_out(runs: Runs, tmp_path: Path, videos: int, steps: int) -> None:
    with make_accelerator("no", tmp_path, "cpu", ()) as accelerator:
        assert len(training_batches(runs.config(), runs.splits.train.subset(range(videos)), accelerator)) == steps
    with pytest.raises(TrainingError, match="toy-tiny train: 1 video to train on"):
        dataclasses.replace(runs.splits, train=runs.splits.train.subset([0]))


def test_each_process_needs_a_video_of_a_batch(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_accelerator("no", tmp_path, "cpu", ()) as accelerator:
        monkeypatch.setattr(type(accelerator), "num_processes", 3)
        for size, videos in ((3, 16), (16, 3)):
            split = runs.splits.train.subset(range(videos))
            assert len(training_batches(runs.config(train__batch_size=size), split, accelerator))
        for size, videos in ((2, 16), (16, 2)):
            split = runs.splits.train.subset(range(videos))
            with pytest.raises(TrainingError, match="3 processes share batches of 2 videos"):
                training_batches(runs.config(train__batch_size=size), split, accelerator)


def test_bf16_trains_and_leaves_float32_to_others(runs: Runs, straight_runs: StraightRuns) -> None:
    config = runs.config(train__precision="bf16", train__epochs=1, **DIFFUSION)
    mixed = runs.train(config, "bf16").history[0]["loss"]
    exact = straight_runs["bert_adam"].history[0]["loss"]
    assert mixed != exact
    assert mixed["total"] == pytest.approx(exact["total"], rel=0.05)
    seen, retriever = set(), Retriever(runs.config().model)  # torch allows TF32 in cuDNN by default
    retriever.query.register_forward_hook(lambda *_: seen.add(products()))
    before = products()
    runs.train(name="after", retriever=retriever, **RUNS["short"])
    assert seen == {("highest", False)}
    assert products() == before


def products() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_bounded_parameters_are_put_back_after_every_step(runs: Runs) -> None:
    blocks = {"model__blocks": [{"space": "lorentz"}], "model__lorentz_dim": 15, "model__window": "multiply"}
    config = runs.config(train__epochs=1, model__compat={"lorentz": "released"}, **blocks)
    retriever = Retriever(config.model)
    scales = {name: p for name, p in retriever.named_parameters() if name.endswith("log_scale")}
    for scale in scales.values():  # at most 0, and every gradient draws it past that
        scale.register_hook(lambda gradient: -torch.ones_like(gradient))
    with torch.no_grad():
        for scale in scales.values():
            scale.fill_(-1e-6)
    runs.train(config, retriever=retriever)
    assert len(scales) == 2
    assert all(state_of(runs.path)["retriever"][name].tolist() == [0.0] for name in scales)


def test_a_tracker_whose_package_is_missing_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.tracking.is_comet_ml_available", lambda: False)
    with pytest.raises(TrainingError, match=r"comet_ml needs the package comet-ml.*pip install comet-ml"):
        runs.train(trackers=["comet_ml"])
    with pytest.raises(TrainingError, match=r"unknown tracker 'wandbb'; did you mean wandb"):
        runs.train(trackers=["wandbb"])


def test_trackers_and_the_log_get_a_line_per_epoch(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="prvr.training"):
        result = runs.train(trackers=["tensorboard"])
    (events,) = runs.path.rglob("events.out.tfevents.*")
    assert events.read_bytes().count(b"selection/sumr") == len(result.history)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("epoch ")]
    assert len(lines) == 2
    assert f"loss {result.history[0]['loss']['total']:.4f}" in lines[0]
