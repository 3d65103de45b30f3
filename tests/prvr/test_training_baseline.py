"""The linear map as a baseline: that of a `linear` run, fitted once, kept in the cache, shown beside a model."""

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
from prvr.training import Splits, linear_baseline, train

SINGLE = RUNS["linear"]["fit"]
FIT = SINGLE | {"windows": [[1, 4], [2]], "features": [0, 30], "folds": 2}


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
def test_it_is_that_of_a_linear_run(runs: Runs, splits: Splits, protocol: str) -> None:
    """Whatever the model beside it, with the same settings, seed and split that selects."""
    same: dict[str, Any] = {"protocol": protocol, "seed": 3}
    alone = runs.config(model__start="linear", model__branches="none", fit=FIT, train={"epochs": 0} | same)
    result = train(alone, output=runs.path, device="cpu")
    maps = linear_baseline(runs.config(fit=FIT, **{f"train__{key}": value for key, value in same.items()}))
    assert linear_baseline(alone, maps["linear"]) == {}  # a linear map has no other beside it
    assert (evaluate(maps["linear"], splits.report).ranks == result.report.ranks).all()


def test_it_is_fitted_once(config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path) -> None:
    first = linear_baseline(config())["linear"].state_dict()
    again = linear_baseline(config({"baseline": "always", "gates": [0.5]}))["linear"].state_dict()
    assert all((again[name] == tensor).all() for name, tensor in first.items())
    linear_baseline(config(model__hidden=8))  # another model, the same data
    assert len(fits()) == 1
    linear_baseline(config({"penalties": [2.0]}))
    linear_baseline(config(train__seed=1))
    assert len(fits()) == len([*(tmp_path / "cache" / "linear").iterdir()]) == 3


def test_a_damaged_one_is_fitted_again_and_what_is_not_ours_stays(
    config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path
) -> None:
    first = linear_baseline(config())["linear"].state_dict()
    (folder,) = (tmp_path / "cache" / "linear").iterdir()

    (folder / "model.safetensors").write_bytes(b"nothing")
    again = linear_baseline(config())["linear"].state_dict()
    assert all((again[name] == tensor).all() for name, tensor in first.items())
    assert fits()[-2].endswith("Fitting it again now.")
    (folder / "notes.txt").write_text("mine")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"holds notes\.txt"):
        linear_baseline(config())


def test_what_is_said_of_it(splits: Splits, cache: str) -> None:
    """The model is better, worse or neither, and what follows."""
    (path,) = linear_baseline(make_config(cache, fit=SINGLE)).values()
    linear = evaluate(path, splits.report)
    report = report_from_scores(-torch.from_numpy(splits.report.relevant_matrix).float(), splits.report)
    compared = partial(compare_baselines, split=splits.report)
    found = compared(report, baselines={"linear": linear})
    assert found.sumr["linear"].value == pytest.approx(report.text_to_video.sumr - linear.text_to_video.sumr)
    assert found.verdict.startswith("The linear map is better than this model: SumR -")
    assert found.verdict.endswith("Train with --preset linear-toy or --model.start linear.")
    assert compared(linear, baselines={"linear": report}).verdict.startswith("This model is better than the linear map")
    same = compared(linear, baselines={"linear": linear}).verdict
    assert same.startswith("This model does not differ significantly from the linear map: SumR +0.0")
