"""Training of a stage and pipelines on the command line, over an untrained retriever of few numbers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from commands import explained
from runs_of_retrievers import write_run

from prvr.cli import main
from prvr.evaluation import EvaluationReport
from prvr.published.diffusionret.stage import load_rerankers

QUICK = ["--train.epochs=2", "--train.batch_size", "100", "--reranker.steps=4", "--reranker.candidates", "6"]
QUICK += ["--candidates.num=5"]
VAL = {"train.protocol": "val"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, toy_root: Path, toy_cache: Path) -> SimpleNamespace:
    """A retriever, another one, and a re-ranker over the first, made by the command."""
    folder = tmp_path_factory.mktemp("rerank")
    retriever, other = (
        write_run(folder / name, toy_root, "toy-tiny", seed, toy_cache, **VAL)[0]
        for seed, name in enumerate(("retriever", "other"))
    )
    options = ["--retriever", str(retriever), *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-q", *options, "--device", "cpu"]) == 0
    run = folder / "runs" / "reranker-1"
    return SimpleNamespace(folder=folder, retriever=retriever, other=other, run=run, options=options)


class TestTrain:
    def test_the_run_is_complete_and_resumed_by_its_folder_alone(
        self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]
    ) -> None:
        values = yaml.safe_load((work.run / "config.yaml").read_text())
        assert values["retriever"] == str(work.retriever)
        assert values["reranker"]["width"] == 16
        assert values["train"]["epochs"] == 2
        rerankers = load_rerankers(work.run)
        assert {d: r.config.steps for d, r in rerankers.items()} == {"t2v": 4, "v2t": 4}
        before = (work.run / "metrics.jsonl").read_text()
        assert main(["train", "-q", "--resume", "--output", str(work.run), "--device", "cpu"]) == 0
        assert (work.run / "metrics.jsonl").read_text() == before
        out = capsys.readouterr().out
        assert "text to video: retriever" in out
        assert "text to video: re-ranked" in out
        assert f"prvr evaluate {work.run}" in out

    def test_the_latest_run_of_its_name_is_resumed(
        self, work: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(work.run, tmp_path / "runs" / "mine-1")
        monkeypatch.chdir(tmp_path)
        assert main(["train", "-q", "--resume", *work.options, "--name", "mine", "--device", "cpu"]) == 0
        assert [run.name for run in (tmp_path / "runs").iterdir()] == ["mine-1"]

    def test_the_next_command_has_the_preset_of_the_data(
        self, work: SimpleNamespace, tmp_path: Path, toy_root: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The configuration may name the retriever, too."""
        run = shutil.copytree(work.run, tmp_path / "run")
        options = ["--preset", "hybrid-toy", "--data-root", str(toy_root), "--data.collection", "toy-tiny"]
        command = ["train", "-q", "--resume", "--config", str(run / "config.yaml"), "--output", str(run), *options]
        assert main([*command, "--device", "cpu"]) == 0
        assert "--preset hybrid-toy" in capsys.readouterr().out

    def test_a_preset_by_name_and_a_file_that_is_based_on_one(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text("base: diffusionret-stage2-paper\nname: mine\nreranker: {steps: 6}\n", encoding="utf-8")
        found = []
        for source in (["--preset", "diffusionret-stage2-released"], ["--config", str(mine)]):
            words = [*source, "--retriever", str(work.retriever), "--reranker.candidates", "6", "--print-config"]
            assert main(["train", *words]) == 0
            found.append(yaml.safe_load(capsys.readouterr().out))
        assert [values["candidates"]["pool"] for values in found] == ["batch", "batch"]
        assert [values["reranker"]["steps"] for values in found] == [50, 6]
        assert [values["reranker"]["candidates"] for values in found] == [6, 6]
        assert (found[0]["optim"]["name"], found[1]["train"]["weights"]) == ("bert_adam", [])
        both = ["train", "--preset", "diffusionret-stage2-paper", "--config", str(mine)]
        assert "both configure the re-ranker" in explained([*both, "--retriever", str(work.retriever)], capsys)


class TestEvaluate:
    def test_after_each_stage(self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["evaluate", str(work.retriever), "--device", "cpu", "-q"]
        options = ["--stage", "qb_norm", "--stage", f"diffusion:{work.run},top_k=5,num_steps=2,weight=2.0"]
        assert main([*command, *options]) == 0
        out = capsys.readouterr().out
        names = {"first stage": "retriever", "1. qb_norm": "qb_norm"}
        names["2. diffusion"] = f"qb_norm_diffusion-{work.run.name}-top_k-5-num_steps-2-weight-2.0"
        files = {name: work.retriever / f"evaluation_{parts}.json" for name, parts in names.items()}
        assert {path.name for path in work.retriever.glob("evaluation_*.json")} == {p.name for p in files.values()}
        for name, path in files.items():
            assert out.count(f": {name} ") == 2, out  # a row of each direction
            assert f"{path}: {name}\n" in out
        first = json.loads(files["2. diffusion"].read_text())
        assert first["stages"] == ["qb_norm over everything, t2v only", "diffusion over the best 5, both directions"]
        assert not (work.retriever / "evaluation.json").exists()

    def test_stages_read_the_corpus_where_it_is_now(
        self, tmp_path: Path, toy_root: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before, now = tmp_path / "before", tmp_path / "now"
        before.mkdir()
        shutil.copytree(toy_root / "toy-tiny", before / "toy-tiny")
        run, _ = write_run(tmp_path / "run", before, "toy-tiny")
        command = ["evaluate", str(run), "--stage", "qb_norm", "--device", "cpu", "-q"]
        assert main([*command, "--output", str(tmp_path / "before.json")]) == 0
        before.rename(now)
        shutil.rmtree(tmp_path / "cache")  # packed before the corpus was moved
        assert "before" in explained(command, capsys)
        place = ["--data-root", str(now)]
        assert main([*command, *place, "--output", str(tmp_path / "now.json")]) == 0
        assert main(["pipeline", str(run), "--stage", "qb_norm", "--output", str(tmp_path / "saved"), *place]) == 0
        saved = ["evaluate", str(tmp_path / "saved"), *place, "--device", "cpu", "-q"]
        assert main([*saved, "--output", str(tmp_path / "saved.json")]) == 0
        reports = [EvaluationReport.from_json(tmp_path / f"{name}.json") for name in ("before", "now", "saved")]
        assert reports[0] == reports[1] == reports[2]

    def test_a_run_a_file_and_a_folder_of_the_same_pipeline_agree(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, folder = tmp_path / "system.yaml", tmp_path / "saved"
        stages = [{"kind": "diffusion", "run": str(work.run)}]
        file.write_text(yaml.safe_dump({"first": str(work.retriever), "stages": stages}))
        assert main(["pipeline", str(file), "--output", str(folder), "-q"]) == 0
        assert "is not empty" in explained(["pipeline", str(file), "--output", str(folder)], capsys)
        bare, more = tmp_path / "bare.yaml", ["--stage", f"diffusion:{work.run}"]
        bare.write_text(yaml.safe_dump({"first": str(work.retriever)}))
        trained, target = EvaluationReport.from_json(work.run / "evaluation.json"), tmp_path / "found.json"
        found = []
        for words in ([str(work.run)], [str(file)], [str(folder)], [str(bare), *more]):
            assert main(["evaluate", *words, "--device", "cpu", "-q", "--output", str(target)]) == 0
            found.append(EvaluationReport.from_json(target))
            assert (found[-1].ranks == trained.ranks).all()  # what the training reported
        assert found[0] == found[1] == found[2] == found[3]


def test_what_cannot_be(work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "reranker.yaml"
    file.write_text("reranker: {width: 16}\n", encoding="utf-8")
    for words, message in (
        (["--config", str(file)], "no retriever. Name the run of a trained retriever with --retriever RUN"),
        (["--retriever", str(work.retriever), "--model.hidden", "16"], "a key of the retriever, which is already"),
    ):
        assert message in explained(["train", *words], capsys)
    for system, stage, message in (
        (work.retriever, f"diffusion:{work.run},num_steps=5", "num_steps: got 5, expected 1 to 4"),
        (work.retriever, "diffusion", "needs the key run"),
        (work.retriever, f"diffusion:{work.retriever}", "no re-ranker. Pass a run"),
        (work.other, f"diffusion:{work.run}", "was trained on the embeddings of"),
    ):
        assert message in explained(["evaluate", str(system), "--device", "cpu", "--stage", stage], capsys)
