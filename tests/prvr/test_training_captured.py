"""Steps that a GPU repeats as graphs: the functions that are captured, called at once instead."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch
from weakref import WeakKeyDictionary

import pytest
import torch
from accelerator import DEVICE, Accelerator
from nightly import NIGHTLY
from test_models import make_batch
from test_models_presets import SYSTEMS, small_config
from test_pretended_gpu import On, training_step

from prvr.config import Config
from prvr.errors import TrainingError
from prvr.training.captured import Graphs, Recorder
from prvr.training.retrieval import eager_reason
from prvr.training.task import StepMetrics, TrainingStep
from prvr.types import Batch

CAPTURED = [
    name for name in SYSTEMS if not name.startswith(("diffusionret", "gmmformer", "ms-sl"))
]  # the others have no fixed shapes
STEPS = 50 if NIGHTLY else 8
LENGTHS = ([12, 5, 1], [7, 11, 2], [3, 1, 2], [12, 9, 8])
GENERATORS = WeakKeyDictionary[TrainingStep, torch.Generator]()


class AtOnce(Recorder):
    """Replays by calling the function; as a graph does, it runs nothing while capturing."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    def eager(self, function: Callable[..., object], *arguments: object) -> object:
        self.calls["eager"] += 1
        return function(*arguments)

    def capture(self, function: Callable[[], None], generator: torch.Generator | None) -> Callable[[], None]:
        self.calls["captures"] += 1

        def replay() -> None:
            self.calls["replays"] += 1
            function()

        return replay

    def forget(self) -> None:
        self.calls["forgets"] += 1


def fixed_config(name: str, **changes: object) -> Config:
    config = small_config(name)
    return replace(config, model=replace(config.model, padded_rows="fixed"), **changes)


def recorded_step(config: Config, device: torch.device, recorder: AtOnce | None) -> TrainingStep:
    step = training_step(config, device, torch.float64 if device.type == "cpu" else torch.float32)
    GENERATORS[step] = torch.Generator(device)
    if recorder is not None:
        step.graphs = Graphs(step, recorder)
    return step


def batch_of(number: int, dtype: torch.dtype = torch.float64) -> Batch:
    return make_batch(LENGTHS[number % len(LENGTHS)], seed=number, dtype=dtype)


def take(step: TrainingStep, number: int, batch: Batch, epoch: int) -> StepMetrics:
    """A step, all of whose draws are seeded, as the trainer does it."""
    torch.manual_seed(number)
    return step((batch, None), "", epoch, number, GENERATORS[step].manual_seed(number + 1))


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_have_the_losses_of_eager_ones(name: str) -> None:
    """Dropout is on; only the fused update rounds otherwise."""
    config, recorder = fixed_config(name), AtOnce()
    eager = recorded_step(config, torch.device("cpu"), None)
    captured = recorded_step(config, torch.device("cpu"), recorder)
    for number in range(STEPS):
        epoch, batch = 30 * (number >= STEPS // 2), batch_of(number)
        ours, theirs = take(captured, number, batch, epoch), take(eager, number, batch, epoch)
        assert captured.learning_rate == eager.learning_rate
        assert captured.optimizer.param_groups[0].keys() == eager.optimizer.param_groups[0].keys()
        assert ours.values == pytest.approx(theirs.values, rel=1e-6, abs=1e-8)
        assert ours.parameters == theirs.parameters
    assert recorder.calls["replays"] > recorder.calls["captures"] > 1


@pytest.mark.parametrize("name", [name for name in CAPTURED if name != "ral-tvr"])  # which matches on the host
def test_a_graph_of_every_system_reads_nothing_of_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(AtOnce):
        """Within what is captured the host may neither wait for the GPU nor seed a generator."""

        def capture(self, function: Callable[[], None], generator: torch.Generator | None) -> Callable[[], None]:
            def watched() -> None:
                gpu.reads.clear()
                with patch("torch.manual_seed", side_effect=AssertionError):
                    function()
                assert not gpu.reads

            return super().capture(watched, generator)

    recorder = Watched()
    monkeypatch.setattr("prvr.training.task.Recorder", lambda: recorder)
    with Accelerator() as gpu:
        step = recorded_step(fixed_config(name), DEVICE, None)
        batch = batch_of(0, torch.float32).to(DEVICE)
        numbers = [take(step, number, batch, 30) for number in range(3)]
        assert all(each.finite for each in numbers)
    assert recorder.calls == {"forgets": 1, "eager": 2, "captures": 2, "replays": 4}


def test_a_step_that_is_not_finite_is_left_out_and_not_counted() -> None:
    config = fixed_config("hlformer-tvr")
    config = replace(config, train=replace(config.train, on_nonfinite="skip"))
    step = recorded_step(config, torch.device("cpu"), recorder := AtOnce())
    good = batch_of(0)
    bad = replace(good, clips=good.clips * torch.nan)
    take(step, 0, good, 30)  # its learning rate is 0
    for number, batch in enumerate((good, bad, good), 1):
        before = copy.deepcopy((step.task.networks["model"].state_dict(), step.optimizer.state_dict()["state"]))
        assert take(step, number, batch, 30).finite == (batch is good)
        after = (step.task.networks["model"].state_dict(), step.optimizer.state_dict()["state"])
        unchanged = all(torch.equal(after[0][name], tensor) for name, tensor in before[0].items())
        assert unchanged == (batch is bad)
        steps = {state["step"] for state in after[1].values()}
        assert steps == {1 + number - (number > 1)}
    assert recorder.calls == {"forgets": 1, "eager": 2, "captures": 2, "replays": 5}


def test_what_cannot_be_captured_is_eager(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(AtOnce):
        def capture(self, function: Callable[[], None], generator: torch.Generator | None) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing")

    config = fixed_config("hlformer-tvr")
    captured = recorded_step(config, torch.device("cpu"), Failing())
    eager = recorded_step(config, torch.device("cpu"), None)
    for number in range(3):
        ours, theirs = (take(step, number, batch_of(0), 30) for step in (captured, eager))
        assert ours.values == pytest.approx(theirs.values, rel=1e-6, abs=1e-8)
    assert sum("steps are not captured, since one could not be: operation" in line for line in caplog.messages) == 1


def test_why_steps_are_not_captured() -> None:
    matched, fixed = (fixed_config(name) for name in ("gmmformer-v2-tvr", "hlformer-tvr"))
    assert "the host computes a part of loss.matching" in eager_reason(matched, On(DEVICE))
    assert eager_reason(fixed, On(DEVICE)) == ""
    assert "model.padded_rows='fixed'" in eager_reason(small_config("diffusionret-msrvtt"), On(DEVICE))
    assert eager_reason(fixed, On(torch.device("cpu"))) == "the run computes on cpu"
    config = replace(fixed, train=replace(fixed.train, cuda_graph="on"))
    with pytest.raises(TrainingError, match=r"train\.cuda_graph='on': the run computes on cpu"):
        recorded_step(config, torch.device("cpu"), None)
