"""A loss of another package: imported first, it is configured, trained, stopped and resumed; no file imports it."""

import dataclasses
import importlib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from commands import explained
from training_runs import StopInEpoch, interrupt, losses, make_config, same_end

import prvr
from prvr.cli import main
from prvr.config import (
    LOSSES,
    Config,
    ConfigError,
    LossConfig,
    LossSettings,
    config_leaves,
    dump_config,
    expect_readable,
    load_config,
    validated,
)
from prvr.data import VideoLoader
from prvr.data.packed import Moments
from prvr.losses import LossInputs, Term
from prvr.models import build_retriever, load_pretrained
from prvr.systems import open_system
from prvr.training import Splits, Teacher, TrainingError, resume, train
from prvr.types import Labels

MODULE = """
from pydantic.dataclasses import dataclass
from torch import nn, tensor

from prvr.config import LOSSES, STRICT, LossSettings
from prvr.losses import Term


@dataclass(frozen=True, config=STRICT)
class CentringSettings(LossSettings):
    power: float = 2.0


class Centring(Term[CentringSettings]):
    def __init__(self, settings, model):
        super().__init__(settings, model)
        self.scale = nn.Parameter(tensor(2.0))

    def forward(self, inputs):
        return (self.scale * inputs.text.mean(0).norm()) ** self.settings.power


"""
REGISTRATION = """
LOSSES.register("centring", Centring, "Draws the mean query to the origin.", CentringSettings, ["pooled"])
"""
CENTRING = {"weight": 0.1, "power": 3.0}


