"""What other distributions add to `prvr`, and what it says where they are absent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

WHOLE = "import sys; from prvr.command import command; sys.exit(command())"
ALONE = f"import sys; sys.modules['prvr_search'] = None; {WHOLE}"
"""The command where prvr-search is not installed."""
WITHOUT_TOY = ALONE.replace("prvr_search", "prvr.toy")


def run(program: str, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words], capture_output=True, text=True, env=environment, check=False
    )


def test_prvr_alone_has_its_own_commands_and_says_what_to_install_for_others() -> None:
    done = run(ALONE, "--help")
    assert (done.returncode, " train " in done.stdout) == (0, True)
    assert "Search your own videos" not in done.stdout
    for command in ("search", "teach"):
        done = run(ALONE, command, "films", "--encoder", "toy")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f'prvr: error: prvr {command} needs prvr-search. Install it: pip install "prvr-search"\n'


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
