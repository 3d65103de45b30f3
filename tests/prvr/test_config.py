"""Configurations: presets, overrides, and messages for what cannot be used."""

import math
import random
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml

import prvr
from prvr.config import (
    BlockConfig,
    ConfigError,
    LossConfig,
    Registry,
    config_leaves,
    dump_config,
    expect_readable,
    load_config,
    preset_names,
    preset_text,
)
from prvr.models import build_retriever
from prvr.training import read_reranker_config


@pytest.mark.parametrize("name", [*preset_names(), *preset_names("rerankers")])
def test_presets_say_what_they_are_and_what_they_change(name: str, tmp_path: Path) -> None:
    def load_config(source: Path | str) -> Any:
        if name in preset_names("rerankers"):
            return read_reranker_config(source, width=512)
        return prvr.load_config(source)

    config = load_config(name)
    assert config.name == name
    path = tmp_path / "copy.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    text = preset_text(name)
    header = text.split("name:")[0]
    assert f"--preset {name}" in header
    assert "Measured:" in header

    # Without any one of its lines it would be another configuration, or none.
    values = yaml.safe_load(text)
    for key in leaves(values):
        if key in ("name", "base", "model.kind"):
            continue
        path.write_text(yaml.safe_dump(without(values, key)), encoding="utf-8")
        with suppress(ConfigError):
            assert load_config(path) != config, f"{key}: is so without being named"


def leaves(values: dict, prefix: str = "") -> list[str]:
    """Dotted keys of all values that are no groups."""
    found = []
    for key, value in values.items():
        found += leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return found


def without(values: dict, key: str) -> dict:
    first, _, rest = key.partition(".")
    if not rest:
        return {name: value for name, value in values.items() if name != first}
    return values | {first: without(values[first], rest)}


