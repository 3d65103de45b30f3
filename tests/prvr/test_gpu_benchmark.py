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
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script with a preset of two blocks, and returns its exit code and its lines."""

    def call(out: Path, preset: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
        file = out.with_suffix(".yaml")
        file.write_text(preset, encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            gpu.main(["--device", "cpu", "--steps", "1", "--preset", str(file), "--out", str(out), *words])
        lines = out.read_text(encoding="utf-8").splitlines()
        assert capsys.readouterr().out.splitlines() == lines
        return int(ended.value.code or 0), [json.loads(line) for line in lines]

    return call


def test_every_question_is_answered_and_what_fails_stops_no_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "authors.py").write_text(AUTHORS, encoding="utf-8")
    questions = ["equal", "authors", "epoch", "operators", "evaluation"]
    options = ["--precisions", "no", "tf32", "--authors", str(tmp_path / "authors.py"), "--backend", "none-such"]
    code, (head, *lines) = run(tmp_path / "lines", REGISTERS, "--only", *questions, *options)
    assert head["preset"] == str(tmp_path / "lines.yaml")
    assert list(dict.fromkeys(line["question"] for line in lines)) == questions
    by_compiled = {kind: [line for line in lines if line.get("compiled", False) is kind] for kind in (False, True)}
    assert len(by_compiled[True]) == 8
    for line in lines:
        if line.get("precision") == "tf32":
            assert "only NVIDIA GPUs multiply in TF32" in line["refused"]
        elif line.get("compiled"):
            assert "none-such" in line["error"]
        else:
            assert line["result"]
    assert code == 1
    same = [line["result"] for line in by_compiled[False] if line["question"] == "equal" and "result" in line]
    assert [found["equal"] for found in same] == [True, True]
    (ledger,) = (line["result"] for line in lines if line["question"] == "authors" and "result" in line)
    assert ledger["theirs"]["calls"] == 1 < ledger["ours"]["calls"]
    (timed,) = (line["result"] for line in lines if line["question"] == "evaluation")
    assert (timed["queries"], timed["videos"]) == (40, 20)


def test_what_a_preset_refuses_and_what_time_leaves_out(run: Run, tmp_path: Path) -> None:
    words = [REFUSES_TO_DROP, "--precisions", "no", "--only"]
    code, (_, *lines) = run(tmp_path / "compiled", *words, "equal")
    assert code == 0
    for line in lines:
        if line["padded_rows"] == "drop":
            assert "padded_rows='drop' does not go with" in line["refused"]
        else:
            assert line["result"]["equal"]
    assert [line["compiled"] for line in lines if "result" in line] == [False, True]
    code, (_, *lines) = run(tmp_path / "late", *words, "epoch", "rates", "--seconds", "0")
    assert [line["left_out"] for line in lines] == ["--seconds are over"] * 5
    assert code == 0
