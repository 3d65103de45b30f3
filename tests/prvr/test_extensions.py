"""What other distributions add to `prvr`, and what it says where they are absent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import explained

from prvr_search.backends import BACKENDS

WHOLE = "import sys; from prvr.command import command; sys.exit(command())"
ALONE = f"import sys; sys.modules['prvr_search'] = None; {WHOLE}"
"""The command where prvr-search is not installed."""
CORE = f"import sys; sys.modules['prvr.papers'] = sys.modules['prvr.plot'] = None; {WHOLE}"
"""The command where neither tables of papers nor pictures are there."""
WITHOUT_TOY = ALONE.replace("prvr_search", "prvr.toy")
OF_FILES = """\
import sys
from pathlib import Path

sys.modules["prvr.toy"] = None
import numpy as np

import prvr
from prvr.cli import main
from prvr.data import Caption, TextData, write_layout
from prvr.training import train

root, rng = Path(sys.argv[1]), np.random.default_rng(0)
captions = {split: [Caption(f"{split}{i}#0", f"{split}{i}", "a dog") for i in range(4)] for split in ("train", "test")}
lines = [caption for some in captions.values() for caption in some]
write_layout(
    root / "noise",
    TextData(captions),
    videos=((line.video_id, rng.standard_normal((20, 8), np.float32)) for line in lines),
    queries=((line.id, rng.standard_normal((4, 6), np.float32)) for line in lines),
)
small = {"hidden": 16, "num_clips": 4, "max_frames": 8, "video_dim": 0, "query_dim": 0}
data = {"root": str(root), "collection": "noise", "cache_dir": str(root / "cache"), "feature": None}
keys = {f"model.{key}": value for key, value in small.items()} | {f"data.{key}": value for key, value in data.items()}
config = prvr.load_config("gmmformer-charades", keys | {"train.epochs": 1})
train(config, output=root / "run", device="cpu")
sys.exit(main(["evaluate", str(root / "run")]))
"""


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


@pytest.mark.parametrize("command", ["search", "serve", "library", "export", "clip", "demo", "teach"])
def test_a_command_that_is_not_installed_says_what_to_install(command: str) -> None:
    done = run(ALONE, command, "films", "--encoder", "toy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'prvr: error: prvr {command} needs prvr-search. Install it: pip install "prvr-search"\n'


def test_prvr_alone_has_its_own_commands() -> None:
    done = run(ALONE, "--help")
    assert done.returncode == 0
    assert " train " in done.stdout
    assert "Search your own videos" not in done.stdout
    assert run(ALONE, "presets").returncode == 0
    assert "did you mean" in run(ALONE, "trian").stderr.lower()


@pytest.mark.parametrize(
    ("words", "absent"), [(["--help"], {"papers", "plot"}), (["convert", "--help"], {"benchmark"})]
)
def test_the_core_needs_neither_papers_nor_plot(words: list[str], absent: set[str]) -> None:
    verbs = []
    for program in (WHOLE, CORE):
        done = run(program, *words)
        assert done.returncode == 0, done.stderr
        verbs.append(set(re.findall(r"^\W*(\w+)  ", done.stdout, re.MULTILINE)))
    assert verbs[0] - verbs[1] == absent


def test_a_command_of_an_absent_leaf_is_unknown() -> None:
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
    for program in (ALONE, WHOLE):
        done = run(program, "greet", "Ada", path=tmp_path)
        assert (done.returncode, done.stdout) == (0, "hello Ada\n")
        done = run(program, "--help", path=tmp_path)
        assert (done.returncode, " greet " in done.stdout) == (0, True)
        for reason in (
            "damaged:EXTENSIONS of the group prvr.extensions cannot be imported (no disk)",
            "no_such_module",
        ):
            assert reason in done.stderr


def test_features_of_a_folder_of_videos_need_prvr_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prvr_search", None)
    command = ["convert", "captions", "captions.csv", "--features", str(tmp_path), "--output", str(tmp_path / "data")]
    assert f"{tmp_path}: reading a folder of videos needs prvr-search" in explained(command, capsys)


def test_parts_of_prvr_search_are_no_parts_of_the_user() -> None:
    assert [entry.name for entry in BACKENDS if entry.is_own] == []


def test_corpora_of_files_need_no_toy_world(tmp_path: Path) -> None:
    done = run(OF_FILES, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "noise test: 4 queries, 4 videos" in done.stdout


def test_a_collection_that_nothing_draws_needs_files() -> None:
    done = run(WITHOUT_TOY, "train", "--preset", "gmmformer-toy")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "data.root is not set: give the folder that holds toy-demo/FeatureData and toy-demo/TextData\n" in done.stderr
    )
    with_toy = run(ALONE, "train", "--preset", "gmmformer-toy", "--data.collection", "toy-vast")
    assert "or set data.collection to one of toy-tiny, toy-demo, toy-bench, toy-large\n" in with_toy.stderr
