import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from golden import SYSTEMS, Golden

import prvr
from prvr.cli import console, demo, folders, main
from prvr.cli.checkpoint import published_config, read_checkpoint
from prvr.cli.convert import DATASETS, convert_checkpoint
from prvr.released import released_config, tensors
from prvr.released.checkpoint import system_of

SMALL = [
    *("--model.hidden", "16", "--model.heads", "2", "--model.lorentz_dim", "15", "--train.epochs", "2"),
    *("--model.registers.steps", "2", "--data.captions_per_video", "1", "--train.batch_size", "30"),
    '--model.blocks=[{"space": "euclidean"}, {"space": "lorentz", "width": 2.0}]',
]
CONVERT = ["convert", "checkpoint", "--dataset", "tvr", "--out"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A folder with the corpus and two short runs, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["data", "make", "data"]) == 0
        cache = ["--data.cache_dir", str(folder / "cache")]
        options = ["--preset", "hybrid-embedded", "--data-root", "data", *cache, *SMALL]
        for seed in ("0", "1"):
            assert main(["train", "-q", *options, "--train.seed", seed, "--device", "cpu"]) == 0
    runs = folder / "runs"
    return SimpleNamespace(
        folder=folder, options=options, a=runs / "hybrid-embedded-1", b=runs / "hybrid-embedded-2", data=folder / "data"
    )


def explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that must fail says: one paragraph, exit code 2, nothing on standard output."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.count("\n") == 1, err
    assert err.startswith("prvr: error: ")
    return err


