"""Training of a stage and pipelines on the command line, over an untrained retriever of few numbers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from commands import explained
from runs_of_retrievers import write_run

from prvr.cli import main
from prvr.config import load_config
from prvr.evaluation import EvaluationReport
from prvr.models import build_retriever, load_pretrained
from prvr.stages import load_rerankers
from prvr.training.checkpoint import derived_seed

QUICK = ["--train.epochs=2", "--train.batch_size", "100", "--reranker.steps=4", "--reranker.candidates", "6"]
QUICK += ["--candidates.num=5"]
VAL = {"train.protocol": "val"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, toy_root: Path, toy_cache: Path) -> SimpleNamespace:
    """A retriever, another of another width, and a re-ranker over the first, made by the command."""
    folder = tmp_path_factory.mktemp("rerank")
    retriever, wide, twin = (
        write_run(folder / name, toy_root, "toy-tiny", seed, toy_cache, **more, **VAL)[0]
        for name, seed, more in (("retriever", 0, {}), ("wide", 0, {"model.hidden": 24}), ("twin", 1, {}))
    )
    options = ["--retriever", str(retriever), *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-q", *options, "--device", "cpu"]) == 0
    run = folder / "runs" / "reranker-1"
    return SimpleNamespace(folder=folder, retriever=retriever, wide=wide, twin=twin, run=run, options=options)


class TestTrain:
    def test_the_run_is_complete_and_says_what_it_was_trained_on(self, work: SimpleNamespace) -> None:
        values = yaml.safe_load((work.run / "config.yaml").read_text())
        assert values["retriever"] == str(work.retriever)
        assert values["reranker"]["width"] == 16
        assert values["train"]["epochs"] == 2
        rerankers = load_rerankers(work.run)
        assert {d: r.config.steps for d, r in rerankers.items()} == {"t2v": 4, "v2t": 4}
        reports = [EvaluationReport.from_json(work.run / f"evaluation{name}.json") for name in ("", "_retriever")]
        assert reports[0].query_ids == reports[1].query_ids
        assert reports[0].text_to_text == reports[1].text_to_text

    def test_it_is_resumed_without_naming_anything_but_the_folder(
        self, work: SimpleNamespace, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = (work.run / "metrics.jsonl").read_text()
        assert main(["train", "-q", "--resume", "--output", str(work.run), "--device", "cpu"]) == 0
        assert (work.run / "metrics.jsonl").read_text() == before
        out = capsys.readouterr().out
        assert "text to video: retriever" in out
        assert "text to video: re-ranked" in out
        assert f"prvr evaluate {work.run}" in out

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
        assert [values["reranker"]["width"] for values in found] == [16, 16]
        assert (found[0]["optim"]["name"], found[1]["train"]["weights"]) == ("bert_adam", [])
        both = ["train", "--preset", "diffusionret-stage2-paper", "--config", str(mine)]
        assert "both configure the re-ranker" in explained([*both, "--retriever", str(work.retriever)], capsys)

    @pytest.mark.parametrize("name", ["paper", "released"])
    def test_a_preset_trains(self, work: SimpleNamespace, tmp_path: Path, name: str) -> None:
        words = ["--preset", f"diffusionret-stage2-{name}", "--retriever", str(work.retriever), "--train.epochs", "1"]
        words += ["--train.batch_size", "40", "--reranker.steps", "3", "--device", "cpu", "-q"]
        assert main(["train", *words, "--output", str(tmp_path / "run")]) == 0
        line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
        assert set(line["loss"]) == {"t2v", "v2t", "total"}
        reranker = load_rerankers(tmp_path / "run")["t2v"]
        assert reranker.config.weight == 1.0
        assert 0.015 < reranker.denoiser.query.weight.std() < 0.03  # torch's own maps of this width: 0.14

    def test_a_retriever_that_is_not_trained(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = tmp_path / "untrained"
        config, epochs = work.retriever / "config.yaml", ["--train.epochs", "0"]
        assert main(["train", "--config", str(config), *epochs, "--output", str(first), "--device", "cpu", "-q"]) == 0
        assert "the model is not trained" in capsys.readouterr().out
        values = load_config(first / "config.yaml")
        torch.manual_seed(derived_seed(values.train.seed, "weights"))
        start, kept = build_retriever(values.model).state_dict(), load_pretrained(first / "best").state_dict()
        assert all(torch.equal(start[name], kept[name]) for name in start)
        assert "Without any training" in (first / "best" / "README.md").read_text()
        assert main(["train", "--resume", "--output", str(first), "--device", "cpu", "-q"]) == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--retriever", "nowhere"], "no such folder"),
            (["--config", "RERANKER"], "no retriever. Name the run of a trained retriever with --retriever RUN"),
            (["--preset", "hybrid-toy", "--reranker.steps", "4"], "unknown key 'reranker'"),
        ],
    )
    def test_what_is_missing_is_said(self, tmp_path, arguments, message, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "reranker.yaml"
        file.write_text("reranker: {width: 16}\n", encoding="utf-8")
        words = [str(file) if word == "RERANKER" else word for word in arguments]
        assert message in explained(["train", *words], capsys)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--model.hidden", "16"], "--model.hidden is a key of the retriever, which is already trained"),
            (["--train.start"], "--train.start: expected a value"),
            (["--candidates.number=2"], "did you mean candidates.num"),
            (["--strategy=both"], "strategy"),
            (["--name", "1", "--name.x=1"], "--name.x: 'name' is a value, not a group of keys"),
        ],
    )
    def test_keys_that_cannot_be_used(
        self, work: SimpleNamespace, arguments, message, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["train", "--retriever", str(work.retriever), *arguments]
        assert message in explained(command, capsys)


class TestEvaluate:
    def test_after_each_stage(self, work: SimpleNamespace, toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        target = files["2. diffusion"]
        first = json.loads(target.read_text())
        assert first["stages"] == ["qb_norm over everything, t2v only", "diffusion over the best 5, both directions"]
        assert main([*command, *options]) == 0
        assert json.loads(target.read_text()) == first  # deterministic
        assert main([*command, "--stage", "qb_norm,beta=7.5"]) == 0  # another file, not over the others
        assert (work.retriever / "evaluation_qb_norm-beta-7.5.json").is_file()
        capsys.readouterr()
        before, other = target.stat(), work.folder / "data" / "other"
        shutil.copytree(toy_root / "toy-tiny", other)
        for path in [*other.rglob("*toy-tiny*")]:
            path.rename(path.with_name(path.name.replace("toy-tiny", "other")))
        elsewhere = ["--data-root", str(other.parent), "--collection", "other", "--table", "t2v"]
        assert main([*command, *options, *elsewhere]) == 0
        assert capsys.readouterr().out.count("video to sets: ") == 3
        assert (work.retriever / target.name.replace("evaluation_", "evaluation_other_")).is_file()
        assert target.stat() == before  # a file for each corpus
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

    def reports(self, folder: Path, systems: list[tuple[Path, list[str]]]) -> list[EvaluationReport]:
        """What `prvr evaluate` says of each system with these options."""
        found = []
        for number, (system, options) in enumerate(systems):
            target = folder / f"{number}.json"
            assert main(["evaluate", str(system), *options, "--device", "cpu", "-q", "--output", str(target)]) == 0
            found.append(EvaluationReport.from_json(target))
        return found

    def test_a_run_a_file_and_a_folder_of_the_same_pipeline_agree(
        self, work: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, folder = tmp_path / "system.yaml", tmp_path / "saved"
        stages = [{"kind": "diffusion", "run": str(work.run)}]
        file.write_text(yaml.safe_dump({"first": str(work.retriever), "stages": stages}))
        assert main(["pipeline", str(file), "--output", str(folder), "-q"]) == 0
        assert main(["pipeline", str(file), "--output", str(folder), "-q"]) == 2
        assert "is not empty" in capsys.readouterr().err
        found = self.reports(tmp_path, [(work.run, []), (file, []), (folder, [])])
        assert found[0] == found[1] == found[2]
        assert (found[0].ranks == found[2].ranks).all()
        trained = EvaluationReport.from_json(work.run / "evaluation.json")
        assert (found[0].ranks == trained.ranks).all()  # what the training reported

    def test_a_stage_after_those_of_a_file_or_a_folder(self, work: SimpleNamespace, tmp_path: Path) -> None:
        file, bare, folder = tmp_path / "system.yaml", tmp_path / "bare.yaml", tmp_path / "saved"
        stages = [{"kind": "qb_norm"}]
        file.write_text(yaml.safe_dump({"first": str(work.retriever), "stages": stages}))
        bare.write_text(yaml.safe_dump({"first": str(work.retriever)}))
        assert main(["pipeline", str(file), "--output", str(folder), "-q"]) == 0
        more = ["--stage", f"diffusion:{work.run},weight=2.0"]
        found = self.reports(tmp_path, [(file, more), (folder, more), (bare, ["--stage", "qb_norm", *more])])
        assert [line.split()[0] for line in found[0].stages] == ["qb_norm", "diffusion"]
        assert found[0] == found[1] == found[2]
        assert (found[0].ranks == found[1].ranks).all()
        assert (found[0].ranks == found[2].ranks).all()

    @pytest.mark.parametrize(
        ("stage", "message"),
        [
            ("diffusion:RUN,top_k=0", "top_k"),
            ("diffusion:RUN,num_steps=5", "num_steps: got 5, expected 1 to 4"),
            ("diffusion:RUN,topk=5", "did you mean top_k"),
            ("diffusion", "needs the key run"),
            ("difusion:RUN", "did you mean diffusion"),
            ("diffusion:RETRIEVER", "no re-ranker. Pass a run"),
            ("diffusion:RUN,top_k", "expected KEY=VALUE"),
            ("qb_norm:RUN", "is not trained, got the run"),
        ],
    )
    def test_what_cannot_be(self, work: SimpleNamespace, stage, message, capsys: pytest.CaptureFixture[str]) -> None:
        stage = stage.replace("RUN", str(work.run)).replace("RETRIEVER", str(work.retriever))
        assert message in explained(["evaluate", str(work.retriever), "--device", "cpu", "--stage", stage], capsys)

    @pytest.mark.parametrize("other", ["twin", "wide"])
    def test_a_reranker_of_another_retriever(
        self, work: SimpleNamespace, other: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["evaluate", str(getattr(work, other)), "--stage", f"diffusion:{work.run}", "--device", "cpu"]
        assert "was trained on the embeddings of" in explained(command, capsys)