class TestBase:
    def write(self, path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        return path

    def test_groups_are_merged_and_lists_replaced(self, tmp_path: Path) -> None:
        mine = "name: mine\nbase: hlformer-tvr\nmodel: {blocks: [{space: lorentz}]}\n"
        mine += "loss: {triplet: {margin: 0.3}, diversity: 0}\n"
        config, base = load_config(self.write(tmp_path / "mine.yaml", mine)), load_config("hlformer-tvr")
        assert config.model == replace(base.model, blocks=(BlockConfig("lorentz"),))
        changed = {"triplet": {"margin": 0.3}, "diversity": replace(base.loss["diversity"], weight=0)}
        assert config.loss == LossConfig({**base.loss.terms, **changed})
        assert (config.name, config.optim, config.train) == ("mine", base.optim, base.train)

    def test_a_base_is_a_file_beside_the_one_that_names_it(self, tmp_path: Path, monkeypatch) -> None:
        self.write(tmp_path / "first.yaml", "name: first\nbase: hybrid-tvr\ntrain: {epochs: 3}\n")
        second = self.write(tmp_path / "second.yaml", "name: second\nbase: first.yaml\noptim: {lr: 0.5}\n")
        config = load_config(second, {"train.seed": 7})
        assert (config.train.epochs, config.optim.lr, config.train.seed) == (3, 0.5, 7)

    def test_a_base_that_cannot_be_used(self, tmp_path: Path) -> None:
        for text, named in {
            "name: x\nbase: hybrid-tv\n": "did you mean hybrid-tvr",
            "name: x\nbase: [hybrid-tvr]\n": "base: expected the name",
            "name: x\nbase: none.yaml\n": "none.yaml does not exist",
            "name: x\nbase: bad.yaml\n": "based on itself",
        }.items():
            with pytest.raises(ConfigError, match=named):
                load_config(self.write(tmp_path / "bad.yaml", text))


def test_values_from_python_are_taken_as_they_are() -> None:
    changes = {"data.root": "/data/films #2", "data.cache_dir": "~", "name": "123", "data.feature": "[a]"}
    config = load_config("hlformer-tvr", changes)
    assert (config.data.root, config.data.cache_dir, config.name) == ("/data/films #2", "~", "123")
    assert config.data.feature == "[a]"


def test_a_key_that_was_refused_is_not_suggested() -> None:
    """Models of two kinds: a key of one of them is none of the other's."""
    for key, message in (
        ("model.padded_rows", r"unknown key 'model\.padded_rows' of a model of kind tokens"),
        ("model.compat.window", r"unknown key 'model\.compat\.window' of a model of kind tokens"),
        ("model.word_dept", r"unknown key 'model\.word_dept' of .*; did you mean model\.word_depth"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            load_config("diffusionret-msrvtt", {key: "drop"})
        assert key not in re.split(r"\W did you mean | or |\?", str(refused.value))


def test_a_configuration_that_yaml_would_change_is_refused() -> None:
    """A subclass of `LossConfig` has a weight that no configuration file knows."""

    @dataclass(frozen=True)
    class OwnLosses(LossConfig):
        centring: float = 0.1

    config = load_config("hlformer-tvr")
    expect_readable(config)
    with pytest.raises(ConfigError, match=r"^loss: cannot be read back from config\.yaml"):
        expect_readable(replace(config, loss=OwnLosses()))


ALL_LOSSES = ("triplet", "info_nce_clips", "info_nce_frames", "diversity", "entailment")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.hiden": 12}, r"unknown key 'model\.hiden'; did you mean model\.hidden"),
        ({"model.heads": 7}, "hidden=384 must be a multiple of heads=7"),
        ({"optim.lr": -1.0}, r"optim\.lr.*greater than 0.*-1"),
        ({"model.fusion": "sum"}, r"model\.fusion: unknown fusion 'sum'\. Known: mean, concat_linear, mean_guided"),
        ({"model.blocks": []}, "blocks is empty"),
        ({"loss.diffusion": 0.1}, r"needs model\.registers\.kind='diffusion'"),
        ({"train.epochs": "many"}, r"train\.epochs.*integer.*'many'"),
        ({"train.checkpoint_every": 0}, r"train\.checkpoint_every.*greater than or equal to 1.*0"),
        ({"train.on_nonfinite": "ignore"}, r"train\.on_nonfinite.*'stop' or 'skip'.*'ignore'"),
        ({"model.registers.kind": "condition", "model.branches": "frames"}, "registers are generated from the clips"),
        ({"model.lorentz_magnitude": "printed"}, "lorentz_magnitude='printed' needs compat.lorentz='correct'"),
        ({"model.lorentz_curvature_learned": True}, "lorentz_curvature_learned=True needs compat.lorentz='correct'"),
        ({"model.lorentz_curvature": 0}, r"model\.lorentz_curvature.*greater than or equal to 0\.01"),
        ({"model.registers.variance": "beta"}, "variance='beta' needs scheduler='ddpm', got 'ddim'"),
        ({"model.registers.scheduler": "pndm"}, r"model\.registers\.scheduler.*'flow'.*'pndm'"),
        (
            {"model.registers.scheduler": "flow", "model.compat.register_constants": "float32"},
            "set compat.register_constants='float64'",
        ),
        ({"optim": 3}, "optim"),
        ({"optim.name.deep": 3}, "'name' is a value"),
        ({"optim.lr": 1e308}, r"optim\.lr: .*less than or equal to 100, got 1e\+308"),
        ({"optim.lr": "nan"}, r"optim\.lr: .*finite number, got 'nan'"),
        ({"optim.lr": math.nan}, r"optim\.lr: .*finite number, got nan"),
        ({"model.blocks": [{"width": 1e300}]}, r"model\.blocks\.0\.width: .*less than or equal to 1000000"),
        ({"model.hidden": 1_000_000}, r"model\.hidden: .*less than or equal to 65536, got 1000000"),
        ({"train.seed": 2**40}, r"train\.seed: .*less than or equal to 4294967295"),
        ({"loss.triplet": 10**5000}, r"loss\.triplet\.weight: .*valid number, got a very long number"),
        ({"model.lorentz_dim": 3}, r"lorentz_dim=3: .* at least 8, a time and a space"),
        ({"model.num_clips": 200, "model.compat.padding": "to_length"}, r"num_clips=200 is more than max_frames=128"),
        ({"model.clip_weight": 0, "model.frame_weight": 0}, "clip_weight and frame_weight are both 0"),
        (
            {"model.registers.kind": "diffusion", "model.registers.sampling_steps": 11},
            r"sampling_steps=11 is beyond steps=10",
        ),
        ({f"loss.{t}": 0 for t in ALL_LOSSES}, "every loss weight is 0"),
    ],
)
def test_unusable_values_are_named(overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("hlformer-tvr", overrides)


STRANGE = [-1e300, -1, 0, 1e-300, 1e300, 10**30, 10**5000, math.nan, math.inf, "x", "nan", "1e400", None, [], {}]


@pytest.mark.parametrize("name", ["hlformer-tvr", "diffusionret-msrvtt"])
def test_any_number_is_taken_or_refused_by_name(name: str) -> None:
    """Two keys at a time, and what is taken can be built: no device holds what the models below do not hold."""
    rng = random.Random(0)
    keys = [key for key, kind in config_leaves(prvr.Config).items() if {int, float} & {kind, *get_args(kind)}]
    assert len(keys) > 50
    plain = {}
    if name == "hlformer-tvr":  # the parts that do not look at their own numbers, which are nowhere
        plain = {"model.blocks": [{}, {}], "model.compat.window": "centred"}
    taken, like = 0, load_config(name, plain)
    for key in keys:
        for value in rng.sample(STRANGE, 6):
            try:
                config = load_config(name, plain | {key: value, rng.choice(keys): rng.choice([1, 2, 64, 10**6])})
            except ConfigError:
                continue
            taken += 1
            if config.model != like.model:
                with torch.device("meta"):
                    model = build_retriever(config.model)
                assert sum(p.numel() for p in (*model.parameters(), *model.buffers())) < 2.5e9
    assert taken > 5


def test_a_prior_that_is_not_there_has_no_loss() -> None:
    with pytest.raises(ConfigError, match=r"loss\.prior_kl=.* needs model\.registers\..* and its start='prior_mean'"):
        load_config("dreamprvr-tvr", {"model.registers.start": "gaussian"})
    with pytest.raises(ConfigError, match="kind='prior' needs start='prior_sample'"):
        load_config("hlformer-tvr", {"model.registers.kind": "prior", "model.registers.start": "gaussian"})
    with pytest.raises(ConfigError, match=r"loss\.diffusion=.* needs model\.registers\.kind='diffusion'"):
        load_config("dreamprvr-tvr", {"model.registers.kind": "prior"})
    load_config("dreamprvr-tvr", {"model.registers.start": "gaussian", "loss.prior_kl": 0})


def test_a_preset_of_a_re_ranker_is_no_retriever() -> None:
    with pytest.raises(ConfigError, match=r"diffusionret-stage2-paper configures a re-ranker: .* --retriever RUN"):
        prvr.load_config("diffusionret-stage2-paper")


def test_unknown_preset_and_files(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'hlformer-tv'; did you mean hlformer-tvr"):
        prvr.load_config("hlformer-tv")
    bad = tmp_path / "bad.yaml"
    for text, message in {
        "a: [1\n": r"not valid YAML: [\s\S]*    a: \[1\n",  # shows the line
        "[" * 200_000 + "]" * 200_000: "not valid YAML: nested too deeply",
        "- 1": "expected a mapping",
        "name: x": "model is required",
    }.items():
        bad.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            prvr.load_config(bad)


def test_a_registry_takes_each_name_once() -> None:
    registry: Registry[type] = Registry("part")
    registry.register("first", dict, "A mapping.")
    assert ("first" in registry, registry.names, [entry.part for entry in registry]) == (True, ("first",), [dict])
    with pytest.raises(prvr.InputError, match="part 'first' is already registered"):
        registry.register("first", list, "A list.")
    with pytest.raises(prvr.InputError, match=r"unknown part 'second'\. Known: first. For your own part"):
        registry["second"]


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("gmmformer-tvr", {"model.lorentz_dim": 31}, r"gmmformer-tvr: model.lorentz_dim=31 has no effect: only space="),
        ("hlformer-tvr", {"model.fusion": "mean", "model.fusion_temperature": 0.1}, "or fusion='token_guided' reads"),
    ],
)
def test_a_setting_that_no_part_reads_is_refused(preset: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(preset, changes)
    assert load_config(preset, changes, shared=True).model != load_config(preset).model
