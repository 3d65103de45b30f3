"""The script that is run once on a GPU, at toy size on a CPU: what it writes, and that nothing stops it halfway."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu

Run = Callable[..., tuple[int, list[dict[str, Any]]]]
BLOCKS = "[{space: euclidean}, {space: euclidean, width: 1.0}]"
REGISTERS = f"{{base: dreamprvr-tvr, name: small, model: {{blocks: {BLOCKS}, registers: {{steps: 2}}}}}}"
REFUSES_TO_DROP = f"{{base: gmmformer-tvr, name: small, model: {{blocks: {BLOCKS}, depth: 1}}}}"
AUTHORS = "def make(config, device):\n    return lambda batch: batch.clips.sum()\n"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the script with a preset of two blocks, and returns its exit code and its lines."""

    def call(out: Path, preset: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
        file = out.with_suffix(".yaml")
        file.write_text(preset, encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            gpu.main(["--device", "cpu", "--steps", "1", "--preset", str(file), "--out", str(out), *words])
        lines = out.read_text(encoding="utf-8").splitlines()
        printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
        assert printed == lines
        return int(ended.value.code or 0), [json.loads(line) for line in lines]

    return call


def test_questions_are_answered_in_their_order_and_what_fails_or_takes_long_stops_no_other(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "authors.py").write_text(AUTHORS, encoding="utf-8")
    options = ["--precisions", "no", "tf32", "--authors", str(tmp_path / "authors.py")]
    code, (head, *lines) = run(tmp_path / "lines", REGISTERS, *options)
    assert head["preset"] == str(tmp_path / "lines.yaml")
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    questions = ["equal", "epoch", "rates", "operators", "evaluation", "streamed", "chunks", "authors"]
    assert list(dict.fromkeys(line["question"] for line in lines)) == questions
    by_question = {name: [line for line in lines if line["question"] == name] for name in questions}
    assert code == 0
    results = {name: [line["result"] for line in rows if "result" in line] for name, rows in by_question.items()}
    for line in [line for rows in by_question.values() for line in rows if "result" not in line]:
        assert line["precision"] == "tf32"
        assert "only NVIDIA GPUs multiply in TF32" in line["refused"]
    assert [found["equal"] for found in results["equal"]] == [True] * 3
    assert [line["cuda_graph"] for line in by_question["epoch"]] == ["off"] * 4 + ["off", "auto"] * 2
    for found in (*results["epoch"], *results["streamed"]):
        assert found["epoch_seconds"] == 3 * found["step_seconds"] > 0 < found["host_seconds"]
    (ledger,) = results["authors"]
    assert ledger["theirs"]["calls"] == 1 < ledger["ours"]["calls"]
    (timed,) = results["evaluation"]
    assert (timed["queries"], timed["videos"]) == (40, 20)


def test_what_time_leaves_out(run: Run, tmp_path: Path) -> None:
    words = [REFUSES_TO_DROP, "--precisions", "no", "--only"]
    code, (_, *lines) = run(tmp_path / "late", *words, "epoch", "rates", "--seconds", "0")
    assert [line["left_out"] for line in lines] == ["--seconds are over"] * 5
    assert code == 0


def test_a_line_is_written_before_the_next_one_is_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> int:
        return len((tmp_path / "lines").read_text(encoding="utf-8").splitlines())

    monkeypatch.setitem(gpu.QUESTIONS, "equal", lambda bench: iter([({}, lines)] * 3))
    _, (_, *written) = run(tmp_path / "lines", REGISTERS, "--only", "equal")
    assert [line["result"] for line in written] == [1, 2, 3]


def test_noise_takes_half_of_the_free_memory_and_is_streamed_where_that_is_too_little(run: Run, tmp_path: Path) -> None:
    gigabyte = 10**9
    whole = {"videos": 17_435, "batch": 128, "each": 1_424_000}
    assert gpu.videos_kept(**whole, free=None) == gpu.videos_kept(**whole, free=79 * gigabyte) == 17_435
    assert gpu.videos_kept(**whole, free=23 * gigabyte) == 23 * gigabyte // 2 // 1_424_000 == 8_075
    assert gpu.videos_kept(**whole, free=gigabyte) == 351
    assert gpu.videos_kept(**whole, free=gigabyte // 2) == 0
    assert gpu.videos_kept(videos=24, batch=20, each=10, free=480) == 24
    for memory, kept in (("400000", 16), ("300000", 0)):
        words = ["--only", "epoch", "--rows", "compute", "--precisions", "no", "--memory", memory]
        code, (head, line) = run(tmp_path / memory, REGISTERS, *words)
        assert code == 0
        assert head["noise"]["videos_on_device"] == kept
        assert head["noise"]["free_bytes"] == int(memory)
        assert line["result"]["epoch_seconds"] == 3 * line["result"]["step_seconds"]
