"""Runs that are stopped and resumed: at the end of an epoch or inside one, they end as if nothing had happened."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import yaml
from training_runs import (
    RUNS,
    Runs,
    StopInEpoch,
    StraightRuns,
    interrupt,
    losses,
    make_config,
    same_end,
    state_of,
    steps_counter,
)

import prvr
from prvr.cli import main
from prvr.config import read_yaml_file
from prvr.data import DataError, VideoLoader
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.training import RunResult, TrainingError, resume, train
from prvr.training.checkpoint import load_state, save_state


@pytest.fixture
def finished(straight_runs: StraightRuns, tmp_path: Path) -> Path:
    """A copy of the run of one epoch."""
    return shutil.copytree(straight_runs["short"].output, tmp_path / "finished")


@pytest.mark.parametrize(
    ("name", "every", "epoch", "step", "kept"),
    [
        ("adamw", 1, 2, 1, (1, 1)),
        ("adamw", 5, 2, 2, (1, 1)),
        ("bert_adam", 1, 1, 1, (0, 1)),
        ("bert_adam", 3, 2, 3, (1, 2)),
        ("bert_adam", 4, 1, 0, None),
        ("bert_adam", 100, 2, 3, (1, 0)),
        ("chunks", 1, 1, 2, (0, 2)),
        ("average", 1, 1, 2, (0, 2)),
        ("average", 100, 2, 1, (1, 0)),
        ("linear", 1, 2, 1, (1, 1)),
    ],
)
def test_a_run_stopped_inside_an_epoch_goes_on_there_bitwise(
    runs: Runs, straight_runs: StraightRuns, name: str, every: int, epoch: int, step: int, kept: tuple[int, int] | None
) -> None:
    config, straight = runs.config(train__checkpoint_every=every, **RUNS[name]), straight_runs[name]
    broken = runs.path
    runs.stop(epoch, step, config)
    if kept is None:
        assert not (broken / "last").exists()
    else:
        state = state_of(broken)
        assert (state["epoch"], (state["position"] or {"step": 0})["step"]) == kept
        assert (broken / "best" / "model.safetensors").is_file() == (kept[0] > 0)
    assert not (broken / "evaluation.json").exists()
    torch.manual_seed(123)  # whatever stands in the global generator
    counts: list[int] = []
    resumed = runs.resume(progress=lambda t, n: steps_counter(counts, t, n))
    first = (0, 0) if kept is None else kept
    assert counts == [4 - first[1], 4][: 2 - first[0]]
    assert losses(resumed.history) == losses(straight.history)
    assert [line["selection"] for line in resumed.history] == [line["selection"] for line in straight.history]
    assert [line["lr"] for line in resumed.history] == [line["lr"] for line in straight.history]
    assert resumed.report.text_to_video == straight.report.text_to_video
    assert same_end(straight.output, broken)


def test_resuming_a_finished_run_only_reports(runs: Runs, finished: Path, straight_runs: StraightRuns) -> None:
    config, result = runs.config(**RUNS["short"]), straight_runs["short"]
    (finished / "evaluation.json").unlink()  # as if it had been stopped just before
    again = runs.train(config, "finished", resume=True, progress=StopInEpoch(1, interrupt))
    assert again.report.text_to_video == result.report.text_to_video
    assert again.history == result.history
    third = runs.resume("finished", progress=StopInEpoch(1, interrupt))
    assert third.report.text_to_video == result.report.text_to_video


def test_a_folder_in_use_and_another_configuration_are_refused(runs: Runs, finished: Path) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match=r"already holds .*best.*--resume"):
        runs.train(runs.config(**RUNS["short"]), "finished")
    other = runs.config(train__epochs=3, model__hidden=32)
    with pytest.raises(TrainingError, match=r"hidden: 16 -> 32; train\.epochs: 1 -> 3.*--train\.start_from .*finished"):
        runs.train(other, "finished", resume=True)
    config = runs.config(**RUNS["short"])
    retriever = Retriever(dataclasses.replace(config.model, branches="clips"))
    with pytest.raises(TrainingError, match=r"other parts: model\.retriever\.frames: 'BranchEncoder' -> 'absent'"):
        runs.train(config, "finished", resume=True, retriever=retriever)
    objective = Objective(config.loss, config.model)
    objective.add_module("own", torch.nn.Identity())  # a loss term without parameters
    with pytest.raises(TrainingError, match=r"other parts: model\.objective\.own: 'absent' -> 'Identity'"):
        runs.train(config, "finished", resume=True, objective=objective)
    assert before == {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    changes = {"train__checkpoint_every": 7, "train__on_nonfinite": "skip", "train__max_skipped": 2}
    moved = make_config("elsewhere", train__epochs=1, data__root="another disk", **changes)
    moved = dataclasses.replace(moved, name="another name")
    runs.train(moved, "finished", resume=True)  # its name, places, and caution may change


def test_resume_without_a_run_says_so(runs: Runs) -> None:
    with pytest.raises(TrainingError, match=r"config\.yaml: no such file"):
        runs.resume()
    runs.path.mkdir()
    (runs.path / "metrics.jsonl").write_text("")
    with pytest.raises(TrainingError, match=r"state\.pt: no such file"):
        runs.train(resume=True)


def test_a_key_that_is_newer_than_a_run_has_its_default(runs: Runs, finished: Path) -> None:
    state = load_state(finished / "last" / "state.pt")
    del state["config"]["model"]["compat"], state["config"]["train"]["start_from"]
    save_state(finished / "last" / "state.pt", {name: value for name, value in state.items() if name != "format"})
    runs.train(runs.config(**RUNS["short"]), "finished", resume=True)
    other = runs.config(**RUNS["short"], model__compat={"window": "printed"})
    with pytest.raises(TrainingError, match=r"model\.compat\.window: 'centred' -> 'printed'"):
        runs.train(other, "finished", resume=True)


def test_a_run_starts_from_the_weights_of_another(
    runs: Runs, finished: Path, straight: RunResult, caplog: pytest.LogCaptureFixture
) -> None:
    """A resumed one no longer needs it."""
    runs.train(train__start_from=str(finished), train__epochs=0)
    for name in ("model.safetensors", "objective.safetensors"):
        assert (runs.path / "best" / name).read_bytes() == (finished / "best" / name).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        runs.train(train__start_from=str(finished), name="longer", progress=StopInEpoch(2, interrupt, 2))
    finished.rename(runs.folder / "gone")
    went_on = runs.resume("longer")
    assert went_on.history[0]["loss"]["total"] < straight.history[0]["loss"]["total"]
    gone = str(runs.folder / "gone")
    runs.train(train__start_from=gone, train__epochs=0, loss__entailment=1e-3, name="cones")
    assert "The losses start anew." in caplog.text
    with pytest.raises(
        TrainingError, match=r"another model \(query\.project.*\(16, 48\) -> \(32, 48\), .* and \d\d more\)"
    ):
        runs.train(train__start_from=gone, train__epochs=0, model__hidden=32, name="wide")
    with pytest.raises(DataError, match="no such folder"):
        runs.train(train__start_from=str(finished), train__epochs=0, name="none")


def test_a_state_with_any_value_twisted_is_refused_in_a_sentence(runs: Runs, straight_runs: StraightRuns) -> None:
    finished = shutil.copytree(straight_runs["adamw"].output, runs.folder / "finished")
    path = finished / "last" / "state.pt"
    good, bad = load_state(path), float("nan")
    optimizer, networks, (line, *last) = good["optimizer"], good["networks"], good["history"]
    groups, first = optimizer["param_groups"], optimizer["state"][0]
    values = ("one", bad)
    twisted = [{name: value} for name in good for value in values if name not in ("constants", "position")]
    twisted += [
        {"history": [line | {key: value}, *last]}
        for key in ("epoch", "loss", "sumr", "averaged")
        for value in (bad, {"total": "one"}, torch.zeros(1))
    ]
    changes = [{"param_groups": []}, {"param_groups": [{}]}, {"state": []}, {"state": {0: {}}}, {"state": {"a": {}}}]
    changes += [{"state": {0: first | {"step": bad}}}, {"state": {10**6: first}}]
    changes += [{"state": {0: first | {"exp_avg": torch.zeros(1, 2, 3)}}}]
    for change in ({"lr": "fast"}, {"betas": (0.9, bad)}):
        changes.append({"param_groups": [group | change for group in groups]})
    twisted += [{"optimizer": optimizer | change} for change in changes]
    for change in (lambda some: {**some, 1: 2}, lambda some: dict.fromkeys(some, 1), lambda some: [*some]):
        twisted.append({"networks": {name: change(dict(network)) for name, network in networks.items()}})
    for value in ({"epoch": -2}, {"epoch": 5}, {"epoch": "a"}, {"value": bad}, {"value": []}, {"details": 3}):
        twisted.append({"best": {name: score | value for name, score in good["best"].items()}})
    places = ({"seconds": bad}, {"sums": {"total": bad}}, {"sums": []}, {"rate": "a"}, {"step": 1.5}, {"step": -1})
    twisted += [{"position": value} for value in ("one", -1, bad, {"step": 10**6}, *places)]
    reasons = "is damaged|training state of format|another configuration|of other parts|of another model"
    for change in [*twisted, {"epoch": 7}, {"history": []}]:
        save_state(path, good | change)
        with pytest.raises(TrainingError, match=reasons):
            runs.resume("finished")


def test_the_batches_that_are_done_count_and_are_not_read_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    config = runs.config(train__checkpoint_every=3, train__epochs=1)
    runs.stop(1, 3, config=config)
    seconds = state_of(runs.path)["position"]["seconds"]
    read: list[int] = []
    real = VideoLoader.batch

    def counted(self: VideoLoader, items: Any) -> Any:
        read.extend(index for index, _ in items)
        return real(self, items)

    monkeypatch.setattr(VideoLoader, "batch", counted)
    assert runs.resume().history[0]["seconds"]["train"] > seconds > 0
    batches = VideoLoader(runs.splits.train, config.train.batch_size, seed=config.train.seed).items()
    assert read == [index for batch in batches[3:] for index, _ in batch]


def test_a_run_killed_before_its_first_state_starts_over(runs: Runs, finished: Path, straight: RunResult) -> None:
    runs.stop(2)
    (runs.path / "last" / "state.pt").unlink()  # best/ and metrics.jsonl are written before it
    assert losses(runs.resume().history) == losses(straight.history)
    for run in (runs.path, finished):  # of a run that got further it is gone, and that is said
        (run / "last" / "state.pt").unlink()
        with pytest.raises(TrainingError, match=r"state\.pt: no such file"):
            runs.resume(run.name)


def test_a_run_says_what_made_it_and_is_not_continued_on_other_features(
    tmp_path: Path, cache: str, toy_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(toy_root / "toy-tiny", tmp_path / "data" / "toy-tiny")
    config = make_config(cache, data__root=str(tmp_path / "data"))
    train(config, output=tmp_path / "run", device="cpu", on_epoch=lambda line: True)  # stops after the first
    record = read_yaml_file(tmp_path / "run" / "environment.yaml")
    assert (record["prvr"], record["torch"], record["device"]) == (prvr.__version__, torch.__version__, "cpu")
    resume(tmp_path / "run", device="cpu")
    (tmp_path / "run" / "environment.yaml").write_text(yaml.safe_dump(record | {"torch": "1.0"}))
    with caplog.at_level("WARNING"):
        resume(tmp_path / "run", device="cpu")
    assert f"continued with another environment: torch 1.0 -> {torch.__version__}" in caplog.text
    (features,) = (tmp_path / "data" / "toy-tiny" / "FeatureData").rglob("feature.hdf5")
    with h5py.File(features, "r+") as file:
        for rows in file.values():
            rows[:] = -rows[:]
    with pytest.raises(TrainingError, match="was begun on other features of toy-tiny than those in its folder now"):
        resume(tmp_path / "run", device="cpu")
    caplog.clear()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--output", str(tmp_path / "new.json")]) == 0
    assert "the features are not those that the model was trained on" in caplog.text