class TestTrain:
    def test_the_default_output_is_numbered_and_complete(self, work: SimpleNamespace) -> None:
        for run, seed in ((work.a, 0), (work.b, 1)):
            names = {"config.yaml", "metrics.jsonl", "curves.png", "best", "last", "evaluation.json"}
            assert names <= {p.name for p in run.iterdir()}
            assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
            config = prvr.load_config(run / "config.yaml")
            assert config.train.seed == seed
            assert config.model.hidden == 16
            assert [block.space for block in config.model.blocks] == ["euclidean", "lorentz"]
            assert config.data.root == str(work.data.resolve())

    def test_interrupted_and_resumed_is_as_straight(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Interrupt(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.getMessage().startswith("epoch 0"):
                    raise KeyboardInterrupt

        run, logger = tmp_path / "run", logging.getLogger("prvr.training.job")
        straight = json.loads((work.a / "evaluation.json").read_text())
        options = [*work.options, "--data-root", str(work.data), "--device", "cpu"]
        handler = Interrupt()
        logger.addHandler(handler)
        try:
            assert main(["train", *options, "--output", str(run)]) == 130
        finally:
            logger.removeHandler(handler)
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
        capsys.readouterr()
        assert main(["train", "--resume", "--output", str(run), "--device", "cpu"]) == 0
        out, err = capsys.readouterr()
        assert "epoch 1: loss" in err
        assert "epoch 0: loss" not in err
        assert "SumR" in out
        assert str(run / "best") in out
        assert json.loads((run / "evaluation.json").read_text())["text_to_video"] == straight["text_to_video"]

    def test_resume_takes_the_latest_run_of_a_preset(
        self, work: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(work.folder)
        assert main(["train", "--resume", *work.options, "--train.seed", "1", "-q"]) == 0
        assert "hybrid-embedded-2" in capsys.readouterr().out
        error = explained(["train", "--resume", *work.options, "--train.seed", "3", "-q"], capsys)
        assert "train.seed: 1 -> 3" in error

    def test_a_run_that_cannot_start_leaves_no_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        error = explained(["train", "--preset", "hlformer-tvr", "--data-root", "nowhere"], capsys)
        assert "nowhere" in error
        assert list((tmp_path / "runs").iterdir()) == []

    def test_a_taken_output_is_refused(self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
        error = explained(["train", "--preset", "hybrid-embedded", "--output", str(work.a)], capsys)
        assert str(work.a) in error
        assert "--resume" in error


class TestEvaluate:
    def test_a_run_gives_what_training_reported(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = tmp_path / "new" / "scores.json"
        assert main(["evaluate", str(work.a), "--json", str(target), "--device", "cpu"]) == 0
        assert "text to video" in capsys.readouterr().out
        assert json.loads(target.read_text()) == json.loads((work.a / "evaluation.json").read_text()) | {
            "ranks": json.loads(target.read_text())["ranks"]
        }

    def test_other_split_and_ties_go_to_a_file_of_their_own(self, work: SimpleNamespace) -> None:
        before = (work.a / "evaluation.json").read_bytes()
        assert main(["evaluate", str(work.a), "--split", "val", "--ties", "mean", "-q"]) == 0
        report = json.loads((work.a / "evaluation_val_mean.json").read_text())
        assert (report["split"], report["ties"]) == ("embedded val", "mean")
        assert (work.a / "evaluation.json").read_bytes() == before

    def test_a_model_folder_alone_needs_the_preset_of_its_data(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(work.a / "best", tmp_path / "model")
        assert "--preset" in explained(["evaluate", str(tmp_path / "model")], capsys)
        options = ["--preset", "hybrid-embedded", "--data-root", str(work.data)]
        assert main(["evaluate", str(tmp_path / "model"), *options]) == 0
        found = json.loads((tmp_path / "model" / "evaluation.json").read_text())
        assert found["text_to_video"] == json.loads((work.a / "evaluation.json").read_text())["text_to_video"]

    def test_damaged_weights_are_named(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(work.a / "best", tmp_path / "best")
        shutil.copy(work.a / "config.yaml", tmp_path)
        (tmp_path / "best" / "model.safetensors").write_bytes(b"no tensors")
        assert str(tmp_path / "best") in explained(["evaluate", str(tmp_path)], capsys)


class TestCompare:
    def test_two_runs(self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        assert main(["compare", str(work.a), str(work.b), "--samples", "200"]) == 0
        out = capsys.readouterr().out
        assert "B - A" in out
        for run in (work.a, work.b):
            sumr = json.loads((run / "evaluation.json").read_text())["text_to_video"]["sumr"]
            assert f"{sumr:.2f}" in out

    def test_without_evaluation(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert str(tmp_path) in explained(["compare", str(work.a), str(tmp_path)], capsys)


class TestPresets:
    def test_all_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["presets"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if not line.startswith(" ")] == prvr.preset_names()
        assert sum("Measured" in line for line in lines) == len(prvr.preset_names())

    def test_one_is_printed_so_that_it_can_be_edited(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["presets", "dreamprvr-tvr"]) == 0
        (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
        assert prvr.load_config(tmp_path / "mine.yaml") == prvr.load_config("dreamprvr-tvr")


class TestData:
    def test_another_corpus_is_not_overwritten(self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["data", "make", str(work.data)]) == 0  # the same one stays
        assert str(work.data) in explained(["data", "make", str(work.data), "--seed", "5"], capsys)
        assert "'vast'" in explained(["data", "make", str(work.data), "--size", "vast"], capsys)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--preset", "hybrid-tvrr"], ["'hybrid-tvrr'", "hybrid-tvr,"]),
        (["train", "--preset", "hybrid-embedded", "--optim.lrr", "1"], ["--optim.lrr", "--optim.lr"]),
        (["train", "--preset", "hybrid-embedded", "--optim.lr=-1"], ["optim.lr", "-1"]),
        (["train", "--preset", "hybrid-embedded", "--train.epochs", "few"], ["train.epochs", "few"]),
        (["train", "--preset", "hybrid-embedded", "--model.fusion", "sum"], ["model.fusion", "mean_guided"]),
        (["train", "--preset", "hybrid-embedded", "--model.heads", "5"], ["hidden=64", "heads=5"]),
        (["train", "--preset", "hybrid-embedded", "--config", "x.yaml"], ["--preset", "--config"]),
        (["train", "--preset", "hybrid-embedded", "--data-root", "a", "--data.root", "b"], ["--data-root"]),
        (["train", "--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["train", "--config", "mine.json"], ["mine.json", ".yaml"]),
        (["train"], ["--preset"]),
        (["train", "--resume"], ["--output"]),
        (["train", "--resume", "--output", "nowhere"], ["nowhere"]),
        (["train", "--device", "tpu"], ["tpu", "cpu"]),
        (["presets", "hlformer"], ["'hlformer'"]),
        (["evaluate", "nowhere"], ["nowhere"]),
        (["evaluate"], ["RUN", "prvr evaluate --help"]),
        (["evaluate", "."], ["model.safetensors"]),
        (["compare", "nowhere", "there"], ["nowhere"]),
        (["demo", "--preset", "hlformer-tvr"], ["hlformer-tvr", "tvr", "--data-root"]),
        (["convert", "checkpoint", "nowhere.ckpt", "--dataset", "tvr", "--out", "out"], ["nowhere.ckpt"]),
        (["convert", "checkpoint", "x.ckpt", "--dataset", "msrvtt", "--out", "out"], ["msrvtt", "activitynet"]),
        (["flap"], ["'flap'", "train"]),
        (["data"], ["make"]),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str],
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    error = explained(arguments, capsys)
    for name in named:
        assert name in error


def test_an_unknown_key_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nmodel: {video_dim: 4, query_dim: 4}\noptim: {lrr: 1}\n")
    error = explained(["train", "--config", str(file)], capsys)
    assert str(file) in error
    assert "optim.lrr" in error


def test_twice_verbose_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(console.CommandError, match="nowhere"):
        main(["evaluate", str(tmp_path / "nowhere"), "-vv"])


def test_a_fault_of_ours_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.complain(TypeError("an int\nis needed")) == 1
    assert "TypeError: an int is needed This should not happen: add -vv" in capsys.readouterr().err


def test_cuda_without_a_device_is_explained() -> None:
    assert console.device_of("cpu").type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(console.CommandError, match="--device cuda"):
            console.device_of("cuda")


class TestConvert:
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_round_trip(self, system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        golden = Golden(system)
        file, out = tmp_path / "best.ckpt", tmp_path / "models" / "out"
        state = {f"module.{name}": tensor for name, tensor in golden.state.items()}
        torch.save({"config": golden.config, "state_dict": state, "model_val": [1.0], "optimizer": {}}, file)
        assert main(["convert", "checkpoint", str(file), "--dataset", "tvr", "--out", str(out)]) == 0
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
        arguments = ["convert", "checkpoint", str(file), "--dataset", "tvr", "--out", str(out)]
        assert "already holds" in explained(arguments, capsys)

    @pytest.mark.parametrize("dataset", DATASETS)
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_the_configuration_follows_from_the_tensors_and_our_presets(self, system: str, dataset: str) -> None:
        changes = {"model.hidden": 16, "model.video_dim": 24, "model.query_dim": 20}
        changes |= {"model.lorentz_dim": 15} if system == "hlformer" else {}
        config = prvr.load_config(f"{system}-{dataset}", changes)
        state = tensors(prvr.Retriever(config.model)) | tensors(prvr.Objective(config.loss, config.model))
        name = system_of(state, {})
        published = published_config(name, prvr.load_config(f"{system}-{dataset}"), state)
        assert released_config(name, published) == (config.model, config.loss)

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
        ],
    )
    def test_another_layout(
        self, content: object, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "other.ckpt"
        torch.save(content, file)
        error = explained([*CONVERT, str(tmp_path / "o"), str(file)], capsys)
        assert named in error

    @pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps({"a": 1})[:-3]])
    def test_damaged_files(self, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "broken.ckpt"
        file.write_bytes(content)
        error = explained([*CONVERT, str(tmp_path / "o"), str(file)], capsys)
        assert str(file) in error

    def test_another_data_set_or_number_of_blocks(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        golden, file = Golden("hlformer"), tmp_path / "best.ckpt"
        arguments = ["convert", "checkpoint", str(file), "--dataset", "tvr", "--out", str(tmp_path / "out")]
        torch.save({"config": golden.config | {"collection": "charades"}, "state_dict": golden.state}, file)
        assert "charades" in explained(arguments, capsys)
        torch.save({"config": golden.config | {"attention_num": 10}, "state_dict": golden.state}, file)
        assert "attns" in explained(arguments, capsys)
        assert not (tmp_path / "out").exists()


class TestDemo:
    def test_twice_into_the_same_output(
        self, work: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(work.folder)
        for key, value in zip(SMALL[:-1:2], SMALL[1:-1:2], strict=True):
            monkeypatch.setitem(demo._QUICK, key.removeprefix("--"), value)
        monkeypatch.setitem(demo._QUICK, "data.cache_dir", str(work.folder / "cache"))
        for run in (Path("runs/demo"), Path("runs/demo-1")):
            capsys.readouterr()
            assert main(["demo", "--quick"]) == 0
            out, err = capsys.readouterr()
            assert "epoch 1: loss" in err
            for name in ("chance", "this model", "moment-to-video ratio", "examples", str(run / "curves.png")):
                assert name in out, name
            assert out.count(" true ") == 3
            assert (run / "evaluation.json").is_file()


def test_fresh_folders_are_claimed_and_given_back(tmp_path: Path) -> None:
    stem = tmp_path / "a" / "run"
    with folders.fresh_folder(stem) as one, folders.fresh_folder(stem) as two:
        assert (one.name, two.name) == ("run-1", "run-2")
        (two / "file").touch()
    assert [p.name for p in stem.parent.iterdir()] == ["run-2"]
    (tmp_path / "a" / "run-10").mkdir()
    (tmp_path / "a" / "run-x").mkdir()
    assert folders.latest_run(stem).name == "run-10"


class TestProcess:
    def test_version_and_help(self) -> None:
        for arguments, shown in ((["--version"], prvr.__version__), (["train", "--help"], "--model.registers.num")):
            done = subprocess.run(
                [sys.executable, "-m", "prvr.cli", *arguments], capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert shown in done.stdout

    def test_the_parser_needs_no_torch(self) -> None:
        """What a command needs is imported when it runs, so that --help and mistakes are quick."""
        code = (
            "import importlib.util, sys\n"
            "sys.modules['torch'] = None\n"  # importing it fails
            "sys.modules['prvr'] = importlib.util.module_from_spec(importlib.util.find_spec('prvr'))\n"
            "sys.modules['prvr'].__version__ = '0'\n"
            "from prvr.cli import main\n"
            "sys.exit(main(['train', '--preset', 'nobody']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        assert "'nobody'" in done.stderr
