"""Tables of papers: their files, what they run, how a study goes on after anything, and what it shows."""

import math
import re
import runpy
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch
import yaml
from commands import explained
from kills import killed
from torch.utils.flop_counter import FlopCounterMode

from prvr.cli import main
from prvr.cli.options import bind, chosen_config
from prvr.config import ConfigError, load_config, preset_names
from prvr.errors import DataError, InputError
from prvr.evaluation import evaluate
from prvr.models import AnyRetriever, build_retriever
from prvr.papers import (
    Choices,
    Machine,
    Run,
    Shown,
    Study,
    cells_of,
    distinct_runs,
    latex,
    markdown,
    perform_all,
    read_table,
    shown,
    table_names,
    terminal_tables,
)
from prvr.papers.plan import cost_of, random_batch
from prvr.papers.table import data_sets
from prvr.published.diffusionret.run_config import reranker_run_config
from prvr.systems import open_system
from prvr.training import open_split
from prvr.types import Batch

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


class Done(NamedTuple):
    """A table with a row of every kind, and a study of it."""

    table: Path
    choices: Choices
    study: Study

    def runs(self, *seeds: int) -> list[Run]:
        return runs(self.table, self.choices, seeds or (0,))

    def row(self, name: str) -> Run:
        return by_row(self.table, self.choices)[name]

    def shown(self, study: Study | None = None) -> Shown:
        (found,) = shown(study or self.study, cells_of(read_table(self.table), self.choices), self.choices)
        return found

    def begun(self, folder: Path) -> Study:
        """Another study of these choices."""
        study = Study(folder / "study")
        study.begin(self.choices)
        return study

    def reported(self, study: Study | None = None) -> dict[str, np.ndarray]:
        """The ranks of every run that has a report, by key."""
        results = {run.key: (study or self.study).result(run) for run in self.runs(0, 1)}
        return {key: result.report.ranks for key, result in results.items() if result is not None and result.report}


