"""A folder of videos on ordinary disks: nothing is encoded twice, nothing is lost, and nothing ends the search."""

import errno
import filecmp
import logging
import os
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import explained
from counting_encoder import NAME, film
from kills import START, die, killed
from safetensors.numpy import load_file
from video_files import write_video

from prvr.cli import main
from prvr.data.sampling import level_counts
from prvr.errors import DataError
from prvr_search import Library
from prvr_search.video import list_videos, listing
from prvr_search.video import storage as storages
from prvr_search.video.listing import by_suffix

pytest.importorskip("av")
ROOT = os.name == "posix" and os.geteuid() == 0


@pytest.fixture
def films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three films, in a home of their own; the encoder writes a line for each that it encodes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ENCODED", str(tmp_path / "encoded.txt"))
    folder = tmp_path / "films"
    for place, name in enumerate(("red.mp4", "green.mp4", "day 2/blue.mp4")):
        film(folder / name, place)
    return folder


def encoded(films: Path) -> int:
    """How many videos were encoded so far."""
    log = films.parent / "encoded.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


def search(folder: Path, sentence: str = "something red", *options: str) -> int:
    return main(["search", str(folder), sentence, "--encoder", NAME, "--paths", *options])


def found(
    folder: Path, capsys: pytest.CaptureFixture[str], sentence: str = "something red", *options: str
) -> list[str]:
    """The names of the videos that the command finds, best first."""
    capsys.readouterr()
    assert search(folder, sentence, *options) == 0
    return [Path(line).relative_to(folder.resolve()).as_posix() for line in capsys.readouterr().out.splitlines()]


ALL = ["day 2/blue.mp4", "green.mp4", "red.mp4"]


