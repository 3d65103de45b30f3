"""The linear map as a baseline: that of a `linear` run, fitted once, kept in the cache, shown beside a model."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from commands import SMALL
from training_runs import RUNS, Runs, make_config

from prvr.cli import main
from prvr.config import Config
from prvr.data import DataError
from prvr.evaluation import EvaluationReport, evaluate, report_from_scores
from prvr.evaluation.zero_shot import compare_baselines
from prvr.models import load_pretrained, path_alone
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
    assert [*maps] == ["linear"]
    assert (evaluate(maps["linear"], splits.report).ranks == result.report.ranks).all()


def test_it_is_fitted_once(config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path) -> None:
    first = linear_baseline(config())["linear"].state_dict()
    again = linear_baseline(config({"baseline": "always", "gates": [0.5]}))["linear"].state_dict()
    assert all((again[name] == tensor).all() for name, tensor in first.items())
    linear_baseline(config(model__hidden=8))  # another model, the same data
    assert len(fits()) == 1
    linear_baseline(config({"penalties": [2.0]}))
    linear_baseline(config(model__max_frames=8))
    linear_baseline(config(train__seed=1))
    assert len(fits()) == len([*(tmp_path / "cache" / "linear").iterdir()]) == 4


def test_a_damaged_one_is_fitted_again_and_what_is_not_ours_stays(
    config: Callable[..., Config], fits: Callable[[], list[str]], tmp_path: Path
) -> None:
    first = linear_baseline(config())["linear"].state_dict()
    (folder,) = (tmp_path / "cache" / "linear").iterdir()

    def damage() -> None:
        (folder / "model.safetensors").write_bytes(b"nothing")

    def another() -> None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | {"max_frames": 9}))
        (folder / "sha256.txt").unlink()

    for number, change in enumerate((damage, another), 1):
        change()
        again = linear_baseline(config())["linear"].state_dict()
        assert all((again[name] == tensor).all() for name, tensor in first.items())
        assert len([line for line in fits() if line.endswith("Fitting it again now.")]) == number
    (folder / "notes.txt").write_text("mine")
    damage()
    with pytest.raises(DataError, match=r"holds notes\.txt"):
        linear_baseline(config())
    assert (folder / "notes.txt").read_text() == "mine"


def test_the_path_of_a_model_that_starts_from_one_is_its_baseline(
    runs: Runs, splits: Splits, fits: Callable[[], list[str]]
) -> None:
    config = runs.config(fit=FIT, model__start="linear")
    runs.train(config)
    kept = load_pretrained(runs.path / "best")
    (path,) = linear_baseline(config, kept).values()
    assert (evaluate(path, splits.report).ranks == evaluate(path_alone(kept), splits.report).ranks).all()
    assert linear_baseline(config, path) == {}  # a linear map has no other beside it
    assert fits() == []


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
    assert found.model_wins  # there is no zero-shot to search with
    of_path = compared(report, baselines={"linear path": linear})
    assert of_path.verdict.endswith("Train with --preset linear-toy.")
    assert compared(linear, baselines={"linear": report}).verdict.startswith("This model is better than the linear map")
    same = compared(linear, baselines={"linear": linear}).verdict
    assert same == (
        "This model does not differ significantly from the linear map: SumR +0.0 (95% +0.0 .. +0.0, p = 1.000)."
    )


def rows(out: str) -> dict[str, list[float]]:
    """The rows of the table of baselines."""
    table = out[out.index("% of queries with") :]
    found = re.findall(r"^ *(\S.*?)((?: +\d+\.\d){5}) *$", table, flags=re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in found}


def test_commands_show_it(toy_root: Path, toy_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data.collection", "toy-tiny", "--data-root", str(toy_root), "--data.cache_dir", str(toy_cache)]
    options += [f"--{key}={json.dumps(value)}" for key, value in SMALL.items()]
    run, alone = tmp_path / "run", tmp_path / "alone"
    words = ["train", "--preset", "hybrid-toy", *options, "--train.seed", "5", "--output", str(run)]
    assert main([*words, "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "fitting the linear baseline" in err
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    again, err = capsys.readouterr()
    assert "fitting the linear baseline" not in err
    linear = rows(out)["linear (a map in closed form)"]
    assert rows(again) == rows(out)

    fit = [f"--{key}={json.dumps(value)}" for key, value in SMALL.items() if key.startswith(("fit.", "model.max"))]
    words = ["train", "--preset", "linear-toy", *options[:6], *fit, "--train.protocol", "val", "--train.seed", "5"]
    assert main([*words, "--output", str(alone), "--device", "cpu", "-q"]) == 0
    assert not any(name.startswith("linear") for name in rows(capsys.readouterr().out))
    metrics = EvaluationReport.from_json(alone / "evaluation.json").text_to_video
    expected = [metrics.r1, metrics.r5, metrics.r10, metrics.r100, metrics.sumr]
    assert linear == pytest.approx(expected, abs=0.06)
