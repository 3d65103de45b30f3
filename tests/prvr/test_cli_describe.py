"""prvr describe: what a name stands for, and the numbers of its parts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import cells, explained
from runs_of_retrievers import write_run

import prvr
from prvr.cli import main
from prvr.config import dump_config
from prvr.stages import CandidateReranker, RerankerConfig
from prvr.training import reranker_run_config, save_rerankers
from prvr.training.cost import describe, describe_reranker


def described(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["describe", *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    none = {"model.registers.kind": "none", "loss.prior_kl": 0, "loss.diffusion": 0}  # sooner counted
    return write_run(tmp_path / "runs" / "r", tmp_path / "data", "nowhere", **none)[0]


@pytest.fixture
def rerankers(tmp_path: Path, run: Path) -> Path:
    config = RerankerConfig(width=16, steps=3, candidates=2)
    folder = tmp_path / "runs" / "rerankers"
    save_rerankers(folder / "best", {"t2v": CandidateReranker(config, "t2v"), "v2t": CandidateReranker(config, "v2t")})
    values = {"reranker": {"width": 16, "steps": 3}, "retriever": str(run), "train": {"batch_size": 6}}
    (folder / "config.yaml").write_text(dump_config(reranker_run_config(values)))
    return folder


def test_a_preset_with_other_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--model.hidden", "32", "--train.batch_size=4", "--frames", "9", "--captions", "2"]
    assert main(["describe", "gmmformer-toy", *keys, "--json", str(tmp_path / "cost.json")]) == 0
    shown = cells(capsys.readouterr().out)
    assert "9 frames and 30 words" in shown
    assert "a step: 4 videos with 2 captions each" in shown
    found = json.loads((tmp_path / "cost.json").read_text())
    config = prvr.load_config("gmmformer-toy", {"model.hidden": 32, "train.batch_size": 4})
    expected = describe(config, frames=9, captions=2)
    assert [(part["part"], part["parameters"], part["step"]) for part in found["parts"]] == [
        (cost.part, cost.parameters, cost.step) for cost in expected
    ]
    assert found["total"]["video"] == sum(cost.video for cost in expected)


def test_a_run_and_its_model_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run / "best", tmp_path / "model")
    whole, alone = (described([str(folder)], capsys)["total"] for folder in (run, tmp_path / "model"))
    assert whole["video"] == alone["video"]
    config = prvr.load_config(run / "config.yaml")
    retriever = prvr.Retriever.from_pretrained(run / "best")
    own = prvr.Objective(config.loss, config.model, retriever.registers).parameters()
    assert whole["parameters"] - alone["parameters"] == sum(p.numel() for p in own) > 0
    assert whole["step"] > alone["step"] == 0


def test_stages_of_pipelines_without_opening_data(
    tmp_path: Path, run: Path, rerankers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = "[{kind: qb_norm}, {kind: retriever, run: runs/r}, {kind: diffusion, run: runs/rerankers, top_k: 7}]"
    (tmp_path / "system.yaml").write_text(f"first: runs/r\nstages: {stages}\n")
    found = described([str(tmp_path / "system.yaml")], capsys)
    stages = {stage["part"]: stage for stage in found["stages"]}
    assert stages["qb_norm"]["parameters"] == 0
    assert stages["retriever, text encoder"]["query"] == found["parts"][0]["query"]
    expected = describe_reranker(RerankerConfig(width=16, steps=3), "t2v", rows=40, top_k=7, step=(6, 32))
    assert stages["diffusion, text to video"]["query"] == expected.query
    assert stages["diffusion, text to video"]["step"] == expected.step
    assert stages["diffusion, video to text"]["query"] == 0 < stages["diffusion, video to text"]["video"]
    own = described([str(rerankers)], capsys)
    assert found["total"] == own["total"]  # both are over the same run
    assert [stage["part"] for stage in own["stages"]] == ["diffusion, text to video", "diffusion, video to text"]
    assert own["stages"][0]["query"] < expected.query  # 2 candidates and not 7
    assert main(["pipeline", str(rerankers), "--output", str(tmp_path / "folder")]) == 0
    folder = described([str(tmp_path / "folder")], capsys)
    assert folder["total"] == own["total"]
    assert folder["stages"][0] == own["stages"][0] | {"step": 0}  # it does not say how they were trained


def test_mistakes_are_explained(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean hlformer-tvr" in explained(["describe", "hlformer-tvrr"], capsys)
    assert "--frames" in explained(["describe", "hlformer-tvr", "--frames", "0"], capsys)
    assert "did you mean model.hidden" in explained(["describe", "hlformer-tvr", "--model.hiden", "3"], capsys)
    shutil.copytree(run / "best", tmp_path / "model")
    said = explained(["describe", str(tmp_path / "model"), "--model.hidden=32"], capsys)
    assert "--model.hidden cannot be changed" in said
    (tmp_path / "s.yaml").write_text("first: runs/r\nstages: [{kind: diffuse}]\n")
    assert "'diffuse'" in explained(["describe", str(tmp_path / "s.yaml")], capsys)
    (tmp_path / "s.yaml").write_text("first: runs/r\nstages: [{kind: diffusion, run: data}]\n")
    assert "no re-ranker" in explained(["describe", str(tmp_path / "s.yaml")], capsys)
