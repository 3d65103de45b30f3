"""A loss of one's own sees what it asks for, and is refused without; no file imports one."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from commands import explained
from training_runs import make_config

from prvr.cli import main
from prvr.config import (
    LOSSES,
    RETRIEVERS,
    Config,
    ConfigError,
    LossSettings,
    RetrieverConfig,
    dump_config,
    load_config,
    validated,
)
from prvr.data import VideoLoader
from prvr.data.packed import Moments
from prvr.losses import LossInputs, Term
from prvr.models import build_retriever, load_pretrained
from prvr.objective import Objective
from prvr.published.dl_dkd.teacher import Teacher
from prvr.systems import open_system
from prvr.training import Splits, TrainingError, train
from prvr.types import Labels


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


def test_a_loss_sees_ids_captions_and_moments_and_is_refused_without(
    timed: list[Labels], splits: Splits, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses = []
    for chunk in (None, 5):
        still = {"model__dropout": 0.0, "model__input_dropout": 0.0}
        config = make_config(cache, loss__timed=0.1, train__chunk_videos=chunk, **still)
        result = train(config, output=tmp_path / str(chunk), splits=splits, device="cpu")
        courses.append([line["loss"]["timed"] for line in result.history])
    assert courses[0] == pytest.approx(courses[1], rel=1e-3)
    packed = splits.train
    place = {name: i for i, name in enumerate(packed.query_ids)}
    for labels in timed:
        rows = [place[name] for name in labels.query_ids]
        assert list(labels.captions) == [packed.captions[row] for row in rows]
        expected = torch.from_numpy(np.stack(packed.moments, 1)[rows]).float()
        torch.testing.assert_close(labels.moments, expected, equal_nan=True)

    config = make_config(cache, loss__timed=0.1)
    batch = VideoLoader(splits.train, 4).batch([(0, 0), (1, 0)])
    output = build_retriever(config.model)(batch)
    with pytest.raises(ValueError, match=r"loss.timed needs .*, and this batch has none: pass Batch.captions"):
        Objective(config.loss, config.model)(output, replace(batch, captions=()))
    unknown = Moments(*(np.full(len(splits.train.query_ids), np.nan) for _ in range(3)))
    monkeypatch.setattr(splits.train, "moments", unknown)
    with pytest.raises(TrainingError, match=r"loss.timed=0.1 needs moments of queries, and toy-tiny train has none"):
        train(config, output=tmp_path / "run", splits=splits, device="cpu")


def test_a_configuration_older_than_a_loss_is_not_trained(
    splits: Splits, cache: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = make_config(cache)
    request.getfixturevalue("timed")  # registers the loss
    with pytest.raises(ConfigError, match=r"loss\.timed.*: cannot be read back"):
        train(before, output=tmp_path / "run", splits=splits, device="cpu")


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


def test_no_command_and_no_function_runs_code_that_a_file_names(
    downloaded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        "train --config run/config.yaml --output new",
        "train --resume --output run",
        "train --retriever run --output new",
        "evaluate run --preset gmmformer-toy --stage retriever:run",
        "evaluate system.yaml",
        "plot scores run",
    ):
        message = explained(command.split(), capsys)
        assert "evil, which is not imported" in message
        assert "--import evil" in message
    for read in (
        lambda: load_config(downloaded / "config.yaml"),
        lambda: open_system(downloaded).config,
        lambda: Teacher.open(str(downloaded)),
        lambda: validated(Config, yaml.safe_load((downloaded / "config.yaml").read_text())),
    ):
        with pytest.raises(ConfigError, match="evil, which is not imported"):
            read()
    load_pretrained(downloaded / "best")  # these read the weights alone
    main(["search", "videos", "a dog", "--model", "run", "--encoder", "toy"])
    config = downloaded / "best" / "config.json"
    config.write_text(config.read_text().replace('"euclidean"', '"evil"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown space 'evil'.* pass --import MODULE"):
        load_pretrained(downloaded / "best")
    assert not Path("executed").exists()
    try:
        importlib.import_module("evil")
        assert load_config(downloaded / "config.yaml").imports == ("evil",)
        assert Path("executed").exists()
    finally:
        sys.modules.pop("evil", None)


def test_a_loss_that_needs_what_a_model_of_ones_own_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._all))
    monkeypatch.setattr(RETRIEVERS, "_entries", dict(RETRIEVERS._all))
    LOSSES.register("support", Timed, "Reads support texts.", LossSettings, ["support"])
    LOSSES.register("rows", Timed, "Reads frames.", LossSettings, ["frames"])
    RETRIEVERS.register("plain", object, "Neither.", RetrieverConfig)
    off = dict.fromkeys(("triplet", "diversity", "info_nce_clips", "info_nce_frames"), 0) | {"contrastive": 1}
    values = {"name": "own", "model": {"kind": "plain", "video_dim": 4, "query_dim": 4}, "data": {"collection": "c"}}
    validated(Config, values | {"loss": off})
    for name, need in {"support": "support", "rows": "frames"}.items():
        with pytest.raises(ConfigError, match=rf"loss\.{name}=0\.8 needs '{need}', which `provides` of the settings"):
            validated(Config, values | {"loss": off | {name: 0.8}})
