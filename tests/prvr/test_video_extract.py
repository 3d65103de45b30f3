"""Extraction: features of a file are those of its frames; what is broken is told, what is unchanged is left."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_films import INTACT, damaged_films
from video_files import LONG, READABLE, UNREADABLE, MeanColour, plain, write_video

from prvr.data import DataError, open_corpus
from prvr.data.hashes import hash_file
from prvr.data.synthetic.mp4 import write_mp4
from prvr.data.synthetic.render import render
from prvr.data.synthetic.toy_corpus import read_toy_scenes
from prvr.data.synthetic.world import FPS
from prvr.reading import printable
from prvr.search.thumbnails import thumbnail
from prvr.video import Limits, VideoError, VideoStore, extract, forget_videos, open_encoder, open_video
from prvr.video.extraction import gather
from prvr.video.store import entry_path, opened_for_writing

pytest.importorskip("av")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Three good videos."""
    folder = tmp_path / "videos"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(("a.mp4", "b.mp4", "sub/c.mp4")):
        write_video(folder / name, plain(range(20 + number, 220, 10)))
    return folder


@pytest.fixture
def store(videos: Path, tmp_path: Path) -> Path:
    """Where they were extracted to."""
    extract([videos], MeanColour(), tmp_path / "store")
    return tmp_path / "store"


def statuses(report: Any) -> dict[str, str]:
    return {one.id: one.status for one in report.outcomes}


