"""The process that a search leaves behind: the same answers, of what is there now, for nobody but its user."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from search_files import make_features, make_library, some_videos

from prvr.cli import main
from prvr_search import resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

PRVR = "import sys; from prvr.command import command; sys.exit(command())"
CLIENT = "import sys; sys.modules['prvr.cli'] = None; " + PRVR.removeprefix("import sys; ")
"""The command where only the resident process can run it."""
QUERY = "a red square moves left"


class Commands:
    """Searches of a folder that holds three videos, as commands of their own."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.films, self.runtime = make_library(folder, make_features(some_videos([12, 30, 7]))), runtime
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment |= {"XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "100"}

    def start(
        self, *words: str, program: str = CLIENT, folder: Path | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-P", "-c", program, "search", str(self.films), *words]
        return subprocess.Popen(command, env=self.environment | environment, cwd=folder, text=True, **pipes)

    def run(self, *words: str, **options: Any) -> tuple[int, str, str]:
        with self.start(*words, **options) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def refused(self, **environment: str) -> bool:
        """Whether a command does not turn to the resident process."""
        code, _, err = self.run(QUERY, **environment)
        return code == 1 and "import of prvr.cli halted" in err

    def sockets(self) -> list[Path]:
        return [path for path in self.runtime.glob("prvr/*") if path.is_socket()]


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with tempfile.TemporaryDirectory() as runtime:  # the path of a socket is short
        commands = Commands(tmp_path_factory.mktemp("resident") / "films", Path(runtime))
        assert commands.refused()
        assert not commands.runtime.joinpath("prvr").exists()  # nothing is made by those who do not ask for it
        code, first, _ = commands.run(QUERY, "--stay", "5:00", program=PRVR)
        assert code == 0
        assert "v001.mp4" in first
        until(commands.sockets)
        yield commands
        assert commands.run(QUERY, "--stay", "0")[0] == 0
        until(lambda: not commands.sockets())


@pytest.mark.parametrize(
    "words", [[QUERY], [QUERY, "--json", "-"], ["--paths", QUERY], [], [QUERY, "--bad"], ["--help"], [QUERY, "-k", "0"]]
)
def test_answers_and_errors_are_those_of_the_command(
    commands: Commands, words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code = main(["search", str(commands.films), *words])
    out, err = capfd.readouterr()
    assert commands.run(*words) == (code, out, err)


def test_nothing_is_imported_from_the_folder_where_one_stands(commands: Commands, tmp_path: Path) -> None:
    for name in ("PIL", "av", "faiss", "pymilvus", "transformers", "rich", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    (tmp_path / "named.py").write_text("import av\nopen('named', 'w')\n")
    words = [QUERY, "--image", "missing.png"]
    assert "missing.png" in commands.run(*words, folder=tmp_path)[2]
    assert commands.run(QUERY, "--html", "page.html", "--backend", "auto", folder=tmp_path)[0] == 0
    assert commands.run(QUERY, "--import", "named", folder=tmp_path)[0] == 0
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "named").exists()
    assert not (tmp_path / "ran").exists()


def test_a_video_that_is_gone_is_found_no_more(commands: Commands) -> None:
    before = commands.run(QUERY, "--paths")[1].splitlines()
    away = commands.films / "v001.mp4"
    held = away.rename(commands.films.parent / "held")
    assert commands.run(QUERY, "--paths")[1].splitlines() == [path for path in before if Path(path) != away]
    held.rename(away)
    assert commands.run(QUERY, "--paths")[1].splitlines() == before


def test_a_folder_or_socket_that_others_could_use_is_left_alone(commands: Commands, tmp_path: Path) -> None:
    folder = commands.runtime / "prvr"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.lstat().st_mode & 0o777 for path in commands.sockets()] == [0o600]
    folder.chmod(0o711)
    assert commands.refused()
    folder.chmod(0o700)
    with tempfile.TemporaryDirectory() as other:
        Path(other, "prvr").symlink_to(folder)
        assert commands.refused(XDG_RUNTIME_DIR=other)
    assert commands.refused(PRVR_OTHER="1")  # what another environment may change is not known
    assert not commands.refused(COLUMNS="80")
    assert commands.run(QUERY, COLUMNS="80")[1] != commands.run(QUERY)[1]


def test_the_other_side_has_to_be_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert resident._is_own(one)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert not resident._is_own(one)


@pytest.fixture
def busy(commands: Commands, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A search that is in the middle of an import from the current folder, and the number of its process."""
    begun = tmp_path / "begun"
    text = "import os, pathlib, time\npathlib.Path('half').write_text(str(os.getpid()))\n"
    (tmp_path / "slow_module.py").write_text(f"{text}os.rename('half', 'begun')\ntime.sleep(60)\n")
    with commands.start(QUERY, "--import", "slow_module", folder=tmp_path) as process:
        until(begun.exists)
        number = int(begun.read_text())
        assert number != process.pid
        yield process, number
        process.kill()


def test_control_c_reaches_the_search(busy: tuple[subprocess.Popen[str], int]) -> None:
    process, _ = busy
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "\ninterrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_search_ends_with_its_command(busy: tuple[subprocess.Popen[str], int], number: int) -> None:
    process, search = busy
    process.send_signal(number)
    assert process.wait(60) == -number
    until(lambda: not Path(f"/proc/{search}").exists())


def test_a_search_that_is_killed_is_said(busy: tuple[subprocess.Popen[str], int]) -> None:
    process, search = busy
    os.kill(search, signal.SIGKILL)
    assert process.communicate(timeout=60)[1] == "prvr: error: the process of the search was ended.\n"
    assert process.returncode == 137


def test_a_process_that_was_killed_is_not_missed_and_its_socket_is_replaced(commands: Commands) -> None:
    (path,) = commands.sockets()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    os.kill(int.from_bytes(peer[:4], sys.byteorder), signal.SIGKILL)
    until(commands.refused)
    assert commands.sockets() == [path]
    before = path.lstat().st_ino
    assert commands.run(QUERY, "--stay", "5:00", program=PRVR)[0] == 0
    until(lambda: path.lstat().st_ino != before)
    assert commands.run(QUERY)[0] == 0
