"""Steps that a GPU repeats as graphs: the functions that are captured, called at once instead."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from accelerator import DEVICE, Accelerator
from nightly import NIGHTLY
from test_models import make_batch
from test_models_presets import SYSTEMS, small_config
from test_pretended_gpu import On

from prvr.config import Config
from prvr.data import PackedSplit, VideoLoader
from prvr.errors import TrainingError
from prvr.models import build_retriever
from prvr.objective import Objective
from prvr.training import RetrievalTask
from prvr.training.captured import MOST, Graphs
from prvr.training.retrieval import eager_reason
from prvr.training.task import StepMetrics, TrainingStep
from prvr.types import Batch

CAPTURED = [
    name for name in SYSTEMS if not name.startswith(("diffusionret", "gmmformer", "ms-sl"))
]  # the others have no fixed shapes
STEPS = 50 if NIGHTLY else 12
LENGTHS = ([12, 5, 1], [7, 11, 2], [3, 1, 2], [12, 9, 8])


class AtOnce:
    """Replays by calling the function; as a graph does, it runs nothing while capturing."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    def eager(self, function: Callable[[], object]) -> object:
        self.calls["eager"] += 1
        return function()

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


def training_step(config: Config, device: torch.device, recorder: AtOnce | None) -> TrainingStep:
    torch.manual_seed(0)
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    retriever = build_retriever(config.model).to(dtype).train()
    objective = Objective(config.loss, config.model, retriever.registers).to(dtype).train()
    loader, split = (create_autospec(kind, instance=True) for kind in (VideoLoader, PackedSplit))
    task = RetrievalTask(config, On(device), retriever, objective, loader, split)
    step = TrainingStep(config, task, *task.optimizer(STEPS), device)
    step.generator = torch.Generator(device)
    if recorder is not None:
        step.graphs = Graphs(step, recorder)
    return step


def batch_of(number: int, dtype: torch.dtype = torch.float64) -> Batch:
    return make_batch(LENGTHS[number % len(LENGTHS)], seed=number, dtype=dtype)


def take(step: TrainingStep, number: int, batch: Batch, epoch: int) -> StepMetrics:
    """A step, all of whose draws are seeded, as the trainer does it."""
    torch.manual_seed(number)
    return step((batch, None), "", epoch, number, step.generator.manual_seed(number + 1))


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_have_the_losses_of_eager_ones(name: str) -> None:
    """Dropout is on; only the fused update rounds otherwise."""
    config, recorder = fixed_config(name), AtOnce()
    eager = training_step(config, torch.device("cpu"), None)
    captured = training_step(config, torch.device("cpu"), recorder)
    for number in range(STEPS):
        epoch, batch = 30 * (number >= STEPS // 2), batch_of(number)
        ours, theirs = take(captured, number, batch, epoch), take(eager, number, batch, epoch)
        assert captured.learning_rate == eager.learning_rate
        assert ours.values == pytest.approx(theirs.values, rel=1e-6, abs=1e-8)
        assert ours.parameters == theirs.parameters
    assert recorder.calls["replays"] > recorder.calls["captures"] > 1
