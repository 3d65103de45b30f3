"""Files of arms: what they run, and what the rule says of results whose truth is known."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from reports import make_report

from prvr.cli import main
from prvr.config import ConfigError
from prvr.errors import InputError
from prvr.evaluation.significance import holm, seeds_test
from prvr.losses.matching import Contrastive
from prvr.papers import (
    Choices,
    Run,
    Study,
    Table,
    cells_of,
    due_cells,
    latex,
    markdown,
    read_table,
    shown,
)
from prvr.papers.judge import Verdict, finished_rows, verdicts

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


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Table]:
    """Writes a file of arms with some of its values changed, and reads it."""

    def written(**changes: Any) -> Table:
        path = tmp_path / "arms.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(ARMS) | changes), encoding="utf-8")
        return read_table(path)

    return written


@pytest.fixture
def choices(toy_cache: Path) -> Choices:
    return Choices({"data.cache_dir": str(toy_cache)})


@pytest.fixture
def study(tmp_path: Path, choices: Choices) -> Study:
    study = Study(tmp_path / "study")
    study.begin(choices)
    return study


def ranks_of(gain: float, seed: int, noise: float = 0.05) -> np.ndarray:
    """Ranks of a run whose scores are better by `gain`; the same queries are hard for every run."""
    hard = np.random.default_rng(0).normal(size=VIDEOS * PER_VIDEO)
    luck = noise * np.random.default_rng([1, seed, int(1000 * abs(gain))]).normal(size=len(hard))
    return np.ceil(np.exp(2.5 + 1.5 * (hard + luck - gain))).astype(np.int64)


def finish(
    study: Study,
    table: Table,
    choices: Choices,
    gains: Mapping[str, float],
    seeds: Sequence[int],
    selection: Mapping[str, float] | None = None,
    noise: float = 0.05,
) -> None:
    """Leaves the results of runs as training would, with ranks that are drawn."""
    owner = np.repeat(np.arange(VIDEOS), PER_VIDEO)
    for cell in cells_of(table, choices, seeds=seeds):
        if cell.run is not None and cell.row.name in gains:
            report = make_report(ranks_of(gains[cell.row.name], cell.seed, noise).tolist(), owner.tolist())
            score = (selection or {}).get(cell.row.name, 100.0)
            study.save(cell.run, report, selection=score, steps=10)


def judged(study: Study, table: Table, choices: Choices) -> dict[str, Verdict]:
    ((_, found),) = finished_rows(study, cells_of(table, choices, seeds=table.seeds[:1]))
    return verdicts(table, found)


def due(study: Study, table: Table, choices: Choices) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for cell in due_cells(study, table, choices):
        found.setdefault(cell.row.name, []).append(cell.seed)
    return found


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

    def test_the_arms_of_the_document_build(self, write: Callable[..., Table]) -> None:
        text = (STUDIES.parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
        (block,) = [found for found in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL) if "\narms:" in found]
        cells = cells_of(write(**yaml.safe_load(block)), Choices())
        assert [cell.run.config.train.epochs for cell in cells if cell.run] == [25, 25, 21, 25, 25]

    def test_epochs_by_cost_take_the_processor_time_of_the_base(self, write: Callable[..., Table]) -> None:
        arms = yaml.safe_load(ARMS)["arms"]
        arms[2]["epochs"] = "by_cost"
        epochs = [cell.run.config.train.epochs for cell in cells_of(write(arms=arms), Choices()) if cell.run]
        assert epochs == [25, 25, 17, 25]  # 25 / 1.5 = 16.7

    def test_another_split_or_corpus_is_an_evaluation_of_the_same_runs(self, write: Callable[..., Table]) -> None:
        other = {"title": "val", "trained_on": "toy", "keys": {"data.eval_split": "val"}}
        large = {"title": "large", "trained_on": "toy", "collection": "toy-bench"}
        table = write(sets=["toy", "on-val", "large"], data_sets={"on-val": other, "large": large})
        cells = cells_of(table, Choices())
        trained = {cell.row.name: cell.run for cell in cells if cell.set_name == "toy"}
        for cell in cells[4:]:
            assert cell.run is not None
            assert (cell.run.kind, cell.run.over) == ("evaluate", trained[cell.row.name])
        read = {(cell.run.config.data.collection, cell.run.config.data.eval_split) for cell in cells if cell.run}
        assert read == {("toy-tiny", "test"), ("toy-tiny", "val"), ("toy-bench", "test")}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"arms": [{"name": "a"}, {"name": "b", "control": "c"}]}, "control 'c', expected the name of a row above"),
            ({"arms": [{"name": "a", "epochs": "by_cost"}]}, "epochs=by_cost needs `cost`"),
            ({"arms": [{"name": "a", "quoted": True}]}, "'a' is the base, as the first of them: it must run"),
            ({"search": {"optim.lr": [1e-3], "loss.triplet.margin": [0.1]}}, "search: expected one key"),
            ({"rule": {"keep_above": 0}}, "keep_above"),
            ({"seeds": []}, "seeds"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_explained(
        self, write: Callable[..., Table], change: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)):
            write(**change)

    def test_arms_that_would_be_selected_on_the_reported_split_are_refused(self, write: Callable[..., Table]) -> None:
        with pytest.raises(InputError, match=r"train\.protocol=paper selects on the split that is reported"):
            cells_of(write(keys={"train.protocol": "paper"}), Choices())


class TestRule:
    """Stop early where the first seed is clear, keep what the interval shows, give the rest more seeds once."""

    def test_each_arm_gets_the_seeds_that_the_rule_asks_for(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        table = write()
        assert due(study, table, choices) == {name: [0] for name in EQUAL}
        selection = {"parameters alone": 98.0, "idea": 98.1, "no entailment": 98.0}
        finish(study, table, choices, EQUAL, [0], selection)
        # The control is dropped as an arm and runs on for the idea; the part that is worth 2 is not dropped.
        assert due(study, table, choices) == {name: [0, 1, 2] for name in EQUAL}
        found = judged(study, table, choices)
        assert found["parameters alone"].text == "drop (-2.0 in selection, seed 0)"
        assert found["idea"].text == "not finished"
        finish(study, table, choices, EQUAL, [0], {"no entailment": 102.0})  # a part whose removal gains
        assert judged(study, table, choices)["no entailment"].text == "drop the part (-2.0 in selection, seed 0)"
        assert due(study, table, choices)["no entailment"] == [0]

    @pytest.mark.parametrize(
        ("gains", "texts"),
        [
            (
                {"idea": 0.3, "no entailment": -0.3},
                {"idea": "keep", "no entailment": "keep the part", "parameters alone": "drop"},
            ),
            ({"parameters alone": 0.3, "idea": 0.3}, {"parameters alone": "keep", "idea": "drop (control)"}),
        ],
        ids=["a clear gain is kept and a clear nothing dropped", "an arm must beat its control, whatever it gains"],
    )
    def test_clear_verdicts(
        self,
        write: Callable[..., Table],
        study: Study,
        choices: Choices,
        gains: dict[str, float],
        texts: dict[str, str],
    ) -> None:
        table = write()
        finish(study, table, choices, EQUAL | gains, [0, 1, 2], noise=0.01)
        found = judged(study, table, choices)
        assert {name: found[name].text for name in texts} == {name: f"{text}, 3 seeds" for name, text in texts.items()}
        assert found["base"] == Verdict("", (0, 1, 2))
        assert due(study, table, choices) == {name: [0, 1, 2] for name in EQUAL}

    @pytest.mark.parametrize(("gain", "words"), [(-0.3, "behind, 3 seeds"), (0.3, "not behind, 3 seeds")])
    def test_another_system_is_behind_the_base_or_not(
        self, write: Callable[..., Table], study: Study, choices: Choices, gain: float, words: str
    ) -> None:
        arms = [{"name": "ours"}, {"name": "theirs", "base": "gmmformer-{set}", "removes": True}]
        table = write(arms=arms)
        finish(study, table, choices, {"ours": 0.0, "theirs": gain}, [0, 1, 2], noise=0.01)
        assert judged(study, table, choices)["theirs"].text == words

    def test_what_is_open_gets_more_seeds_once(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        table, gains = write(), EQUAL | {"idea": 0.02}
        finish(study, table, choices, gains, [0, 1, 2], noise=1.0)
        assert judged(study, table, choices)["idea"].text == "undecided, more seeds"
        assert due(study, table, choices)["idea"] == due(study, table, choices)["base"] == [0, 1, 2, 3, 4]
        finish(study, table, choices, gains, [3, 4], noise=1.0)
        found = judged(study, table, choices)["idea"]
        assert found.text == "drop (not shown), 5 seeds"
        finish(study, table, choices, gains, [5, 6], noise=1.0)
        assert judged(study, table, choices)["idea"] == found, "seeds that the file does not name have no say"

    def test_the_numbers_are_those_of_the_test_on_all_seeds(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        table, gains = write(rule={}), EQUAL | {"parameters alone": 0.04, "idea": 0.1}
        finish(study, table, choices, gains, [0, 1, 2], noise=0.3)
        found, owner = judged(study, table, choices), np.repeat(np.arange(VIDEOS), PER_VIDEO)
        ranks = {name: np.stack([ranks_of(gain, seed, 0.3) for seed in range(3)]) for name, gain in gains.items()}
        for name in ("parameters alone", "idea", "no entailment"):
            assert found[name].base == seeds_test(ranks["base"], ranks[name], owner)["sumr"]
        assert found["idea"].control == seeds_test(ranks["parameters alone"], ranks["idea"], owner)["sumr"]
        assert found["no entailment"].control is None
        tested = [one for one in found.values() if one.base is not None]
        assert [one.corrected for one in tested] == holm([one.base.p_value for one in tested if one.base])

    def test_a_row_that_is_not_judged_changes_no_verdict(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        linear = {"name": "linear", "base": "linear-toy", "keys": {"train.protocol": "val"}}
        table, arms = write(), yaml.safe_load(ARMS)["arms"]
        finish(study, table, choices, EQUAL | {"idea": 0.3}, [0, 1, 2], noise=0.01)
        before = judged(study, table, choices)
        assert judged(study, write(arms=[*arms, linear]), choices)["idea"] != before["idea"]
        beside = write(arms=[*arms, linear | {"judged": False}])
        assert judged(study, beside, choices) == before
        assert due(study, beside, choices)["linear"] == [0, 1, 2]
        with pytest.raises(ConfigError, match="it must run and be shown"):
            write(arms=[linear | {"judged": False}, *arms])


class TestShow:
    def test_verdicts_stand_in_every_format_and_in_packed_studies(
        self, write: Callable[..., Table], study: Study, choices: Choices, tmp_path: Path
    ) -> None:
        table = write()
        finish(study, table, choices, EQUAL | {"idea": 0.3}, [0, 1, 2], noise=0.01)
        cells = cells_of(table, choices, seeds=[0])
        (found,) = shown(study, cells, choices)
        idea = next(line for line in found.lines if line.name == "idea")
        verdict = judged(study, table, choices)["idea"]
        assert verdict.base is not None
        assert idea.judged[0] == "1.50"
        assert idea.judged[1].startswith(f"{verdict.base.value:+.1f} [")
        assert idea.judged[-1] == "keep, 3 seeds"
        for text in (markdown(found), latex(found)):
            assert "keep, 3 seeds" in text
            assert idea.judged[1] in text
        assert {row.count("|") for row in markdown(found).splitlines() if row.startswith("|")} == {10}
        study.pack(tmp_path / "packed.tar.xz")
        assert list(shown(Study(tmp_path / "packed.tar.xz"), cells, choices)) == [found]

    def test_results_of_earlier_code_are_shown_and_judged_like_those_that_can_be_run(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        table = write()
        finish(study, table, choices, EQUAL | {"idea": 0.3}, [0, 1, 2], noise=0.01)
        cells = cells_of(table, choices, seeds=[0])
        arms = yaml.safe_load(ARMS)["arms"]
        arms[2] |= {"history": {"toy": cells[2].arm}, "keys": {"loss.of_a_lost_part": 1.0}}
        past = write(arms=arms)
        assert judged(study, past, choices) == judged(study, table, choices)
        (before,), (after,) = (list(shown(study, cells_of(one, choices), choices)) for one in (table, past))
        assert after.lines == before.lines
        assert set(after.notes) - set(before.notes) == {"results of code that is not part of this version: idea"}
        assert {cell.row.name for cell in due_cells(study, past, choices) if cell.run is None} == {"idea"}

    def test_a_search_is_decided_on_the_split_that_selects_alone(
        self, write: Callable[..., Table], study: Study, choices: Choices
    ) -> None:
        table = write(arms=[{"name": "base"}], search={"optim.lr": [1e-3, 2e-3, 4e-3]})
        (missing,) = shown(study, cells_of(table, choices, seeds=[0]), choices)
        assert missing.lines[0].ours == (None, None)
        owner = np.repeat(np.arange(VIDEOS), PER_VIDEO).tolist()
        scores = {1e-3: (90.0, 0.5), 2e-3: (95.0, 0.0), 4e-3: (94.0, 0.9)}  # val, and how good on test
        for cell in cells_of(table, choices, seeds=[0, 1]):
            assert cell.run is not None
            selection, gain = scores[cell.value]
            study.save(cell.run, make_report(ranks_of(gain, cell.seed).tolist(), owner), selection=selection)
        (found,) = shown(study, cells_of(table, choices, seeds=[0]), choices)
        wanted = make_report(ranks_of(0.0, 0).tolist(), owner).text_to_video.sumr
        assert found.lines[0].ours[1] is not None
        assert found.lines[0].ours[1].values[0] == wanted
        assert "optim.lr: of 0.001, 0.002, 0.004 the best on the split that selects: base 0.002" in found.notes
        narrow = write(arms=[{"name": "base"}], search={"optim.lr": [1e-3, 2e-3]})
        (found,) = shown(study, cells_of(narrow, choices, seeds=[0]), choices)
        assert any(note.endswith("base 0.002 (edge of the search)") for note in found.notes)


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
    small_keys = [word for key in ("model.hidden",) for word in (f"--{key}", str(small[key]))]
    words = [str(path), "--output", str(tmp_path / "study"), *small_keys]
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


def test_what_diverges_is_judged_without_ranks(write: Callable[..., Table], study: Study, choices: Choices) -> None:
    table = write()
    finish(study, table, choices, EQUAL, [0, 1, 2])
    last = {cell.row.name: cell.run for cell in cells_of(table, choices, seeds=[2])}
    for name in ("parameters alone", "no entailment"):
        study.save(last[name], None, diverged=True)
    found = {name: verdict.text for name, verdict in judged(study, table, choices).items()}
    assert found["parameters alone"] == "drop (diverged, seed 2)"
    assert found["no entailment"] == "keep the part (diverged, seed 2)"
    assert found["idea"] == "open: what it is compared with diverged, seed 2"


def _evaluated(path: Path) -> list[Run]:
    cells = cells_of(read_table(path), Choices(), seeds=[0])
    return [cell.run for cell in cells if cell.run is not None and cell.run.kind == "evaluate"]


def test_a_training_that_diverges_is_a_result(
    tmp_path: Path, toy_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search goes on with the other values, an arm is dropped, and nothing is tried again."""
    monkeypatch.setattr(Contrastive, "forward", lambda self, inputs: inputs.output.scores.total.sum() * math.inf)
    small = {"model.hidden": 16, "model.lorentz_dim": 15, "train.epochs": 1, "train.batch_size": 20}
    small |= {"data.collection": "toy-tiny", "data.cache_dir": str(toy_cache)}
    values = yaml.safe_load(ARMS) | {"base": "gmmformer-toy", "seeds": [0], "keys": small}
    del values["rule"]  # of tables that are not judged
    rows = [{"name": "searched"}, {"name": "other weights", "over": "searched", "evaluate": {"stages": []}}]
    files = {
        "search": values | {"arms": rows[:1], "search": {"loss.contrastive": [0.0, 1.0]}},
        "over": values | {"arms": [{"name": "searched", "keys": {"loss.contrastive": 1.0}}, rows[1]]},
        "arms": values
        | {"arms": [{"name": "base"}, {"name": "too much", "keys": {"loss.contrastive": 1.0}}], "rule": {}},
    }
    for name, one in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(one), encoding="utf-8")
    study = ["--output", str(tmp_path / "study")]
    tables = [str(tmp_path / f"{name}.yaml") for name in files]
    assert main(["papers", "run", *tables, *study, "-q", "--device", "cpu"]) == 0
    records = [yaml.safe_load(path.read_text()) for path in (tmp_path / "study" / "results").glob("*.yaml")]
    assert sum("diverged" in record for record in records) == 2
    assert {record["kind"] for record in records if "diverged" in record} == {"train", "evaluate"}
    (over,) = (tmp_path / "study" / "results" / f"{run.key}.yaml" for run in _evaluated(tmp_path / "over.yaml"))
    alone = tmp_path / "alone"
    assert main(["papers", "run", tables[1], "--output", str(alone), "-q", "--device", "cpu", "--only", over.stem]) == 0
    assert len(list((alone / "results").glob("*.yaml"))) == 2, "what it builds on diverged, which is noted as well"
    capsys.readouterr()
    assert main(["papers", "show", *tables, *study, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "the best on the split that selects: searched 0.0 (edge" in out
    assert "| too much | - | - |" in out
    assert "drop (-inf in selection, seed 0)" in out
    assert "too much: the training diverged with seed 0, which is omitted" in out
