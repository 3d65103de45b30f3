"""A folder of videos on ordinary disks: nothing is encoded twice, nothing is lost, and nothing ends the search."""

import errno
import itertools
import logging
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import MISSING, fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from counting_encoder import NAME, film
from film_collections import ALL, Collection, files, refusing
from kills import START, die, killed

from prvr.cli import console, main
from prvr.data.atomic import HALF_WRITTEN
from prvr.data.sampling import level_counts
from prvr.encoders import VideoEntry
from prvr.errors import DataError
from prvr_search import Library
from prvr_search.films import open_video
from prvr_search.store import store as stores
from prvr_search.store import upkeep

av = pytest.importorskip("av")


def test_a_folder_is_searched_and_encoded_once(collection: Collection) -> None:
    before = sorted(collection.films.rglob("*"))
    assert "no video is encoded yet" in collection.refusal("search", "red", "--no-update")
    assert collection.search()[0] == "red.mp4"
    assert collection.search("a green video")[0] == "green.mp4"
    collection.check(3)
    assert sorted(collection.films.rglob("*")) == before
    sizes = [path.stat().st_size for path in collection.feature_files]
    assert max(sizes) < 2_000
    rows = sum(level_counts(8)) * 3 * 2 * 3  # frames and means, of three numbers in half precision, once
    (vectors,) = collection.cache.rglob("*.vectors")
    assert rows < vectors.stat().st_size < rows + 1_000


def test_what_a_file_states_of_itself_is_in_its_record_and_new_fields_have_defaults(tmp_path: Path) -> None:
    path = film(tmp_path / "films" / "red.mp4", 0)
    with Library(path.parent, encoder="toy", home=tmp_path / "library") as library:
        library.update()
        entry = library.features().entries["red.mp4"]
    with open_video(path) as video:
        stated = {name: value for name, value in vars(video.info).items() if value and hasattr(entry, name)}
    assert len(stated) > 3
    assert {name: getattr(entry, name) for name in stated} == stated
    names = [field.name for field in fields(VideoEntry)]
    assert [f.name for f in fields(VideoEntry)[names.index("codec") + 1 :] if f.default is MISSING] == []


def test_folders_that_cannot_be_listed_end_nothing(collection: Collection) -> None:
    names = ("lost+found", "System Volume Information", "private")
    for place, name in enumerate(names):
        collection.add(f"{name}/inside.mp4", shade=100 + 10 * place)
    everything = [*ALL, "private/inside.mp4"]
    collection.check(4, everything)
    with refusing(os, "scandir", *(collection.films / name for name in names)):
        assert sorted(collection.search()) == [*ALL]
        assert "private: cannot be listed (Permission denied); skipped" in collection.said
        assert collection.said.count("cannot be listed") == 1
        assert "pruned: 0 videos" in collection.library("--prune")
    collection.check(4, everything)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a disk that keeps any time")
@pytest.mark.parametrize("seconds", [-(2**37), 2**40])
def test_a_film_of_no_year_is_named_and_the_others_are_searched(seconds: int, collection: Collection) -> None:
    with TemporaryDirectory(dir="/dev/shm") as place:
        new = film(Path(place) / "new.mp4", 0, 90)
        os.utime(new, (seconds, seconds))
        (collection.films / "disk").symlink_to(place)
        for _ in range(2):
            assert sorted(collection.search()) == [*ALL]
            assert "disk/new.mp4: last changed before 1678 or after 2261" in collection.said
            assert "damaged" not in collection.said
        new.touch()
        collection.check(4, [*ALL, "disk/new.mp4"])


# Disks that come and go.


def test_a_folder_that_is_away_is_searched_as_it_was_and_not_pruned(collection: Collection) -> None:
    collection.search()
    films = collection.films
    away = films.rename(collection.base / "away")
    for empty in (False, True):
        if empty:
            films.mkdir()
        assert len(collection.search()) == 3
        assert "offline" in collection.said
        assert "nothing was deleted" in collection.refusal("library", "--prune")
    films.rmdir()
    assert len(collection.search(folder=away)) == 3  # under another name
    away.rename(films)
    collection.check(3)


def test_a_folder_that_is_away_shows_the_latest_content_whatever_the_clock_says(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    films = collection.films

    def content() -> str:
        return Library(films, encoder=NAME).features().entries["red.mp4"].sha256

    collection.search()
    collection.add("red.mp4")
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1e9)
        collection.search()
    now = content()
    films.rename(collection.base / "away")
    assert content() == now


