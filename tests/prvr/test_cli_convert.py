"""`prvr convert`: checkpoints in the layout of the authors' code; benchmarks with features of an export or a folder."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from benchmark_files import LSMDC_IDS, WRITERS
from commands import cells, explained
from golden import SYSTEMS, Golden
from search_files import TOY, noise_features

import prvr
from prvr.cli import main
from prvr.corpora.corpus_encoders import corpus_encoders, read_sentences
from prvr.corpora.exported import export_features
from prvr.data import open_corpus
from prvr.encoders import open_featurizer
from prvr.published import CheckpointError, released_config, tensors
from prvr.published.checkpoint_files import DATASETS, read_checkpoint
from prvr.published.loading import released_sizes, system_of

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

    def test_objects_of_the_authors_libraries_are_read_as_plain_ones(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their configuration is a dictionary with attributes, and the state of their optimiser has schedules."""

        def foreign(module: str, name: str, base: type, values: dict[str, Any]) -> Any:
            made = type(name, (base,), {"__module__": module})()
            vars(made).update(values)
            monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: type(made)}))
            return made

        golden = Golden("hlformer")
        values = golden.config | {"best": torch.tensor(1.5).numpy()[()]}
        config = foreign("easydict", "EasyDict", dict, values)
        config.update(values)
        schedule = foreign("Opts.optimization", "WarmupLinearSchedule", object, {"warmup": 0.01})
        optimizer = {"state": {}, "param_groups": [{"lr": 3e-4, "schedule": schedule, "params": [0]}]}
        monkeypatch.setitem(sys.modules, "Opts", SimpleNamespace())
        file = {"model_cfg": config, "epoch": 3, "model": golden.state, "optimizer": optimizer}
        torch.save(file, tmp_path / "best.ckpt")
        monkeypatch.undo()
        state, config = read_checkpoint(tmp_path / "best.ckpt")
        assert config == values
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
        assert not (tmp_path / "made").exists()

    def test_another_layout_or_a_damaged_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        golden, file, words = Golden("hlformer"), tmp_path / "other.ckpt", [*CONVERT, str(tmp_path / "out")]
        for content, named in (
            ({"weights": {"a": torch.ones(1)}}, "weights"),
            ([torch.ones(1)], "list"),
            ({"config": golden.config | {"collection": "charades"}, "state_dict": golden.state}, "charades"),
        ):
            torch.save(content, file)
            assert named in explained([*words, str(file)], capsys)
        file.write_bytes(b"no checkpoint")
        assert "other.ckpt" in explained([*words, str(file)], capsys)
        assert not (tmp_path / "out").exists()


def exported(folder: Path, numbers: range) -> Path:
    """Random features of videos of MSR-VTT under the name of the toy encoder, as `prvr export` writes them."""
    export_features(noise_features(TOY, [f"video{number}.mp4" for number in numbers]), folder)
    return folder


def command(folder: Path, name: str, features: Path) -> list[str]:
    (folder / name).mkdir(exist_ok=True)
    WRITERS[name](folder / name)
    words = ["convert", "benchmark", name, "--annotations", str(folder / name), "--features", str(features)]
    return [*words, "--output", str(folder / "data"), "--device", "cpu"]


def test_an_export_needs_no_other_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "msrvtt", exported(tmp_path / "features", range(4)))) == 0
    said = capsys.readouterr().out
    assert "train 2 4 0 0 test 2 2 0 0" in cells(said)
    assert "incomplete" not in said
    assert f"--preset diffusionret-msrvtt --data-root {tmp_path / 'data'} --data.collection msrvtt" in said
    corpus = open_corpus(tmp_path / "data", "msrvtt")
    assert corpus.dims() == (512, 48)
    encoders = corpus_encoders(corpus)
    assert (encoders.frames, encoders.joint_dim) == (TOY.encoder, 256)
    assert encoders.text == open_featurizer("toy").identity
    sentences = read_sentences(corpus, "test")
    assert np.array_equal(sentences[1], open_featurizer("toy").sentence("a man talks"))


def test_a_folder_of_features_and_a_named_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "feature.hdf5", "w") as file:
        file.update({name: np.ones((3, 7), np.float32) for name in LSMDC_IDS})
    words = command(tmp_path, "lsmdc", tmp_path)
    assert "--text is required" in explained(words, capsys)
    assert main([*words, "--text", "toy", "--collection", "films", "--max-words", "2"]) == 0
    assert "4 captions cut" in capsys.readouterr().out
    corpus = open_corpus(tmp_path / "data", "films")
    assert corpus.dims() == (7, 48)
    assert corpus_encoders(corpus) is None  # nobody knows what made the frames
    assert read_sentences(corpus, "test") is None


def test_a_benchmark_whose_videos_are_not_all_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = command(tmp_path, "msrvtt", exported(tmp_path / "features", range(1, 3)))
    assert "no features for 1 of 2 videos of train: video0." in explained(words, capsys)
    assert not (tmp_path / "data").exists()
    assert main([*words, "--allow-missing"]) == 0
    out = capsys.readouterr().out
    assert "train 1 2 1 0" in cells(out)
    assert "incomplete benchmark" in out


def test_a_whole_checkpoint_and_a_missing_configuration_are_explained() -> None:
    golden = Golden("hlformer")
    with pytest.raises(CheckpointError, match="config is None, expected the authors' configuration"):
        prvr.load_released(golden.state, None)
    with pytest.raises(CheckpointError, match=r"'epoch'\] is of type int, .* its 'state_dict' or 'model'"):
        prvr.load_released({"epoch": 3, "model": golden.state}, golden.config)
