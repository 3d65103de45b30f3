"""`train.average`: the mean of the weights at the ends of the last epochs is kept, whatever interrupts a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from training_runs import DIFFUSION, Runs, make_config, same, same_end, state_of

from prvr.cli.train import show_folder
from prvr.config import Config
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.models import Retriever
from prvr.training import RetrievalTask, RunResult, Splits, train

EPOCHS, AVERAGED = 3, 2
Averaged = tuple[RunResult, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def config(cache: str) -> Config:
    """Everything that draws, a learned curvature among the losses, and a patience that would stop the run."""
    settings = {"train__epochs": EPOCHS, "train__average": AVERAGED, "train__patience": 1, "optim__lr": 0.01}
    return make_config(cache, **(DIFFUSION | settings))


class EndsOfEpochs:
    """A progress hook that keeps the state of each epoch that has ended, when the next one begins."""

    def __init__(self, run: Path) -> None:
        self.run, self.states = run, list[dict[str, Any]]()

    @contextmanager
    def __call__(self, title: str, steps: int) -> Iterator[Any]:
        if (self.run / "last" / "state.pt").exists():
            self.states.append(state_of(self.run))
        yield lambda terms: None


@pytest.fixture(scope="module")
def averaged(config: Config, splits: Splits, tmp_path_factory: pytest.TempPathFactory) -> Averaged:
    """A run that nobody disturbs, and its state at the end of each epoch."""
    run = tmp_path_factory.mktemp("averaged") / "run"
    ends = EndsOfEpochs(run)
    result = train(config, output=run, splits=splits, device="cpu", progress=ends)
    return result, [*ends.states, state_of(run)]


def mean_of(states: list[dict[str, Any]], part: str) -> dict[str, Tensor]:
    return {
        name: torch.stack([state[part][name].double() for state in states]).mean(0)
        for name, tensor in states[0][part].items()
        if tensor.is_floating_point()
    }


def test_the_mean_of_the_last_epochs_is_kept_scored_and_named(
    averaged: Averaged, splits: Splits, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    result, states = averaged
    assert [state["epoch"] for state in states] == [1, 2, 3]
    for part, file in (("retriever", "model.safetensors"), ("objective", "objective.safetensors")):
        kept, expected = load_file(result.output / "best" / file), mean_of(states[-AVERAGED:], part)
        assert len(expected) > 3
        for name, value in expected.items():
            torch.testing.assert_close(kept[name].double(), value, rtol=1e-6, atol=1e-7)
        moved = [name for name in expected if not torch.equal(kept[name], states[-1][part][name])]
        assert len(moved) > len(expected) / 2, "the mean is not the last epoch"
    kept = Retriever.from_pretrained(result.output / "best")
    again = evaluate(kept, splits.report, EvaluationConfig(bootstrap=0, seed=config.train.seed))
    assert np.array_equal(again.ranks, result.report.ranks)
    assert (result.epochs, result.best_epoch, result.stopped_early) == (EPOCHS, EPOCHS - 1, False)
    assert [line["averaged"] for line in result.history] == [[0], [1], [1, 2]]
    card = (result.output / "best" / "README.md").read_text(encoding="utf-8")
    assert "No epoch was chosen: this is the mean of the weights of epochs 1 to 2 (from 0)" in card
    show_folder(result)
    assert "saved model: mean of the weights of epochs 1 to 2 (counted from 0)" in capsys.readouterr().out


def test_a_run_interrupted_while_its_mean_is_scored_resumes_bitwise(
    averaged: Averaged, config: Config, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, select = averaged[0].output, RetrievalTask.select

    def interrupted(self: RetrievalTask, epoch: int) -> Any:
        if epoch == EPOCHS - 1:
            raise KeyboardInterrupt
        return select(self, epoch)

    monkeypatch.setattr(RetrievalTask, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config)
    saved = state_of(runs.path)
    assert (saved["epoch"], saved["position"]["step"]) == (EPOCHS - 1, 4)
    assert same(saved["retriever"], state_of(straight)["retriever"]), "the weights of training, not their mean"
    monkeypatch.undo()
    runs.resume()
    assert same_end(straight, runs.path)
