"""Configurations: presets, overrides, and messages for what cannot be used."""

import pytest
import yaml

import prvr
from prvr.config import ConfigError, config_from_dict, config_to_dict, dump_config, load_config, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_complete_and_say_what_they_are(name: str, tmp_path) -> None:
    config = load_config(name)
    assert config.name == name
    path = tmp_path / "copy.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    from importlib import resources

    text = (resources.files("prvr") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == config_to_dict(config), "a preset names every key"
    header = text.split("name:")[0]
    assert f"--preset {name}" in header
    assert "Measured:" in header


def test_the_family_is_there() -> None:
    names = set(preset_names())
    for system in ("gmmformer", "hlformer", "dreamprvr", "hybrid"):
        for corpus in ("tvr", "activitynet", "charades", "clip", "clip-l", "embedded"):
            assert f"{system}-{corpus}" in names
    for corpus in ("msrvtt", "msvd", "lsmdc", "didemo", "activitynet", "embedded"):
        assert f"diffusionret-{corpus}" in names


def test_overrides() -> None:
    config = load_config("dreamprvr-tvr", {"model.registers.num": 3, "optim.lr": "1.0e-4", "train.precision": "bf16"})
    assert (config.model.registers.num, config.optim.lr, config.train.precision) == (3, 1e-4, "bf16")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.hiden": 12}, r"unknown key 'model\.hiden'; did you mean model\.hidden"),
        ({"model.heads": 7}, "hidden=384 must be a multiple of heads=7"),
        ({"optim.lr": -1.0}, r"optim\.lr.*greater than 0.*-1"),
        ({"model.fusion": "sum"}, r"model\.fusion.*'mean'.*'sum'"),
        ({"model.blocks": []}, "blocks is empty"),
        ({"loss.diffusion": 0.1}, r"needs model\.registers\.kind='diffusion'"),
        ({"train.epochs": "many"}, r"train\.epochs.*integer.*'many'"),
        ({"train.checkpoint_every": 0}, r"train\.checkpoint_every.*greater than or equal to 1.*0"),
        ({"train.on_nonfinite": "ignore"}, r"train\.on_nonfinite.*'stop' or 'skip'.*'ignore'"),
        ({"model.registers.kind": "condition", "model.branches": "frames"}, "registers are generated from the clips"),
        ({"optim": 3}, "optim"),
        ({"optim.lr.deep": 3}, "'lr' is a value"),
    ],
)
def test_unusable_values_are_named(overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("hlformer-tvr", overrides)


def test_a_prior_that_is_not_there_has_no_loss() -> None:
    with pytest.raises(ConfigError, match=r"loss\.prior_kl=.* needs model\.registers\.start='prior_mean'"):
        load_config("dreamprvr-tvr", {"model.registers.start": "gaussian"})
    load_config("dreamprvr-tvr", {"model.registers.start": "gaussian", "loss.prior_kl": 0})


def test_unknown_preset_and_files(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'hlformer-tv'; did you mean hlformer-tvr"):
        prvr.load_config("hlformer-tv")
    with pytest.raises(ConfigError, match="does not exist"):
        prvr.load_config(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid YAML"):
        prvr.load_config(bad)
    bad.write_text("- 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a mapping"):
        prvr.load_config(bad)
    with pytest.raises(ConfigError, match="model is required"):
        config_from_dict({"name": "x"})


def test_all_losses_off_is_refused() -> None:
    off = {f"loss.{t}": 0 for t in ("triplet", "info_nce_clips", "info_nce_frames", "diversity", "entailment")}
    with pytest.raises(ConfigError, match="every loss weight is 0"):
        load_config("hlformer-tvr", off)
