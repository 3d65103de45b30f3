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
from counting_encoder import NAME
from film_collections import ALL, Collection, files
from prvr_search.store.database import FILE, OtherDatabase


@pytest.fixture
def collection(collection: Collection) -> Collection:
    """Three films, one of them with subtitles, which were searched once."""
    (collection.films / "red.en.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nthe lantern\n")
    collection.check(3)
    return collection


def change(home: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(home / FILE)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement, values)
        connection.commit()


def changed(statement: str) -> Callable[[Path], None]:
    return lambda home: change(home, statement)


def overwritten(start: int, stop: int | None) -> Callable[[Path], None]:
    def act(home: Path) -> None:
        content = bytearray((home / FILE).read_bytes())
        content[start:stop] = np.random.default_rng(start).bytes(len(content[start:stop]))
        (home / FILE).write_bytes(content)

    return act


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda home: (home / FILE).unlink(),
    "cut": lambda home: os.truncate(home / FILE, 10_000),
    "header": overwritten(0, 100),
    "all pages": overwritten(4096, None),
    "no table": changed("DROP TABLE folders"),
    "sha256": changed("UPDATE features SET sha256 = '../' || sha256"),
    "rows": changed("UPDATE features SET frames = frames + 1, encoder = x'ff'"),
    "places": changed("UPDATE places SET sha256 = x'ff', volume = 3"),
    "no UTF-8": changed("UPDATE sqlite_master SET name = CAST(x'c1' AS TEXT), sql = x'c1' WHERE rowid = 3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_nothing_is_encoded_again(damage: str, collection: Collection) -> None:
    DAMAGES[damage](collection.home)
    collection.check(3)
    assert collection.search("--subtitles=lantern") == ["red.mp4"]
    collection.library("--verify")
    assert collection.encodings == 3


def test_the_encoder_of_a_folder_is_remembered(clip: str, collection: Collection) -> None:
    command = ["search", str(collection.films), "red", "--paths"]
    collection.run(*command, "--encoder", clip)  # toy would be chosen for these films
    before = {path: path.stat().st_mtime_ns for path in collection.feature_files}
    DAMAGES["no table"](collection.home)
    assert len(collection.run(*command).splitlines()) == 3
    assert {path: path.stat().st_mtime_ns for path in collection.feature_files} == before


def test_what_is_known_of_a_video_is_checked(collection: Collection) -> None:
    wrong = '{"duration": 4, "width": 32, "height": 32, "codec": 5}'
    for about in ("{", wrong, '{"duration": NaN}'):
        change(collection.home, "UPDATE videos SET about = ?", about)
        assert "damaged: 3 videos" in collection.library("--verify", status=1)
        assert sorted(collection.search("red", "--no-update")) == [*ALL]
        collection.check(3)
        collection.library("--verify")
    change(collection.home, "UPDATE videos SET about = json_set(about, '$.later', 1)")
    collection.library("--verify")


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


SPOILT = ["NaN", "hash", "pickle", "shape", "link", "pipe"]


@pytest.mark.parametrize("kind", SPOILT[:3])
def test_verify_finds_features_that_cannot_be_used(kind: str, collection: Collection) -> None:
    path, model = collection.feature_files[0], ("red", "--model", "training-free")  # which reads all features
    change(collection.home, "UPDATE features SET hash = ? WHERE sha256 = ?", spoil(path, kind), path.stem)
    assert len(collection.search(*model)) == (3 if kind == "hash" else 2)
    assert ("Run the command again to encode the video" in collection.said) == (kind != "hash")
    assert sorted(collection.search(*model)) == [*ALL]
    if kind == "hash":
        assert collection.encodings == 3
        assert "damaged: 1 video;" in collection.library("--verify", status=1)
    collection.check(4)
    collection.library("--verify")


@pytest.mark.parametrize("kind", SPOILT)
def test_an_import_skips_what_is_bad_and_takes_the_rest(kind: str, collection: Collection) -> None:
    path = collection.feature_files[0]
    change(collection.home, "UPDATE features SET hash = ? WHERE sha256 = ?", spoil(path, kind), path.stem)
    other = collection.home.rename(collection.base / "other")
    before = files(other)
    out = collection.library("--import", str(other))
    assert "imported: 2 videos; 1 skipped (features missing, damaged or invalid)" in out
    assert files(other) == before
    collection.check(4)
    assert "imported: 0 videos\n" in collection.library("--import", str(other))


@pytest.mark.parametrize("column", ["sha256", "encoder"])
def test_an_imported_library_names_no_path(column: str, collection: Collection) -> None:
    mine, home, name = collection.base / "mine.npy", collection.home, "../../../../mine"
    np.save(mine, np.ones((8, 3), np.float16))
    digest, before = hashlib.sha256(mine.read_bytes()).hexdigest(), mine.stat()
    change(home, f"UPDATE features SET {column} = ?, hash = ? WHERE rowid = 1", name, digest)
    change(home, "INSERT INTO videos VALUES (?, '{}', 2)", name)
    other = home.rename(collection.base / "other")
    collection.library("--import", str(other))
    (collection.films / "red.mp4").unlink()
    collection.library("--prune")
    shutil.rmtree(home)
    shutil.copytree(other, home)  # as its own
    assert sorted(collection.search("green")) == [*ALL[:2]]
    collection.library("--prune")
    assert (mine.stat().st_mtime_ns, mine.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_no_link_leads_out_of_the_library(collection: Collection) -> None:
    path, mine, model = collection.feature_files[0], collection.base / "mine", ("red", "--model", "training-free")
    before = path.read_bytes()
    mine.mkdir()
    shutil.move(path, mine)
    path.symlink_to(mine / path.name)
    assert len(collection.search(*model)) == 2
    assert sorted(collection.search(*model)) == [*ALL]
    assert not path.is_symlink()
    shutil.rmtree(path.parent)
    path.parent.symlink_to(mine)
    (collection.home / FILE).unlink()
    assert len(collection.search()) == 2
    assert "a link, which is not followed" in collection.said
    assert [(file.name, file.read_bytes()) for file in mine.iterdir()] == [(path.name, before)]


def test_an_import_replaces_no_file(collection: Collection) -> None:
    other, path = shutil.copytree(collection.home, collection.base / "other"), collection.feature_files[0]
    spoil(path, "NaN")
    before = path.read_bytes()
    (collection.home / FILE).unlink()
    assert "imported: 0 videos; 1 skipped" in collection.library("--import", str(other))
    assert path.read_bytes() == before


ENDLESS = "WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r WHERE x < 0"


def test_what_would_never_end_is_refused(collection: Collection) -> None:
    change(collection.home, f"CREATE TRIGGER t AFTER INSERT ON places BEGIN INSERT INTO faults {ENDLESS}; END")
    collection.add()
    begin = time.monotonic()
    assert "is not as prvr writes it" in import_refusal(collection)
    collection.check(4, [*ALL, "new.mp4"])
    assert time.monotonic() - begin < 10


def import_refusal(collection: Collection) -> str:
    """What is said when the library cannot be taken over by a new one."""
    new = str(collection.base / "new")
    return collection.refusal("library", "--library", new, "--import", str(collection.home))


def test_a_statement_has_a_limit_and_hears_ctrl_c(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    with OtherDatabase(collection.home / FILE) as database:
        assert list(database.read(ENDLESS)) == []
        assert "Not all of it could be read" in caplog.text
    with OtherDatabase(collection.home / FILE) as database:
        timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(database.read(ENDLESS))
        timer.join()


def test_a_journal_deletes_no_file(collection: Collection) -> None:
    """SQLite deletes the file whose name ends a journal, unless it is the journal of several databases."""
    mine, file = collection.base / "thesis.txt", collection.home / FILE
    mine.write_text("mine")
    name, magic = os.fsencode(mine), bytes.fromhex("d9d505f920a163d7")
    head = (magic + struct.pack(">5I", 0, 0, file.stat().st_size // 4096, 512, 4096)).ljust(512, b"\0")
    end = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    file.with_name(f"{FILE}-journal").write_bytes(head + end)
    assert "its journal" in import_refusal(collection)
    collection.check(3)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("CREATE TABLE notes (text); PRAGMA user_version = 2", "the database of another program"),
        ("CREATE TABLE videos (sha256); PRAGMA user_version = 9", "written by a newer version of prvr (format 9"),
    ],
)
def test_the_database_of_another_program_is_left_alone(script: str, said: str, collection: Collection) -> None:
    file = collection.home / FILE
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)
    before = file.read_bytes()
    assert said in collection.refusal("search", "red")
    assert said in import_refusal(collection)
    assert file.read_bytes() == before


# Other programs that hold the file.


def test_what_is_known_is_searched_while_another_program_holds_the_file(collection: Collection) -> None:
    os.utime(collection.home / FILE, (1, 1))
    with closing(sqlite3.connect(collection.home / FILE)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "locked by another program" in import_refusal(collection)
        begin = time.monotonic()
        collection.check(3)
        assert time.monotonic() - begin < 3
        collection.add()
        assert sorted(collection.search()) == [*ALL]
        assert "locked by another program; waiting" in collection.said
        assert "permissions" not in collection.said
        assert time.monotonic() - begin < 8
    assert len(collection.search()) == 4
    assert collection.encodings <= 5


def test_a_file_that_is_being_changed_is_not_read(collection: Collection) -> None:
    with closing(sqlite3.connect(collection.home / FILE)) as other:
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE places SET volume = hex(zeroblob(20000))")
        begin = time.monotonic()
        collection.run("search", str(collection.films), "red", "--encoder", NAME, status=2)
        assert "locked by another program. Close that program" in collection.said
        assert time.monotonic() - begin < 6
    collection.check(3)
