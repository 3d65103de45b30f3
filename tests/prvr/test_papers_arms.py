"""Files of arms: what they run, and what the rule says of results whose truth is known."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from reports import make_report

from prvr.cli import main
from prvr.losses.matching import Contrastive
from prvr.papers import Choices, Study, Table, cells_of, due_cells, latex, markdown, read_table, shown
from prvr.papers.judge import Verdict, finished_rows, verdicts
from prvr.papers.several_seeds import holm, seeds_test

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"

ARMS = """
title: toy arms
base: hybrid-{set}
columns: [r1, sumr]
sets: [toy]
keys: {data.collection: toy-tiny}
seeds: [0, 1, 2]
rule: {first_drop: -2, least_gain: 1, more_seeds: [3, 4]}
arms:
- name: base
- name: parameters alone
  keys: {model.heads: 2}
- name: idea
  keys: {loss.triplet.margin: 0.3}
  control: parameters alone
  cost: 1.5
- name: no entailment
  keys: {loss.entailment: 0}
  removes: true
"""
VIDEOS, PER_VIDEO = 60, 4
OWNER = np.repeat(np.arange(VIDEOS), PER_VIDEO)


def ranks_of(gain: float, seed: int, noise: float = 0.05) -> np.ndarray:
    """Ranks of a run whose scores are better by `gain`; the same queries are hard for every run."""
    hard = np.random.default_rng(0).normal(size=VIDEOS * PER_VIDEO)
    luck = noise * np.random.default_rng([1, seed, int(1000 * abs(gain))]).normal(size=len(hard))
    return np.ceil(np.exp(2.5 + 1.5 * (hard + luck - gain))).astype(np.int64)


class Trial:
    """Files of arms with some values changed, and a study with results as training would leave them, drawn."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.choices = folder, Choices({"data.cache_dir": str(cache)})
        self.study = Study(folder / "study")
        self.study.begin(self.choices)

    def write(self, **changes: Any) -> Table:
        path = self.folder / "arms.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(ARMS) | changes), encoding="utf-8")
        return read_table(path)

    def finish(
        self, table: Table, gains: dict[str, float], seeds: list[int], noise: float = 0.05, **scores: Any
    ) -> None:
        """`scores` are those in selection, by the names of arms; 100 is that of the others."""
        for cell in cells_of(table, self.choices, seeds=seeds):
            if cell.run is not None and cell.row.name in gains:
                report = make_report(ranks_of(gains[cell.row.name], cell.seed, noise).tolist(), OWNER.tolist())
                self.study.save(cell.run, report, selection=scores.get(cell.row.name, 100.0), steps=10)

    def judged(self, table: Table) -> dict[str, Verdict]:
        ((_, found),) = finished_rows(self.study, cells_of(table, self.choices, seeds=table.seeds[:1]))
        return verdicts(table, found)

    def due(self, table: Table) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for cell in due_cells(self.study, table, self.choices):
            found.setdefault(cell.row.name, []).append(cell.seed)
        return found


@pytest.fixture
def trial(tmp_path: Path, toy_cache: Path) -> Trial:
    return Trial(tmp_path, toy_cache)


EQUAL = {"base": 0.0, "parameters alone": 0.0, "idea": 0.0, "no entailment": 0.0}


class TestFiles:
    @pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
    def test_every_file_of_the_repository_builds(self, path: Path) -> None:
        table = read_table(path)
        cells = cells_of(table, Choices(), sets=sorted({*table.sets, *table.data_sets}))
        arms = [cell.arm for cell in cells if not cell.row.history or cell.set_name in cell.row.history]
        assert None not in arms
        assert len(set(arms)) == len(arms)
        assert {cell.run.config.train.average for cell in cells if cell.run is not None} <= {0, 5}

    def test_another_split_or_corpus_is_an_evaluation_of_the_same_runs(self, trial: Trial) -> None:
        other = {"title": "val", "trained_on": "toy", "keys": {"data.eval_split": "val"}}
        large = {"title": "large", "trained_on": "toy", "collection": "toy-bench"}
        table = trial.write(sets=["toy", "on-val", "large"], data_sets={"on-val": other, "large": large})
        cells = cells_of(table, Choices())
        trained = {cell.row.name: cell.run for cell in cells if cell.set_name == "toy"}
        for cell in cells[4:]:
            assert (cell.run.kind, cell.run.over) == ("evaluate", trained[cell.row.name])
        read = {(cell.run.config.data.collection, cell.run.config.data.eval_split) for cell in cells if cell.run}
        assert read == {("toy-tiny", "test"), ("toy-tiny", "val"), ("toy-bench", "test")}


