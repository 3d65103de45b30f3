"""What all commands share: mistakes are explained, help is quick, folders are claimed."""

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from commands import explained

import prvr
from prvr.cli import add_commands, main
from prvr.cli.options import bind
from prvr.plot import PLOTS

GROUPS = {"convert": ["checkpoint", "captions", "benchmark"], "data": ["make"], "plot": PLOTS.names}
COMMANDS = ["", "demo", "train", "evaluate", "compare", "search", "serve", "library", "export", "presets", *GROUPS]
COMMANDS += [f"{group} {name}" for group, names in GROUPS.items() for name in names]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: prvr {command}".rstrip() + " ")


def test_the_version_names_all_packages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"prvr-search": "1.2", "regdiff": "3"}

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert main(["--version"]) == 0
    lines = f"prvr {prvr.__version__}\nprvr-search 1.2\nlorentz-nn is not installed\nregdiff 3\n"
    assert capsys.readouterr().out == lines


def test_commands_in_the_documentation_can_be_read() -> None:
    root, count = Path(__file__).parents[2], 0
    add_commands()
    pages = {root / "README.md", *(root / "docs").glob("*.md")} - {root / "docs" / "own-part.md"}  # which is followed
    for page in pages:
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL))
        for command in re.findall(r"^(?:torchrun .*-m )?prvr(?:\.cli)? (.+?)(?: \| .*)?$", blocks, flags=re.MULTILINE):
            if command != "--version":
                bind(shlex.split(command, comments=True))
                count += 1
    assert count > 20


class TestPresets:
    def test_all_are_listed_and_one_is_printed_so_that_it_can_be_edited(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        assert main(["presets"]) == 0
        lines = capsys.readouterr().out.splitlines()
        names = [*prvr.preset_names(), *prvr.preset_names("rerankers")]
        assert [line for line in lines if not line.startswith(" ")] == names
        assert sum("Measured" in line for line in lines) == len(names)
        assert main(["presets", "dreamprvr-tvr"]) == 0
        (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
        assert prvr.load_config(tmp_path / "mine.yaml") == prvr.load_config("dreamprvr-tvr")
        assert main(["presets", str(tmp_path / "mine.yaml")]) == 0
        assert capsys.readouterr().out == (tmp_path / "mine.yaml").read_text()


def test_the_configuration_of_a_run_can_be_printed_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--train.precision", "no", "--data-root", "a: b", "--data.feature", "null", "--optim.lr=1e-5"]
    given += ["--model.blocks", "[{space: euclidean}, {width: 2}]", "--train.cuda_graph", "off"]
    assert main(["train", "--preset", "hybrid-tvr", *given, "--print-config"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    config = prvr.load_config(tmp_path / "mine.yaml")
    assert (config.train.precision, config.data.root, config.data.feature) == ("no", "a: b", None)
    assert (config.optim.lr, [block.width for block in config.model.blocks]) == (1e-5, [None, 2.0])
    assert config.train.cuda_graph == "off"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--preset", "hybrid-tvrr"], ["'hybrid-tvrr'", "hybrid-tvr,"]),
        (["train", "--prest", "hybrid-toy"], ["--prest", "--preset", "prvr train --help"]),
        (["train", "--preset", "hybrid-toy", "--lr", "1"], ["--lr; did you mean --optim.lr?"]),
        (["train", "--preset", "hybrid-toy", "--compat.window", "printed"], ["'compat'; did you mean model.compat."]),
        (["train", "--preset", "hybrid-toy", "--train.epochs"], ["--train.epochs", "a value"]),
        (["search", "films", "a dog", "--json"], ["--json: expected FILE or - after it. See prvr search --help."]),
        (["search", "films", "a dog", "--rate"], ["--rate: expected a value after it."]),
        (["search"], ["FOLDER is required"]),
        (["--import", "no_such_module", "presets"], ["--import no_such_module: no such module"]),
        (["plot", "scores", "run", "--bins", "0"], ["--bins", "greater than or equal to 1", "'0'"]),
        (["train", "--preset", "hybrid-toy", "--config", "x.yaml"], ["--preset", "--config"]),
        (["train", "--config", "mine.json"], ["mine.json", ".yaml"]),
        (["train", "--resume"], ["--output"]),
        (["train", "--device", "tpu"], ["tpu", "cpu"]),
        (["evaluate", "."], ["model.safetensors"]),
        (["trane"], ['"trane"', 'Did you mean "train"']),
        (["data", "make", "--output", "out", "--size", "vast"], ["--size", "vast", '"tiny", "demo", "bench", "large"']),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], named: list[str], tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    error = explained(arguments, capsys)
    for name in named:
        assert name in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("operands could not be broadcast"), "ValueError: operands could not be broadcast"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file"),
        (OSError(28, "No space left on device"), "disk is full"),
        (RuntimeError("[x.cpp] DefaultCPUAllocator: can't allocate memory"), "Not enough memory"),
    ],
)
def test_a_bug_shows_its_traceback_and_what_a_user_can_mend_takes_one_sentence(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    is_bug = message.startswith(type(error).__name__)
    monkeypatch.setattr("prvr.config.preset_names", fail)
    assert main(["presets"]) == (1 if is_bug else 2)
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("Traceback") == printed.count("in fail") == printed.count("report it") == is_bug


class TestProcess:
    def test_the_parser_needs_no_torch(self) -> None:
        """What a command needs is imported when it runs, so that --help and mistakes are quick."""
        code = (
            "import sys\n"
            "sys.modules['torch'] = None\n"  # importing it fails
            "from prvr.cli import main\n"
            "assert main(['--help']) == 0\n"
            "assert not {'pydantic', 'yaml', 'numpy'} & sys.modules.keys()\n"
            "sys.exit(main(['train', '--preset', 'nobody']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        assert "'nobody'" in done.stderr


def test_libraries_do_not_come_from_the_working_folder(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "av.py").write_text("open('ran', 'w')\n")
    (tmp_path / "torn.mp4").write_bytes(b"torn")
    command = [sys.executable, "-m", "prvr.cli", "clip", "torn.mp4", "0-1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, "torn.mp4" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("command", [["presets", "hybrid-tvr"], ["train", "--help"]])
def test_a_reader_that_goes_away_ends_a_command_quietly(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has its lines
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run([sys.executable, "-m", "prvr.cli", *command], stdout=nobody, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")
