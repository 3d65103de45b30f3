"""What examples/own_sentence.py says to a sentence. That every example runs is shown by `make examples`."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from runs_of_retrievers import write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def answer(tmp_path: Path, toy_root: Path) -> Callable[[str], None]:
    """What examples/own_sentence.py does with a sentence, and a run that nobody trained."""
    run, _ = write_run(tmp_path / "run", toy_root, "toy-tiny")
    example = runpy.run_path(str(ROOT / "examples" / "own_sentence.py"))
    return lambda sentence: example["answer"](run, sentence)


def test_what_it_says_to_a_sentence(answer: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    answer("a Blue circle, rises!")
    out = capsys.readouterr().out
    assert "no training caption" not in out
    assert len(re.findall(r"test\d{4} +\d+\.\d - +\d+\.\d s", out)) == 3
    answer("A giraffe rises, one more giraffe dances; crimson")  # the last is kept for the test split
    assert "no training caption has giraffe, more, dances, crimson:" in capsys.readouterr().out
    for sentence, problem in (("?!", "no word"), ("up " * 65, "65 words"), ("", "no word")):
        with pytest.raises(SystemExit, match=problem):
            answer(sentence)