class TestRule:
    """Stop early where the first seed is clear, keep what the interval shows, give the rest more seeds once."""

    def test_each_arm_gets_the_seeds_that_the_rule_asks_for(self, trial: Trial) -> None:
        table = trial.write()
        assert trial.due(table) == {name: [0] for name in EQUAL}
        selection = {"parameters alone": 98.0, "idea": 98.1, "no entailment": 98.0}
        trial.finish(table, EQUAL, [0], **selection)
        # The control is dropped as an arm and runs on for the idea; the part that is worth 2 is not dropped.
        assert trial.due(table) == {name: [0, 1, 2] for name in EQUAL}
        found = trial.judged(table)
        assert found["parameters alone"].text == "drop (-2.0 in selection, seed 0)"
        assert found["idea"].text == "not finished"
        trial.finish(table, EQUAL, [0], **{"no entailment": 102.0})  # a part whose removal gains
        assert trial.judged(table)["no entailment"].text == "drop the part (-2.0 in selection, seed 0)"
        assert trial.due(table)["no entailment"] == [0]

    def test_a_clear_gain_is_kept_a_clear_nothing_dropped_and_an_arm_must_beat_its_control(self, trial: Trial) -> None:
        table, clear = trial.write(), {"idea": "keep", "no entailment": "keep the part", "parameters alone": "drop"}
        for gains, texts in (
            ({"idea": 0.3, "no entailment": -0.3}, clear),
            ({"parameters alone": 0.3, "idea": 0.3}, {"parameters alone": "keep", "idea": "drop (control)"}),
        ):
            trial.finish(table, EQUAL | gains, [0, 1, 2], noise=0.01)
            found = trial.judged(table)
            assert {name: found[name].text for name in texts} == {name: f"{texts[name]}, 3 seeds" for name in texts}
            assert found["base"] == Verdict("", (0, 1, 2))
            assert trial.due(table) == {name: [0, 1, 2] for name in EQUAL}

    def test_what_is_open_gets_more_seeds_once(self, trial: Trial) -> None:
        arms = yaml.safe_load(ARMS)["arms"]
        arms[1]["judged"] = False  # a control is not always an idea of its own
        table, gains = trial.write(arms=arms), EQUAL | {"idea": 0.02}
        trial.finish(table, gains, [0, 1, 2], noise=1.0)
        assert trial.judged(table)["idea"].text == "undecided, more seeds"
        assert [trial.due(table)[name] for name in ("base", "parameters alone", "idea")] == 3 * [[0, 1, 2, 3, 4]]
        trial.finish(table, gains, [3, 4], noise=1.0)
        found = trial.judged(table)["idea"]
        assert found.text == "drop (not shown), 5 seeds"
        trial.finish(table, gains, [5, 6], noise=1.0)
        assert trial.judged(table)["idea"] == found, "seeds that the file does not name have no say"

    def test_the_numbers_are_those_of_the_test_on_all_seeds(self, trial: Trial) -> None:
        table, gains = trial.write(rule={}), EQUAL | {"parameters alone": 0.04, "idea": 0.1}
        trial.finish(table, gains, [0, 1, 2], noise=0.3)
        found = trial.judged(table)
        ranks = {name: np.stack([ranks_of(gain, seed, 0.3) for seed in range(3)]) for name, gain in gains.items()}
        for name in ("parameters alone", "idea", "no entailment"):
            assert found[name].base == seeds_test(ranks["base"], ranks[name], OWNER)["sumr"]
        assert found["idea"].control == seeds_test(ranks["parameters alone"], ranks["idea"], OWNER)["sumr"]
        assert found["no entailment"].control is None
        tested = [one for one in found.values() if one.base is not None]
        assert [one.corrected for one in tested] == holm([one.base.p_value for one in tested if one.base])


class TestShow:
    def test_verdicts_stand_in_every_format(self, trial: Trial) -> None:
        table = trial.write()
        trial.finish(table, EQUAL | {"idea": 0.3}, [0, 1, 2], noise=0.01)
        cells = cells_of(table, trial.choices, seeds=[0])
        (found,) = shown(trial.study, cells, trial.choices)
        idea = next(line for line in found.lines if line.name == "idea")
        verdict = trial.judged(table)["idea"]
        assert (idea.judged[0], idea.judged[-1]) == ("1.50", "keep, 3 seeds")
        assert idea.judged[1].startswith(f"{verdict.base.value:+.1f} [")
        for text in (markdown(found), latex(found)):
            assert "keep, 3 seeds" in text
            assert idea.judged[1] in text

    def test_a_search_is_decided_on_the_split_that_selects_alone(self, trial: Trial) -> None:
        table = trial.write(arms=[{"name": "base"}], search={"optim.lr": [1e-3, 2e-3, 4e-3]})
        owner = OWNER.tolist()
        scores = {1e-3: (90.0, 0.5), 2e-3: (95.0, 0.0), 4e-3: (94.0, 0.9)}  # val, and how good on test
        for cell in cells_of(table, trial.choices, seeds=[0, 1]):
            selection, gain = scores[cell.value]
            trial.study.save(cell.run, make_report(ranks_of(gain, cell.seed).tolist(), owner), selection=selection)
        (found,) = shown(trial.study, cells_of(table, trial.choices, seeds=[0]), trial.choices)
        wanted = make_report(ranks_of(0.0, 0).tolist(), owner).text_to_video.sumr
        assert found.lines[0].ours[1].values[0] == wanted
        assert "optim.lr: of 0.001, 0.002, 0.004 the best on the split that selects: base 0.002" in found.notes
        narrow = trial.write(arms=[{"name": "base"}], search={"optim.lr": [1e-3, 2e-3]})
        (found,) = shown(trial.study, cells_of(narrow, trial.choices, seeds=[0]), trial.choices)
        assert any(note.endswith("base 0.002 (edge of the search)") for note in found.notes)


