"""Damaged, locked and malicious libraries: nothing is encoded twice, nothing else is touched, and nothing hangs."""

import hashlib
import os
import shutil
import signal
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import explained
from counting_encoder import NAME, film

from prvr.cli import main
from prvr.errors import DataError
from prvr_search.video.database import FILE, OtherDatabase

pytest.importorskip("av")
ALL = ["day 2/blue.mp4", "green.mp4", "red.mp4"]


class Collection:
    """Three films, and the library of them."""

    def __init__(self, base: Path) -> None:
        self.base, self.films, self.home = base, base / "films", base / "home"
        for place, name in enumerate(("red.mp4", "green.mp4", "day 2/blue.mp4")):
            film(self.films / name, place)
        (self.films / "red.en.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nthe lantern\n")

    @property
    def file(self) -> Path:
        return self.home / FILE

    @property
    def encodings(self) -> int:
        log = self.base / "encoded.txt"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def search(self, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[str], str]:
        """The names of the videos that are found, and what is said."""
        capsys.readouterr()
        assert (
            main(["search", str(self.films), "--encoder", NAME, "--library", str(self.home), "--paths", *options]) == 0
        )
        out, err = capsys.readouterr()
        return sorted(Path(line).relative_to(self.films.resolve()).as_posix() for line in out.splitlines()), err

    def library(self, *options: str) -> int:
        return main(["library", str(self.films), "--encoder", NAME, "--library", str(self.home), *options])

    def change(self, statement: str, *values: Any, home: Path | None = None) -> None:
        with closing(sqlite3.connect((home or self.home) / FILE)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(statement, values)
            connection.commit()

    def array(self, number: int = 0, home: Path | None = None) -> Path:
        return sorted((home or self.home).rglob("*.npy"))[number]


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Collection:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ENCODED", str(tmp_path / "encoded.txt"))
    made = Collection(tmp_path)
    assert made.search(capsys, "red")[0] == ALL
    return made


def overwritten(start: int, stop: int | None) -> Callable[[Collection], None]:
    def act(collection: Collection) -> None:
        content = bytearray(collection.file.read_bytes())
        content[start:stop] = np.random.default_rng(start).bytes(len(content[start:stop]))
        collection.file.write_bytes(content)

    return act


DAMAGES: dict[str, Callable[[Collection], object]] = {
    "deleted": lambda c: c.file.unlink(),
    "empty": lambda c: c.file.write_bytes(b""),
    "cut": lambda c: os.truncate(c.file, 10_000),
    "header": overwritten(0, 100),
    "version": overwritten(60, 64),
    "schema": overwritten(100, 4096),
    "all pages": overwritten(4096, None),
    "schema text": lambda c: c.change("UPDATE sqlite_master SET sql = 'garbage' WHERE name = 'videos'"),
    "no table": lambda c: c.change("DROP TABLE folders"),
    "no rows": lambda c: c.change("DELETE FROM features"),
    "sha256": lambda c: c.change("UPDATE features SET sha256 = '../' || sha256"),
    "rows": lambda c: c.change("UPDATE features SET frames = frames + 1, encoder = x'ff'"),
    "places": lambda c: c.change("UPDATE places SET sha256 = x'ff', volume = 3"),
    "encoders": lambda c: c.change("UPDATE encoders SET spec = '{'"),
    "no UTF-8": lambda c: c.change("UPDATE sqlite_master SET name = CAST(x'c1' AS TEXT), sql = x'c1' WHERE rowid = 3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_nothing_is_encoded_again(
    damage: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[damage](collection)
    assert collection.search(capsys, "red")[0] == ALL
    assert collection.search(capsys, "--subtitles", "lantern")[0] == ["red.mp4"]
    assert collection.library("--verify") == 0
    assert collection.encodings == 3


@pytest.mark.parametrize("damage", ["deleted", "header", "no table", "sha256"])
def test_the_encoder_of_a_folder_is_remembered(
    damage: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", str(collection.films), "red", "--library", str(collection.home), "--paths"]
    assert main([*command, "--encoder", "toy"]) == 0  # which would not be chosen for these films
    before = {path: path.stat().st_mtime_ns for path in collection.home.rglob("*.npy")}
    DAMAGES[damage](collection)
    capsys.readouterr()
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert {path: path.stat().st_mtime_ns for path in collection.home.rglob("*.npy")} == before


@pytest.mark.parametrize(
    "about",
    [
        "{}",
        "[]",
        "{",
        '{"duration": 4, "width": 32, "height": 32, "codec": 5}',
        '{"duration": NaN}',
        '{"duration": -1}',
    ],
)
def test_what_is_known_of_a_video_is_checked(
    about: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    collection.change("UPDATE videos SET about = ?", about)
    capsys.readouterr()
    assert collection.library("--verify") == 1
    assert "damaged: 3 videos" in capsys.readouterr().out
    assert collection.search(capsys, "red", "--no-update")[0] == ALL
    assert collection.search(capsys, "red")[0] == ALL
    assert collection.library("--verify") == 0
    collection.change("UPDATE videos SET about = json_set(about, '$.later', 1)")
    assert collection.library("--verify") == 0
    assert collection.encodings == 3


def spoil(path: Path, kind: str) -> str:
    """Makes an array useless; gives the hash of what is there."""
    match kind:
        case "NaN":
            np.save(path, np.full((8, 3), np.nan, np.float16))
        case "shape":
            np.save(path, np.ones((8, 4), np.float16))
        case "hash":
            np.save(path, np.ones((8, 3), np.float16))
            return "0" * 64
        case "pickle":
            np.save(path, np.array([{}], object), allow_pickle=True)
        case "link":
            shutil.move(path, path.with_suffix(".moved"))
            path.symlink_to(path.with_suffix(".moved"))
        case "pipe":
            path.unlink()
            os.mkfifo(path)
            return "0" * 64
    return hashlib.sha256(path.read_bytes()).hexdigest()


SPOILT = ["NaN", "shape", "hash", "pickle", "link", "pipe"]


@pytest.mark.parametrize("kind", SPOILT[:4])
def test_verify_finds_features_that_cannot_be_used(
    kind: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    path = collection.array()
    collection.change("UPDATE features SET hash = ? WHERE sha256 = ?", spoil(path, kind), path.stem)
    names, err = collection.search(capsys, "red", "--model", "training-free")  # which reads all features
    assert len(names) == (3 if kind == "hash" else 2)
    assert ("Run the command again to encode the video" in err) == (kind != "hash")
    assert collection.search(capsys, "red", "--model", "training-free")[0] == ALL
    if kind == "hash":
        assert collection.encodings == 3
        capsys.readouterr()
        assert collection.library("--verify") == 1
        assert "damaged: 1 video;" in capsys.readouterr().out
        assert collection.search(capsys, "red")[0] == ALL
    assert collection.encodings == 4
    assert collection.library("--verify") == 0


def contents(folder: Path) -> dict[str, Any]:
    return {
        str(path): path.read_bytes() if path.is_file() else path.lstat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("kind", SPOILT)
def test_an_import_skips_what_is_bad_and_takes_the_rest(
    kind: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    other = collection.home.rename(collection.base / "other")
    path = collection.array(home=other)
    collection.change("UPDATE features SET hash = ? WHERE sha256 = ?", spoil(path, kind), path.stem, home=other)
    before = contents(other)
    capsys.readouterr()
    assert collection.library("--import", str(other)) == 0
    assert "imported: 2 videos; 1 skipped (features missing, damaged or invalid)" in capsys.readouterr().out
    assert contents(other) == before
    assert collection.search(capsys, "red")[0] == ALL
    assert collection.encodings == 4
    capsys.readouterr()
    assert collection.library("--import", str(other)) == 0
    assert "imported: 0 videos\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../../../../mine", "/mine", "..", "A" * 64])
@pytest.mark.parametrize("column", ["sha256", "encoder"])
def test_an_imported_library_names_no_path(
    column: str, name: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = collection.base / "mine.npy"
    np.save(mine, np.ones((8, 3), np.float16))
    digest, before = hashlib.sha256(mine.read_bytes()).hexdigest(), mine.stat()
    other = shutil.copytree(collection.home, collection.base / "other")
    name = str(mine.with_suffix("")) if name == "/mine" else name
    collection.change(f"UPDATE features SET {column} = ?, hash = ? WHERE rowid = 1", name, digest, home=other)
    collection.change("INSERT INTO videos VALUES (?, '{}', 2)", name, home=other)
    shutil.rmtree(collection.home)
    assert collection.library("--import", str(other)) == 0
    (collection.films / "red.mp4").unlink()
    assert collection.library("--prune") == 0
    assert (mine.stat().st_mtime_ns, mine.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    shutil.rmtree(collection.home)
    shutil.copytree(other, collection.home)  # as its own
    assert collection.search(capsys, "green")[0] == ALL[:2]
    assert collection.library("--prune") == 0
    assert mine.stat().st_mtime_ns == before.st_mtime_ns


def test_no_link_leads_out_of_the_library(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    path, mine = collection.array(), collection.base / "mine"
    before = path.read_bytes()
    mine.mkdir()
    shutil.move(path, mine)
    path.symlink_to(mine / path.name)
    assert len(collection.search(capsys, "red", "--model", "training-free")[0]) == 2
    assert collection.search(capsys, "red", "--model", "training-free")[0] == ALL
    assert not path.is_symlink()
    shutil.rmtree(path.parent)
    path.parent.symlink_to(mine)
    collection.file.unlink()
    names, err = collection.search(capsys, "red")
    assert len(names) == 2
    assert "a link, which is not followed" in err
    assert [(file.name, file.read_bytes()) for file in mine.iterdir()] == [(path.name, before)]


def test_an_import_replaces_no_file(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    other = shutil.copytree(collection.home, collection.base / "other")
    spoil(path := collection.array(), "NaN")
    before = path.read_bytes()
    collection.file.unlink()
    capsys.readouterr()
    assert collection.library("--import", str(other)) == 0
    assert "imported: 0 videos; 1 skipped" in capsys.readouterr().out
    assert path.read_bytes() == before


ENDLESS = "WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r WHERE x < 0"


@pytest.mark.parametrize("kind", ["view", "trigger"])
def test_what_would_never_end_is_refused(kind: str, collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "view":
        collection.change("DROP TABLE folders")
        collection.change(f"CREATE VIEW folders AS SELECT x AS path, x AS encoder, x AS named FROM ({ENDLESS})")
    else:
        collection.change(f"CREATE TRIGGER t AFTER INSERT ON places BEGIN INSERT INTO faults {ENDLESS}; END")
    film(collection.films / "new.mp4", 0, 90)
    begin = time.monotonic()
    new = ["library", str(collection.films), "--library", str(collection.base / "new"), "--encoder", NAME]
    assert "is not as prvr writes it" in explained([*new, "--import", str(collection.home)], capsys)
    assert len(collection.search(capsys, "red")[0]) == 4
    assert time.monotonic() - begin < 10
    assert collection.encodings == 4


def test_a_statement_has_a_limit_and_hears_ctrl_c(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    with OtherDatabase(collection.file) as database:
        assert list(database.read(ENDLESS)) == []
        assert "Not all of it could be read" in caplog.text
    with OtherDatabase(collection.file) as database:
        timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(database.read(ENDLESS))
        timer.join()


def test_a_journal_deletes_no_file(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    """SQLite deletes the file whose name ends a journal, unless it is the journal of several databases."""
    mine = collection.base / "thesis.txt"
    mine.write_text("mine")
    name, magic = os.fsencode(mine), bytes.fromhex("d9d505f920a163d7")
    head = (magic + struct.pack(">5I", 0, 0, collection.file.stat().st_size // 4096, 512, 4096)).ljust(512, b"\0")
    end = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    collection.file.with_name(f"{FILE}-journal").write_bytes(head + end)
    new = ["library", str(collection.films), "--library", str(collection.base / "new"), "--encoder", NAME]
    assert "its journal" in explained([*new, "--import", str(collection.home)], capsys)
    assert collection.search(capsys, "red")[0] == ALL
    assert mine.read_text() == "mine"
    assert collection.encodings == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("CREATE TABLE notes (text); PRAGMA user_version = 2", "the database of another program"),
        ("CREATE TABLE videos (sha256); PRAGMA user_version = 9", "written by a newer version of prvr (format 9"),
    ],
)
def test_the_database_of_another_program_is_left_alone(
    script: str, said: str, collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    collection.file.unlink()
    with closing(sqlite3.connect(collection.file)) as connection:
        connection.executescript(script)
    before = collection.file.read_bytes()
    command = ["search", str(collection.films), "red", "--encoder", NAME, "--library", str(collection.home)]
    assert said in explained(command, capsys)
    imported = ["library", str(collection.films), "--encoder", NAME, "--import", str(collection.home)]
    assert said in explained(imported, capsys)
    assert collection.file.read_bytes() == before


# Other programs that hold the file.


def test_what_is_known_is_searched_while_another_program_holds_the_file(
    collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(collection.file, (1, 1))
    with closing(sqlite3.connect(collection.file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begin = time.monotonic()
        assert collection.search(capsys, "red")[0] == ALL
        assert time.monotonic() - begin < 3
        film(collection.films / "new.mp4", 0, 90)
        names, err = collection.search(capsys, "red")
        assert names == ALL
        assert "locked by another program; waiting" in err
        assert "locked by another program" in err
        assert time.monotonic() - begin < 8
        assert "permissions" not in err
    assert len(collection.search(capsys, "red")[0]) == 4
    assert collection.encodings <= 5


def test_a_file_that_is_being_changed_is_not_read(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(collection.file)) as other:
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE places SET volume = hex(zeroblob(20000))")
        begin = time.monotonic()
        command = ["search", str(collection.films), "red", "--encoder", NAME, "--library", str(collection.home)]
        capsys.readouterr()
        assert main(command) == 2
        err = capsys.readouterr().err
        assert "locked by another program. Close that program" in err
        assert time.monotonic() - begin < 6
    assert collection.search(capsys, "red")[0] == ALL
    assert collection.encodings == 3


def test_another_library_that_is_held_is_named(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(collection.file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        new = ["library", str(collection.films), "--library", str(collection.base / "new"), "--encoder", NAME]
        assert "locked by another program" in explained([*new, "--import", str(collection.home)], capsys)


def test_a_file_without_a_library_is_refused(collection: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (None, b"", b"not a database" * 99):
        other = collection.base / f"other {content and len(content)}"
        other.mkdir()
        if content is not None:
            (other / FILE).write_bytes(content)
        message = explained(["library", str(collection.films), "--encoder", NAME, "--import", str(other)], capsys)
        assert ("damaged (file is not a database)" if content else "no library found") in message
        assert [path.name for path in other.iterdir()] == ([] if content is None else [FILE])
    with pytest.raises(DataError, match="no library found"):
        OtherDatabase(collection.base / "nowhere" / FILE)
