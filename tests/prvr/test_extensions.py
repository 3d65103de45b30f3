"""What other distributions add to `prvr`, and what it says where they are absent."""

import os
import subprocess
import sys
from pathlib import Path

WHOLE = "import sys; from prvr.cli import main; sys.exit(main())"
ALONE = f"import sys; sys.modules['prvr_search'] = None; {WHOLE}"
"""The command where prvr-search is not installed."""


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


def add_distribution(folder: Path, name: str, extensions: str, commands: str = "") -> None:
    (folder / f"{name}.py").write_text(extensions)
    (folder / f"{name}_commands.py").write_text(commands)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[prvr.extensions]\n{name} = {name}:EXTENSIONS\n")


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
