"""What other distributions add to `prvr`, and what it says where they are absent."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import explained

WHOLE = "import sys; from prvr.command import command; sys.exit(command())"
ALONE = f"import sys; sys.modules['prvr_search'] = None; {WHOLE}"
"""The command where prvr-search is not installed."""
CORE = f"import sys; sys.modules['prvr.papers'] = sys.modules['prvr.plot'] = None; {WHOLE}"
"""The command where neither tables of papers nor pictures are there."""
WITHOUT_TOY = ALONE.replace("prvr_search", "prvr.toy")


def run(program: str, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words], capture_output=True, text=True, env=environment, check=False
    )


def add_distribution(folder: Path, name: str, extensions: str, commands: str = "") -> None:
    (folder / f"{name}.py").write_text(extensions)
    (folder / f"{name}_commands.py").write_text(commands)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[prvr.extensions]\n{name} = {name}:EXTENSIONS\n")


def test_prvr_alone_has_its_own_commands_and_says_what_to_install_for_others() -> None:
    done = run(ALONE, "--help")
    assert (done.returncode, " train " in done.stdout) == (0, True)
    assert "Search your own videos" not in done.stdout
    for command in ("search", "teach"):
        done = run(ALONE, command, "films", "--encoder", "toy")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f'prvr: error: prvr {command} needs prvr-search. Install it: pip install "prvr-search"\n'


def test_the_core_needs_neither_papers_nor_plot() -> None:
    for words, absent in ((["--help"], {"papers", "plot"}), (["convert", "--help"], {"benchmark"})):
        verbs = []
        for program in (WHOLE, CORE):
            done = run(program, *words)
            assert done.returncode == 0, done.stderr
            verbs.append(set(re.findall(r"^\W*(\w+)  ", done.stdout, re.MULTILINE)))
        assert verbs[0] - verbs[1] == absent
    done = run(CORE, "papers", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'Unknown command "papers"' in done.stderr


def test_another_distribution_adds_a_command_and_a_damaged_one_stops_nothing(tmp_path: Path) -> None:
    add_distribution(
        tmp_path,
        "greeting",
        "EXTENSIONS = {'commands': 'greeting_commands'}",
        "from prvr.cli import app\n@app.command\ndef greet(name: str, /):\n    print('hello', name)\n",
    )
    add_distribution(tmp_path, "damaged", "raise OSError('no disk')")
    add_distribution(tmp_path, "other", "EXTENSIONS = {'commands': 'other_commands'}", "import no_such_module")
    done = run(WHOLE, "greet", "Ada", path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello Ada\n")
    done = run(ALONE, "--help", path=tmp_path)
    assert (done.returncode, " greet " in done.stdout) == (0, True)
    assert "damaged:EXTENSIONS of the group prvr.extensions cannot be imported (no disk)" in done.stderr
    assert "no_such_module" in done.stderr


def test_features_of_a_folder_of_videos_need_prvr_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prvr_search", None)
    command = ["convert", "captions", "captions.csv", "--features", str(tmp_path), "--output", str(tmp_path / "data")]
    assert f"{tmp_path}: reading a folder of videos needs prvr-search" in explained(command, capsys)


def test_corpora_of_files_need_no_toy_world(toy_root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(toy_root / "toy-tiny", tmp_path / "toy-tiny", ignore=shutil.ignore_patterns("corpus.json"))
    data = {"root": copy.parent, "collection": "toy-tiny", "cache_dir": tmp_path, "feature": "null"}
    small = {"hidden": 16, "num_clips": 4, "max_frames": 8, "video_dim": 0, "query_dim": 0}
    words = [f"--data.{key}={value}" for key, value in data.items()]
    words += [f"--model.{key}={value}" for key, value in small.items()]
    output = ["--train.epochs=1", "--fit.baseline=never", "--output", str(tmp_path / "run")]
    done = run(WITHOUT_TOY, "train", "--preset", "gmmformer-charades", *words, *output)
    assert done.returncode == 0, done.stderr
    assert "toy-tiny test: 100 queries, 20 videos" in done.stdout


def test_a_collection_that_nothing_draws_needs_files() -> None:
    done = run(WITHOUT_TOY, "train", "--preset", "gmmformer-toy")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "data.root is not set: give the folder that holds toy-demo/FeatureData and toy-demo/TextData\n" in done.stderr
    )
