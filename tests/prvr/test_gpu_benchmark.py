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
    code, (_, *lines) = run(tmp_path / "lines", REGISTERS, *options)
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