def forget() -> None:
    """As a new process: nothing but the losses of prvr is known."""
    sys.modules.pop("own_losses", None)
    LOSSES._entries.pop("centring", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_losses.py").write_text(MODULE + REGISTRATION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def own_config(cache: str) -> prvr.Config:
    import_module("own_losses")
    return make_config(cache, loss__centring=CENTRING)


def test_a_run_with_it_is_stopped_and_resumed_bitwise(folder: Path, cache: str, splits: Splits) -> None:
    config = own_config(cache)
    straight = train(config, output=folder / "straight", splits=splits, device="cpu")
    assert all("centring" in line for line in losses(straight.history))
    with pytest.raises(KeyboardInterrupt):
        train(config, output=folder / "broken", splits=splits, device="cpu", progress=StopInEpoch(2, interrupt))
    forget()
    with pytest.raises(
        ConfigError, match=r"config\.yaml: .* own_losses, which is not imported\. .*--import own_losses"
    ):
        resume(folder / "broken", splits=splits, device="cpu")
    assert main(["train", "--resume", "--output", "broken", "--import", "own_losses", "--device", "cpu", "-q"]) == 0
    assert same_end(straight.output, folder / "broken")


def test_its_settings_are_keys_like_all_others(folder: Path, cache: str) -> None:
    config = own_config(cache)
    values = yaml.safe_load(dump_config(config))
    assert (values["loss"]["centring"], values["imports"]) == (CENTRING, ["own_losses"])
    assert {"loss.centring", "loss.centring.power"} <= config_leaves(prvr.Config).keys()
    path = folder / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    for key, value, message in (
        ("loss.centring.power", "much", r"loss\.centring\.power: .*valid number"),
        ("loss.centring.pover", 1, r"unknown key 'loss\.centring\.pover'; did you mean loss\.centring\.power"),
        ("loss.centring", -1, r"loss\.centring\.weight: .*greater than or equal to 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(path, {key: value})
    assert load_config(path, {"loss.centring": 0.5}).loss["centring"].power == 3.0
    path.write_text(dump_config(config).replace("- own_losses", ""), encoding="utf-8")
    forget()
    with pytest.raises(ConfigError, match=r"unknown key 'loss\.centring'; .*For your own loss, pass --import MODULE"):
        load_config(path)


def test_the_command_line_knows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--loss.centring", "0.1", "--loss.centring.power", "3", "--data.root", "/data/videos #2"]
    command = ["--import", "own_losses", "train", "--preset", "gmmformer-toy", *keys, "--print-config"]
    assert main(command) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["loss"]["centring"], values["imports"]) == (CENTRING, ["own_losses"])
    assert values["data"]["root"] == "/data/videos #2"


def test_commands_of_a_table_import_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "rows: [{name: centred, keys: {loss.centring: 0.1}}]"
    Path("own.yaml").write_text(f"paper: ours\nitem: table 1\ntitle: own\nbase: gmmformer-toy\nsets: [toy]\n{rows}\n")
    words = ["papers", "plan", "own.yaml", "--output", "study", "--commands"]
    assert main([*words, "--import", "own_losses"]) == 0
    assert "--import own_losses" in capsys.readouterr().out


def test_the_module_that_registered_a_part_in_use_is_recorded(folder: Path, cache: str) -> None:
    (folder / "own_terms.py").write_text(MODULE, encoding="utf-8")
    (folder / "own_losses.py").write_text("from own_terms import *\nfrom own_terms import LOSSES" + REGISTRATION)
    assert own_config(cache).imports == ("own_losses",)
    assert make_config(cache).imports == ()


@pytest.fixture
def downloaded(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else, whose configuration names a module that lies in the current folder too."""
    run = tmp_path / "run"
    config = make_config(cache)
    build_retriever(config.model).save_pretrained(run / "best")
    (run / "config.yaml").write_text(dump_config(config).replace("imports: []", "imports: [evil]"), encoding="utf-8")
    (run / "last").mkdir()
    (run / "last" / "state.pt").write_bytes(b"")
    (tmp_path / "evil.py").write_text("open('executed', 'w').close()\n", encoding="utf-8")
    (tmp_path / "videos").mkdir()
    (tmp_path / "system.yaml").write_text("first: run\nstages: [{kind: qb_norm}]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return run


@pytest.mark.parametrize(
    "command",
    [
        "train --config run/config.yaml --output new",
        "train --resume --output run",
        "train --retriever run --output new",
        "evaluate run",
        "evaluate run --preset gmmformer-toy --stage retriever:run",
        "evaluate system.yaml",
        "pipeline run --stage qb_norm --output new",
        "plot scores run",
    ],
)
def test_a_command_does_not_run_code_that_a_file_names(
    downloaded: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = explained(command.split(), capsys)
    assert "evil, which is not imported" in message
    assert "--import evil" in message
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "read",
    [
        lambda run: load_config(run / "config.yaml"),
        lambda run: resume(run),
        lambda run: open_system(run).config,
        lambda run: Teacher.open(str(run)),
        lambda run: validated(Config, yaml.safe_load((run / "config.yaml").read_text())),
    ],
)
def test_python_does_not_run_code_that_a_file_names(downloaded: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(ConfigError, match="evil, which is not imported"):
        read(downloaded)
    assert not Path("executed").exists()


def test_search_and_loading_read_the_weights_alone(downloaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_pretrained(downloaded / "best")
    main(["search", "videos", "a dog", "--model", "run", "--encoder", "toy"])
    config = downloaded / "best" / "config.json"
    config.write_text(config.read_text().replace('"euclidean"', '"evil"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown space 'evil'.* pass --import MODULE"):
        load_pretrained(downloaded / "best")
    assert not Path("executed").exists()


def test_it_is_read_once_it_is_imported(downloaded: Path) -> None:
    try:
        importlib.import_module("evil")
        assert load_config(downloaded / "config.yaml").imports == ("evil",)
        assert Path("executed").exists()
    finally:
        sys.modules.pop("evil", None)


def test_a_configuration_older_than_a_loss_is_not_trained(folder: Path, cache: str, splits: Splits) -> None:
    before = make_config(cache)
    own_config(cache)  # registers the loss
    with pytest.raises(ConfigError, match=r"loss\.centring\.power: cannot be read back"):
        train(before, output=folder / "run", splits=splits, device="cpu")
    assert not (folder / "run").exists()
    expect_readable(make_config(cache))


def test_a_dataclass_of_the_standard_library_is_checked_as_well(folder: Path) -> None:
    import dataclasses

    settings = dataclasses.make_dataclass("Settings", [("weight", float, 0.0), ("power", float, 2.0)], frozen=True)
    LOSSES.register("centring", torch.nn.Module, "Not built.", settings)
    assert LossConfig({"centring": {"weight": 1, "power": 3}})["centring"] == settings(1.0, 3.0)
    with pytest.raises(ValueError, match="Unexpected keyword"):
        LossConfig({"centring": {"pover": 3}})


class Timed(Term[LossSettings]):
    """Draws queries of short moments to the origin; keeps what it was told."""

    told: ClassVar[list[Labels]] = []

    def forward(self, inputs: LossInputs) -> torch.Tensor:
        self.told.append(inputs.labels)
        assert inputs.labels.moments is not None
        start, end, duration = inputs.labels.moments.unbind(1)
        return (inputs.text.square().sum(1) * (1 - (end - start) / duration)).nansum()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Labels]:
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._all))
    needs = ["pooled", "query_ids", "video_ids", "captions", "moments"]
    LOSSES.register("timed", Timed, "Draws queries of short moments to the origin.", LossSettings, needs)
    monkeypatch.setattr(Timed, "told", [])
    return Timed.told


def test_a_loss_sees_ids_captions_and_moments(timed: list[Labels], splits: Splits, cache: str, tmp_path: Path) -> None:
    courses = []
    for chunk in (None, 5):
        config = make_config(cache, loss__timed=0.1, train__chunk_videos=chunk, model__dropout=0.0)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, input_dropout=0.0))
        result = train(config, output=tmp_path / str(chunk), splits=splits, device="cpu")
        courses.append([line["loss"]["timed"] for line in result.history])
    assert courses[0] == pytest.approx(courses[1], rel=1e-3)
    packed = splits.train
    place = {name: i for i, name in enumerate(packed.query_ids)}
    for labels in timed:
        rows = [place[name] for name in labels.query_ids]
        assert list(labels.captions) == [packed.captions[row] for row in rows]
        owners = [packed.video_ids[video] for video in packed.query_to_video[rows]]
        assert [labels.video_ids[video] for video in labels.query_to_video.tolist()] == owners
        expected = torch.from_numpy(np.stack(packed.moments, 1)[rows]).float()
        torch.testing.assert_close(labels.moments, expected, equal_nan=True)


def test_a_loss_is_refused_by_name_without_what_it_needs(
    timed: list[Labels], splits: Splits, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(cache, loss__timed=0.1)
    retriever, batch = build_retriever(config.model), VideoLoader(splits.train, 4).batch([(0, 0), (1, 0)])
    objective = prvr.Objective(config.loss, config.model)
    out = retriever(batch)
    assert objective(out, batch)["timed"] > 0
    parts = batch.split(1)
    assert [part.captions for part in parts] == [
        batch.captions[: len(parts[0].words)],
        batch.captions[len(parts[0].words) :],
    ]
    for name, empty in (("moments", None), ("captions", ())):
        with pytest.raises(ValueError, match=rf"loss.timed needs .*, and this batch has none: pass Batch.{name}"):
            objective(out, dataclasses.replace(batch, **{name: empty}))
    unknown = Moments(*(np.full(len(splits.train.query_ids), np.nan) for _ in range(3)))
    monkeypatch.setattr(splits.train, "moments", unknown)
    with pytest.raises(TrainingError, match=r"loss.timed=0.1 needs moments of queries, and toy-tiny train has none"):
        train(config, output=tmp_path / "run", splits=splits, device="cpu")
