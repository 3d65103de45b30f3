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
    with pytest.raises(TrainingError, match=r"model\.hidden: 16 -> 32; train\.epochs: 1 -> 3"):
        runs.train(other, "finished", resume=True)
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


def test_one_call_starts_a_run_or_resumes_it(runs: Runs, straight_runs: StraightRuns) -> None:
    config, straight = runs.config(**RUNS["short"]), straight_runs["short"]
    with pytest.raises(KeyboardInterrupt):
        runs.train(config, resume=True, progress=StopInEpoch(1, interrupt, 2))
    assert runs.train(config, resume=True).history[0]["loss"] == straight.history[0]["loss"]
    assert same_end(straight.output, runs.path)


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


def test_a_resume_with_other_parts_or_loss_terms_is_refused_by_name(runs: Runs, finished: Path) -> None:
    config = runs.config(**RUNS["short"])
    retriever = Retriever(dataclasses.replace(config.model, branches="clips"))
    with pytest.raises(TrainingError, match=r"other parts: model\.retriever\.frames: 'BranchEncoder' -> 'absent'"):
        runs.train(config, "finished", resume=True, retriever=retriever)
    objective = Objective(config.loss, config.model)
    objective.add_module("own", torch.nn.Identity())  # a loss term without parameters
    with pytest.raises(TrainingError, match=r"other parts: model\.objective\.own: 'absent' -> 'Identity'"):
        runs.train(config, "finished", resume=True, objective=objective)


@pytest.mark.parametrize(
    "change", [{"epoch": -5}, {"epoch": 7}, {"history": []}, {"position": {"step": -1}}, {"position": {"step": 10**6}}]
)
def test_a_state_of_no_place_in_the_run_is_refused(runs: Runs, finished: Path, change: dict[str, Any]) -> None:
    path = finished / "last" / "state.pt"
    save_state(path, load_state(path) | change)
    with pytest.raises(TrainingError, match=r"state\.pt: is damaged: step .* of .* epochs.*start a new run"):
        runs.resume("finished")


def test_a_state_with_any_value_twisted_is_refused_in_a_sentence(runs: Runs, straight_runs: StraightRuns) -> None:
    finished = shutil.copytree(straight_runs["adamw"].output, runs.folder / "finished")
    path = finished / "last" / "state.pt"
    good = load_state(path)
    line, last, bad = good["history"][0], good["history"][1:], float("nan")
    values: list[Any] = ["one", -1, bad, {"a": 1}]
    fine = {("position", "{'a': 1}")}
    twisted = {(name, str(value)): {name: value} for name in good for value in values if name != "constants"}
    twisted |= {
        ("history", f"{key} {value}"): {"history": [line | {key: value}, *last]}
        for key in ("epoch", "loss", "sumr", "averaged")
        for value in ("one", bad, {"total": "one"}, torch.zeros(1))
    }
    optimizer = good["optimizer"]
    twisted |= {
        ("optimizer", str(number)): {"optimizer": optimizer | change}
        for number, change in enumerate([
            {"param_groups": []}, {"param_groups": [{}]}, {"state": []}, {"state": {0: {}}}, {"state": {"a": {}}},
            {"state": {0: optimizer["state"][0] | {"step": bad}}}, {"state": {10**6: optimizer["state"][0]}},
            {"state": {0: optimizer["state"][0] | {"exp_avg": torch.zeros(1, 2, 3)}}},
            {"param_groups": [group | {"lr": "fast"} for group in optimizer["param_groups"]]},
            {"param_groups": [group | {"betas": (0.9, bad)} for group in optimizer["param_groups"]]},
        ])
    }  # fmt: skip
    networks = good["networks"]
    twisted |= {
        ("networks", str(number)): {"networks": {name: change(dict(network)) for name, network in networks.items()}}
        for number, change in enumerate([
            lambda network: {**network, 1: 2}, lambda network: dict.fromkeys(network, 1), lambda network: [*network],
        ])
    }  # fmt: skip
    best = good["best"]
    twisted |= {
        ("best", str(value)): {"best": {name: score | value for name, score in best.items()}}
        for value in ({"epoch": -2}, {"epoch": 5}, {"epoch": "a"}, {"value": bad}, {"value": []}, {"details": 3})
    }
    twisted |= {
        ("position", str(value)): {"position": value}
        for value in ({"seconds": bad}, {"sums": {"total": bad}}, {"sums": []}, {"rate": "a"}, {"step": 1.5})
    }
    allowed, said = set[tuple[str, str]](), dict[tuple[str, str], str]()
    for case, change in twisted.items():
        save_state(path, good | change)
        try:
            runs.resume("finished")
            allowed.add(case)
        except TrainingError as error:
            said[case] = str(error)
    reasons = ("is damaged", "training state of format", "another configuration", "of other parts", "of another model")
    assert not {case: why for case, why in said.items() if not any(reason in why for reason in reasons)}
    assert allowed <= fine, allowed - fine


def test_the_batches_that_are_done_are_not_read_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    config = runs.config(train__checkpoint_every=3, train__epochs=1)
    runs.stop(1, 3, config=config)
    read: list[int] = []
    real = VideoLoader.batch

    def counted(self: VideoLoader, items: Any) -> Any:
        read.extend(index for index, _ in items)
        return real(self, items)

    monkeypatch.setattr(VideoLoader, "batch", counted)
    assert runs.resume().epochs == 1
    batches = VideoLoader(runs.splits.train, config.train.batch_size, seed=config.train.seed).items()
    assert read == [index for batch in batches[3:] for index, _ in batch]


def test_seconds_and_sums_before_the_stop_count(runs: Runs) -> None:
    config = runs.config(train__checkpoint_every=2, train__epochs=1)
    runs.stop(1, 2, config=config)
    position = state_of(runs.path)["position"]
    assert position["seconds"] > 0
    assert set(position["sums"]) >= {"total", "triplet_clips"}
    result = runs.resume()
    assert result.history[0]["seconds"]["train"] > position["seconds"]


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
