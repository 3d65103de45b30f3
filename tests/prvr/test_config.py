"""Configurations: presets, overrides, and messages for what cannot be used."""

import math
import random
import re
from collections import UserDict, UserList
from contextlib import suppress
from dataclasses import replace
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
    config_leaves,
    dump_config,
    load_config,
    preset_names,
    preset_text,
)
from prvr.models import build_retriever
from prvr.published.diffusionret.run_config import read_reranker_config


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


def test_a_base_is_merged_by_groups_and_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    mine = "name: mine\nbase: hlformer-tvr\nmodel: {blocks: [{space: lorentz}]}\n"
    mine += "loss: {triplet: {margin: 0.3}, diversity: 0}\n"
    config, base = load_config(write("mine.yaml", mine)), load_config("hlformer-tvr")
    assert config.model == replace(base.model, blocks=(BlockConfig("lorentz"),))
    changed = {"triplet": {"margin": 0.3}, "diversity": replace(base.loss["diversity"], weight=0)}
    assert config.loss == LossConfig({**base.loss.terms, **changed})
    assert (config.name, config.optim, config.train) == ("mine", base.optim, base.train)
    second = write("second.yaml", "name: second\nbase: mine.yaml\noptim: {lr: 0.5}\n")
    config = load_config(second, {"train.seed": 7})
    assert (config.loss["triplet"].margin, config.optim.lr, config.train.seed) == (0.3, 0.5, 7)
    for text, named in {
        "name: x\nbase: hybrid-tv\n": "did you mean hybrid-tvr",
        "name: x\nbase: none.yaml\n": "none.yaml does not exist",
        "name: x\nbase: bad.yaml\n": "based on itself",
    }.items():
        with pytest.raises(ConfigError, match=named):
            load_config(write("bad.yaml", text))


def test_groups_of_keys_are_merged_as_those_of_a_file() -> None:
    """As Hydra gives them: what is not named stays that of the preset."""
    groups = {"optim": {"lr": 0.5}, "model": {"hidden": 8, "compat": {"window": "centred"}}, "loss": {"diversity": 0}}
    dotted = {"optim.lr": 0.5, "model.hidden": 8, "model.compat.window": "centred", "loss.diversity": 0}
    assert load_config("hlformer-tvr", groups) == load_config("hlformer-tvr", dotted)
    with pytest.raises(ConfigError, match="has no effect"):
        load_config("gmmformer-tvr", {"model": {"lorentz_magnitude": "free"}})


def test_a_key_that_was_refused_is_not_suggested() -> None:
    """Models of two kinds: a key of one of them is none of the other's."""
    with pytest.raises(ConfigError, match=r"'model\.compat\.window' of a model of kind tokens") as refused:
        load_config("diffusionret-msrvtt", {"model.compat.window": "drop"})
    assert "model.compat.window" not in re.split(r"\W did you mean | or |\?", str(refused.value))[1:]


ALL_LOSSES = ("triplet", "info_nce_clips", "info_nce_frames", "diversity", "entailment")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.hiden": 12}, r"unknown key 'model\.hiden'; did you mean model\.hidden"),
        ({"model.heads": 7}, "hidden=384 must be a multiple of heads=7"),
        ({"optim.lr": -1.0}, r"optim\.lr.*greater than 0.*-1"),
        ({"model.lorentz_dim": 3}, r"lorentz_dim=3: .* at least 8, a time and a space"),
        ({"model.fusion": "sum"}, r"model\.fusion: unknown fusion 'sum'\. Known: mean, mean_guided"),
        ({"loss.diffusion": 0.1}, r"needs model\.registers\.kind='diffusion'"),
        ({"model.lorentz_magnitude": "printed"}, "lorentz_magnitude='printed' needs compat.lorentz='correct'"),
        ({"optim": 3}, "optim"),
        ({"optim.lr": math.nan}, r"optim\.lr: .*finite number, got nan"),
        ({"model.clip_weight": 0, "model.frame_weight": 0}, "clip_weight and frame_weight are both 0"),
        ({f"loss.{t}": 0 for t in ALL_LOSSES}, "every loss weight is 0"),
        ({"model.stream": {"feature": "a"}, "model.branches": "clips"}, r"stream joins the frames .* got clips"),
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


def test_unknown_presets_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'hlformer-tv'; did you mean hlformer-tvr"):
        load_config("hlformer-tv")
    with pytest.raises(ConfigError, match=r"diffusionret-stage2-paper configures a re-ranker: .* --retriever RUN"):
        load_config("diffusionret-stage2-paper")
    bad = tmp_path / "bad.yaml"
    for text, message in {
        "a: [1\n": r"not valid YAML: [\s\S]*    a: \[1\n",  # shows the line
        "[" * 200_000 + "]" * 200_000: "not valid YAML: nested too deeply",
    }.items():
        bad.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            load_config(bad)


def test_an_option_is_not_blamed_on_the_file_and_the_file_not_on_an_option(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nbase: hybrid-toy\n")
    with pytest.raises(ConfigError, match=rf"^model.hiden=3 over {path}: unknown key 'model.hiden'"):
        load_config(path, {"model.hiden": 3})
    path.write_text("name: mine\nbase: hybrid-toy\ntrain: {epochs: -1}\n")
    with pytest.raises(ConfigError, match=rf"^{path}: train.epochs"):
        load_config(path, {"model.hidden": 16})


def test_dictionaries_and_lists_of_other_libraries_are_taken() -> None:
    """Such as those of OmegaConf, which are mappings and sequences, but neither dictionaries nor lists."""
    plain = {"hidden": 16, "heads": 2, "blocks": [{"space": "euclidean"}, {"space": "euclidean", "width": 2.0}]}
    theirs = UserDict(plain | {"blocks": UserList(UserDict(block) for block in plain["blocks"])})
    assert load_config("gmmformer-toy", {"model": theirs}) == load_config("gmmformer-toy", {"model": plain})
