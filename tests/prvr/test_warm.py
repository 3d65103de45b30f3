"""Searches that a running server answers: the same as the command gives, and nothing for or from anybody else."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

import httpx2
from search_files import library_features
from serving import wait_for

import prvr_search
from prvr.cli import main
from prvr_search.films.toy_videos import write_mp4
from prvr_search.warm import plain_search, proof, record_file

COMMAND = "import sys; from prvr.command import command; sys.exit(command())"
WARM = "import sys; sys.modules['prvr.cli'] = sys.modules['torch'] = None; " + COMMAND.removeprefix("import sys; ")
"""The command where it cannot search itself."""
QUERY = "a red square"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and permissions")


def film(path: Path, colour: int, start: int) -> Path:
    """A film of 6 s, a second of which shows a coloured square."""
    frames = np.full((60, 32, 32, 3), 60, np.uint8)
    frames[start : start + 10, 8:24, 8:24, colour] = 250
    write_mp4(path, frames, fps=10)
    return path


class Searches:
    """Searches of a folder of three films as commands of their own, which run a copy of the package."""

    def __init__(self, folder: Path) -> None:
        self.films, self.home, self.source = folder / "films", folder / "library", folder / "source"
        self.films.mkdir()
        for number, name in enumerate(["red [x].mp4", "green.mp4", "blue.mp4"]):
            film(self.films / name, number, 10 * number)
        (self.films / "green.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nthe old harbour\n")
        library_features(self.films, home=self.home)
        self.record = record_file(self.home, self.films.resolve())
        package = Path(prvr_search.__file__).parent
        shutil.copytree(package, self.source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment |= {"COLUMNS": "100", "PYTHONPATH": str(self.source), "PYTHONIOENCODING": "utf-8"}

    def words(self, *words: str) -> list[str]:
        return ["search", str(self.films), "--library", str(self.home), *words]

    def start(self, *words: str, program: str = WARM, **environment: str) -> subprocess.Popen[bytes]:
        command, pipe = [sys.executable, "-P", "-c", program, *words], subprocess.PIPE
        return subprocess.Popen(command, env=self.environment | environment, stdout=pipe, stderr=pipe)

    def run(self, *words: str, **options: Any) -> tuple[int, bytes, bytes]:
        with self.start(*self.words(*words), **options) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def refused(self, *words: str, **options: str) -> str:
        """Why a search is not answered, after which the command would search itself; empty if it is answered."""
        code, out, err = self.run(QUERY, *words, **options)
        if code == 0:
            return ""
        assert out == b""
        assert b"import of prvr.cli halted" in err
        return err.decode().split("Traceback")[0].strip() or "silently"

    @contextmanager
    def served(self) -> Iterator[subprocess.Popen[bytes]]:
        """A server that answers; it is killed in the end."""
        self.record.unlink(missing_ok=True)
        options = ["--library", str(self.home), "--port", "0"]
        with self.start("serve", str(self.films), *options, program=COMMAND) as process:
            try:
                wait_for(lambda: process.poll() is not None or (self.record.exists() and not self.refused()))
                assert process.poll() is None, process.communicate()
                yield process
            finally:
                process.kill()
                process.communicate()


def address_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[0].decode()


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Searches:
    return Searches(tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="module")
def server(searches: Searches) -> Iterator[str]:
    """The address of the page of a server."""
    assert searches.refused() == searches.refused("--verbose") == "silently"  # there is none
    with searches.served() as process:
        yield address_of(process)


def cold(searches: Searches, capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> tuple[int, bytes, bytes]:
    """What the command gives that searches itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        code = main(searches.words(*words))
    out, err = capfdbinary.readouterr()
    return code, out, err


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "words",
    [
        [QUERY, "--print0", "--no-update", "-k", "2"], [QUERY, "--shorter", "0:02"], [QUERY, "--without", "snow"],
        [QUERY, "--subtitles", "old", "--name", "g*"],
    ],
)  # fmt: skip
def test_answers_are_those_of_the_command(
    searches: Searches, words: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = cold(searches, capfdbinary, *words)
    assert expected[0] == 0
    assert searches.run(*words) == expected
    assert (b"no videos match" in expected[2]) == ("0:02" in words)


def test_films_that_come_and_go_are_seen_at_once(
    searches: Searches, server: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    before = searches.run(QUERY, "--paths")[1]
    away = (searches.films / "green.mp4").rename(tmp_path / "green.mp4")
    left = [path for path in before.splitlines() if not path.endswith(b"green.mp4")]
    assert searches.run(QUERY, "--paths")[1].splitlines() == left
    wait_for(lambda: b"green" not in httpx2.get(f"{server}/api/videos").content, 5)  # the page is told, too
    away.rename(searches.films / "green.mp4")
    new = film(tmp_path / "new.mp4", 0, 40).rename(searches.films / "new.mp4")
    wait_for(lambda: bytes(new) in searches.run(QUERY, "--paths", program=COMMAND)[1])  # encoded here or in the server
    answer = searches.run(QUERY, "--paths")
    assert answer == cold(searches, capfdbinary, QUERY, "--paths")
    assert len(answer[1].splitlines()) == 4
    new.unlink()


def test_what_a_server_does_not_answer() -> None:
    assert plain_search(["search", "films", "a dog", "-k=3", "-q"]) is not None
    for words in ("serve films", "search", "search films a b", "search films a --json -", "search films a --top -1"):
        assert plain_search(words.split()) is None


@pytest.mark.usefixtures("server")
def test_another_folder_library_or_version_is_not_answered_for(searches: Searches, tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    for words in ([str(tmp_path / "films"), "--library", str(searches.home)], [str(searches.films)]):
        with searches.start("search", QUERY, *words, "-v") as process:
            assert process.communicate(timeout=60)[1].startswith(b"Traceback")
    assert searches.refused("--after", "soon") == "silently"  # errors are those of the command
    assert "shows the log" in searches.refused("--verbose")
    edited = searches.source / "prvr_search" / "ranking/filters.py"
    times = edited.stat()
    with edited.open("a") as file:
        file.write("# edited\n")
    assert "its code" in searches.refused("-v")
    os.utime(edited, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not searches.refused()


@POSIX
@pytest.mark.usefixtures("server")
def test_a_file_that_others_could_have_written_or_read_is_ignored(searches: Searches, tmp_path: Path) -> None:
    assert searches.record.lstat().st_mode & 0o777 == 0o600
    searches.record.chmod(0o640)
    assert "not private to this user" in searches.refused("-v")
    searches.record.chmod(0o600)
    held = searches.record.rename(tmp_path / "record")
    searches.record.symlink_to(held)
    assert "symbolic links" in searches.refused("-v")
    held.replace(searches.record)
    assert not searches.refused()


@contextmanager
def stranger(searches: Searches, converse: Callable[[socket.socket], object]) -> Iterator[None]:
    """Another program at the port that the file names."""
    before = searches.record.read_text()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                connection.settimeout(30)
                converse(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        searches.record.write_text(json.dumps(json.loads(before) | {"port": listener.getsockname()[1]}))
        try:
            yield
        finally:
            searches.record.write_text(before)
            thread.join(60)


@pytest.mark.usefixtures("server")
def test_a_stranger_at_the_port_learns_nothing_and_keeps_nobody_waiting(searches: Searches) -> None:
    heard = bytearray()

    def echo(connection: socket.socket) -> None:
        while part := connection.recv(1000):
            heard.extend(part)
            connection.sendall(part)

    def trickle(connection: socket.socket) -> None:
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.1)

    with stranger(searches, echo):
        assert "another program" in searches.refused("-v")
    assert len(heard) == 33  # a random number
    began = time.monotonic()
    with stranger(searches, trickle):
        assert searches.refused() == "silently"
        assert time.monotonic() - began < 15


@pytest.mark.usefixtures("server")
def test_who_has_no_token_gets_nothing_and_stops_nobody(searches: Searches) -> None:
    port = json.loads(searches.record.read_text())["port"]

    request = json.dumps({"words": searches.words(QUERY)}).encode()
    for word in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"1\n" + b"0" * 64 + b" " + request, b"x" * 200_000):
        with socket.create_connection(("127.0.0.1", port), 30) as connection, suppress(OSError):
            connection.sendall(word)
            connection.shutdown(socket.SHUT_WR)
            assert len(b"".join(iter(lambda: connection.recv(1000), b"")).splitlines()) <= 1
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert not searches.refused()
    for connection in silent:
        connection.close()


@POSIX
@pytest.mark.usefixtures("server")
def test_control_c_ends_a_search_that_waits(searches: Searches) -> None:
    waits, token = threading.Event(), json.loads(searches.record.read_text())["token"]

    def converse(connection: socket.socket) -> None:
        own = connection.recv(100).rstrip()
        connection.sendall(b"1 " + proof(token, "server", own, b"1") + b"\n")
        assert QUERY.encode() in connection.recv(10_000)
        waits.set()
        assert connection.recv(100) == b""

    with stranger(searches, converse), searches.start(*searches.words(QUERY)) as process:
        assert waits.wait(60)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"\ninterrupted\n")
        assert process.returncode == 130


@POSIX
def test_the_file_is_that_of_the_last_server_and_one_that_was_killed_does_no_harm(searches: Searches) -> None:
    with searches.served() as first, searches.served() as second:
        first.send_signal(signal.SIGTERM)  # its file was replaced by that of the second, which stays
        assert first.wait(60) == 0
        assert not searches.refused()
        second.kill()
        second.wait()
        assert "refused" in searches.refused("-v")
        assert searches.refused() == "silently"


def test_a_server_whose_encoder_is_no_longer_that_of_the_folder_answers_nobody(searches: Searches) -> None:
    """And its file goes with it."""
    with searches.served() as process:
        assert main(searches.words(QUERY, "--rate", "1")) == 0  # remembered from now on
        assert searches.refused() == "silently"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not searches.record.exists()
