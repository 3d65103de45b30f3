"""The folder of an index: refused where it is torn or edited, one writer at a time, and a full disk changes nothing."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from search_files import QUERY, contents, found_in, make_index, replace_in_segment, some_videos, walk, write_store

from prvr.data import DataError
from prvr.search import VideoIndex, backends
from prvr.search.segments import Segment, write_segment
from prvr.search.writing import opened_for_writing


def test_no_index_is_made_where_something_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="not empty"):
        make_index(tmp_path)
    (tmp_path / "empty").mkdir()
    assert len(make_index(tmp_path / "empty")) == 0
    with pytest.raises(DataError, match="no index"):
        VideoIndex.open(tmp_path)


# Damage.


def test_an_edited_or_torn_manifest_is_refused(index: VideoIndex) -> None:
    path = index.folder / "index.json"
    whole = path.read_text()
    path.write_text(whole.replace('"window": 120.0', '"window": 60.0'))
    with pytest.raises(DataError, match="edited or damaged"):
        VideoIndex.open(index.folder)
    assert "edited or damaged" in index.verify()[0]
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"index\.json: not valid JSON"):
        VideoIndex.open(index.folder)
    body = json.loads(whole)
    path.write_text(json.dumps(body | {"format": 99}))
    with pytest.raises(DataError, match="format 99, this version reads 1 and 2"):
        VideoIndex.open(index.folder)


def test_verify_names_what_is_damaged(index: VideoIndex) -> None:
    segment = index.folder / "segments" / index.source.segments[0]
    frames = segment / "frames.npy"
    whole = frames.read_bytes()
    frames.write_bytes(whole[:-1])
    assert index.verify() == (f"{frames}: has {len(whole) - 1} bytes, expected {len(whole)}",)
    with pytest.raises(DataError, match=r"frames\.npy: has \d+ bytes, expected \d+"):
        VideoIndex.open(index.folder)
    frames.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert index.verify() == (f"{frames}: does not match its hash",)
    frames.unlink()
    assert index.verify() == (f"{frames}: is missing",)


def test_tables_that_contradict_each_other_are_told(index: VideoIndex) -> None:
    """Every hash is right, but the manifest counts a segment that holds the same videos again."""
    manifest = index.source.manifest
    first = Segment.open(index.folder, manifest, manifest.segments[0]).video(0)
    record = write_segment(index.folder, [first])
    replace(manifest, segments=(*manifest.segments, record)).write(index.folder)
    said = index.verify()
    assert ["a video is listed twice" in one for one in said] == [True, False]
    assert "a key is listed twice" in said[1]


def test_videos_of_later_versions_may_have_more_fields(index: VideoIndex) -> None:
    before = index.search(QUERY)
    videos = json.loads((index.folder / "segments" / index.source.segments[0] / "videos.json").read_text())
    content = json.dumps([video | {"later": {"a": 1}} for video in videos]).encode()
    replace_in_segment(index.folder, 0, {"videos.json": content})
    assert index.verify() == ()
    assert found_in(index.folder) == before


# Several processes.


def test_one_writer_at_a_time_and_readers_all_the_while(index: VideoIndex, tmp_path: Path) -> None:
    """A reader sees the old state until it looks again; what it holds stays whole while segments are written anew."""
    before = index.search(QUERY, 8)
    stop, wrong, seen = threading.Event(), [], set()

    def read() -> None:
        try:
            while not stop.is_set():
                with VideoIndex.open(index.folder) as other:
                    seen.add(len(other))
                    assert len(other.search(QUERY, 50).hits) == len(other)
        except BaseException as error:
            wrong.append(error)

    reader = threading.Thread(target=read)
    with VideoIndex.open(index.folder) as writer:
        reader.start()
        for video, features in some_videos([5] * 20, seed=100).items():
            writer.add(write_store(tmp_path / "more", {f"more-{video}": features}))
        writer.remove([video for video in writer.video_ids if video.startswith("more")][:15])
    stop.set()
    reader.join()
    assert wrong == []
    assert len(seen) > 1
    assert index.search(QUERY, 8) == before
    assert index.refresh()
    assert not index.refresh()
    assert len(index) == 13


def test_a_second_writer_is_refused(index: VideoIndex) -> None:
    with opened_for_writing(index.folder), pytest.raises(DataError, match="another process is writing"):
        index.remove(["v000.mp4"])
    index.remove(["v000.mp4"])


def test_searching_writes_nothing(index: VideoIndex) -> None:
    """A read-only folder will do, whoever the reader is."""

    def state() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in [index.folder, *index.folder.rglob("*")]}

    before = state()
    with VideoIndex.open(index.folder) as other:
        other.search_many([QUERY, "a circle"], 3)
        other.info()
        other.verify()
    assert state() == before


@contextmanager
def read_only(index: VideoIndex) -> Iterator[VideoIndex]:
    """The same index where it cannot be written: rights do not bind the superuser, who is nobody for a while."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(index.folder, Path(folder) / "index"))
        Path(folder).chmod(0o755)
        folders = [copy, *(p for p in copy.rglob("*") if p.is_dir())]
        for path in [*folders, *(p for p in copy.rglob("*") if p.is_file())]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        if user == 0:
            os.seteuid(65534)
        try:
            with VideoIndex.open(copy) as found:
                yield found
        finally:
            if user == 0:
                os.seteuid(0)
            for path in folders:
                path.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of POSIX")
def test_a_read_only_index_can_be_searched_and_says_that_it_cannot_be_written(index: VideoIndex) -> None:
    with read_only(index) as other:
        assert other.search(QUERY) == index.search(QUERY)
        assert other.verify() == ()
        with pytest.raises(DataError, match="cannot be written"):
            other.remove(["v000.mp4"])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of POSIX")
@pytest.mark.parametrize("built", [False, True])
def test_a_read_only_index_is_searched_by_faiss_too(
    index: VideoIndex, built: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is missing is built in memory, which is said once."""
    pytest.importorskip("faiss")
    if built:
        found_in(index.folder, backend="faiss")
    with read_only(index) as other, VideoIndex.open(other.folder, backend="faiss") as found:
        assert found.search(QUERY).hits == index.search(QUERY).hits
        assert found.search(QUERY).backend == "faiss"
        said = [one for one in caplog.messages if "built in memory" in one]
        assert len(said) == (0 if built else 1)
        assert (other.folder / "backends").exists() is built


def test_many_videos_are_searched_by_faiss_where_it_is_installed(
    index: VideoIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    assert index.search(QUERY).backend == "exact"
    monkeypatch.setattr(backends, "EXACT_UP_TO", 7)
    assert found_in(index.folder).backend == "faiss"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a limit of a process of its own")
def test_a_full_disk_leaves_the_old_index(index: VideoIndex, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before, store = contents(index), write_store(tmp_path / "more", {"long.mp4": walk(200, 5)})
    index.model  # noqa: B018  loaded here: the child only writes
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            signal.alarm(60)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            try:
                index.add(store)
            except DataError as error:
                os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "the disk is full" in pipe.read()
    assert index.verify() == ()
    index.add(store)
    assert len(index) == 9
    index.remove(["long.mp4"])
    assert {**contents(index)["about"], "next_key": 0} == {**before["about"], "next_key": 0}
