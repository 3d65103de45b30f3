"""Libraries of before feature files proved themselves are taken over without encoding; this file goes with the code."""

import hashlib
import json
import os
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from counting_encoder import NAME
from film_collections import Collection, files, with_track

from prvr_search import Library

TABLES = """
CREATE TABLE encoders (key TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE videos (sha256 TEXT PRIMARY KEY, about TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE features (sha256 TEXT, encoder TEXT, frames INTEGER NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE faults (sha256 TEXT, encoder TEXT, reason TEXT NOT NULL, remedy TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE places (path BLOB, size INTEGER, mtime_ns INTEGER, volume TEXT NOT NULL, seen REAL NOT NULL,
    sha256 TEXT NOT NULL, PRIMARY KEY (path, size, mtime_ns));
CREATE TABLE folders (path BLOB PRIMARY KEY, encoder TEXT NOT NULL, named INTEGER NOT NULL);
CREATE TABLE subtitles (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, UNIQUE (sha256, path));
CREATE VIRTUAL TABLE lines USING fts5 (text, language UNINDEXED, start UNINDEXED, stop UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2');
PRAGMA user_version = 3;
"""
LANTERN = (
    "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize\nStyle: Default,Arial,20\n\n"
    "[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,lantern\n"
)
ENDLESS = "WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r WHERE x < 0"


@pytest.fixture
def collection(collection: Collection) -> Collection:
    """Three films and a broken one, in a library as the last release wrote it; red.mp4 has a line of its own."""
    with_track(collection.films / "red.mp4", collection.base / "red.mkv", LANTERN, "en")
    (collection.base / "red.mkv").rename(collection.films / "red.mp4")
    (collection.films / "broken.mp4").write_bytes(b"no video" * 100)
    collection.check(3)
    with Library(collection.films, encoder=NAME) as library, closing(sqlite3.connect(collection.base / "old")) as old:

        def insert(table: str, *values: object) -> None:
            old.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

        store, ((key, spec),) = library.store, library.store.specs().items()
        old.executescript(TABLES)
        insert("encoders", key, json.dumps(asdict(spec)))
        insert("folders", os.fsencode(library.folder), key, 1)
        for video in store.folders.places(library.folder).values():
            film = store.films(key)[sha256 := video.sha256]
            insert("places", os.fsencode(video.path), video.size, video.mtime_ns, video.volume, 0.0, sha256)
            if film.reason:
                insert("faults", sha256, key, film.reason, film.remedy)
                continue
            path = collection.base / "old features" / key / sha256[:2] / f"{sha256}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, store.read(key, sha256).rows.astype(np.float16))
            insert("features", sha256, key, film.frames, hashlib.sha256(path.read_bytes()).hexdigest())
            insert(
                "videos", sha256, json.dumps({"duration": film.duration, "width": 9, "height": 9, "codec": "h264"}), 2
            )
            if video.id == "red.mp4":
                insert("subtitles", 1, sha256, b"", 0, 0)
        old.commit()
        (path.parents[1] / "encoder.json").write_text(json.dumps(asdict(spec)))
    for place in (collection.home, collection.cache.parent):
        shutil.rmtree(place)
    collection.home.mkdir()
    (collection.base / "old features").rename(collection.home / "features")
    (collection.base / "old").rename(collection.home / "library.sqlite")
    return collection


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        connection.commit()


def test_a_library_of_the_last_release_is_taken_over(collection: Collection) -> None:
    database = (collection.home / "library.sqlite").read_bytes()
    for _ in range(2):
        out = collection.run("library", str(collection.films))
        assert "3 of 4 encoded" in out
        assert f"{NAME}, 2 frames per second" in out
    assert collection.search("--subtitles=lantern") == ["red.mp4"]
    collection.check(3)
    assert "broken.mp4" in collection.library()
    assert "damaged: 0 videos" in collection.library("--verify")
    assert (collection.home / "old-library.sqlite").read_bytes() == database
    assert not [*collection.home.rglob("*.npy"), *collection.home.rglob("encoder.json")]


def test_another_library_of_the_last_release_is_imported(collection: Collection) -> None:
    other = collection.home.rename(collection.base / "other")
    before = files(other)
    assert "imported: 3 videos\n" in collection.library("--import", str(other))
    assert files(other) == before
    collection.check(3)
    assert collection.search("--subtitles=lantern") == ["red.mp4"]


@pytest.mark.parametrize("option", ["--prune", "--verify", "--move"])
def test_whatever_the_first_command_is(option: str, collection: Collection) -> None:
    collection.library(option, *([str(collection.base / "new")] if option == "--move" else []))
    collection.check(3)
    assert collection.search("--subtitles=lantern") == ["red.mp4"]


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: os.truncate(file, 10_000),
        lambda file: file.write_bytes(bytes(100) + file.read_bytes()[100:]),
        lambda file: change(file, "DROP TABLE places"),
        lambda file: change(file, "UPDATE sqlite_master SET name = CAST(x'c1' AS TEXT), sql = x'c1' WHERE rowid = 3"),
        lambda file: change(file, "UPDATE videos SET about = '{\"duration\": NaN}'"),
    ],
    ids=["deleted", "cut", "head", "table", "name", "about"],
)
def test_a_damaged_one_loses_no_features(damage: Callable[[Path], object], collection: Collection) -> None:
    damage(collection.home / "library.sqlite")
    collection.check(3)
    found = json.loads(collection.run("search", str(collection.films), "red", "--encoder", NAME, "--json", "-"))
    assert [hit["video"]["duration"] for hit in found["results"][0]["hits"]] == [4.0] * 3


def test_damaged_features_are_encoded_again(collection: Collection) -> None:
    first, second, _ = collection.home.rglob("*.npy")
    np.save(first, np.full((8, 3), np.nan, np.float16))
    np.save(second, np.ones((8, 3), np.float16))  # which is not what its hash says
    collection.check(5)


def test_nothing_in_it_is_executed_or_followed(collection: Collection) -> None:
    mine, file = collection.base / "thesis.txt", collection.home / "library.sqlite"
    mine.write_text("mine")
    change(file, "INSERT INTO places VALUES (CAST('/a/../thesis.mp4' AS BLOB), 1, 1, '', 0, '../x')")
    change(file, f"CREATE TRIGGER t AFTER INSERT ON places BEGIN INSERT INTO faults {ENDLESS}; END")
    change(file, "DROP TABLE faults")
    change(file, f"CREATE VIEW faults (sha256, encoder, reason, remedy) AS SELECT x, x, x, x FROM ({ENDLESS})")
    for column in ("sha256", "encoder"):
        change(file, f"INSERT INTO features VALUES ('../{column}', '../../mine', 8, 'x')")
    name, magic = os.fsencode(mine), bytes.fromhex("d9d505f920a163d7")  # SQLite deletes what ends a journal
    head = (magic + struct.pack(">5I", 0, 0, file.stat().st_size // 4096, 512, 4096)).ljust(512, b"\0")
    end = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    file.with_name(f"{file.name}-journal").write_bytes(head + end)
    begin = time.monotonic()
    collection.check(3)
    assert time.monotonic() - begin < 15
    assert mine.read_text() == "mine"


def test_the_database_of_another_program_is_left_alone(collection: Collection) -> None:
    file = collection.home / "library.sqlite"
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE notes (text)")
    before = file.read_bytes()
    for command in (
        ["search", "red"],
        ["library", "--library", str(collection.base / "new"), "--import", str(file.parent)],
    ):
        assert "the database of another program" in collection.refusal(*command)
    assert file.read_bytes() == before