def test_what_diverges_is_judged_without_ranks(trial: Trial) -> None:
    table = trial.write()
    trial.finish(table, EQUAL, [0, 1, 2])
    last = {cell.row.name: cell.run for cell in cells_of(table, trial.choices, seeds=[2])}
    for name in ("parameters alone", "no entailment"):
        trial.study.save(last[name], None, diverged=True)
    found = {name: verdict.text for name, verdict in trial.judged(table).items()}
    assert found["parameters alone"] == "drop (diverged, seed 2)"
    assert found["no entailment"] == "keep the part (diverged, seed 2)"
    assert found["idea"] == "open: what it is compared with diverged, seed 2"


def test_a_training_that_diverges_is_a_result(
    tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search goes on with the other values, what builds on one that diverged did too, and none is tried again."""
    monkeypatch.setattr(Contrastive, "forward", lambda self, inputs: inputs.output.scores.total.sum() * math.inf)
    small = {"model.hidden": 16, "model.lorentz_dim": 15, "train.epochs": 1, "train.batch_size": 20}
    small |= {"data.collection": "toy-tiny", "data.cache_dir": str(toy_cache)}
    values = yaml.safe_load(ARMS) | {"base": "gmmformer-toy", "seeds": [0], "keys": small, "rule": None}
    too_much, over = {"loss.contrastive": 1.0}, {"name": "b", "over": "too much", "evaluate": {"stages": []}}
    files = {
        "search": {"arms": [{"name": "searched"}], "search": {"loss.contrastive": [0.0, 1.0]}},
        "arms": {"arms": [{"name": "base"}, {"name": "too much", "keys": too_much}, over], "rule": {}},
    }
    for name, changes in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values | changes), encoding="utf-8")
    tables, study = [str(tmp_path / f"{name}.yaml") for name in files], ["--output", str(tmp_path / "study")]
    assert main(["papers", "run", *tables, *study, "-q", "--device", "cpu"]) == 0
    records = [yaml.safe_load(path.read_text()) for path in (tmp_path / "study" / "results").glob("*.yaml")]
    assert sorted(record["kind"] for record in records if "diverged" in record) == ["evaluate", "train"]
    capsys.readouterr()
    assert main(["papers", "show", *tables, *study, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "the best on the split that selects: searched 0.0 (edge" in out
    assert "drop (-inf in selection, seed 0)" in out
    assert "too much: the training diverged with seed 0, which is omitted" in out


def test_a_file_of_arms_from_the_command_line(
    tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained for an epoch of a tiny model: one seed each, then the second one, as the rule asks."""
    arms = [{"name": "base"}, {"name": "wide margin", "keys": {"loss.triplet.margin": 0.3}}]
    values = yaml.safe_load(ARMS) | {"arms": arms, "seeds": [0, 1], "rule": {"first_drop": -400}}
    small = {"model.hidden": 16, "model.lorentz_dim": 15, "train.epochs": 1, "train.batch_size": 30}
    small |= {"data.collection": "toy-tiny", "data.cache_dir": str(toy_cache), "train.average": 1}
    path = tmp_path / "arms.yaml"
    path.write_text(yaml.safe_dump(values | {"keys": small, "base": "gmmformer-toy"}), encoding="utf-8")
    words = [str(path), "--output", str(tmp_path / "study"), "--model.hidden", "16"]
    assert main(["papers", "list", str(path)]) == 0
    assert "toy arms" in capsys.readouterr().out
    assert main(["papers", "run", *words, "-q", "--device", "cpu"]) == 0
    records = sorted((tmp_path / "study" / "results").glob("*.yaml"))
    assert len(records) == 4
    record = yaml.safe_load(records[0].read_text())
    assert record["steps"] == 2
    assert record["averaged"] == [0]
    assert 0 <= record["selection"] <= 400
    assert "seconds" not in records[0].read_text(), "times are those of a machine"
    capsys.readouterr()
    assert main(["papers", "show", str(path), "--output", str(tmp_path / "study"), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("| wide margin"))
    difference, *_, verdict = [cell.strip() for cell in line.split("|")[5:-1]]
    assert re.fullmatch(r"[+-]\d+\.\d \[-?\d+\.\d, -?\d+\.\d\]", difference)
    assert verdict.endswith("2 seeds")
