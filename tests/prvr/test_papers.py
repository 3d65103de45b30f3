"""Tables of papers: their files, what they run, how a study goes on after anything, and what it shows."""

import platform
import re
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from commands import explained
from kills import killed

from prvr.cli import main
from prvr.cli.options import bind, chosen_config
from prvr.config import ConfigError, load_config
from prvr.errors import DataError, InputError
from prvr.evaluation import EvaluationReport, evaluate
from prvr.models import AnyRetriever, build_retriever
from prvr.papers import (
    Choices,
    Machine,
    Run,
    Study,
    cells_of,
    distinct_runs,
    latex,
    markdown,
    perform,
    perform_all,
    read_table,
    shown,
    table_names,
    terminal_tables,
)
from prvr.toy import corpus_key
from prvr.training import open_split, reranker_run_config

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"

TABLE = """
paper: a paper
item: table 1
title: everything that a row can be
base: hlformer-toy
columns: [r1, sumr, v2t_r1]
sets: [toy]
rows:
- name: full
  published: {toy: [10.0, 200.0, null]}
- name: clips
  group: branches
  keys: {model.branches: clips}
- name: other weights
  over: full
  evaluate: {model: {clip_weight: 1.0, frame_weight: 0.0}}
- name: normalised
  over: full
  evaluate: {stages: [{kind: qb_norm}]}
- name: re-ranked
  over: full
  stage: {reranker.steps: 4, reranker.candidates: 6, candidates.num: 5, strategy: generative}
- name: re-ranked with two steps
  over: re-ranked
  evaluate: {diffusion: {num_steps: 2}}
- name: taught
  teacher: normalised
  keys: {loss.distillation: 1.0}
- name: scores
  over: full
  plot: {what: scores}
- name: by moments
  untrained: training-free
- name: MS-SL
  quoted: true
  published: {toy: [7.1, 140.1, 5.0]}
"""
KEYS = {
    "data.collection": "toy-tiny",
    "model.hidden": 16,
    "model.lorentz_dim": 15,
    "model.blocks": [{"space": "euclidean"}, {"space": "lorentz", "width": 2.0}],
    "train.epochs": 1,
    "train.batch_size": 30,
    "stage.train.epochs": 1,
    "stage.train.batch_size": 100,
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a row of every kind."""
    path = tmp_path_factory.mktemp("table") / "all-kinds.yaml"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def choices(toy_cache: Path) -> Choices:
    return Choices(KEYS | {"data.cache_dir": str(toy_cache)})


@pytest.fixture(scope="module")
def done(table: Path, choices: Choices, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study in which every row of `table` is finished, and those that train with another seed too."""
    study = Study(tmp_path_factory.mktemp("study") / "study")
    study.begin(choices)
    wanted = [*runs(table, choices), *(run for run in runs(table, choices, (1,)) if run.kind == "train")]
    assert perform_all(wanted, study, Machine(), lambda number, run: None) == {}
    return study


def runs(table: Path | str, choices: Choices, seeds: Sequence[int] = (0,)) -> list[Run]:
    return distinct_runs(cells_of(read_table(table), choices, seeds=seeds))


def by_row(table: Path | str, choices: Choices, sets: Sequence[str] | None = None) -> dict[str, Run]:
    """The run of each row with seed 0."""
    cells = cells_of(read_table(table), choices, sets=sets)
    return {cell.row.name: cell.run for cell in cells if cell.run is not None}


def written(folder: Path, **changes: object) -> Path:
    """`TABLE` with some of its values changed."""
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(TABLE) | changes), encoding="utf-8")
    return path


def reported(study: Study, table: Path, choices: Choices) -> dict[str, np.ndarray]:
    """The ranks of every run that has a report, by key."""
    results = {run.key: study.result(run) for run in runs(table, choices, (0, 1))}
    return {key: result.report.ranks for key, result in results.items() if result is not None and result.report}