def test_prune_deletes_what_is_gone_and_keeps_what_is_on_another_disk(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    films, status = collection.films, os.statvfs
    collection.add("stays.mp4", 1, 70)
    collection.search()
    (films / "red.mp4").unlink()
    (films / "green.mp4").rename(collection.base / "green.mp4")
    collection.search(folder=collection.base)  # where green.mp4 is seen too
    (films / "day 2" / "blue.mp4").unlink()

    def on_another_disk(path: Any) -> Any:
        here = status(path)
        return SimpleNamespace(f_fsid=here.f_fsid + 1) if Path(path).name == "day 2" else here

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", on_another_disk)
        out = collection.library("--prune")
    assert "pruned: 1 video; 1 video not deleted: on an offline disk" in out
    assert "1 (features kept; delete with --prune)" in out
    assert len(collection.feature_files) == 3
    assert not [*collection.cache.rglob("*.vectors")]  # those that are left are made again
    assert "pruned: 1 video\n" in collection.library("--prune")


def test_features_of_an_encoder_that_was_replaced_are_listed_and_deleted(collection: Collection) -> None:
    collection.search()
    before, films = {*collection.feature_files}, str(collection.films)
    other = ("--encoder", NAME, "--rate", "1")
    assert main(["library", films, "--drop", NAME, *other]) != 0  # the folder is still searched with it
    collection.run("search", films, "something red", *other)
    assert f"{NAME}, 2 frames per second: 3 videos" in collection.run("library", films)
    assert len(collection.feature_files) == 6
    out = collection.run("library", films, "--drop", NAME)
    assert f"{NAME}: features of 3 videos deleted" in out
    left = {*collection.feature_files}
    assert len(left) == 3
    assert not left & before
    assert "unknown replaced encoder" in collection.refusal("library", "--drop", NAME, "--rate", "1")
    assert "Known: none" in collection.refusal("library", "--drop", "unknown", "--rate", "1")
    assert len(collection.search()) == 3


def test_prune_spares_what_was_renamed_moved_touched_or_excluded(collection: Collection) -> None:
    films, other = collection.films, collection.base / "other"
    film(other / "grey.mp4", 1, 77)
    collection.search(folder=other)
    collection.add("moved.mp4", 0, 150)
    collection.search()
    assert "pruned: 0 videos" in collection.library("--exclude", "red*", "--prune")
    (films / "red.mp4").rename(films / "RED.mp4")
    (films / "green.mp4").touch()
    (films / "moved.mp4").rename(other / "moved.mp4")  # to a folder that was searched
    assert "pruned: 0 videos" in collection.library("--prune")
    assert "delete with --prune" not in collection.library()  # none is missing
    collection.check(5, ["RED.mp4", "day 2/blue.mp4", "green.mp4"])
    collection.add("RED.mp4", 1)
    assert "pruned: 1 video\n" in collection.library("--prune")  # not searched since: of another size, or read
    assert len(collection.search()) == 3


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_be_in_what_cannot_be_read_is_not_pruned(what: str, collection: Collection) -> None:
    collection.search()
    new = collection.films / "private" / "new.mp4"
    new.parent.mkdir()
    (collection.films / "red.mp4").rename(new)
    with refusing(Path, "open", new) if what == "file" else refusing(os, "scandir", new.parent):
        assert "pruned: 0 videos; 1 video not deleted: " in collection.library("--prune")
    collection.check(3, [*ALL[:2], "private/new.mp4"])
    new.unlink()
    (collection.films / "nowhere.mp4").symlink_to(collection.films / "nothing.mp4")  # holds nothing
    assert "pruned: 1 video\n" in collection.library("--prune")


def test_nothing_is_pruned_or_moved_while_another_process_uses_the_library(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.search()
    monkeypatch.setattr(stores, "_LONG", 0.0)
    with Library(collection.films, encoder=NAME).store.in_use():
        for option in (["--prune"], ["--move", str(collection.base / "elsewhere")]):
            assert f"{collection.home}: another process is using" in collection.refusal("library", *option)
        collection.check(3)  # others go on
    assert not (collection.base / "elsewhere").exists()
    assert list((collection.home / "claims").iterdir()) == []


@pytest.mark.skipif(START != "fork", reason="the other process shares what is defined here")
def test_prune_waits_for_a_server_that_encodes(collection: Collection) -> None:
    collection.search()
    (collection.films / "red.mp4").unlink()

    def use() -> None:
        with Library(collection.films, encoder=NAME).store.in_use():
            time.sleep(4)

    other = get_context(START).Process(target=use)
    other.start()
    while not list((collection.home / "claims").glob("process-*")):
        time.sleep(0.05)
    assert "pruned: 1 video" in collection.library("--prune")
    assert "waiting for another process" in collection.said
    other.join(20)


# Passing faults.


def test_what_cannot_be_read_now_is_named_and_tried_again(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (collection.films / "lost.mp4").symlink_to(collection.base / "nowhere.mp4")
    paths, opened = [collection.films / name for name in ALL], av.open

    def broken(file: Any, *arguments: Any, **options: Any) -> Any:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.file.fileno())
        return opened(file, *arguments, **options)

    with refusing(Path, "open", *paths, number=errno.EIO):
        message = collection.refusal("search", "red")
    assert "none of 4 can be read" in message
    assert "Input/output error" in message
    with monkeypatch.context() as patch:
        patch.setattr(av, "open", broken)
        assert "Bad file descriptor" in collection.refusal("search", "red")
    for _ in range(2):
        collection.check(3)
        assert "lost.mp4: No such file or directory. Will retry on the next run." in collection.said


def test_a_verdict_about_content_is_kept_with_the_content(collection: Collection) -> None:
    bad = collection.films / "bad.mp4"
    bad.write_bytes(b"no video" * 100)
    collection.search()
    assert "bad.mp4: not a video" in collection.said
    bad.rename(collection.films / "still bad.mp4")
    with refusing(av, "open"):
        collection.search()
    assert "still bad.mp4" not in collection.said  # it was said once, and is not read again
    assert "still bad.mp4" in collection.library()
    collection.add("still bad.mp4", 1)
    assert len(collection.search()) == 4


# Several processes.


@pytest.mark.skipif(START != "fork", reason="the other process shares what is defined here")
def test_finished_videos_are_visible_while_another_process_encodes(collection: Collection) -> None:
    def encode_slowly() -> None:
        os.environ["UNTIL"] = str(collection.base / "seen")
        sys.exit(main(["search", str(collection.films), "red", "--encoder", NAME, "-q"]))

    other = get_context(START).Process(target=encode_slowly)
    other.start()
    try:
        while not list((collection.home / "claims").glob("[0-9a-f]*-*")):  # of a video, not of the process
            time.sleep(0.05)
            assert other.is_alive()
        (collection.films / "red.mp4").touch()  # nothing of it is known
        with Library(collection.films, encoder=NAME) as library:
            report = library.update()
            assert len(report.waiting) == 1  # what the other one is at
            assert len(library.search("a green video", update=False).hits) >= 2
        (collection.base / "seen").touch()
        other.join(60)
    finally:
        other.kill()
        other.join()
    assert other.exitcode == 0
    assert sorted(collection.search()) == [*ALL]
    assert Counter((collection.base / "encoded.txt").read_text().splitlines()).most_common(1)[0][1] == 1


# What is listed.


def test_trash_hidden_excluded_files_and_own_clips_are_left_out(collection: Collection) -> None:
    films = collection.films
    for name in ("$RECYCLE.BIN", ".Trash-1000", "@eaDir", "#recycle", ".hidden"):
        shutil.copytree(films / "day 2", films / name / "deeper")
    shutil.copy(films / "red.mp4", films / ".red.mp4")
    collection.check(3)
    assert collection.search("something blue")[0] == "day 2/blue.mp4"
    assert collection.search("red", "--exclude", "day*", "--exclude", "green.*") == ["red.mp4"]
    collection.search("something red", "--save", str(films / "clips"), "--top", "1")
    assert len(list((films / "clips").iterdir())) == 1
    assert sorted(collection.search()) == [*ALL]


def test_links_to_folders_are_followed_once(collection: Collection) -> None:
    films, outside = collection.films, collection.base / "elsewhere"
    film(outside / "far.mp4", 1, 111)
    links = {"a": outside, "b": outside, "loop": films, "day 2/up": films.parent, "0 day": films / "day 2"}
    for name, target in links.items():
        (films / name).symlink_to(target)
    collection.check(4, [*ALL, "a/far.mp4"])


# Where it lies.


def test_a_cache_that_cannot_be_written_is_done_without(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = collection.search()
    (collection.base / "blocked").write_text("a file, no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(collection.base / "blocked"))
    assert collection.search() == before
    assert collection.encodings == 3


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EROFS, "cannot be written ([Errno 30] Read-only"), (errno.ENOSPC, "the disk is full")]
)
def test_a_disk_that_is_full_or_cannot_be_written_loses_nothing(
    number: int, said: str, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *mode: int) -> int:
        is_ours = flags & os.O_CREAT and collection.base in Path(path).parents
        if is_ours and (number == errno.EROFS or str(path).endswith(HALF_WRITTEN)):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *mode)

    collection.search()
    collection.add()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert sorted(collection.search()) == [*ALL]
        assert said in collection.said
        collection.library("--update", status=1)
        assert said in collection.said
    collection.check(4, [*ALL, "new.mp4"])  # nothing was encoded in vain


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which file is locked")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks(number: int, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock = fcntl.flock

    def refuse(file: int, kind: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(collection.base):
            raise OSError(number, os.strerror(number))
        lock(file, kind)

    collection.search()  # the files of locks are there already
    collection.add()
    monkeypatch.setattr(fcntl, "flock", refuse)
    began = time.monotonic()
    collection.check(4, [*ALL, "new.mp4"])
    assert "temporary" not in collection.said
    for option in (["--prune"], ["--move", str(collection.base / "new")]):
        assert "this file system has no locks" in collection.refusal("library", *option)
    assert time.monotonic() - began < 20


# The commands.


def test_two_computers_share_the_work(collection: Collection) -> None:
    homes = [str(collection.base / f"machine {part}") for part in (1, 2)]
    for part, home in enumerate(homes, 1):
        collection.library("--update", "--shard", f"{part}/2", "--library", home)
    assert collection.encodings == 3
    for home in homes:
        collection.library("--import", home)
    collection.check(3)


def test_places_that_a_library_cannot_be_moved_to(collection: Collection) -> None:
    collection.search()
    home, base = collection.home, collection.base
    (base / "link").symlink_to(home / "features")
    (base / "circle").symlink_to("circle")
    (base / "full").mkdir()
    (base / "full" / "notes.txt").write_text("mine")
    before = files(base)
    places = {
        home: "overlaps", home.parent: "overlaps", base / "link" / "new": "overlaps", base / "full": "not empty",
        base / "full" / "notes.txt" / "new": "cannot be", base / "circle": "cannot be",
    }  # fmt: skip
    for place, why in places.items():
        assert why in collection.refusal("library", "--move", str(place)), place
    assert files(base) == before
    for link in (home / "folders", home / "features"):
        link.rename(base / link.name)
        link.symlink_to(base / link.name)
        assert f"{link.name}: is a symbolic link" in collection.refusal("library", "--move", str(base / "new"))
    assert not (base / "new").exists()
    collection.check(3)


def test_a_library_is_found_under_any_name(collection: Collection) -> None:
    collection.search()
    place = collection.base / "disk" / os.fsdecode(b"lines\nof a caf\xe9\n ")
    collection.library("--move", str(place))
    collection.check(3)
    away = place.parent.rename(collection.base / "unplugged")
    assert "not found; the library was moved there. Connect its disk" in collection.refusal("search", "red")
    assert not place.parent.exists()
    away.rename(place.parent)
    collection.library("--move", str(collection.home))  # where a note says that it was moved
    assert not list(place.rglob("*.features"))
    collection.check(3)


def test_who_has_a_library_open_follows_it_or_is_told(collection: Collection) -> None:
    home, place, films = collection.home, collection.base / "big disk", collection.films
    with Library(films, encoder=NAME) as library, Library(films, encoder=NAME, home=home) as named:
        library.update()
        collection.library("--move", str(place))
        collection.add()
        assert len(library.search("red").hits) == 4
        with pytest.raises(DataError, match=r"library: this library was moved to .*big disk\. Name that folder"):
            named.update()
    assert len(list(place.rglob("*.features"))) == 4
    assert {path.name for path in home.iterdir()} - {".lock"} == {"moved.txt"}
    collection.check(4, [*ALL, "new.mp4"])


@pytest.mark.skipif(START != "fork", reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize(("owner", "act"), [(upkeep, "replace_file"), (Path, "unlink"), (os, "sync")])
def test_a_move_that_is_killed_loses_nothing(owner: Any, act: str, collection: Collection) -> None:
    collection.search()
    move = ("--move", str(collection.base / "big disk"))
    real, number = getattr(owner, act), 0

    def prepare() -> None:
        calls = itertools.count(1)

        def dying(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if next(calls) == number:
                die()
            return result

        setattr(owner, act, dying)

    while stores.library_home() == collection.home:
        number += 1
        killed(lambda: collection.library(*move), prepare)
        collection.check(3)
    again = collection.base / "third"
    collection.library("--move", str(again))
    assert len(list(again.rglob("*.features"))) == 3
    collection.check(3)


def test_progress_without_a_terminal(
    collection: Collection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "EVERY", 0.0)
    with caplog.at_level(logging.INFO, "prvr"):
        collection.search()
    lines = [record.message for record in caplog.records if record.message.startswith("encoding:")]
    assert len(lines) >= 3
    assert "red.mp4" in lines[-1]
    assert "%" in lines[-1]


def test_an_open_library_keeps_its_encoder_when_another_process_searches_with_another(collection: Collection) -> None:
    collection.search()
    with Library(collection.films, encoder=NAME) as library:
        library.update()
        hits = library.index.search("something red").hits
        collection.run("search", str(collection.films), "something red", "--encoder", NAME, "--rate", "1")
        library.update()
        assert library.index.search("something red").hits == hits
    assert "1 frames per second" in collection.library()  # what was chosen last is the folder's