@pytest.fixture(scope="module")
def done(toy_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Every row is finished, and those that train with another seed too."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "all-kinds.yaml").write_text(TABLE, encoding="utf-8")
    choices = Choices(KEYS | {"data.cache_dir": str(toy_cache)})
    done = Done(folder / "all-kinds.yaml", choices, Study(folder / "study"))
    done.study.begin(choices)
    wanted = [*done.runs(), *(run for run in done.runs(1) if run.kind == "train")]
    assert perform_all(wanted, done.study, Machine(), lambda number, run: None) == {}
    return done


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


class TestFiles:
    @pytest.mark.parametrize("name", table_names())
    def test_every_configuration_builds_on_every_set(self, name: str) -> None:
        table = read_table(name)
        cells = cells_of(table, Choices(root="data"))
        assert [cell.row.name for cell in cells if cell.run is None and not cell.row.quoted] == [
            cell.row.name for cell in cells if cell.row.checkpoint is not None
        ]
        assert {cell.set_name for cell in cells} == set(table.sets)

    @pytest.mark.parametrize(
        ("name", "table", "sets", "one_seed"),
        [
            ("toy-4", str(STUDIES / "systems-toy.yaml"), None, 0),
            ("real-captions", str(STUDIES / "released-real-captions.yaml"), ["tvr-test"], 3),
            ("stream-toy", str(STUDIES / "stream-toy.yaml"), None, 0),
            ("lorentz-real-captions", str(STUDIES / "lorentz-real-captions.yaml"), None, 0),
            ("field-16", str(STUDIES / "field-16.yaml"), ["tvr-test"], 4),
        ],
    )
    def test_the_studies_of_the_repository_are_those_of_this_version(
        self, name: str, table: str, sets: list[str] | None, one_seed: int
    ) -> None:
        # A key of the configuration that is new or renamed must leave the names of finished runs as they are.
        study = Study(STUDIES / f"{name}.tar.xz")
        choices = study.choices(Choices())
        for part in shown(study, cells_of(read_table(table), choices, sets=sets), choices):
            gone = {"best"} if name == "field-16" else set[str]()  # its start is no part of prvr any more
            assert {line.name for line in part.lines if None in line.ours} <= {"linear", *gone}, part.title
            assert sum("not finished" in line.judged for line in part.lines) == one_seed

    def test_keys_and_reported_splits_of_runs(self, tmp_path: Path) -> None:
        """Runs that differ have keys of their own; rows report what authors do, unless a user says otherwise."""
        changes = [{"model": {"clip_weight": 1.0}}, {"model": {"clip_weight": 0.5}}, {"ties": "best"}]
        changes += [{"stages": [{"kind": "qb_norm", "beta": beta}]} for beta in (2, 3)]
        rows = [{"name": str(place), "over": "full", "evaluate": how} for place, how in enumerate(changes)]
        plots = [{"what": "frames", "settings": {"video": video}} for video in "ab"]
        rows += [{"name": f"plot {place}", "over": "full", "plot": how} for place, how in enumerate(plots)]
        path = written(tmp_path, rows=[{"name": "full"}, *rows])
        assert len({run.arm for run in runs(path, Choices())}) == len(rows) + 1
        reported = {"data.eval_split": "test"}
        for keys, name, split in (({}, "tvr", "val"), (reported, "tvr", "test"), ({}, "toy", "test")):
            rows = by_row("hlformer-table-2", Choices(keys), [name]).values()
            assert {run.config.data.eval_split for run in rows} == {split}

    def test_a_file_that_cannot_be_read_is_explained(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="rows named twice: a"):
            read_table(written(tmp_path, rows=[{"name": "a"}, {"name": "a"}]))
        with pytest.raises(ConfigError, match="`over` goes with stage, evaluate or plot"):
            read_table(written(tmp_path, rows=[{"name": "a", "plot": {"what": "frames"}}]))
        with pytest.raises(ConfigError, match=r"sweep: unknown column of the table 'r5'\. Known: r1, sumr, v2t_r1"):
            read_table(written(tmp_path, sweep={"xlabel": "x", "column": "r5"}))
        elsewhere = {"near": {"title": "near", "trained_on": "tvrr"}}
        for changes in ({"sets": ["tvrr"]}, {"sets": ["near"], "data_sets": elsewhere}):
            table = read_table(written(tmp_path, rows=[{"name": "a"}], **changes))
            with pytest.raises(InputError, match="unknown data set 'tvrr'; did you mean tvr"):
                cells_of(table, Choices())


class TestStudy:
    def test_every_kind_of_row_leaves_a_result_of_its_own_and_is_not_run_again(self, done: Done) -> None:
        wanted = done.runs()
        assert {run.kind for run in wanted} == {"evaluate", "plot", "stage", "train", "untrained"}
        assert all(done.study.result(run) is not None for run in wanted)
        assert perform_all(wanted, done.study, Machine(), lambda number, run: pytest.fail(run.key)) == {}
        by_key = done.reported()
        ranks = {name: by_key[run.key] for name, run in by_row(done.table, done.choices).items() if run.key in by_key}
        for other in ("clips", "other weights", "re-ranked", "taught"):
            assert not np.array_equal(ranks["full"], ranks[other]), other
        assert not np.array_equal(ranks["re-ranked"], ranks["re-ranked with two steps"])

    def test_a_run_that_fails_stops_only_those_that_build_on_it(self, done: Done, tmp_path: Path) -> None:
        study, wanted, full = Study(tmp_path / "study"), done.runs(), done.row("full")
        study.begin(done.choices)
        folder = study.run_folder(full)
        folder.mkdir(parents=True)
        (folder / "somebody's.txt").write_text("not ours")
        failures = perform_all(wanted, study, Machine(), lambda number, run: None)
        assert set(failures) == {run.key for run in wanted if run.arm == full.arm or run.over}
        assert "already holds" in failures[full.key]
        assert (folder / "somebody's.txt").read_text() == "not ours"

    def test_what_would_mix_rows_is_refused(self, done: Done) -> None:
        with pytest.raises(DataError, match=r"was started with other keys \(.*train\.epochs=1"):
            done.study.choices(Choices({"train.epochs": 2}))
        assert done.study.choices(Choices()).keys == done.choices.keys
        record = done.study.results / f"{done.runs()[0].key}.yaml"
        text = record.read_text()
        try:
            record.write_text(text.replace("model.heads: 4", "model.heads: 2"))
            with pytest.raises(DataError, match=r"other values of model\.heads"):
                done.study.result(done.runs()[0])
            record.write_text(re.sub("corpus: .*", "corpus: another", text))
            other = next(one for one in done.runs(7) if f"{one.arm}-0" == record.stem)  # it has no result yet
            with pytest.raises(DataError, match="another corpus"):
                done.study.expect_same_inputs([other])
        finally:
            record.write_text(text)

    def test_what_a_study_from_elsewhere_says_is_checked(self, tmp_path: Path) -> None:
        study = Study(tmp_path / "study")
        study.begin(Choices())
        (study.folder / "study.yaml").write_text("checkpoints: [a]")
        with pytest.raises(ConfigError, match=r"study\.yaml: checkpoints"):
            study.choices(Choices())
        record = study.results / "a-0.yaml"
        record.parent.mkdir(exist_ok=True)
        for text in ("seed: 0", "kind: train\nsettings: 1", "kind: evaluate\nsettings: {}\nover: ../a-0"):
            record.write_text(text)
            with pytest.raises(ConfigError, match=r"a-0\.yaml"):
                study.stored("a", 0)
        record.write_text("kind: evaluate\nsettings: {}\nover: a-0\nselection: 1.0\n")  # over itself
        assert study.selection("a", 0) == 1.0

    def test_a_folder_around_a_run_names_it(self, done: Done) -> None:
        folder = done.study.run_folder(done.row("full"))
        for around in (folder.parent, done.study.folder):
            with pytest.raises(DataError, match=rf"Name a run inside it: {around}.*run\.$"):
                open_system(around)

    def test_a_packed_study_shows_the_same_tables_and_cannot_be_changed(
        self, done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, again = tmp_path / "done.tar.xz", tmp_path / "again.tar.xz"
        assert main(["papers", "pack", str(done.study.folder), "--output", str(file)]) == 0
        packed = Study(file)
        packed.pack(again)
        assert file.read_bytes() == again.read_bytes()
        assert packed.choices(Choices()) == done.study.choices(Choices())
        ours, theirs = done.shown(), done.shown(packed)
        pictureless = [[replace(line, picture=None) for line in found.lines] for found in (ours, theirs)]
        assert pictureless[0] == pictureless[1]
        assert theirs.notes == ours.notes
        with pytest.raises(DataError, match=r"a packed study cannot be changed\. Unpack it: tar -xf"):
            packed.begin(done.choices)

    def test_a_packed_study_holds_nothing_else(self, tmp_path: Path) -> None:
        file = tmp_path / "study.tar.xz"
        for name, kind, size, message in (
            ("results/../../escaped.yaml", tarfile.REGTYPE, 0, "contains 'results/../../escaped.yaml'"),
            ("..\\escaped.yaml", tarfile.REGTYPE, 0, "contains '..\\\\escaped.yaml'"),
            ("results/a-0.yaml", tarfile.SYMTYPE, 0, "contains 'results/a-0.yaml', which is not a file of a study"),
            ("results/a-0.yaml", tarfile.REGTYPE, 2**28, "larger than 268,435,456 bytes when unpacked"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, size, "/etc/passwd"
            with tarfile.open(file, "w:xz", preset=0) as archive:
                archive.addfile(tarfile.TarInfo("study.yaml"))
                archive.addfile(member, BytesIO(bytes(size)))
            with pytest.raises(DataError, match=re.escape(message)):
                Study(file)
            assert [path.name for path in tmp_path.iterdir()] == ["study.tar.xz"]
        with pytest.raises(DataError, match=r"contains no study\.yaml and is not empty"):
            Study(tmp_path)

    @pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="processes are killed as POSIX does")
    def test_kills_change_nothing(self, done: Done, tmp_path: Path) -> None:
        study = done.begun(tmp_path)
        wanted = [done.row(row) for row in ("full", "other weights", "re-ranked", "scores", "by moments")]

        def act() -> None:
            perform_all(wanted, study, Machine(), lambda number, run: None)

        died = [killed(act, after=seconds) for seconds in (0.4, 1.3)]
        assert any(died)
        assert perform_all(wanted, study, Machine(), lambda number, run: None) == {}
        before, after = done.reported(), done.reported(study)
        assert len(after) == sum(run.kind != "plot" for run in wanted)
        for key, ranks in after.items():
            assert np.array_equal(ranks, before[key]), key

    def test_features_that_changed_between_two_rows_are_noticed(
        self, done: Done, toy_root: Path, tmp_path: Path
    ) -> None:
        corpus = shutil.copytree(toy_root / "toy-tiny", tmp_path / "toy-tiny")
        choices = replace(done.choices, root=str(tmp_path))
        rooted, study = by_row(done.table, choices), Study(tmp_path / "study")
        study.save(rooted["full"], None, diverged=True)  # a record without a training
        shutil.copytree(corpus / "FeatureData" / "frames", corpus / "FeatureData" / "lines")
        row = {"name": "stream", "keys": {"model.stream": {"feature": "lines", "dim": 4}}}
        (stream,) = by_row(written(tmp_path, rows=[row]), choices).values()
        study.expect_same_inputs([rooted["full"], rooted["clips"], stream])
        with h5py.File(corpus / "FeatureData" / "frames" / "feature.hdf5", "r+") as file:
            for rows in file.values():
                rows[...] = rows[()] * 1.5
        with pytest.raises(DataError, match=r"was measured with other features of toy-tiny"):
            study.expect_same_inputs([rooted["clips"]])


class TestCheckpoints:
    """Rows that evaluate a converted checkpoint, here a folder of `save_pretrained`."""

    NAME = "hlformer-toy"
    ROWS = ({"name": "HLFormer"}, {"name": "the authors' checkpoint", "checkpoint": "hlformer-{set}"})

    def save(self, folder: Path, seed: int) -> AnyRetriever:
        """A small model with random weights in the folder that the row names."""
        changes = {key: value for key, value in KEYS.items() if key.startswith("model.")}
        torch.manual_seed(seed)
        retriever = build_retriever(load_config(self.NAME, changes).model)
        retriever.save_pretrained(folder / self.NAME)
        return retriever

    def test_the_checkpoint_is_evaluated_as_it_is_and_another_in_its_place_is_noticed(
        self, tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        converted, study = tmp_path / "converted", Study(tmp_path / "study")
        table, retriever = written(tmp_path, rows=[*self.ROWS]), self.save(converted, 0)
        choices = Choices({"data.collection": "toy-tiny"}, checkpoints=converted)
        run = next(run for run in runs(table, choices) if run.kind == "checkpoint")
        # The configuration of the row is 384 wide, the checkpoint 16.
        words = ["papers", "run", str(table), "--output", str(study.folder), "--data.collection", "toy-tiny"]
        words += ["--data.cache_dir", str(toy_cache), "--checkpoints", str(converted), "--only", run.key]
        assert main(words) == 0
        found = study.result(run)
        with closing(open_split(replace(run.config, model=retriever.config), "test")) as packed:
            expected = evaluate(retriever, packed)
        assert np.array_equal(found.report.ranks, expected.ranks)

        shutil.rmtree(converted / self.NAME)
        assert main(words) == 0, "what is finished needs no weights"
        self.save(converted, 1)
        assert "was measured with another checkpoint" in explained(words, capsys)


@pytest.mark.parametrize(
    ("table", "row", "data", "arm"),
    [
        ("hlformer-equations", "correct parts, curvature learned", "tvr", "2bde593da255"),  # of an earlier default
        ("diffusionret-table-3f", "scale 2", "msrvtt", "e83cc572a310"),
        ("diffusionret-table-5", "DiffusionRet", "msrvtt-to-lsmdc", "5bb56931ea38"),
        ("hlformer-figure-5", "(b) with entailment loss", "tvr", "d5046f663cb4"),
    ],
)
def test_results_are_found_under_the_names_that_they_have(table: str, row: str, data: str, arm: str) -> None:
    """Whatever keys are added, moved or get another default."""
    assert by_row(table, Choices(), [data])[row].arm == arm


class TestShow:
    def test_numbers_are_those_of_the_reports_in_every_format(self, done: Done) -> None:
        found = done.shown()
        full = next(line for line in found.lines if line.name == "full")
        results = [done.study.result(run) for run in done.runs(0, 1) if run.arm == done.row("full").arm]
        scores = [result.report.text_to_video.sumr for result in results if result and result.report]
        assert full.ours[1].values == tuple(scores)
        assert str(full.ours[1]) == f"{np.mean(scores):.1f}±{np.std(scores, ddof=1):.1f}"
        assert full.texts()[1][1:] == ("200.0", f"{np.mean(scores) - 200:+.1f}")
        assert full.seeds == (0, 1)
        assert (found.lines[-1].ours, found.lines[-1].published) == ((None,) * 3, (7.1, 140.1, 5.0))
        text, tex = markdown(found), latex(found)
        for number in (number for line in found.lines for number in line.ours if number is not None):
            assert str(number) in text
            assert str(number).replace("±", r"$\pm$") in tex
        assert "| MS-SL | - (7.1) | - (140.1) | - (5.0) |" in text
        assert {row.count("|") for row in text.splitlines() if row.startswith("|")} == {5}
        assert any("not as in the paper" in note and "model.hidden=16" in note for note in found.notes)

    def test_moments_are_columns_as_other_metrics(self, done: Done, tmp_path: Path) -> None:
        columns = ["vcmr_r10_0.5", "r1", "v2t_r1", "svmr_r1_0.7"]
        rows = [{"name": "full", "published": {"toy": [1.0, 2.0, None, 99.0]}}]
        table, run = read_table(written(tmp_path, columns=columns, rows=rows)), done.row("full")
        (found,) = shown(done.study, cells_of(table, done.choices), done.choices)
        report = done.study.result(run).report
        true = {(one.task, one.iou): one for one in report.moments}
        expected = true["vcmr", 0.5].r10, report.text_to_video.r1, report.video_to_text.r1, true["svmr", 0.7].r1
        assert tuple(number.values[0] for number in found.lines[0].ours) == expected
        assert "| VCMR R10@0.5 | R@1 | V2T R@1 | SVMR R1@0.7 |" in markdown(found)
        headings = [[str(column.header) for column in part.columns[1:]] for part in [*terminal_tables(found)][:-1]]
        assert headings == [["VCMR R10@0.5"], ["R@1"], ["V2T R@1"], ["SVMR R1@0.7"]]
        study = done.begun(tmp_path)
        shutil.copytree(done.study.results, study.results)
        (study.results / f"{run.arm}-1.yaml").unlink()
        replace(report, moments=()).to_json(study.results / f"{run.key}.json")
        (without,) = shown(study, cells_of(table, done.choices), done.choices)
        assert [text for text, *_ in without.lines[0].texts()] == ["", f"{expected[1]:.1f}", f"{expected[2]:.1f}", ""]
        with pytest.raises(ConfigError, match=r"unknown column 'svmr_r1_0\.6'; did you mean svmr_r1_0\.7"):
            read_table(written(tmp_path, columns=["svmr_r1_0.6"]))

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


def test_plans(done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["papers", "list"]) == 0
    assert set(table_names()) <= set(capsys.readouterr().out.split())
    keys = [word for key, value in done.choices.keys.items() for word in (f"--{key}", str(value))]
    few = written(tmp_path, rows=yaml.safe_load(TABLE)["rows"][:3:2])
    words = ["papers", "plan", str(few), "--output", str(tmp_path / "study"), *keys]
    assert main([*words, "--measure"]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 2 not finished" in out
    assert "hours of training steps" in out
    assert main([*words, "--commands"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert [line == "" for line in commands] == [False, True, False]  # the second needs the first
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["study.yaml"]
    assert main(["papers", "plan", str(few), "--output", str(done.study.folder), *keys]) == 0
    assert "2 runs, 0 not finished" in capsys.readouterr().out
    streams = DOCS.parent / "benchmarks" / "studies" / "stream-toy.yaml"
    data = ["--data.collection", "toy-tiny", "--data.cache_dir", str(done.choices.keys["data.cache_dir"])]
    assert main(["papers", "plan", str(streams), "--output", str(tmp_path / "other"), *data]) == 0
    assert "3 runs, 3 not finished" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in preset_names() if name.endswith("-toy")])
def test_what_a_preset_costs_is_planned_from_the_data_that_it_reads(name: str, cache: str) -> None:
    config = load_config(name, {"data.collection": "toy-tiny", "data.cache_dir": cache})
    cost = cost_of(Run("train", config, 0), data_sets()["toy"])
    assert cost.steps == config.train.epochs * math.ceil(60 / config.train.batch_size)
    assert cost.operations or not cost.parameters


def test_a_step_is_counted_and_timed_with_the_captions_that_it_reads(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = list[int]()

    def drawn(model, frames, words, owner, device) -> Batch:
        queries.append(len(words))
        return random_batch(model, frames, words, owner, device)

    monkeypatch.setattr("prvr.papers.plan.random_batch", drawn)
    keys = {"data.collection": "toy-tiny", "data.cache_dir": cache, "model.hidden": 24}
    config = load_config("gmmformer-toy", {**keys, "train.batch_size": 10, "data.captions_per_video": 1})
    cost_of(Run("train", config, 0), data_sets()["toy"], "cpu")
    assert queries == [10, 10]


def test_a_run_whose_operations_cannot_be_counted_is_named(
    cache: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FlopCounterMode, "get_total_flops", lambda self: torch.ones(1, device="meta").item())
    keys = {"data.collection": "toy-tiny", "data.cache_dir": cache, "model.hidden": 20}
    for rate in (0.1, 0.2):
        run = Run("train", load_config("gmmformer-toy", {**keys, "optim.lr": rate}), 0)
        assert cost_of(run, data_sets()["toy"]).operations is None
        assert f"{run.key}: the operations of a step cannot be counted: " in caplog.text


def test_every_table_is_in_the_document_and_every_command_there_builds() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    assert "<!-- table: papers -->" in text
    rows = runpy.run_path(str(DOCS.parent / "scripts" / "reference.py"))["papers"]()
    assert re.findall(r"^\| `([\w-]+)` \|", rows, flags=re.MULTILINE) == list(table_names())
    for command in sorted(set(re.findall(r"\| `(prvr [^`]+)` \|", text))):
        bound = bind(command.split()[1:])
        if bound.keywords["args"].retriever is None:
            assert chosen_config(bound.keywords["args"].preset, None, bound.keywords["keys"]).train.epochs > 0
        else:
            keys = {key.removeprefix("reranker."): yaml.safe_load(v) for key, v in bound.keywords["keys"].items()}
            reranker_run_config({"reranker": keys}, width=512)
