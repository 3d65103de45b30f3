"""Steps whose loss or gradient is not finite: named, fatal or skipped, without a trace of them in what is saved."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from training_runs import DIFFUSION, Runs, StopInEpoch, interrupt, same, state_of

from prvr.models import Retriever
from prvr.training import TrainingError
from prvr.training.task import TrainingStep

PARAMETER = "retriever.query.project.linear.weight"


def poisoned(config: Any, when: Callable[[int], bool], value: float = math.nan) -> Retriever:
    """A retriever that gives one parameter a gradient of `value` in the backward passes (from 0) that `when` picks."""
    retriever = Retriever(config.model)
    passes = iter(range(10**6))

    def spoil(gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, value) if when(next(passes)) else gradient

    dict(retriever.named_parameters())[PARAMETER.removeprefix("retriever.")].register_hook(spoil)
    return retriever


def test_a_loss_that_is_not_finite_names_epoch_step_and_videos(runs: Runs) -> None:
    config = runs.config()
    retriever = Retriever(config.model)

    def poison() -> None:
        with torch.no_grad():
            next(retriever.query.parameters()).fill_(torch.nan)

    with pytest.raises(TrainingError) as caught:
        runs.train(config, retriever=retriever, progress=StopInEpoch(2, poison))
    message = str(caught.value)
    assert "epoch 1, step 1 of 4" in message
    assert "total=nan" in message
    named = [video for video in runs.splits.train.video_ids if video in message]
    assert len(named) == 16
    assert "saved up to the end of epoch 0" in message
    torch.manual_seed(0)
    assert runs.resume().epochs == 2


@pytest.mark.parametrize("changes", [{"optim__name": "adamw"}, DIFFUSION], ids=["adamw", "bert_adam"])
def test_a_skipped_step_leaves_weights_optimiser_and_schedule(
    runs: Runs, changes: dict, caplog: pytest.LogCaptureFixture
) -> None:
    config = runs.config(train__on_nonfinite="skip", train__checkpoint_every=1, **changes)
    states: list[Any] = []

    def look() -> None:  # after a step, before it is saved: what is on disk is of the step before
        if (runs.path / "last" / "state.pt").exists():
            states.append(state_of(runs.path))

    result = runs.train(config, retriever=poisoned(config, lambda step: step == 6), progress=StopInEpoch(2, look))
    before, after, later = states[2], states[3], state_of(runs.path)
    assert (before["position"]["step"], after["position"]["step"]) == (2, 3)
    for part in ("retriever", "objective", "optimizer", "scheduler"):
        assert same(before[part], after[part]), part
    assert not same(after["retriever"], later["retriever"])
    assert before["position"]["sums"] == after["position"]["sums"]
    assert (after["skipped_in_row"], later["skipped_in_row"]) == (1, 0)
    assert [line["skipped"] for line in result.history] == [0, 1]
    assert f"epoch 1, step 2 of 4: the loss is finite, its gradient is not (in {PARAMETER})" in caplog.text
    assert "Step skipped, 1 in a row" in caplog.text


def test_too_many_in_a_row_end_the_run_also_across_epochs_and_a_resume(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"train__on_nonfinite": "skip", "train__max_skipped": 3, "train__epochs": 3}
    config = runs.config(**options)
    bad = {2, 3, 4, 6, 7, 8, 9}  # three in a row are borne, four are not
    first: dict[str, Any] = {"retriever": poisoned(config, bad.__contains__)}
    with pytest.raises(TrainingError, match=r"epoch 2, step 1 of 4: .*4 such steps in a row.*max_skipped=3") as whole:
        runs.train(config, "a", **first)
    assert state_of(runs.folder / "a")["skipped_in_row"] == 2

    second = first | {"retriever": poisoned(config, bad.__contains__), "progress": StopInEpoch(3, interrupt)}
    with pytest.raises(KeyboardInterrupt):
        runs.train(config, "b", **second)
    with pytest.raises(TrainingError) as resumed:
        runs.resume("b", retriever=poisoned(config, lambda step: step in (0, 1)))
    assert str(resumed.value).split(": ", 1)[1] == str(whole.value).split(": ", 1)[1]
    never = poisoned(config, lambda step: step >= 4)
    with pytest.raises(TrainingError, match=r"epoch 1: no step had a finite loss.*saved up to the end of epoch 0"):
        runs.train(train__on_nonfinite="skip", name="c", retriever=never)


class TestReadLater:
    """What happens on a GPU, where a step's numbers are read when the next one has been queued."""

    @pytest.fixture(autouse=True)
    def _lag(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = TrainingStep.__init__

        def lagging(stepper: TrainingStep, *args: Any, **options: Any) -> None:
            real(stepper, *args, **options)
            stepper.lag = 1

        monkeypatch.setattr(TrainingStep, "__init__", lagging)

    @pytest.mark.parametrize(("step", "every", "kept"), [(6, 1, 2), (7, 4, 0)])
    def test_the_step_is_named_and_nothing_after_it_is_saved(
        self, runs: Runs, step: int, every: int | None, kept: int
    ) -> None:
        config = runs.config(train__checkpoint_every=every)
        retriever = poisoned(config, lambda number: number == step)
        with pytest.raises(TrainingError, match=rf"epoch 1, step {step - 4} of 4: .*in {PARAMETER}\)"):
            runs.train(config, retriever=retriever)
        state = state_of(runs.path)
        assert (state["epoch"], (state["position"] or {"step": 0})["step"]) == (1, kept)
        assert all(bool(torch.isfinite(weight).all()) for weight in state["retriever"].values())