class TestFiles:
    @pytest.mark.parametrize("name", table_names())
    def test_every_configuration_builds_on_every_set(self, name: str) -> None:
        table = read_table(name)
        cells = cells_of(table, Choices(root="data"))
        assert [cell.row.name for cell in cells if cell.run is None and not cell.row.quoted] == [
            cell.row.name for cell in cells if cell.row.checkpoint is not None
        ]
        assert {cell.set_name for cell in cells} == set(table.sets)

    def test_tables_share_the_runs_that_they_have_in_common(self) -> None:
        first, second = (by_row(name, Choices(), ["tvr"]) for name in ("hlformer-table-2", "hlformer-figure-3-blocks"))
        assert first["HLFormer (full)"].key == second["8 blocks, half of them Lorentz"].key
        assert len({run.key for run in first.values()}) == len(first)

    @pytest.mark.parametrize(
        ("name", "table", "sets", "one_seed"),
        [
            ("toy", "hlformer-table-2", ["toy"], 0),
            ("toy-4", str(STUDIES / "systems-toy.yaml"), None, 0),
            ("real-captions", str(STUDIES / "real-captions-seeds.yaml"), None, 0),
            ("real-captions", str(STUDIES / "released-real-captions.yaml"), ["tvr-test"], 3),
        ],
    )
    def test_the_studies_of_the_repository_are_those_of_this_version(
        self, name: str, table: str, sets: list[str] | None, one_seed: int
    ) -> None:
        # A key of the configuration that is new or renamed must leave the names of finished runs as they are.
        study = Study(STUDIES / f"{name}.tar.xz")
        choices = study.choices(Choices())
        for part in shown(study, cells_of(read_table(table), choices, sets=sets), choices):
            assert {line.name for line in part.lines if None in line.ours} <= {"linear"}, part.title  # added later
            assert sum("not finished" in line.judged for line in part.lines) == one_seed

    @pytest.mark.parametrize("name", ["field", "field-qvhighlights"])
    def test_published_numbers_have_a_source_and_add_up(self, name: str) -> None:
        table = read_table(name)
        for row in table.rows:
            assert row.source, row.name
            for where, (*recalls, total) in row.published.items():
                numbers = [recall for recall in recalls if recall is not None]
                assert numbers == sorted(numbers), (row.name, where)
                assert len(numbers) < 4 or sum(numbers) == pytest.approx(total, abs=0.21), (row.name, where)

    def test_tables_read_published_numbers_from_the_field(self, tmp_path: Path) -> None:
        field = read_table("field").row("DL-DKD").published
        assert read_table("hlformer-table-1").row("DL-DKD").published == field
        changes = {"columns": ["sumr", "mdr", "r1"], "sets": ["tvr", "toy"]}
        few = read_table(written(tmp_path, **changes, rows=[{"name": "a", "quoted": True, "published": "DL-DKD"}]))
        assert few.rows[0].published == {"tvr": (179.9, None, 14.4)}
        with pytest.raises(ConfigError, match=r"unknown row of the table field 'DLDKD'; did you mean DL-DKD"):
            read_table(written(tmp_path, rows=[{"name": "a", "quoted": True, "published": "DLDKD"}]))

    def test_runs_that_differ_in_anything_have_keys_of_their_own(self, tmp_path: Path) -> None:
        changes = ["{model: {clip_weight: 1.0}}", "{model: {clip_weight: 0.5}}", "{ties: best}", "{split: val}", "{}"]
        changes += ["{stages: [{kind: qb_norm}]}", "{stages: [{kind: qb_norm, beta: 3}]}"]
        rows = [f"{{name: {place}, over: full, evaluate: {how}}}" for place, how in enumerate(changes)]
        rows += [f"{{name: {what}, over: full, plot: {{what: frames, settings: {{video: {what}}}}}}}" for what in "ab"]
        values = [{"name": "full"}, *yaml.safe_load(f"[{', '.join(rows)}]")]
        path = written(tmp_path, rows=[row | {"name": str(row["name"])} for row in values])
        assert len({run.arm for run in runs(path, Choices())}) == len(rows) + 1

    @pytest.mark.parametrize(
        ("keys", "name", "split"),
        [({}, "tvr", "val"), ({"data.eval_split": "test"}, "tvr", "test"), ({}, "toy", "test")],
    )
    def test_rows_report_what_the_authors_report_unless_a_user_says_otherwise(
        self, keys: dict[str, str], name: str, split: str
    ) -> None:
        splits = {run.config.data.eval_split for run in by_row("hlformer-table-2", Choices(keys), [name]).values()}
        assert splits == {split}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("columns: [r1, r2]", "unknown column 'r2'"),
            ("sets: [tvr]", "published numbers of 'toy'"),
            ("rows: [{name: a}, {name: a}]", "rows named twice: a"),
            ("rows: [{name: a, over: b, plot: {what: frames}}]", "expected the name of a row above it"),
            ("rows: [{name: a, plot: {what: frames}}]", "`over` goes with stage, evaluate or plot"),
            ("rows: [{name: a, quoted: true, checkpoint: b}]", "checkpoint and quoted: expected one of them"),
            ("rows: [{name: a, published: {toy: [1.0]}}]", "1 published numbers, expected one for each of"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_explained(self, tmp_path: Path, change: str, message: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)):
            read_table(written(tmp_path, **yaml.safe_load(change)))

    def test_unknown_names_are_explained(self) -> None:
        with pytest.raises(InputError, match="did you mean hlformer-table-2"):
            read_table("hlformer-table2")
        with pytest.raises(InputError, match="unknown data set 'tvrr'"):
            cells_of(read_table("hlformer-table-2"), Choices(), sets=["tvrr"])


