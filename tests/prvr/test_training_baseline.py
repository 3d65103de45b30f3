"""Kernel regression as a baseline: that of a `kernel` run, fitted once, kept in the cache, shown beside a model."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from training_runs import RUNS, Runs, make_config

from prvr.config import Config
from prvr.data import DataError
from prvr.evaluation import evaluate, report_from_scores
from prvr.evaluation.zero_shot import compare_baselines
from prvr.training import Splits, kernel_baseline, train

SINGLE = RUNS["kernel"]["fit"]
FIT = SINGLE | {"windows": [[2], [4, 6]], "folds": 2}


@pytest.fixture
def config(toy_root: Path, tmp_path: Path) -> Callable[..., Config]:
    """As `make_config`, with a cache of the test's own and one setting of the fit, unless it is changed."""

    def make(fit: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Config:
        root = {"data__root": str(toy_root)} | changes
        return make_config(str(tmp_path / "cache"), fit=SINGLE | {**fit}, **root)

    return make


@pytest.fixture
def fits(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of fits so far."""
    caplog.set_level(logging.INFO, "prvr.training.baseline")
    return lambda: caplog.messages


@pytest.mark.parametrize("protocol", ["paper", "holdout"])
def test_it_is_that_of_a_kernel_run(runs: Runs, splits: Splits, protocol: str) -> None:
    """Whatever the model beside it, with the same settings, seed and split that selects."""
    same: dict[str, Any] = {"protocol": protocol, "seed": 3}
    alone = runs.config(model__start="kernel", model__branches="none", fit=FIT, train={"epochs": 0} | same)
    result = train(alone, output=runs.path, device="cpu")
    maps = kernel_baseline(runs.config(fit=FIT, **{f"train__{key}": value for key, value in same.items()}))
    assert kernel_baseline(alone, maps["kernel"]) == {}  # a regression has no other beside it
    assert (evaluate(maps["kernel"], splits.report).ranks == result.report.ranks).all()


def test_it_is_fitted_once(config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path) -> None:
    first = kernel_baseline(config())["kernel"].state_dict()
    again = kernel_baseline(config({"baseline": "always", "gates": [0.5]}))["kernel"].state_dict()
    assert all((again[name] == tensor).all() for name, tensor in first.items())
    kernel_baseline(config(model__hidden=8))  # another model, the same data
    assert len(fits()) == 1
    kernel_baseline(config({"penalties": [2.0]}))
    kernel_baseline(config(train__seed=1))
    assert len(fits()) == len([*(tmp_path / "cache" / "kernel").iterdir()]) == 3


def test_a_damaged_one_is_fitted_again_and_what_is_not_ours_stays(
    config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path
) -> None:
    first = kernel_baseline(config())["kernel"].state_dict()
    (folder,) = (tmp_path / "cache" / "kernel").iterdir()

    (folder / "model.safetensors").write_bytes(b"nothing")
    again = kernel_baseline(config())["kernel"].state_dict()
    assert all((again[name] == tensor).all() for name, tensor in first.items())
    assert fits()[-2].endswith("Fitting it again now.")
    (folder / "notes.txt").write_text("mine")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"holds notes\.txt"):
        kernel_baseline(config())


def test_what_is_said_of_it(splits: Splits, cache: str) -> None:
    """The model is better, worse or neither, and what follows."""
    (path,) = kernel_baseline(make_config(cache, fit=SINGLE)).values()
    kernel = evaluate(path, splits.report)
    report = report_from_scores(-torch.from_numpy(splits.report.relevant_matrix).float(), splits.report)
    compared = partial(compare_baselines, split=splits.report)
    found = compared(report, baselines={"kernel": kernel})
    assert found.sumr["kernel"].value == pytest.approx(report.text_to_video.sumr - kernel.text_to_video.sumr)
    assert found.verdict.startswith("Kernel regression is better than this model: SumR -")
    assert found.kernel_wins
    better = compared(kernel, baselines={"kernel": report})
    assert not better.kernel_wins
    assert better.verdict.startswith("This model is better than kernel regression")
    same = compared(kernel, baselines={"kernel": kernel}).verdict
    assert same.startswith("This model does not differ significantly from kernel regression: SumR +0.0")
