"""Every example runs as a reader would run it: in an empty folder, in a process of its own."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from commands import SMALL

import prvr
from prvr.training import train

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arguments(example: Path, out: Path) -> list[str]:
    return _load(ROOT / "scripts" / "run_examples.py").arguments(example, out)


def test_the_main_job_is_among_them() -> None:
    assert ROOT / "examples" / "train_prvr.py" in EXAMPLES
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path, embedded_cache: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "Agg"}  # and the caches of this session, with the corpus in them
    done = subprocess.run(
        [sys.executable, str(example), *_arguments(example, tmp_path / "out")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, embedded_cache: Path) -> Callable[[str], None]:
    """What examples/own_sentence.py does with a sentence."""
    run = tmp_path_factory.mktemp("own") / "run"
    where = {"data.collection": "embedded-tiny", "data.cache_dir": str(embedded_cache), "train.epochs": 1}
    train(prvr.load_config("hybrid-embedded", SMALL | where), output=run, device="cpu")
    example = _load(ROOT / "examples" / "own_sentence.py")
    return lambda sentence: example.answer(run, sentence)


class TestOwnSentence:
    def test_words_that_training_has(self, answer: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
        answer("a Blue circle, rises!")
        out = capsys.readouterr().out
        assert "no training caption" not in out
        assert len(re.findall(r"test\d{4} +\d+\.\d - +\d+\.\d s", out)) == 3

    def test_words_that_it_has_not_are_named(
        self, answer: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        answer("A giraffe rises, one more giraffe sinks; crimson")  # the last is kept for the test split
        assert "no training caption has giraffe, more, sinks, crimson:" in capsys.readouterr().out

    @pytest.mark.parametrize(("sentence", "named"), [("?!", "no word"), ("up " * 65, "65 words"), ("", "no word")])
    def test_what_the_encoder_refuses(self, sentence: str, named: str, answer: Callable[[str], None]) -> None:
        with pytest.raises(SystemExit, match=named):
            answer(sentence)
