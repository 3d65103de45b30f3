"""prvr train, evaluate and compare, on the smallest toy corpus."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import SMALL, as_options, explained

import prvr
from prvr.cli import main
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.models import load_pretrained
from prvr.training import open_split


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, toy_root: Path, toy_cache: Path) -> SimpleNamespace:
    """A folder with two short runs, made by the command itself."""
    folder = tmp_path_factory.mktemp("cli")
    options = ["--preset", "hybrid-toy", "--data.collection", "toy-tiny", *as_options(SMALL)]
    options += ["--data-root", os.path.relpath(toy_root, folder), "--data.cache_dir", str(toy_cache)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for seed in ("0", "1"):
            assert main(["train", "-q", *options, "--train.seed", seed, "--device", "cpu"]) == 0
    runs = folder / "runs"
    return SimpleNamespace(
        folder=folder, options=options, a=runs / "hybrid-toy-1", b=runs / "hybrid-toy-2", data=toy_root
    )


class TestTrain:
    def test_the_default_output_is_numbered_and_complete(self, work: SimpleNamespace) -> None:
        for run, seed in ((work.a, 0), (work.b, 1)):
            names = {"config.yaml", "metrics.jsonl", "curves.png", "best", "last", "evaluation.json"}
            assert names <= {p.name for p in run.iterdir()}
            config = prvr.load_config(run / "config.yaml")
            assert (config.train.seed, config.model.hidden) == (seed, 16)
            assert [block.space for block in config.model.blocks] == ["euclidean", "lorentz"]
            assert config.data.root == str(work.data.resolve())

    def test_resume_takes_the_latest_run_of_a_preset(
        self, work: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(work.folder)
        assert main(["train", "--resume", *work.options, "--train.seed", "1", "-q"]) == 0
        assert "hybrid-toy-2" in capsys.readouterr().out
        error = explained(["train", "--resume", *work.options, "--train.seed", "3", "-q"], capsys)
        assert "train.seed: 1 -> 3" in error

    def test_what_is_read_after_training_is_read_before(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for file, message in (("corpus.json", "corpus.json: not valid JSON"), ("videos.jsonl", "videos.jsonl, line 1")):
            damaged = shutil.copytree(work.data / "toy-tiny", tmp_path / file / "toy-tiny")
            (damaged / file).write_text("{", encoding="utf-8")
            places = ["--data-root", str(damaged.parent), "--output", str(tmp_path / "run")]
            assert message in explained(["train", *work.options, *places], capsys)
        assert not (tmp_path / "run").exists()


class TestEvaluate:
    def test_a_run_gives_what_training_reported(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = tmp_path / "new" / "scores.json"
        assert main(["evaluate", str(work.a), "--output", str(target), "--device", "cpu", "--diagnose"]) == 0
        shown, trained = EvaluationReport.from_json(target), EvaluationReport.from_json(work.a / "evaluation.json")
        assert shown == trained
        assert trained.blocks == ()
        assert {block.block.split(".")[0] for block in shown.blocks} == {"query", "guide", "clips", "frames"}

    def test_other_splits_and_changes_go_to_files_of_their_own(self, work: SimpleNamespace, tmp_path: Path) -> None:
        before = (work.a / "evaluation.json").read_bytes()
        assert main(["evaluate", str(work.a), "--split", "val", "--ties", "mean", "-q"]) == 0
        report = json.loads((work.a / "evaluation_val_mean.json").read_text())
        assert (report["split"], report["ties"]) == ("toy-tiny val", "mean")
        assert (work.a / "evaluation.json").read_bytes() == before
        (tmp_path / "system.yaml").write_text(f"first: {work.a}\nstages: [{{kind: qb_norm}}]\n")
        assert main(["evaluate", str(tmp_path / "system.yaml"), "--model.registers.sampling_steps", "1", "-q"]) == 0
        for name in ("evaluation_retriever", "evaluation"):
            report = EvaluationReport.from_json(tmp_path / f"{name}_registers.sampling_steps-1.json")
            assert report.changed == {"model.registers.sampling_steps": 1}

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is full")
    def test_the_report_stands_though_nobody_reads_the_tables(self, work: SimpleNamespace, tmp_path: Path) -> None:
        target, corpus = tmp_path / "scores.json", ["--preset", "hybrid-toy", "--collection", "toy-tiny"]
        words = ["evaluate", "zero-shot", *corpus, "--data-root", str(work.data), "--output", str(target), "-q"]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([sys.executable, "-m", "prvr.cli", *words], stdout=full, stderr=subprocess.PIPE)
        assert (done.returncode, b"disk is full" in done.stderr, b"Traceback" in done.stderr) == (2, True, False)
        assert EvaluationReport.from_json(target).split == "toy-tiny test"

    def test_keys_of_the_model_can_be_changed_without_training(self, work: SimpleNamespace) -> None:
        before = (work.a / "evaluation.json").read_bytes()
        weights = ["--model.clip_weight", "0.9", "--model.frame_weight=0.1", "--model.heads", "2"]
        assert main(["evaluate", str(work.a), *weights, "-q", "--device", "cpu"]) == 0
        report = EvaluationReport.from_json(work.a / "evaluation_clip_weight-0.9_frame_weight-0.1.json")
        assert report.changed == {"model.clip_weight": 0.9, "model.frame_weight": 0.1}  # there were 2 heads before
        retriever = load_pretrained(work.a / "best")
        retriever.config = replace(retriever.config, clip_weight=0.9, frame_weight=0.1)
        config = prvr.load_config(work.a / "config.yaml")
        with closing(open_split(config, config.data.eval_split)) as split:
            expected = evaluate(retriever, split, EvaluationConfig.of_run(config.train))
        assert report.ranks.tolist() == expected.ranks.tolist()
        assert (work.a / "evaluation.json").read_bytes() == before

    def test_changes_that_the_weights_do_not_allow_are_refused(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = str(work.a)
        said = explained(["evaluate", run, "--model.hidden", "32"], capsys)
        assert "model.hidden=32: the trained weights do not fit" in said
        assert "model.registers.kind=none" in explained(["evaluate", run, "--model.registers.kind=none"], capsys)
        assert main(["pipeline", run, "--stage", "qb_norm", "--output", str(tmp_path / "system")]) == 0
        said = explained(["evaluate", str(tmp_path / "system"), "--model.clip_weight", "0.9"], capsys)
        assert "clip_weight cannot be changed" in said

    def test_a_model_folder_alone_needs_the_preset_of_its_data(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(work.a / "best", tmp_path / "model")
        assert "--preset" in explained(["evaluate", str(tmp_path / "model")], capsys)
        options = ["--preset", "hybrid-toy", "--data-root", str(work.data), "--collection", "toy-tiny"]
        assert main(["evaluate", str(tmp_path / "model"), *options]) == 0
        found = json.loads((tmp_path / "model" / "evaluation.json").read_text())
        assert found["text_to_video"] == json.loads((work.a / "evaluation.json").read_text())["text_to_video"]


def test_several_processes_must_be_told_where_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--preset", "hybrid-toy"]) == 2
    assert "--output: 2 processes write one run folder" in capsys.readouterr().err