class TestStudy:
    def test_every_kind_of_row_leaves_a_result_of_its_own_and_is_not_run_again(
        self, done: Study, table: Path, choices: Choices
    ) -> None:
        wanted = runs(table, choices)
        assert sorted(run.kind for run in wanted) == ["evaluate"] * 3 + ["plot", "stage"] + ["train"] * 3 + [
            "untrained"
        ]
        assert all(done.result(run) is not None for run in wanted)
        assert perform_all(wanted, done, Machine(), lambda number, run: pytest.fail(run.key)) == {}
        by_key = reported(done, table, choices)
        ranks = {name: by_key[run.key] for name, run in by_row(table, choices).items() if run.key in by_key}
        for other in ("clips", "other weights", "re-ranked", "taught"):
            assert not np.array_equal(ranks["full"], ranks[other]), other
        assert not np.array_equal(ranks["re-ranked"], ranks["re-ranked with two steps"])

    def test_weights_that_were_deleted_are_trained_again_where_a_row_needs_them(
        self, done: Study, table: Path, choices: Choices, tmp_path: Path
    ) -> None:
        shutil.copytree(done.folder, tmp_path / "kept", ignore=shutil.ignore_patterns("runs"))
        study = Study(tmp_path / "kept")
        run = next(run for run in runs(table, choices) if run.kind == "evaluate")
        before = reported(done, table, choices)[run.key]
        (study.results / f"{run.key}.yaml").unlink()
        perform(run, study, Machine())
        assert np.array_equal(reported(study, table, choices)[run.key], before)

    @pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="processes are killed as POSIX does")
    def test_kills_change_nothing(self, done: Study, table: Path, choices: Choices, tmp_path: Path) -> None:
        study = Study(tmp_path / "study")
        study.begin(choices)
        wanted = [by_row(table, choices)[row] for row in ("full", "other weights", "re-ranked", "scores", "by moments")]

        def act() -> None:
            perform_all(wanted, study, Machine(), lambda number, run: None)

        died = [killed(act, after=seconds) for seconds in (0.4, 1.3)]
        assert any(died)
        assert perform_all(wanted, study, Machine(), lambda number, run: None) == {}
        before, after = reported(done, table, choices), reported(study, table, choices)
        assert len(after) == sum(run.kind != "plot" for run in wanted)
        for key, ranks in after.items():
            assert np.array_equal(ranks, before[key]), key

    def test_a_run_that_fails_stops_only_those_that_build_on_it(
        self, table: Path, choices: Choices, tmp_path: Path
    ) -> None:
        study = Study(tmp_path / "study")
        study.begin(choices)
        wanted = runs(table, choices)
        full = next(run for run in wanted if run.kind == "train")
        folder = study.run_folder(full)
        folder.mkdir(parents=True)
        (folder / "somebody's.txt").write_text("not ours")
        failures = perform_all(wanted, study, Machine(), lambda number, run: None)
        assert set(failures) == {run.key for run in wanted if run.arm == full.arm or run.over}
        assert "already holds" in failures[full.key]
        assert (folder / "somebody's.txt").read_text() == "not ours"

    def test_what_would_mix_rows_is_refused(self, done: Study, table: Path, choices: Choices) -> None:
        with pytest.raises(DataError, match=r"was started with other keys \(.*train\.epochs=1"):
            done.choices(Choices({"train.epochs": 2}))
        assert done.choices(Choices()).keys == choices.keys
        record = done.results / f"{runs(table, choices)[0].key}.yaml"
        text = record.read_text()
        try:
            record.write_text(text.replace("model.heads: 4", "model.heads: 2"))
            with pytest.raises(DataError, match=r"other values of model\.heads"):
                done.result(runs(table, choices)[0])
            record.write_text(re.sub("corpus: .*", "corpus: another", text))
            seeds = [one for one in runs(table, choices, (0, 7)) if f"{one.arm}-0" == record.stem]
            assert [one.seed for one in seeds] == [0, 7]  # seed 7 has no result yet
            for one in seeds:
                with pytest.raises(DataError, match="another corpus"):
                    done.expect_same_inputs([one])
        finally:
            record.write_text(text)

    def test_features_that_changed_between_two_rows_are_noticed(
        self, table: Path, choices: Choices, toy_root: Path, tmp_path: Path
    ) -> None:
        corpus = shutil.copytree(toy_root / "toy-tiny", tmp_path / "toy-tiny")
        rooted = by_row(table, replace(choices, root=str(tmp_path)))
        study = Study(tmp_path / "study")
        study.save(rooted["full"], None, diverged=True)  # a record without a training
        study.expect_same_inputs([rooted["full"], rooted["clips"]])
        with h5py.File(corpus / "FeatureData" / "frames" / "feature.hdf5", "r+") as file:
            for rows in file.values():
                rows[...] = rows[()] * 1.5
        with pytest.raises(DataError, match=r"was measured with other features of toy-tiny"):
            study.expect_same_inputs([rooted["clips"]])

    def test_a_packed_study_shows_the_same_tables_and_cannot_be_changed(
        self, done: Study, table: Path, choices: Choices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, again = tmp_path / "done.tar.xz", tmp_path / "again.tar.xz"
        assert main(["papers", "pack", str(done.folder), "--output", str(file)]) == 0
        packed, cells = Study(file), cells_of(read_table(table), choices)
        packed.pack(again)
        assert file.read_bytes() == again.read_bytes()
        pictures = sum(path.stat().st_size for path in done.results.glob("*.png"))
        assert file.stat().st_size < pictures + 20_000 * len(reported(done, table, choices))
        assert packed.choices(Choices()) == done.choices(Choices())
        for ours, theirs in zip(shown(done, cells, choices), shown(packed, cells, choices), strict=True):
            assert [replace(line, picture=None) for line in ours.lines] == [
                replace(line, picture=None) for line in theirs.lines
            ]
            assert theirs.notes == ours.notes
        for change in (lambda: packed.begin(choices), lambda: packed.claimed(cells[0].run).__enter__()):
            with pytest.raises(DataError, match=r"a packed study cannot be changed\. Unpack it: tar -xf"):
                change()

    @pytest.mark.parametrize("damage", [b"", b"not a study", None])
    def test_a_damaged_packed_study_is_explained(self, damage: bytes | None, tmp_path: Path) -> None:
        file = tmp_path / "study.tar.xz"
        if damage is not None:
            file.write_bytes(damage)
        with pytest.raises(DataError, match=r"cannot be read .* Expected a file of `prvr papers pack`"):
            Study(file)

    @pytest.mark.parametrize(
        ("name", "kind", "size", "message"),
        [
            ("results/../../escaped.yaml", tarfile.REGTYPE, 0, "contains 'results/../../escaped.yaml'"),
            ("..\\escaped.yaml", tarfile.REGTYPE, 0, "contains '..\\\\escaped.yaml'"),
            ("/etc/escaped.yaml", tarfile.REGTYPE, 0, "contains '/etc/escaped.yaml'"),
            ("results/a-0.yaml", tarfile.SYMTYPE, 0, "contains 'results/a-0.yaml', which is not a file of a study"),
            ("results/a-0.yaml", tarfile.FIFOTYPE, 0, "contains 'results/a-0.yaml'"),
            ("results/a-0.yaml", tarfile.REGTYPE, 2**28, "larger than 268,435,456 bytes when unpacked"),
        ],
    )
    def test_a_packed_study_holds_nothing_else(
        self, name: str, kind: bytes, size: int, message: str, tmp_path: Path
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, size, "/etc/passwd"
        with tarfile.open(tmp_path / "study.tar.xz", "w:xz", preset=0) as archive:
            archive.addfile(tarfile.TarInfo("study.yaml"))
            archive.addfile(member, BytesIO(bytes(size)))
        with pytest.raises(DataError, match=re.escape(message)):
            Study(tmp_path / "study.tar.xz")
        assert [path.name for path in tmp_path.iterdir()] == ["study.tar.xz"]

    def test_a_folder_of_others_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("mine")
        with pytest.raises(DataError, match=r"contains no study\.yaml and is not empty"):
            Study(tmp_path)


class TestCheckpoints:
    """Rows that evaluate a converted checkpoint, here a folder of `save_pretrained`."""

    NAME = "hlformer-toy"

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        rows = [{"name": "HLFormer"}, {"name": "the authors' checkpoint", "checkpoint": "hlformer-{set}"}]
        return written(tmp_path, rows=rows)

    def save(self, folder: Path, seed: int) -> AnyRetriever:
        """A small model with random weights in the folder that the row names."""
        changes = {key: value for key, value in KEYS.items() if key.startswith("model.")}
        torch.manual_seed(seed)
        retriever = build_retriever(load_config(self.NAME, changes).model)
        retriever.save_pretrained(folder / self.NAME)
        return retriever

    def test_the_checkpoint_is_evaluated_as_it_is_and_another_in_its_place_is_noticed(
        self, table: Path, tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        converted, study = tmp_path / "converted", Study(tmp_path / "study")
        retriever = self.save(converted, 0)
        choices = Choices({"data.collection": "toy-tiny"}, checkpoints=converted)
        run = next(run for run in runs(table, choices) if run.kind == "checkpoint")
        # The configuration of the row is 384 wide, the checkpoint 16.
        words = ["papers", "run", str(table), "--output", str(study.folder), "--data.collection", "toy-tiny"]
        words += ["--data.cache_dir", str(toy_cache), "--checkpoints", str(converted), "--only", run.key]
        assert main(words) == 0
        found = study.result(run)
        assert found is not None
        assert found.report is not None
        with closing(open_split(replace(run.config, model=retriever.config), "test")) as packed:
            expected = evaluate(retriever, packed)
        assert np.array_equal(found.report.ranks, expected.ranks)

        capsys.readouterr()
        assert main(["papers", "show", str(table), "--output", str(study.folder), "--format", "markdown"]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if "the authors' checkpoint" in line)
        assert f"{expected.text_to_video.sumr:.1f}" in line

        shutil.rmtree(converted / self.NAME)
        assert main(words) == 0, "what is finished needs no weights"
        self.save(converted, 1)
        assert "was measured with another checkpoint" in explained(words, capsys)
        (study.results / f"{run.key}.yaml").unlink()
        assert main(words) == 0

    def test_only_the_data_decide_beside_the_weights(self, table: Path, tmp_path: Path) -> None:
        def key(**keys: object) -> str:
            choices = Choices({name.replace("__", "."): value for name, value in keys.items()}, checkpoints=tmp_path)
            return next(run.key for run in runs(table, choices) if run.kind == "checkpoint")

        assert key() == key(model__hidden=16, model__heads=2, train__epochs=1, optim__lr=0.1, loss__triplet__margin=0.5)
        assert len({key(), key(data__collection="toy-tiny"), key(data__eval_split="train")}) == 3

    def test_keys_of_a_model_do_not_reach_the_preset_of_another_family(self) -> None:
        changes = {"model.hidden": 32, "model.query_dim": 48, "model.frame_projection": "linear"}
        rows = by_row("diffusionret-table-1", Choices(changes, checkpoints=Path("converted")))
        kinds = {run.kind: run.config.model for run in rows.values()}
        assert (kinds["train"].query_dim, kinds["checkpoint"].query_dim) == (48, 1)

    def test_a_missing_folder_is_explained_with_the_command_that_makes_it(
        self, table: Path, choices: Choices, tmp_path: Path
    ) -> None:
        study, elsewhere = Study(tmp_path / "study"), replace(choices, checkpoints=tmp_path / "converted")
        run = next(run for run in runs(table, elsewhere) if run.kind == "checkpoint")
        (reason,) = perform_all([run], study, Machine(), lambda number, run: None).values()
        command = re.search(r"prvr (convert checkpoint .*)", reason)
        assert command is not None
        converted = bind(command[1].replace("NAME", "tvr").split()).keywords["output"]
        assert converted == tmp_path / "converted" / self.NAME


@pytest.mark.parametrize(
    ("table", "row", "data", "arm"),
    [
        ("hlformer-equations", "correct parts, curvature learned", "tvr", "2bde593da255"),  # of an earlier default
        ("dreamprvr-main", "DreamPRVR", "tvr", "a491cdd338a0"),
        ("diffusionret-table-3f", "scale 2", "msrvtt", "e83cc572a310"),
        ("diffusionret-table-5", "DiffusionRet", "msrvtt-to-lsmdc", "5bb56931ea38"),
        ("hlformer-figure-5", "(b) with entailment loss", "tvr", "d5046f663cb4"),
    ],
)
def test_results_are_found_under_the_names_that_they_have(table: str, row: str, data: str, arm: str) -> None:
    """Whatever keys are added, moved or get another default."""
    assert by_row(table, Choices(), [data])[row].arm == arm


class TestUntrained:
    """Rows of a retriever without parameters."""

    def test_it_is_evaluated_as_prvr_evaluate_does_and_shown(
        self, done: Study, table: Path, choices: Choices, toy_cache: Path, tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        result = done.result(by_row(table, choices)["by moments"])
        assert result is not None
        assert result.report is not None
        corpus = ["--data-root", str(toy_cache / corpus_key()), "--collection", "toy-tiny"]
        assert main(["evaluate", "training-free", *corpus, "--output", str(tmp_path / "alone.json")]) == 0
        assert np.array_equal(EvaluationReport.from_json(tmp_path / "alone.json").ranks, result.report.ranks)
        capsys.readouterr()
        assert main(["papers", "show", str(table), "--output", str(done.folder), "--format", "markdown"]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if "by moments" in line)
        assert f"{result.report.text_to_video.sumr:.1f}" in line

    def test_only_the_data_decide(self, table: Path, choices: Choices) -> None:
        def key(**keys: object) -> str:
            changes = {name.replace("__", "."): value for name, value in keys.items()}
            return by_row(table, Choices({**choices.keys, **changes}))["by moments"].key

        assert key() == key(model__hidden=32, train__epochs=3)
        assert key() != key(data__eval_split="val")
        assert [run.seed for run in runs(table, choices, (0, 1)) if run.kind == "untrained"] == [0]

    def test_nothing_is_built_on_it(self, tmp_path: Path) -> None:
        rows = [{"name": "a", "untrained": "zero-shot"}, {"name": "b", "over": "a", "plot": {"what": "scores"}}]
        with pytest.raises(ConfigError, match=r"row 'b': over 'a', which has no model"):
            read_table(written(tmp_path, rows=rows))
        with pytest.raises(ConfigError, match="training-free"):
            read_table(written(tmp_path, rows=[{"name": "a", "untrained": "best"}]))


class TestShow:
    def test_numbers_are_those_of_the_reports(self, done: Study, table: Path, choices: Choices) -> None:
        cells = cells_of(read_table(table), choices)
        (found,) = shown(done, cells, choices)
        full = next(line for line in found.lines if line.name == "full")
        reports = [done.result(run).report for run in runs(table, choices, (0, 1)) if run.arm == cells[0].run.arm]  # type: ignore[union-attr]
        scores = [report.text_to_video.sumr for report in reports]  # type: ignore[union-attr]
        assert full.ours[1] is not None
        assert full.ours[1].values == tuple(scores)
        assert str(full.ours[1]) == f"{np.mean(scores):.1f}±{np.std(scores, ddof=1):.1f}"
        assert full.texts()[1][1:] == ("200.0", f"{np.mean(scores) - 200:+.1f}")
        assert full.texts()[2][1:] == ("", "")
        assert full.seeds == (0, 1)
        quoted = found.lines[-1]
        assert quoted.ours == (None,) * 3
        assert quoted.published == (7.1, 140.1, 5.0)

    def test_what_is_not_as_in_the_paper_is_said(self, done: Study, table: Path, choices: Choices) -> None:
        (found,) = shown(done, cells_of(read_table(table), choices), choices)
        assert any("not as in the paper" in note and "model.hidden=16" in note for note in found.notes)
        other = Choices(choices.keys, {"toy": "toy-tiny"})
        (found,) = shown(done, cells_of(read_table(table), other), other)
        assert any("not the paper's data" in note for note in found.notes)

    def test_how_published_numbers_were_made_stands_beside_them_alone(
        self, done: Study, table: Path, choices: Choices, tmp_path: Path
    ) -> None:
        with_numbers = yaml.safe_load(TABLE)
        with_numbers["data_sets"] = {"toy": {"title": "toy corpus", "protocol": "the best epoch of theirs"}}
        rows = [{key: value for key, value in row.items() if key != "published"} for row in with_numbers["rows"]]
        for changes, expected in ((with_numbers, True), (with_numbers | {"rows": rows}, False)):
            (found,) = shown(done, cells_of(read_table(written(tmp_path, **changes)), choices), choices)
            assert ("the best epoch of theirs" in latex(found)) == expected

    def test_markdown_and_latex_hold_every_number(self, done: Study, table: Path, choices: Choices) -> None:
        (found,) = shown(done, cells_of(read_table(table), choices), choices)
        text, tex = markdown(found), latex(found)
        for line in found.lines:
            for number in line.ours:
                if number is not None:
                    assert str(number) in text
                    assert str(number).replace("±", r"$\pm$") in tex
        assert r"\midrule" in tex
        assert tex.count("{") == tex.count("}")
        assert "| MS-SL | - (7.1) | - (140.1) | - (5.0) |" in text
        widths = {row.count("|") for row in text.splitlines() if row.startswith("|")}
        assert widths == {5}

    def test_published_numbers_are_shown_without_a_study(self, tmp_path: Path) -> None:
        rows = [
            {"name": "full", "published": {"toy": [1.0, 20.0, 3.0]}, "source": "its table"},
            {"name": "elsewhere", "quoted": True, "group": "others", "published": {"tvr": [1.0, 2.0, 3.0]}},
            {"name": "MS-SL", "quoted": True, "published": {"toy": [7.1, 140.1, None]}, "source": "a page"},
        ]
        table = read_table(written(tmp_path, rows=rows, sets=["toy", "tvr"]))
        found, _ = shown(None, cells_of(table, Choices()), Choices())
        assert [(line.group, line.name) for line in found.lines] == [("", "full"), ("others", "MS-SL")]
        assert "| MS-SL | 7.1 | 140.1 | - | a page |" in markdown(found)
        assert r"full & 1.0 & 20.0 & 3.0 & its table \\" in latex(found)
        assert "ours" not in str([*terminal_tables(found)][-1])  # the notes

    def test_a_sweep_is_drawn_as_curves(self, tmp_path: Path, done: Study, table: Path, choices: Choices) -> None:
        from prvr.papers.show import sweep_picture

        rows = [row | {"x": float(place)} for place, row in enumerate(yaml.safe_load(TABLE)["rows"][:2])]
        path = written(tmp_path, sweep={"xlabel": "branches"}, rows=rows)
        swept = read_table(path)
        figure = sweep_picture(swept, list(shown(done, cells_of(swept, choices), choices)))
        lines = [line.get_ydata() for axes in figure.axes for line in axes.lines]
        means = [run_mean(done, run, choices) for run in runs(path, choices)]
        nothing = Study(tmp_path / "nothing")
        with pytest.raises(InputError, match="no finished rows to draw"):
            sweep_picture(swept, list(shown(nothing, cells_of(swept, choices), choices)))
        with pytest.raises(InputError, match="no `sweep` to draw"):
            sweep_picture(read_table(table), [])
        assert any(len(line) == 2 and np.allclose(np.asarray(line, float), means) for line in lines)


def run_mean(study: Study, run: Run, choices: Choices) -> float:
    results = [study.result(replace(run, seed=seed)) for seed in study.seeds(run.arm)]
    return float(np.mean([result.report.text_to_video.sumr for result in results if result and result.report]))


class TestCommands:
    def words(self, table: Path, study: Path, cache: Path) -> list[str]:
        keys = [word for key, value in KEYS.items() for word in (f"--{key}", str(value))]
        return [str(table), "--output", str(study), *keys, "--data.cache_dir", str(cache)]

    def test_plan_run_show(self, tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        table = written(tmp_path, rows=yaml.safe_load(TABLE)["rows"][:3:2])
        words = self.words(table, tmp_path / "study", toy_cache)
        assert main(["papers", "plan", *words, "--measure"]) == 0
        out = capsys.readouterr().out
        assert "2 runs, 2 not finished" in out
        assert "hours of training steps" in out
        assert main(["papers", "plan", *words, "--commands"]) == 0
        commands = capsys.readouterr().out.splitlines()
        assert [line == "" for line in commands] == [False, True, False]  # the second needs the first
        assert [path.name for path in (tmp_path / "study").iterdir()] == ["study.yaml"]
        assert main(["papers", "run", *words, "--device", "cpu"]) == 0
        assert "2 runs, all finished" in capsys.readouterr().out
        assert main(["papers", "show", str(table), "--output", str(tmp_path / "study")]) == 0
        assert "other weights" in capsys.readouterr().out
        assert main(["papers", "plan", *words]) == 0
        assert "2 runs, 0 not finished" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["run", "hlformer-table-2"], "--output is missing"),
            (["show", "hlformer-table-2", "--output", "nowhere"], "expected a study"),
            (["plan", "hlformer-table-2", "--corpus", "tvr"], "expected SET=COLLECTION"),
            (
                ["plan", "hlformer-table-2", "--train.epoch", "1"],
                "unknown key 'train.epoch'; did you mean train.epochs",
            ),
            (["run", "hlformer-table-2", "--output", "study", "--only", "x"], "no such runs"),
        ],
    )
    def test_mistakes_are_explained(
        self, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert message in explained(["papers", *words], capsys)
        assert not (tmp_path / "study").exists()

    def test_the_list_names_every_table_in_whole(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["papers", "list"]) == 0
        out = capsys.readouterr().out
        assert "HLFormer (ICCV" in out
        assert set(table_names()) <= set(out.split())


COMMANDS = re.findall(r"\| `(prvr [^`]+)` \|", (DOCS / "papers.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_command_of_the_document_parses_and_every_configuration_builds(command: str) -> None:
    bound = bind(command.split()[1:])
    if "papers" in command:
        assert bound.args[0] in table_names()
    elif bound.keywords["args"].retriever is None:
        assert chosen_config(bound.keywords["args"].preset, None, bound.keywords["keys"]).train.epochs > 0
    else:
        values: dict[str, dict[str, str]] = {"reranker": {}}
        for key, value in bound.keywords["keys"].items():
            group, _, name = key.partition(".")
            values[group][name] = yaml.safe_load(value)
        reranker_run_config(values, width=512)


def test_the_document_lists_everything_that_the_papers_number() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    wanted = {
        "HLFormer": ([*range(1, 22)], ["table 1", "table 2", *(f"figure {n}" for n in (3, 4, 5))]),
        "DreamPRVR": ([*range(18, 35)], ["algorithm 1", "figure 7"]),
        "DiffusionRet": (
            [*range(1, 12)],
            [f"table {n}" for n in ("1", "2", "3a", "3b", "3c", "3d", "3e", "3f", "4", "5", "A", "B")]
            + [f"figure {n}" for n in ("4", "5", "A", "B", "C")],
        ),
    }
    parts = {part.split(" ")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    for paper, (equations, items) in wanted.items():
        listed: set[int] = set()
        for cell in re.findall(r"^\| equations? ([^|]+) \|", parts[paper], flags=re.MULTILINE):
            for span in cell.split(", "):
                first, _, last = span.partition("-")
                listed |= set(range(int(first), int(last or first) + 1))
        assert listed == set(equations), paper
        for item in items:
            assert f"| {item} |" in parts[paper], (paper, item)


def test_every_table_is_in_the_document() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    assert {name for name in table_names() if not re.search(rf"papers (run|show) {name} ", text)} == set()
    assert load_config("hlformer-tvr").name == "hlformer-tvr"


def test_the_cost_of_inference_is_measured_beside_the_published_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["papers", "cost", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert (platform.processor() or platform.machine()) in printed
    assert "without a GPU, small: a 100th of the videos" in " ".join(printed.split())
    rows = [line.split() for line in printed.splitlines() if " of " in line and line[0].isdigit()]
    sizes = [("10", "1,000"), ("30", "3,000"), ("50", "5,000")]
    steps = ["1", "3", "5", "10", "30", "50"]
    assert [row[:4] for row in rows] == [[size, "of", videos, count] for size, videos in sizes for count in steps]
    assert all(0 < float(row[4]) < 60 for row in rows)
    assert rows[-1][5:] == ["281.27", "-", "4,297"]
