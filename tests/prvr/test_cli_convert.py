"""prvr convert, on checkpoints in the layout of the authors' code."""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import explained
from golden import SYSTEMS, Golden

import prvr
from prvr.cli import main
from prvr.released import released_config, tensors
from prvr.released.checkpoint_files import DATASETS, convert_checkpoint, read_checkpoint
from prvr.released.loading import released_sizes, system_of

CONVERT = ["convert", "checkpoint", "--dataset", "tvr", "--output"]


class TestConvert:
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_round_trip(self, system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        golden = Golden(system)
        file, out = tmp_path / "best.ckpt", tmp_path / "models" / "out"
        state = {f"module.{name}": tensor for name, tensor in golden.state.items()}
        torch.save({"config": golden.config, "state_dict": state, "model_val": [1.0], "optimizer": {}}, file)
        assert main([*CONVERT, str(out), str(file)]) == 0
        assert str(out) in capsys.readouterr().out
        converted = prvr.Retriever.from_pretrained(out).eval()
        expected, objective = golden.load(torch.float32)
        with torch.inference_mode():
            batch = golden.batch(torch.float32)
            assert torch.equal(converted(batch).scores.total, expected(batch).scores.total)
        config = prvr.load_config(out / "config.yaml")
        assert (config.model, config.loss, config.data.collection) == (expected.config, objective.config, "tvr")
        names = {"README.md", "config.json", "config.yaml", "model.safetensors", "objective.safetensors"}
        assert {p.name for p in out.iterdir()} == names
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        assert "already exists" in explained([*CONVERT, str(out), str(file)], capsys)

    @pytest.mark.parametrize("dataset", DATASETS)
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_the_configuration_follows_from_the_tensors_and_our_presets(self, system: str, dataset: str) -> None:
        changes = {"model.hidden": 16, "model.video_dim": 24, "model.query_dim": 20}
        changes |= {"model.lorentz_dim": 15} if system == "hlformer" else {}
        config = prvr.load_config(f"{system}-{dataset}", changes)
        retriever = prvr.Retriever(config.model)
        state = tensors(retriever) | tensors(prvr.Objective(config.loss, config.model, retriever.registers))
        name = system_of(state, {})
        sizes = released_sizes(name, state)
        assert released_config(name, sizes, preset=f"{system}-{dataset}") == (config.model, config.loss)

    def test_a_plain_state_dict(self, tmp_path: Path) -> None:
        golden = Golden("gmmformer")
        torch.save(golden.state, tmp_path / "plain.pt")
        converted = convert_checkpoint(tmp_path / "plain.pt", "charades", tmp_path / "out")
        assert converted.config.model.heads == prvr.load_config("gmmformer-charades").model.heads
        for name, tensor in tensors(converted.retriever).items():
            assert torch.equal(tensor, golden.state[name]), name

    def test_an_attribute_dictionary_is_read_as_a_plain_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class EasyDict(dict):  # as the library of that name: items are attributes too
            def __init__(self, values: dict) -> None:
                super().__init__(values)
                self.__dict__.update(values)

        EasyDict.__module__, EasyDict.__qualname__ = "easydict", "EasyDict"
        monkeypatch.setitem(sys.modules, "easydict", SimpleNamespace(EasyDict=EasyDict))
        golden = Golden("gmmformer")
        values = golden.config | {"best": torch.tensor(1.5).numpy()[()]}
        torch.save({"model": golden.state, "model_cfg": EasyDict(values)}, tmp_path / "best.ckpt")
        monkeypatch.delitem(sys.modules, "easydict")
        state, config = read_checkpoint(tmp_path / "best.ckpt")
        assert config == values
        assert state.keys() == golden.state.keys()

    @pytest.mark.parametrize("name", ["WarmupLinearSchedule", "WarmupConstantSchedule"])
    def test_the_schedule_in_the_state_of_their_optimiser_is_read_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        class Schedule:
            def __init__(self) -> None:
                self.warmup, self.t_total, self.warned_for_t_total_at_progress = 0.01, 700.0, -1

        Schedule.__module__, Schedule.__qualname__ = "Opts.optimization", name
        monkeypatch.setitem(sys.modules, "Opts", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "Opts.optimization", SimpleNamespace(**{name: Schedule}))
        golden = Golden("hlformer")
        groups = [{"lr": 3e-4, "schedule": Schedule(), "params": [0]}]
        optimizer = {"state": {0: {"step": 1, "next_m": torch.zeros(2)}}, "param_groups": groups}
        file = {"config": golden.config, "epoch": 3, "model_val": [1.0], "state_dict": golden.state}
        torch.save(file | {"optimizer": optimizer}, tmp_path / "best.ckpt")
        monkeypatch.delitem(sys.modules, "Opts.optimization")
        state, config = read_checkpoint(tmp_path / "best.ckpt")
        assert config == golden.config
        assert all(torch.equal(tensor, golden.state[key]) for key, tensor in state.items())
        assert state.keys() == golden.state.keys()

    def test_other_objects_are_refused_and_not_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Make:
            def __reduce__(self) -> tuple:
                return os.mkdir, (str(tmp_path / "made"),)

        file = tmp_path / "bad.ckpt"
        torch.save({"config": Make(), "state_dict": {}}, file)
        error = explained([*CONVERT, str(tmp_path / "o"), str(file)], capsys)
        assert str(file) in error
        assert "mkdir" in error
        assert "state_dict" in error
        assert not (tmp_path / "made").exists()
        assert not (tmp_path / "o").exists()

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            ({"weights": {"a": torch.ones(1)}}, "weights"),
            ([torch.ones(1)], "list"),
            ({"state_dict": {"layer.weight": torch.ones(1)}}, "layer.weight"),
            (b"", "other.ckpt"),
            (b"no checkpoint", "other.ckpt"),
            (pickle.dumps({"a": 1})[:-3], "other.ckpt"),
        ],
    )
    def test_another_layout_or_a_damaged_file(
        self, content: object, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "other.ckpt"
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        assert named in explained([*CONVERT, str(tmp_path / "o"), str(file)], capsys)

    def test_another_data_set_or_number_of_blocks(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        golden, file = Golden("hlformer"), tmp_path / "best.ckpt"
        arguments = [*CONVERT, str(tmp_path / "out"), str(file)]
        torch.save({"config": golden.config | {"collection": "charades"}, "state_dict": golden.state}, file)
        assert "charades" in explained(arguments, capsys)
        torch.save({"config": golden.config | {"attention_num": 10}, "state_dict": golden.state}, file)
        assert "attns" in explained(arguments, capsys)
        assert not (tmp_path / "out").exists()
