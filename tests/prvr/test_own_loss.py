"""A loss of another package: named by --import or `imports`, it is configured, trained, stopped and resumed."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from training_runs import StopInEpoch, interrupt, losses, make_config, same_end

import prvr
from prvr.cli import main
from prvr.config import (
    LOSSES,
    ConfigError,
    LossConfig,
    config_leaves,
    dump_config,
    expect_readable,
    import_modules,
    load_config,
)
from prvr.training import Splits, resume, train

MODULE = """
from pydantic.dataclasses import dataclass
from torch import nn, tensor

from prvr.config import LOSSES, STRICT, LossSettings
from prvr.losses import Term


@dataclass(frozen=True, config=STRICT)
class CentringSettings(LossSettings):
    power: float = 2.0


class Centring(Term[CentringSettings]):
    def __init__(self, settings, model, registers=None):
        super().__init__(settings, model)
        self.scale = nn.Parameter(tensor(2.0))

    def forward(self, inputs):
        return (self.scale * inputs.text.mean(0).norm()) ** self.settings.power


LOSSES.register("centring", Centring, "Draws the mean query to the origin.", CentringSettings, ["pooled"])
"""
CENTRING = {"weight": 0.1, "power": 3.0}


def forget() -> None:
    """As a new process: nothing but the losses of prvr is known."""
    sys.modules.pop("own_losses", None)
    LOSSES._entries.pop("centring", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_losses.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget()


def own_config(cache: str) -> prvr.Config:
    return make_config(cache, imports=["own_losses"], loss__centring=CENTRING)


def test_a_run_with_it_is_stopped_and_resumed_bitwise(folder: Path, cache: str, splits: Splits) -> None:
    config = own_config(cache)
    straight = train(config, output=folder / "straight", splits=splits, device="cpu")
    assert all("centring" in line for line in losses(straight.history))
    with pytest.raises(KeyboardInterrupt):
        train(config, output=folder / "broken", splits=splits, device="cpu", progress=StopInEpoch(2, interrupt))
    forget()
    resumed = resume(folder / "broken", splits=splits, device="cpu")
    assert losses(resumed.history) == losses(straight.history)
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
    forget()
    assert load_config(path).loss.weight("centring") == 0.1  # the file names the module
    path.write_text(dump_config(config).replace("- own_losses", ""), encoding="utf-8")
    forget()
    with pytest.raises(ConfigError, match=r"unknown key 'loss\.centring'; .*own: name its module with --import"):
        load_config(path)


def test_the_command_line_knows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--loss.centring", "0.1", "--loss.centring.power", "3", "--data.root", "/data/videos #2"]
    command = ["--import", "own_losses", "train", "--preset", "gmmformer-toy", *keys, "--print-config"]
    assert main(command) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["loss"]["centring"], values["imports"]) == (CENTRING, ["own_losses"])
    assert values["data"]["root"] == "/data/videos #2"


def test_a_module_that_is_not_there_is_named(folder: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "config.yaml"
    path.write_text(dump_config(own_config(cache)), encoding="utf-8")
    forget()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with pytest.raises(ConfigError, match=r"config\.yaml: imports: no module named 'own_losses'"):
        load_config(path)


def test_a_module_in_use_is_named_without_being_asked_for(folder: Path, cache: str) -> None:
    import_modules(["own_losses"], "a program")

    assert make_config(cache, loss__centring=CENTRING).imports == ("own_losses",)
    assert make_config(cache).imports == ()


def test_a_configuration_older_than_a_loss_is_not_trained(folder: Path, cache: str, splits: Splits) -> None:
    before = make_config(cache)
    own_config(cache)  # registers the loss
    with pytest.raises(ConfigError, match=r"cannot be read back .*: loss\.centring\.weight"):
        train(before, output=folder / "run", splits=splits, device="cpu")
    assert not (folder / "run").exists()
    expect_readable(make_config(cache))


def test_a_dataclass_of_the_standard_library_is_checked_as_well(folder: Path) -> None:
    import dataclasses

    settings = dataclasses.make_dataclass("Settings", [("weight", float, 0.0), ("power", float, 2.0)], frozen=True)
    LOSSES.register("centring", torch.nn.Module, "Not built.", settings)
    assert LossConfig({"centring": {"weight": 1, "power": 3}})["centring"] == settings(1.0, 3.0)
    with pytest.raises(ValueError, match="unexpected keyword"):
        LossConfig({"centring": {"pover": 3}})
