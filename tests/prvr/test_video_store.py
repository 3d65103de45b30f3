"""The store on disk: what is read is what was written, and no damage goes unseen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prvr.data import DataError, FeatureReader
from prvr.video import Identity, StoreHeader, VideoEntry, VideoStore
from prvr.video.store import FOLDER, HEADER, entry_path, read_entry, read_features, write_entry, write_header

HEAD = StoreHeader(Identity("mean", "0" * 64, "none"), 2.0, 5, 3)


def make_entry(video_id: str) -> VideoEntry:
    return VideoEntry(
        video_id, f"/videos/{video_id}", 100, 10**18, "ab" * 32, 2.0, 4, 64, 48, "h264", warnings=("something",)
    )


def features(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(4, 5)).astype(np.float32)


def make_store(folder: Path, *names: str) -> Path:
    (folder / FOLDER).mkdir(parents=True)
    write_header(folder, HEAD)
    for number, name in enumerate(names):
        write_entry(folder, HEAD, make_entry(name), features(number))
    return folder


def test_a_store_is_a_reader_of_features(tmp_path: Path) -> None:
    with VideoStore(make_store(tmp_path / "s", "b.mp4", "a/x.mp4")) as store:
        assert isinstance(store, FeatureReader)
        assert store.video_ids == ("a/x.mp4", "b.mp4")
        assert (store.dim, store.joint_dim, store.rate, store.encoder) == (5, 3, 2.0, HEAD.encoder)
        assert store.duration("b.mp4") == 2.0
        assert store.entries["b.mp4"] == make_entry("b.mp4")
        assert np.array_equal(store.read("a/x.mp4"), features(1))
        assert "b.mp4" in store
        assert "c.mp4" not in store
        with pytest.raises(DataError, match=r"video 'c.mp4' has no features \(2 videos are available\)"):
            store.read("c.mp4")
        store.verify()


@given(name=st.text(min_size=1, max_size=300))
def test_any_name_has_a_file_name_of_its_own_that_any_system_takes(name: str) -> None:
    path = entry_path(Path("s"), name)
    assert path.name.isascii()
    assert len(path.name) < 80
    assert path.name.replace("-", "").replace(".", "").isalnum()
    assert path.parent == Path("s", FOLDER)
    assert entry_path(Path("s"), name + "x") != path


def test_names_that_differ_in_case_are_two(tmp_path: Path) -> None:
    store = VideoStore(make_store(tmp_path / "s", "A.mp4", "a.mp4", "ä/b.mp4", "ä b.mp4"))
    assert len(store.video_ids) == 4
    assert len({entry_path(tmp_path, name).name.lower() for name in store.video_ids}) == 4


def test_bytes_that_are_no_text_make_a_name(tmp_path: Path) -> None:
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    assert VideoStore(make_store(tmp_path / "s", name)).video_ids == (name,)


@given(data=st.data())
def test_every_byte_of_a_file_is_watched(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = make_store(tmp_path_factory.mktemp("store") / "s", "a.mp4")
    path = entry_path(folder, "a.mp4")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans(), label="cut"):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        VideoStore(folder).verify()
    except DataError as error:
        assert "damaged" in str(error)  # noqa: PT017
    else:  # JSON has bytes that mean nothing: the content is the same still
        entry, found = read_features(path, HEAD, check=True)
        assert entry == make_entry("a.mp4")
        assert np.array_equal(found, features(0))


def test_verify_names_every_damaged_video(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "s", "a.mp4", "b.mp4", "c.mp4")
    for name in ("a.mp4", "c.mp4"):
        path = entry_path(folder, name)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    store = VideoStore(folder)  # heads are whole
    with pytest.raises(DataError, match=r"2 of 3 videos are damaged.*a-mp4.*c-mp4.*Delete this file"):
        store.verify()


@pytest.mark.parametrize(
    "change", [{"rate": 3.0}, {"dim": 6}, {"encoder": Identity("mean", "1" * 64, "none")}, {"joint_dim": 0}]
)
def test_a_file_of_another_store_is_refused(tmp_path: Path, change: dict) -> None:
    folder = make_store(tmp_path / "s", "a.mp4")
    with pytest.raises(DataError, match="another encoder or rate"):
        read_entry(entry_path(folder, "a.mp4"), replace(HEAD, **change))


def test_a_file_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "s", "a.mp4", "b.mp4")
    entry_path(folder, "a.mp4").replace(entry_path(folder, "b.mp4"))
    with pytest.raises(DataError, match=r"file of 'a.mp4' under another name"):
        VideoStore(folder)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no store of video features"):
        VideoStore(tmp_path)
    folder = make_store(tmp_path / "s", "a.mp4")
    for content, said in (
        ("{}", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ((folder / HEADER).read_text().replace("2.0", "3.0"), "its own hash"),
        ((folder / HEADER).read_text()[:-30], "not valid JSON"),
    ):
        (folder / HEADER).write_text(content)
        with pytest.raises(DataError, match=f"{said}.*Delete the store"):
            VideoStore(folder)


def test_a_video_is_found_by_as_much_of_its_name_as_tells_it(tmp_path: Path) -> None:
    store = VideoStore(make_store(tmp_path / "s", "day 1/beach.mp4", "day 2/beach.mp4", "day 2/hill.mkv", "hill"))
    assert store.find("day 1/beach") == "day 1/beach.mp4"
    assert store.find("hill.mkv") == "day 2/hill.mkv"
    assert store.find("hill") == "hill"
    with pytest.raises(DataError, match=r"2 videos fit 'beach', among them 'day 1/beach.mp4'"):
        store.find("beach")
    with pytest.raises(DataError, match=r"no video fits 'hil'; close: .*'hill'"):
        store.find("hil")
    with pytest.raises(DataError, match=r"no video fits '' *\. Write|no video fits ''"):
        store.find("")