def contents(store: Path) -> dict[str, bytes]:
    """All files of a store, the lock left out."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_a_folder_of_hostile_files_gives_all_that_can_be_read(hostile: Path, tmp_path: Path) -> None:
    report = extract([hostile], MeanColour(), tmp_path / "store")
    assert {one.id for one in (*report.extracted, *report.reused)} == set(READABLE)
    assert {one.id for one in report.failed} == set(UNREADABLE)
    for one in report.failed:
        assert UNREADABLE[one.id] in one.reason
        assert one.remedy.endswith(".")
    store = VideoStore(tmp_path / "store")
    store.verify()
    assert set(store.video_ids) == set(READABLE)
    for name, count in READABLE.items():
        entry, features = store.entries[name], store.read(name)
        assert len(features) == entry.frames == (count or entry.frames)
        assert bool(entry.warnings) == (name == "truncated.mp4")
    assert "truncated" in store.entries["truncated.mp4"].warnings[-1]
    assert store.entries["tall-4k.mp4"].height == 3840
    assert store.duration("variable.mp4") == pytest.approx(2.5, abs=0.2)
    assert len(LONG.encode()) == 255
    extract([hostile], MeanColour(), tmp_path / "again", batch_size=3)
    assert contents(tmp_path / "again") == contents(tmp_path / "store")  # the damaged ones too


def test_damaged_films_neither_stop_nor_change_the_others(tmp_path: Path) -> None:
    encoder = open_encoder("toy")
    films = tmp_path / "films"
    damaged = damaged_films(films, seed=0, count=60)
    extract([films / name for name in INTACT], encoder, tmp_path / "expected")
    report = extract([films], encoder, tmp_path / "store")
    assert set(statuses(report)) == {*INTACT, *(path.name for path in damaged)}
    for one in report.failed:
        assert one.reason
        assert one.remedy.endswith(".")
    found, expected = (VideoStore(tmp_path / name) for name in ("store", "expected"))
    found.verify()
    for name in INTACT:
        np.testing.assert_array_equal(found.read(name), expected.read(name))
    assert 20 < len(report.failed) < 60 > len(report.extracted) > 20
    for path in damaged[:20]:  # the pages of results show pictures of them
        with suppress(VideoError):
            thumbnail(path, 0.5)


def test_a_picture_that_stands_for_a_day_is_encoded_once(tmp_path: Path) -> None:
    class Counts(MeanColour):
        prepared = encoded = 0

        def prepare(self, pixels: np.ndarray) -> np.ndarray:
            self.prepared += 1
            return super().prepare(pixels)

        def encode(self, frames: np.ndarray) -> np.ndarray:
            self.encoded += len(frames)
            return super().encode(frames)

    encoder = Counts()
    write_video(tmp_path / "day.mp4", plain([20, 90]), times=[0, 86_390_000])
    report = extract([tmp_path / "day.mp4"], encoder, tmp_path / "store")
    assert statuses(report) == {"day.mp4": "extracted"}
    features = VideoStore(tmp_path / "store").read("day.mp4")
    assert len(features) == 2 * 86_390
    assert np.ptp(features[:, 0]) == 0
    assert (encoder.prepared, encoder.encoded) == (1, 1)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_features_of_a_file_are_those_of_its_frames(videos: Path, tmp_path: Path, batch_size: int) -> None:
    encoder = open_encoder("toy")
    extract([videos], encoder, tmp_path / "store", rate=5.0, batch_size=batch_size)
    store = VideoStore(tmp_path / "store")
    with open_video(videos / "a.mp4") as video:
        prepared = np.stack([encoder.prepare(frame.pixels) for frame in video.sample(5.0)])
    expected = encoder.finish(encoder.encode(prepared))
    np.testing.assert_allclose(store.read("a.mp4"), expected, rtol=1e-4, atol=1e-5)
    assert (store.rate, store.dim, store.joint_dim, store.encoder) == (5.0, 512, 256, encoder.identity)
    entry = store.entries["a.mp4"]
    assert (entry.frames, entry.duration, entry.codec) == (10, 2.0, "h264")
    assert Path(entry.path) == videos / "a.mp4"


def test_files_of_the_toy_world_have_the_features_of_its_corpora(tmp_path: Path, toy_root: Path) -> None:
    """What separates them is what H.264 and the conversion to red, green and blue lose."""
    corpus = open_corpus(toy_root, "toy-tiny")
    some = read_toy_scenes(corpus)["test"].videos[:2]
    (tmp_path / "videos").mkdir()
    for video in some:
        write_mp4(tmp_path / "videos" / f"{video.id}.mp4", render(video), fps=FPS)
    encoder = open_encoder("toy")
    extract([tmp_path / "videos"], encoder, tmp_path / "store", rate=FPS)
    store = VideoStore(tmp_path / "store")
    with corpus.open_features() as stored:
        for video in some:
            expected, found = stored.read(video.id), store.read(store.find(video.id))
            assert found.shape == expected.shape == (video.frame_count, 512)
            assert store.duration(store.find(video.id)) == video.frame_count / FPS
            cosine = (expected[:, :256] * found[:, :256]).sum(1)
            assert cosine.min() > 0.99
            assert cosine.mean() > 0.999
            assert np.linalg.norm(found - expected, axis=1).mean() < 0.1  # 0.06 to 0.07 here
            # As far from every other frame as the frames are from each other: nothing was mixed up.
            own = np.linalg.norm(found[:, None, :256] - expected[None, :, :256], axis=2)
            assert (own.argmin(1) == np.arange(len(own))).mean() > 0.7


def test_what_has_not_changed_is_not_even_opened(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = extract([videos], MeanColour(), tmp_path / "store")
    assert statuses(first) == dict.fromkeys(("a.mp4", "b.mp4", "sub/c.mp4"), "extracted")
    before = contents(tmp_path / "store")
    monkeypatch.setattr("prvr.video.extraction.open_video", lambda *a: pytest.fail("it was opened"))
    again = extract([videos], MeanColour(), tmp_path / "store")
    assert statuses(again) == dict.fromkeys(("a.mp4", "b.mp4", "sub/c.mp4"), "unchanged")
    assert contents(tmp_path / "store") == before


def test_what_has_changed_is_extracted_again(videos: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(videos / "a.mp4", plain([200] * 30))
    os.utime(videos / "b.mp4", ns=(10**18, 10**18))  # touched, with the same content
    shutil.copy(videos / "a.mp4", videos / "d.mp4")
    report = extract([videos], MeanColour(), store)
    expected = {"a.mp4": "extracted", "b.mp4": "unchanged", "d.mp4": "reused", "sub/c.mp4": "unchanged"}
    assert statuses(report) == expected
    found = VideoStore(store)
    assert np.array_equal(found.read("a.mp4"), found.read("d.mp4"))
    assert found.read("a.mp4")[0, 0] == pytest.approx(200, abs=2)
    assert found.entries["b.mp4"].mtime_ns == 10**18
    monkeypatch.setattr("prvr.video.extraction.open_video", lambda *a: pytest.fail("it was opened"))
    assert set(statuses(extract([videos], MeanColour(), store)).values()) == {"unchanged"}


def test_a_change_that_keeps_size_and_time_is_found_by_a_thorough_look(videos: Path, store: Path) -> None:
    path = videos / "a.mp4"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    assert statuses(extract([videos], MeanColour(), store))["a.mp4"] == "unchanged"
    report = extract([videos], MeanColour(), store, thorough=True)
    assert statuses(report) == {"a.mp4": "extracted", "b.mp4": "unchanged", "sub/c.mp4": "unchanged"}


@pytest.mark.parametrize(
    "names",
    [
        {"a.mp4": "z.mp4", "sub/c.mp4": "c.mp4"},
        {"b.mp4": "c.mp4", "a.mp4": "b.mp4"},  # the new content of b is there before c, which needs the old one
        {"sub/c.mp4": "0.mp4", "a.mp4": "sub/c.mp4", "b.mp4": "a.mp4"},
        {"a.mp4": "swap", "b.mp4": "a.mp4", "swap": "b.mp4"},
    ],
    ids=["new names", "upwards", "downwards", "swapped"],
)
def test_a_file_that_gets_another_name_is_not_encoded_again(
    videos: Path, tmp_path: Path, names: dict[str, str]
) -> None:
    for number, name in enumerate(("a.mp4", "b.mp4", "sub/c.mp4")):
        write_video(videos / name, plain([30 + 60 * number] * 20))
    extract([videos], MeanColour(), tmp_path / "store")
    before = VideoStore(tmp_path / "store")
    known = {before.entries[video].sha256: before.read(video) for video in before.video_ids}
    for old, new in names.items():
        (videos / old).rename(videos / new)

    class Encodes(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            pytest.fail("it was encoded again")

    report = extract([videos], Encodes(), tmp_path / "store")
    assert {one.status for one in report.outcomes} <= {"reused", "unchanged"}
    forgotten = forget_videos(tmp_path / "store", {one.id for one in report.outcomes})
    after = VideoStore(tmp_path / "store")
    after.verify()
    assert set(after.video_ids) == {path.relative_to(videos).as_posix() for path in videos.rglob("*.mp4")}
    assert set(forgotten) == set(before.video_ids) - set(after.video_ids)
    for video in after.video_ids:
        assert hash_file(videos / video) == after.entries[video].sha256
        np.testing.assert_array_equal(after.read(video), known[after.entries[video].sha256])


def test_forgetting_deletes_features_of_this_store_alone(videos: Path, tmp_path: Path) -> None:
    extract([videos], MeanColour(), tmp_path / "store")
    folder = tmp_path / "store" / "videos"
    elsewhere = tmp_path / "kept.safetensors"
    target = entry_path(tmp_path / "store", "a.mp4")
    target.rename(elsewhere)
    target.symlink_to(elsewhere)
    (folder / "notes.txt").write_text("mine")
    (folder / "damaged.safetensors").write_bytes(b"x" * 100)
    assert forget_videos(tmp_path / "store", {"sub/c.mp4"}) == ("b.mp4",)
    assert elsewhere.exists()
    assert {path.name for path in folder.iterdir()} == {
        target.name,
        "notes.txt",
        "damaged.safetensors",
        entry_path(tmp_path / "store", "sub/c.mp4").name,
    }


def test_a_folder_by_another_way_or_moved_is_not_extracted_again(videos: Path, store: Path, tmp_path: Path) -> None:
    report = extract([videos / "sub" / ".."], MeanColour(), store)
    assert set(statuses(report).values()) == {"unchanged"}
    videos.rename(tmp_path / "moved")
    report = extract([tmp_path / "moved"], MeanColour(), store)
    assert set(statuses(report).values()) == {"unchanged"}
    assert Path(VideoStore(store).entries["a.mp4"].path) == tmp_path / "moved" / "a.mp4"


def test_what_breaks_later_keeps_its_features_and_is_told(videos: Path, store: Path) -> None:
    before = VideoStore(store).read("a.mp4")
    (videos / "a.mp4").write_bytes(b"")
    report = extract([videos], MeanColour(), store)
    assert [one.id for one in report.failed] == ["a.mp4"]
    assert np.array_equal(VideoStore(store).read("a.mp4"), before)


def test_a_damaged_file_of_the_store_is_made_again(videos: Path, store: Path) -> None:
    before = contents(store)
    path = entry_path(store, "a.mp4")
    path.write_bytes(path.read_bytes()[:100])
    report = extract([videos], MeanColour(), store)
    assert statuses(report) == {"a.mp4": "extracted", "b.mp4": "unchanged", "sub/c.mp4": "unchanged"}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # in the features: only a thorough look reads them
    path.write_bytes(content)
    assert statuses(extract([videos], MeanColour(), store, thorough=True))["a.mp4"] == "extracted"
    assert contents(store) == before


@pytest.mark.parametrize(
    ("encoder", "rate", "said"),
    [
        (MeanColour("1" * 64), 2.0, "weights 111111111111"),
        (MeanColour(preprocessing="doubled"), 2.0, "doubled"),
        (MeanColour(), 3.0, "at 2 frames per second; expected .* at 3"),
    ],
)
def test_another_encoder_or_rate_is_refused(
    videos: Path, store: Path, encoder: MeanColour, rate: float, said: str
) -> None:
    before = contents(store)
    with pytest.raises(DataError, match=rf"{said}.*choose another store"):
        extract([videos], encoder, store, rate=rate)
    assert contents(store) == before


def test_a_store_is_written_by_one_process(videos: Path, store: Path) -> None:
    writing, refused = opened_for_writing(store, VideoStore(store).header), "another process is writing this store"
    with writing, pytest.raises(DataError, match=refused):
        extract([videos], MeanColour(), store)
    extract([videos], MeanColour(), store)


def test_a_folder_of_something_else_is_refused(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains other files \(.*Choose a new or empty folder"):
        extract([videos], MeanColour(), videos)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        extract([videos], MeanColour(), tmp_path / "file")


def test_ids_are_places_below_the_folder_and_must_differ(videos: Path, tmp_path: Path) -> None:
    assert [one.id for one in gather([videos])] == ["a.mp4", "b.mp4", "sub/c.mp4"]
    assert [one.id for one in gather([videos / "sub" / "c.mp4", videos / "a.mp4"])] == ["c.mp4", "a.mp4"]
    assert len(gather([videos, videos])) == 3
    other = tmp_path / "other"
    shutil.copytree(videos, other)
    with pytest.raises(DataError, match=r"would both be called 'a.mp4'.*Pass a folder that contains both"):
        gather([videos, other])
    extract([videos], MeanColour(), tmp_path / "store")
    report = extract([other], MeanColour(), tmp_path / "store")
    assert len(report.failed) == 3
    assert "has its name 'a.mp4' in the store, and is still there" in report.failed[0].reason


def test_links_are_not_followed_in_circles(videos: Path) -> None:
    try:
        (videos / "sub" / "up").symlink_to(videos, target_is_directory=True)
        (videos / "link.mp4").symlink_to(videos / "a.mp4")
    except OSError:
        pytest.skip("this user may make no links")
    assert [one.id for one in gather([videos])] == ["a.mp4", "b.mp4", "link.mp4", "sub/c.mp4"]


def test_a_file_that_grows_while_it_is_read_is_left_for_the_next_time(videos: Path, tmp_path: Path) -> None:
    class Appends(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            with (videos / "a.mp4").open("ab") as file:
                file.write(b"more")
            return super().encode(frames)

    report = extract([videos / "a.mp4"], Appends(), tmp_path / "store")
    assert "changed while it was read" in report.failed[0].reason
    assert VideoStore(tmp_path / "store").video_ids == ()


def test_an_encoder_that_fails_stops_the_work_and_leaves_what_was_done(videos: Path, tmp_path: Path) -> None:
    class Fails(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            if frames.mean() > 230:
                raise RuntimeError("out of memory")
            return super().encode(frames)

    class Nothing(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            return np.full((len(frames), 3), np.nan, np.float32)

    write_video(videos / "b.mp4", plain([240] * 300))  # more than is decoded ahead
    with pytest.raises(RuntimeError, match="out of memory"):
        extract([videos], Fails(), tmp_path / "store", batch_size=4, rate=10.0)
    assert VideoStore(tmp_path / "store").video_ids == ("a.mp4",)
    extract([videos], MeanColour(), tmp_path / "store", rate=10.0)
    VideoStore(tmp_path / "store").verify()
    report = extract([videos], Nothing(), tmp_path / "other")
    assert {one.reason for one in report.failed} == {"the encoder gives NaN or infinity for it"}


def test_a_full_disk_is_told_and_costs_nothing_that_was_done(videos: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    extract([videos / "a.mp4"], MeanColour(), tmp_path / "store")
    before = contents(tmp_path / "store")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        with pytest.raises(DataError, match=r"cannot be written.*intact.*run the command again"):
            extract([videos], MeanColour(), tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path / "store") == before
    assert len(extract([videos], MeanColour(), tmp_path / "store").extracted) == 2


def test_progress_grows_to_the_end(videos: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float, float]] = []
    extract([videos], MeanColour(), tmp_path / "store", batch_size=1, progress=lambda *now: seen.append(now))
    shares = [done for _, done, _ in seen]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert seen[-1][1] == seen[-1][2] == sum(path.stat().st_size for path in videos.rglob("*.mp4"))
    assert {name for name, _, _ in seen} == {"a.mp4", "b.mp4", "sub/c.mp4"}
    assert len(set(shares)) > 6


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.0}, {"rate": 1e9}, {"rate": float("inf")}, {"batch_size": 0}, {"batch_size": 10**9}]
)
def test_numbers_that_are_none_are_refused(videos: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected a (positive )?number"):
        extract([videos], MeanColour(), tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()


def test_limits_are_told_per_video(videos: Path, tmp_path: Path) -> None:
    write_video(videos / "b.mp4", plain([90] * 100))
    report = extract([videos], MeanColour(), tmp_path / "store", limits=Limits(seconds=5.0))
    assert statuses(report) == {"a.mp4": "extracted", "b.mp4": "failed", "sub/c.mp4": "extracted"}
    assert "10 s long, at most 5 s" in report.failed[0].reason


def test_names_are_shown_without_what_a_terminal_obeys() -> None:
    assert printable("a\x1b[31m\n\udce9\u202eb é") == "a\\x1b[31m\\n\\udce9\\u202eb é"