def test_a_folder_is_searched_and_encoded_once(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(films, capsys)[0] == "red.mp4"
    assert found(films, capsys, "a green video")[0] == "green.mp4"
    assert encoded(films) == 3
    assert list(films.rglob("*")) == [*filter(lambda path: path.suffix in ("", ".mp4"), films.rglob("*"))]


# Number 1 of the list: a folder that cannot be listed.


@pytest.mark.parametrize("name", ["lost+found", "System Volume Information", "private"])
def test_a_folder_below_that_cannot_be_listed_ends_nothing(
    name: str, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(found(films, capsys)) == ALL
    film(films / name / "inside.mp4", 0, 180)
    if name == "private":
        assert len(found(films, capsys)) == 4
    scan = os.scandir

    def refuse(path: str | os.PathLike[str] = ".") -> object:
        if not isinstance(path, int) and Path(path).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        capsys.readouterr()
        assert search(films) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert ("private: cannot be listed (Permission denied); skipped" in err) == (name == "private")
        with Library(films, encoder=NAME) as library:
            assert library.prune() == (0, 0)
    assert len(found(films, capsys)) == (4 if name == "private" else 3)
    assert encoded(films) == (4 if name == "private" else 3)


# 2: disks that come and go.


def test_what_is_not_seen_leaves_the_results_and_is_not_encoded_again(
    films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(found(films, capsys)) == ALL
    (films / "day 2").rename(films.parent / "unplugged")
    (films / "day 2").mkdir()  # an empty mount point
    assert sorted(found(films, capsys)) == ALL[1:]
    film(films / "day 2" / "blue.mp4", 2, 120)  # another disk at the same path
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 4
    shutil.rmtree(films / "day 2")
    (films.parent / "unplugged").rename(films / "day 2")
    assert found(films, capsys, "something blue")[0] == "day 2/blue.mp4"
    assert encoded(films) == 4


def test_a_folder_that_is_away_is_searched_as_it_was(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    away = films.rename(films.parent / "away")
    for empty in (False, True):
        if empty:
            films.mkdir()
        capsys.readouterr()
        assert search(films) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert "offline" in err
    films.rmdir()
    away.rename(films)
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3


@pytest.mark.parametrize("returns", [False, True])
def test_a_folder_that_is_away_shows_the_latest_content_whatever_the_clock_says(
    returns: bool, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shutil.copy2(films / "red.mp4", films.parent / "first.mp4")
    found(films, capsys)
    film(films / "red.mp4", 0, 90)
    with monkeypatch.context() as patch:
        patch.setattr(storages.time, "time", lambda: 1e9)
        found(films, capsys)
    if returns:
        shutil.copy2(first, films / "red.mp4")
        found(films, capsys)
    library = Library(films, encoder=NAME)
    (now,) = (entry.sha256 for entry in library.features().entries.values() if entry.id == "red.mp4")
    films.rename(films.parent / "away")
    (then,) = (entry.sha256 for entry in library.features().entries.values() if entry.id == "red.mp4")
    assert then == now


def test_prune_deletes_what_is_gone_and_keeps_what_is_on_another_disk(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    film(films / "stays.mp4", 1, 70)
    found(films, capsys)
    (films / "red.mp4").unlink()
    shutil.copy(films / "green.mp4", films.parent / "green.mp4")
    (films / "green.mp4").unlink()
    found(films.parent, capsys)  # where green.mp4 is seen too
    (films / "day 2" / "blue.mp4").unlink()
    with monkeypatch.context() as patch:
        volume = storages.volume_of
        patch.setattr(storages, "volume_of", lambda path: "root" if path.parent.name == "day 2" else volume(path))
        assert main(["library", str(films), "--encoder", NAME, "--prune"]) == 0
    out = capsys.readouterr().out
    assert "pruned: 1 video; 1 video not deleted: on an offline disk" in out
    assert "1 (features kept; delete with --prune)" in out
    features = list((films.parent / "data").rglob("*.npy"))
    assert len(features) == 3
    kept = {path.stem for path in (films.parent / "cache" / "prvr" / "search").glob("*/*.safetensors")}
    assert kept == {path.stem for path in features}
    assert main(["library", str(films), "--encoder", NAME, "--prune"]) == 0
    assert "pruned: 1 video\n" in capsys.readouterr().out


def test_features_of_an_encoder_that_was_replaced_are_listed_and_deleted(
    films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found(films, capsys)
    files = films.parent / "data"
    before = {*files.rglob("*.npy")}
    other = ["--encoder", NAME, "--rate", "1"]
    assert main(["library", str(films), "--drop", NAME, *other]) != 0  # the folder is still searched with it
    assert main(["search", str(films), "something red", *other]) == 0
    capsys.readouterr()
    assert main(["library", str(films)]) == 0
    assert f"{NAME}, 2 frames per second: 3 videos" in capsys.readouterr().out
    assert len({*files.rglob("*.npy")}) == 6
    assert main(["library", str(films), "--drop", NAME]) == 0
    out = capsys.readouterr().out
    assert f"{NAME}: features of 3 videos deleted" in out
    assert "other encoders" not in out
    left = {*files.rglob("*.npy")}
    assert len(left) == 3
    assert not left & before
    assert "Known: none" in explained(["library", str(films), "--drop", NAME], capsys)
    assert len(found(films, capsys)) == 3


def test_a_folder_that_is_away_is_not_pruned(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    films.rename(films.parent / "renamed")
    assert "nothing was deleted" in explained(["library", str(films), "--encoder", NAME, "--prune"], capsys)
    assert sorted(found(films.parent / "renamed", capsys)) == ALL
    assert encoded(films) == 3


def test_what_is_excluded_is_not_pruned(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    assert main(["library", str(films), "--encoder", NAME, "--exclude", "red*", "--prune"]) == 0
    assert "pruned: 0 videos" in capsys.readouterr().out
    assert len(list((films.parent / "data").rglob("*.npy"))) == 3


def prune(films: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says that it has pruned."""
    capsys.readouterr()
    assert main(["library", str(films), "--encoder", NAME, "--prune"]) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_what_was_renamed_moved_or_touched_is_not_pruned(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = film(films.parent / "other" / "grey.mp4", 1, 77).parent
    found(other, capsys)
    film(films / "moved.mp4", 0, 150)
    film(films / "gone.mp4", 0, 160)
    found(films, capsys)
    (films / "red.mp4").rename(films / "RED.mp4")
    (films / "green.mp4").touch()
    (films / "day 2").rename(films / "day 3")
    (films / "moved.mp4").rename(other / "moved.mp4")  # to a folder that was searched
    (films / "gone.mp4").unlink()
    assert prune(films, capsys) == "pruned: 1 video"
    assert sorted(found(films, capsys)) == ["RED.mp4", "day 3/blue.mp4", "green.mp4"]
    assert len(found(other, capsys)) == 2
    assert encoded(films) == 6
    assert len(list((films.parent / "data").rglob("*.npy"))) == 5
    assert prune(films, capsys) == "pruned: 0 videos"


def test_what_was_overwritten_is_pruned(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    film(films / "red.mp4", 1, 90)
    assert prune(films, capsys) == "pruned: 1 video"  # not searched since: of another size, or read
    assert len(found(films, capsys)) == 3
    assert main(["library", str(films), "--encoder", NAME]) == 0
    assert "missing" not in capsys.readouterr().out


@pytest.mark.parametrize("what", ["file", "folder", "status"])
def test_what_may_be_in_what_cannot_be_read_is_not_pruned(
    what: str, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)
    new = films / "private" / "new.mp4"
    new.parent.mkdir()
    (films / "red.mp4").rename(new)
    hashed, scan, status = storages.hash_file, os.scandir, Path.stat

    def refuse(real: Callable[..., Any], closed: Path) -> Callable[..., Any]:
        def act(path: Any, *args: Any, **options: Any) -> Any:
            if str(path) == str(closed):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **options)

        return act

    with monkeypatch.context() as patch:
        if what == "file":
            patch.setattr(storages, "hash_file", refuse(hashed, new))
        elif what == "folder":
            patch.setattr(os, "scandir", refuse(scan, new.parent))
        else:
            patch.setattr("prvr_search.video.listing._identity", refuse(listing._identity, new.parent))
            patch.setattr(Path, "stat", refuse(status, new.parent))
        assert prune(films, capsys).startswith("pruned: 0 videos; 1 video not deleted: ")
    assert len(found(films, capsys)) == 3
    assert encoded(films) == 3
    new.unlink()
    (films / "nowhere.mp4").symlink_to(films / "nothing.mp4")  # holds nothing
    assert prune(films, capsys) == "pruned: 1 video"


def test_nothing_is_pruned_or_moved_while_another_process_uses_the_library(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)
    home = films.parent / "data" / "prvr" / "library"
    monkeypatch.setattr(storages, "_SHORT", 0.0)
    with Library(films, encoder=NAME).storage.in_use():
        for option in (["--prune"], ["--move", str(films.parent / "elsewhere")]):
            message = explained(["library", str(films), *option], capsys)
            assert f"{home}: another process is using this library" in message
        assert len(found(films, capsys)) == 3  # others go on
    assert not (films.parent / "elsewhere").exists()
    assert list((home / "claims").iterdir()) == []


# 3: passing faults.


def test_what_cannot_be_read_now_is_named_with_its_reason(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (films / "lost.mp4").symlink_to(films.parent / "nowhere.mp4")
    for _ in range(2):
        capsys.readouterr()
        assert search(films) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert "lost.mp4: No such file or directory. Will retry on the next run." in err


def test_a_library_of_somebody_else_is_explained(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(storages.sqlite3, "connect", refuse)
    said = explained(["search", str(films), "red", "--encoder", NAME], capsys)
    assert "library.sqlite: cannot be read (unable to open database file)" in said


@pytest.mark.skipif(ROOT, reason="root reads everything")
def test_a_file_without_permission_is_tried_again_by_mode(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (films / "red.mp4").chmod(0)
    assert sorted(found(films, capsys)) == ALL[:2]
    (films / "red.mp4").chmod(0o644)
    assert sorted(found(films, capsys)) == ALL


@pytest.mark.parametrize("when", ["hash", "decode"])
def test_a_read_error_is_tried_again(
    when: str, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prvr_search.video import decode, encoding

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    class Broken(decode._Source):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())

    with monkeypatch.context() as patch:
        if when == "hash":
            patch.setattr(encoding, "hash_file", fail)
        else:
            patch.setattr(decode, "_Source", Broken)
        message = explained(["search", str(films), "red", "--encoder", NAME], capsys)
    assert "none of 3 can be read" in message
    assert ("Input/output error" if when == "hash" else "Bad file descriptor") in message
    assert sorted(found(films, capsys)) == ALL


def test_a_verdict_about_content_is_kept_with_the_content(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prvr_search.video import encoding

    (films / "bad.mp4").write_bytes(b"no video" * 100)
    capsys.readouterr()
    assert search(films) == 0
    err = capsys.readouterr().err
    assert "1 video cannot be read (bad.mp4); prvr library" in err
    (films / "bad.mp4").rename(films / "still bad.mp4")
    opened: list[Path] = []
    real = encoding.open_video
    monkeypatch.setattr(encoding, "open_video", lambda path, limits: opened.append(path) or real(path, limits))
    assert search(films) == 0
    assert "cannot be read" not in capsys.readouterr().err  # it was said once
    assert opened == []
    assert main(["library", str(films), "--encoder", NAME]) == 0
    assert "still bad.mp4" in capsys.readouterr().out
    film(films / "still bad.mp4", 1, 90)
    assert len(found(films, capsys)) == 4


# 6, 10: several processes.


@pytest.mark.skipif(START != "fork", reason="the other process shares what is defined here")
def test_finished_videos_are_visible_while_another_process_encodes(
    films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def encode_slowly() -> None:
        os.environ["SLOW"] = "2"
        sys.exit(main(["search", str(films), "red", "--encoder", NAME, "-q"]))

    other = get_context(START).Process(target=encode_slowly)
    other.start()
    try:
        claims = films.parent / "data" / "prvr" / "library" / "claims"
        while not list(claims.glob("*-*")):
            time.sleep(0.05)
            assert other.is_alive()
        capsys.readouterr()
        (films / "red.mp4").touch()  # nothing of it is known
        with Library(films, encoder=NAME) as library:
            report = library.update()
            assert len(report.waiting) == 1  # what the other one is at
            assert len(library.search("a green video", update=False).hits) >= 2
        other.join(60)
    finally:
        other.kill()
        other.join()
    assert other.exitcode == 0
    assert sorted(found(films, capsys)) == ALL
    assert Counter((films.parent / "encoded.txt").read_text().splitlines()).most_common(1)[0][1] == 1


def test_nothing_encoded_yet_is_said(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = explained(["search", str(films), "red", "--encoder", NAME, "--no-update"], capsys)
    assert "no video is encoded yet" in message


def test_a_library_sees_what_comes_after_its_first_search(films: Path) -> None:
    with Library(films, encoder=NAME) as library, Library(films, encoder=NAME) as other:
        assert len(library.search("red").hits) == 3
        film(films / "new.mp4", 0, 90)
        other.update()
        assert len(library.search("red", update=False).hits) == 4
        film(films / "newer.mp4", 0, 80)
        assert len(library.search("red").hits) == 5


# 8, 15, 19: what is listed.


def test_trash_hidden_and_excluded_files_are_left_out(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("$RECYCLE.BIN", ".Trash-1000", "@eaDir", "#recycle", ".hidden"):
        shutil.copytree(films / "day 2", films / name / "deeper")
    shutil.copy(films / "red.mp4", films / ".red.mp4")
    assert sorted(found(films, capsys)) == ALL
    assert found(films, capsys, "something blue")[0] == "day 2/blue.mp4"
    assert sorted(found(films, capsys, "red", "--exclude", "day*", "--exclude", "green.*")) == ["red.mp4"]
    assert encoded(films) == 3


def test_clips_that_prvr_wrote_are_no_videos_of_the_folder(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(films, "something red", "--save", str(films / "clips"), "--top", "1") == 0
    assert len(list((films / "clips").iterdir())) == 1
    assert sorted(found(films, capsys)) == ALL


def test_links_to_folders_are_followed_once(films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    film(outside / "far.mp4", 1, 111)
    (films / "a").symlink_to(outside)
    (films / "b").symlink_to(outside)
    (films / "loop").symlink_to(films)
    (films / "day 2" / "up").symlink_to(films.parent)
    (films / "0 day").symlink_to(films / "day 2")
    assert sorted(found(films, capsys)) == sorted([*ALL, "a/far.mp4"])


def test_a_listing_counts_other_files(films: Path) -> None:
    for name in ("a.gif", "b.ogg", "c.GIF"):
        (films / name).write_bytes(b"x")
    assert list_videos(films).others == {".gif": 2, ".ogg": 1}
    assert by_suffix({".ogg": 1, ".gif": 2}) == "2 .gif, 1 .ogg"


def test_other_files_are_counted_by_the_first_update_and_by_library(
    films: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.gif", "day 2/b.ogg", "c.GIF"):
        (films / name).write_bytes(b"x")
    with caplog.at_level(logging.INFO, "prvr_search"):
        for _ in range(2):
            assert search(films) == 0
        film(films / "new.mp4", 0, 90)
        assert search(films) == 0
    lines = [record.getMessage() for record in caplog.records if "other files" in record.getMessage()]
    assert lines == ["skipped other files: 2 .gif, 1 .ogg"]
    capsys.readouterr()
    assert main(["library", str(films), "--encoder", NAME]) == 0
    assert "2 .gif, 1 .ogg" in capsys.readouterr().out


def test_a_video_in_two_encodings_takes_one_place(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [np.full((32, 32, 3), 40, np.uint8) for _ in range(24)]
    for number, picture in enumerate(pictures):
        picture[:, :, 0] = 60 + 8 * number if number < 12 else 40
    for name, codec in (("fade.mp4", "libx264"), ("fade.webm", "libvpx-vp9")):
        write_video(films / name, pictures, fps=2, codec=codec)
    capsys.readouterr()
    assert main(["search", str(films), "something red", "--encoder", NAME]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "also as fade." in table
    assert "1 more grouped with similar results" in table


# 9: content, not paths.


def test_features_belong_to_content_whatever_folder_asks(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    assert found(films / "day 2", capsys) == ["blue.mp4"]
    (films / "red.mp4").rename(films / "renamed.mp4")
    shutil.copy(films / "green.mp4", films.parent / "copy.mp4")
    assert "renamed.mp4" in found(films, capsys)
    assert len(found(films.parent, capsys)) == 3  # the copies are one result
    assert encoded(films) == 3


# 11, 12: damaged and foreign files.


@pytest.mark.parametrize("damage", ["gone", "cut", "catalog"])
def test_damaged_derived_files_are_made_again(damage: str, films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = found(films, capsys)
    for path in (films.parent / "cache" / "prvr" / "search").rglob("*.safetensors"):
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:-7])
    if damage == "catalog":
        (films.parent / "data" / "prvr" / "library" / "library.sqlite").write_bytes(b"not a database" * 99)
    assert found(films, capsys) == before
    assert encoded(films) == 3


def test_damaged_features_are_found_and_encoded_again(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    path = next((films.parent / "data").rglob("*.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert main(["library", str(films), "--encoder", NAME, "--verify"]) == 1
    assert "damaged: 1 video" in capsys.readouterr().out
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 4


def test_a_foreign_index_json_is_nothing_special(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (films / "index.json").write_text('{"format": 1}')
    assert sorted(found(films, capsys)) == ALL
    assert (films / "index.json").read_text() == '{"format": 1}'


# 13, 14: where it lies, and how large it is.


def test_features_are_half_precision_files_of_the_data_folder(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found(films, capsys)
    arrays = [np.load(path) for path in (films.parent / "data" / "prvr" / "library" / "features").rglob("*.npy")]
    assert [array.dtype for array in arrays] == [np.float16] * 3
    files = [*(films.parent / "cache" / "prvr" / "search").rglob("*.safetensors")]
    rows = sum(load_file(path)["frames"].nbytes for path in files)
    assert rows == sum(array[0].nbytes * sum(level_counts(len(array))) for array in arrays)  # frames and means, once


def test_a_relative_xdg_path_is_ignored(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.chdir(films)
    assert sorted(found(films, capsys)) == ALL
    assert sorted(path.name for path in films.iterdir()) == ["day 2", "green.mp4", "red.mp4"]
    assert (tmp_path / "home" / ".local" / "share" / "prvr" / "library" / "library.sqlite").is_file()


@pytest.mark.parametrize("which", ["cache", "data"])
def test_a_place_that_cannot_be_written_does_not_end_the_search(
    which: str, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)
    (films.parent / "blocked").write_text("a file, no folder")
    if which == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", str(films.parent / "blocked"))
        assert sorted(found(films, capsys)) == ALL
        return
    from prvr_search.video.database import Database

    def refuse(self: Database) -> None:
        raise OSError(30, "Read-only file system")

    film(films / "new.mp4", 0, 90)
    monkeypatch.setattr(Database, "_connect_to_write", refuse)
    capsys.readouterr()
    assert search(films) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "Read-only file system" in err


def test_a_full_disk_loses_nothing(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)
    film(films / "new.mp4", 0, 90)
    save = np.save

    def full(file: object, array: np.ndarray, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storages.np, "save", full)
        capsys.readouterr()
        assert search(films) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert "the disk is full" in err
    assert save is np.save
    assert len(found(films, capsys)) == 4
    assert encoded(films) == 5  # the one that could not be kept, twice


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which file is locked")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks(
    number: int, films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock = fcntl.flock

    def refuse(file: int, kind: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(films.parent):
            raise OSError(number, os.strerror(number))
        lock(file, kind)

    found(films, capsys)  # the files of locks are there already
    film(films / "new.mp4", 0, 90)
    monkeypatch.setattr(fcntl, "flock", refuse)
    began = time.monotonic()
    capsys.readouterr()
    assert search(films) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert "temporary" not in err
    assert encoded(films) == 4
    for option in (["--prune"], ["--move", str(tmp_path / "new")]):
        assert "this file system has no locks" in explained(["library", str(films), *option], capsys)
    assert time.monotonic() - began < 20


# The commands.


def test_two_computers_share_the_work(films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for part in (1, 2):
        home = str(tmp_path / f"machine {part}")
        options = ["--encoder", NAME, "--library", home]
        assert main(["library", str(films), "--update", "--shard", f"{part}/2", *options]) == 0
    assert encoded(films) == 3
    for part in (1, 2):
        assert main(["library", str(films), "--import", str(tmp_path / f"machine {part}"), "--encoder", NAME]) == 0
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3


def test_a_library_is_moved_and_found_again(films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found(films, capsys)
    (storages.library_home() / "server-0123456789abcdef.json").write_text("{}")  # of a server that was killed
    assert main(["library", str(films), "--move", str(tmp_path / "big disk")]) == 0
    assert (tmp_path / "big disk" / "library.sqlite").is_file()
    assert not list((films.parent / "data").rglob("*.npy"))
    assert sorted(found(films, capsys)) == ALL
    home = films.parent / "data" / "prvr" / "library"
    assert main(["library", str(films), "--move", str(home)]) == 0  # where a note says that it was moved
    assert storages.library_home() == home
    assert not list((tmp_path / "big disk").rglob("*.npy"))
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_places_that_a_library_cannot_be_moved_to(
    films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found(films, capsys)
    home = films.parent / "data" / "prvr" / "library"
    (tmp_path / "link").symlink_to(home / "features")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "moved.txt").write_text(f"{tmp_path}\n")
    before = files(home)
    places = {
        home: "overlaps", home / "new": "overlaps", home.parent: "overlaps", Path("/"): "overlaps",
        home / "features" / "a" / "b": "overlaps", tmp_path / "link" / "new": "overlaps",
        tmp_path / "full": "not empty", tmp_path / "full" / "notes.txt" / "new": "cannot be", tmp_path / "other": "",
        tmp_path / "circle": "cannot be",
    }  # fmt: skip
    for place, why in places.items():
        assert why in explained(["library", str(films), "--move", str(place)], capsys), place
    assert files(home) == before
    assert files(tmp_path / "full") == {"notes.txt": b"mine"}
    for link in (home / "features", home / "library.sqlite"):
        link.rename(tmp_path / link.name)
        link.symlink_to(tmp_path / link.name)
        message = explained(["library", str(films), "--move", str(tmp_path / "new")], capsys)
        assert f"{link.name}: is a symbolic link" in message
        assert not (tmp_path / "new").exists()
        assert len(found(films, capsys)) == 3
        link.unlink()
        (tmp_path / link.name).rename(link)
    assert encoded(films) == 3


@pytest.mark.parametrize("name", ["a name ", "lines\nof a name\n", os.fsdecode(b"caf\xe9")])
def test_a_library_is_found_under_any_name(
    name: str, films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found(films, capsys)
    place = tmp_path / "disk" / name
    assert main(["library", str(films), "--move", str(place)]) == 0
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3
    away = place.parent.rename(tmp_path / "unplugged")
    message = explained(["search", str(films), "red", "--encoder", NAME], capsys)
    assert "not found; the library was moved there. Connect its disk" in message
    assert not place.parent.exists()
    away.rename(place.parent)
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3


def test_who_has_a_library_open_follows_it_or_is_told(
    films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home, place = films.parent / "data" / "prvr" / "library", tmp_path / "big disk"
    with Library(films, encoder=NAME) as library, Library(films, encoder=NAME, home=home) as named:
        library.update()
        assert main(["library", str(films), "--move", str(place)]) == 0
        film(films / "new.mp4", 0, 90)
        assert len(library.search("red").hits) == 4
        with pytest.raises(DataError, match=r"library: this library was moved to .*big disk\. Name that folder"):
            named.update()
    assert len(list(place.rglob("*.npy"))) == 4
    assert sorted(path.name for path in home.iterdir()) == [".lock", "moved.txt"]
    assert len(found(films, capsys)) == 4
    assert encoded(films) == 4


@pytest.mark.skipif(START != "fork", reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize("act", ["copy2", "cmp", "unlink", "unmark", "replace_file", "mark", "rmdir"])
@pytest.mark.parametrize("back", [False, True])
def test_a_move_that_is_killed_loses_nothing(
    back: bool,
    act: str,
    films: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(films, capsys)
    home, place = films.parent / "data" / "prvr" / "library", tmp_path / "big disk"
    if back:
        assert main(["library", str(films), "--move", str(place)]) == 0
        home, place = place, home
    for number in range(1, 9):

        def prepare(number: int = number) -> None:
            left, owner = number, {"copy2": shutil, "cmp": filecmp, "unlink": Path, "rmdir": Path}.get(act, storages)
            real = getattr(owner, act)

            def dying(*args: Any, **options: Any) -> Any:
                nonlocal left
                result = real(*args, **options)
                left -= 1
                if not left:
                    die()
                return result

            setattr(owner, act, dying)

        if not killed(lambda: main(["library", str(films), "--move", str(place)]), prepare):
            break
        assert sorted(found(films, capsys)) == ALL
        assert encoded(films) == 3
        if storages.library_home() == place:
            break
    else:
        pytest.fail("never ended")
    again = tmp_path / "third"
    assert main(["library", str(films), "--move", str(again)]) == 0
    assert len(list(again.rglob("*.npy"))) == 3
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == 3


def test_moving_another_library_leaves_the_users_own(
    films: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found(films, capsys)
    other = ["--encoder", NAME, "--library", str(tmp_path / "other")]
    assert main(["library", str(films), "--update", *other]) == 0
    assert main(["library", str(films), *other, "--move", str(tmp_path / "big disk")]) == 0
    assert (tmp_path / "big disk" / "library.sqlite").is_file()
    assert storages.library_home() == films.parent / "data" / "prvr" / "library"
    before = encoded(films)
    assert sorted(found(films, capsys)) == ALL
    assert encoded(films) == before


def test_export_writes_features_that_train(films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from prvr.corpora.exported import read_export

    assert main(["export", str(films), "--output", str(tmp_path / "out"), "--encoder", NAME]) == 0
    with Library(films, encoder=NAME) as library:
        features = library.features()
    exported = read_export(tmp_path / "out")
    assert exported.entries == features.entries
    assert exported.spec == features.spec
    for video in features.video_ids:
        np.testing.assert_array_equal(exported.read(video), features.read(video))
    assert "already exists" in explained(
        ["export", str(films), "--output", str(tmp_path / "out"), "--encoder", NAME], capsys
    )


def test_a_new_field_reaches_videos_that_are_known(
    films: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(films, capsys)
    file = films.parent / "data" / "prvr" / "library" / "library.sqlite"
    with sqlite3.connect(file) as connection:  # as an older version has described them
        connection.execute("UPDATE videos SET version = 0, about = json_set(about, '$.codec', 'unknown')")
    with Library(films, encoder=NAME) as library:
        library.update()
        assert {entry.codec for entry in library.features().entries.values()} == {"h264"}
    assert encoded(films) == 3


def test_progress_without_a_terminal(
    films: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prvr.cli import console

    monkeypatch.setattr(console, "EVERY", 0.0)
    with caplog.at_level(logging.INFO, "prvr"):
        assert search(films) == 0
    lines = [record.message for record in caplog.records if record.message.startswith("encoding:")]
    assert len(lines) >= 3
    assert "red.mp4" in lines[-1]
    assert "%" in lines[-1]


def test_a_folder_without_videos_says_what_it_holds(tmp_path: Path, films: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no videos found\. It is empty"):
        Library(tmp_path / "empty", encoder=NAME).update()
    (tmp_path / "empty" / "a.gif").write_bytes(b"x")
    with pytest.raises(DataError, match=r"It holds other files \(1 \.gif\)"):
        Library(tmp_path / "empty", encoder=NAME).update()
    with pytest.raises(DataError, match="no such file or directory"):
        Library(tmp_path / "missing", encoder=NAME).update()
