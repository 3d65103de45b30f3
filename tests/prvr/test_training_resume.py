"""Runs that are stopped and resumed: at the end of an epoch or inside one, they end as if nothing had happened."""

import dataclasses
import shutil
from pathlib import Path

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
from prvr.models import Retriever
from prvr.training import RunResult, TrainingError, resume, train
from prvr.training.checkpoint import load_state, save_state


@pytest.fixture
def finished(straight_runs: StraightRuns, tmp_path: Path) -> Path:
    """A copy of the run of one epoch."""
    return shutil.copytree(straight_runs["short"].output, tmp_path / "finished")


@pytest.mark.parametrize(
    ("name", "every", "epoch", "step", "kept"),
    [
        ("adamw", 5, 2, 2, (1, 1)),
        ("bert_adam", 3, 2, 3, (1, 2)),
        ("bert_adam", 4, 1, 0, None),
        ("chunks", 1, 1, 2, (0, 2)),
        ("average", 100, 2, 1, (1, 0)),
        ("kernel", 1, 2, 1, (1, 1)),
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
    torch.manual_seed(123)  # whatever stands in the global generator
    counts: list[int] = []
    resumed = runs.resume(progress=lambda t, n: steps_counter(counts, t, n))
    first = (0, 0) if kept is None else kept
    assert counts == [4 - first[1], 4][: 2 - first[0]]
    assert losses(resumed.history) == losses(straight.history)
    assert resumed.report.text_to_video == straight.report.text_to_video
    assert same_end(straight.output, broken)


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
    assert before == {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    moved = make_config("elsewhere", train__epochs=1, train__checkpoint_every=7, data__root="another disk")
    moved = dataclasses.replace(moved, name="another name")
    runs.train(moved, "finished", resume=True)  # its name, places, and caution may change


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
    with pytest.raises(TrainingError, match=r"another model \(query\.project.*\(16, 48\) -> \(32, 48\)"):
        runs.train(train__start_from=gone, train__epochs=0, model__hidden=32, name="wide")


def test_a_state_with_any_value_twisted_is_refused_in_a_sentence(runs: Runs, straight_runs: StraightRuns) -> None:
    finished = shutil.copytree(straight_runs["adamw"].output, runs.folder / "finished")
    path = finished / "last" / "state.pt"
    good, bad = load_state(path), float("nan")
    optimizer, networks, (line, *last) = good["optimizer"], good["networks"], good["history"]
    groups, first = optimizer["param_groups"], optimizer["state"][0]
    values = ("one", bad)
    twisted = [{name: value} for name in good for value in values if name not in ("constants", "position")]
    twisted += [{"history": [line | {key: bad}, *last]} for key in ("epoch", "loss", "sumr", "averaged")]
    changes = [{"param_groups": [{}]}, {"state": []}, {"state": {0: {}}}, {"state": {0: first | {"step": bad}}}]
    changes += [{"state": {0: first | {"exp_avg": torch.zeros(1, 2, 3)}}}]
    changes += [{"param_groups": [group | {"lr": "fast"} for group in groups]}]
    twisted += [{"optimizer": optimizer | change} for change in changes]
    for change in (lambda some: {**some, 1: 2}, lambda some: dict.fromkeys(some, 1), lambda some: [*some]):
        twisted.append({"networks": {name: change(dict(network)) for name, network in networks.items()}})
    for value in ({"epoch": -2}, {"epoch": 5}, {"value": bad}, {"details": 3}):
        twisted.append({"best": {name: score | value for name, score in good["best"].items()}})
    twisted += [{"position": value} for value in ("one", {"step": 10**6}, {"seconds": bad}, {"sums": {"total": bad}})]
    reasons = "is damaged|training state of format|another configuration|of other parts|of another model"
    for change in [*twisted, {"epoch": 7}, {"history": []}]:
        save_state(path, good | change)
        with pytest.raises(TrainingError, match=reasons):
            runs.resume("finished")


def test_a_run_killed_before_its_first_state_starts_over(runs: Runs, finished: Path, straight: RunResult) -> None:
    runs.stop(2)
    (runs.path / "last" / "state.pt").unlink()  # best/ and metrics.jsonl are written before it
    assert losses(runs.resume().history) == losses(straight.history)
    (finished / "last" / "state.pt").unlink()  # of a run that got further it is gone, and that is said
    with pytest.raises(TrainingError, match=r"state\.pt: no such file"):
        runs.resume("finished")
    with pytest.raises(TrainingError, match=r"config\.yaml: no such file"):
        runs.resume("none")


def test_a_run_says_what_made_it_and_is_not_continued_on_other_features(
    tmp_path: Path, cache: str, toy_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(toy_root / "toy-tiny", tmp_path / "data" / "toy-tiny")
    folder = tmp_path / "data" / "toy-tiny" / "FeatureData"
    (folder / "frames").rename(folder / "clip")
    config = make_config(cache, data__root=str(tmp_path / "data"))
    train(config, output=tmp_path / "run", device="cpu", on_epoch=lambda line: True)  # stops after the first
    (folder / "frames").mkdir()  # other features beside them
    record = read_yaml_file(tmp_path / "run" / "environment.yaml")
    assert (record["prvr"], record["torch"], record["device"]) == (prvr.__version__, torch.__version__, "cpu")
    resume(tmp_path / "run", device="cpu")
    (tmp_path / "run" / "environment.yaml").write_text(yaml.safe_dump(record | {"torch": "1.0"}))
    with caplog.at_level("WARNING"):
        resume(tmp_path / "run", device="cpu")
    assert f"continued with another environment: torch 1.0 -> {torch.__version__}" in caplog.text
    with h5py.File(folder / "clip" / "feature.hdf5", "r+") as file:
        for rows in file.values():
            rows[:] = -rows[:]
    with pytest.raises(TrainingError, match="was begun on other features of toy-tiny than those in its folder now"):
        resume(tmp_path / "run", device="cpu")
    caplog.clear()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--output", str(tmp_path / "new.json")]) == 0
    assert "the features are not those that the model was trained on" in caplog.text
