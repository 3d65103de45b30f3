"""Clips of films: where they start, what they show and sound like, and that they appear whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from commands import explained
from video_files import cut, move_stamps, plain, write_film, write_video

from prvr.cli import main
from prvr.data import DataError
from prvr.errors import InputError
from prvr_search.films import VideoClip, VideoError, clip_name, open_video, write_clip
from prvr_search.films.clips import CLIP
from prvr_search.films.toy_videos import write_mp4

START, END = 5.35, 8.0


FILMS: dict[str, dict[str, Any]] = {
    "plain.mp4": {"options": {"preset": "ultrafast", "g": "20"}},
    "reordered.mkv": {"options": {"g": "20", "bf": "2"}},
    "free.webm": {"codec": "libvpx", "sound": "libopus", "options": {"g": "20", "deadline": "realtime"}},
    "broadcast.ts": {},
    "old.avi": {"codec": "mpeg4", "sound": "libmp3lame", "options": {"g": "20", "qmin": "1", "qmax": "1"}},
}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for name, parts in FILMS.items():
        write_film(folder / name, **parts)
    return folder


def shown(path: Path) -> list[float]:
    """The time in the film of each frame of a clip, read from its grey; a tenth of a second apart."""
    with open_video(path) as video:
        return [(float(frame.pixels.mean()) - 20) / 20 for frame in video.sample(10.0)]


def heard(path: Path, at: float) -> float:
    """The second of the film that sounds at a time of a clip, read from its pitch."""
    with open_video(path) as video:
        frames = list(video.sound(at, at + 0.3))
    wave = np.concatenate([frame.to_ndarray().mean(0) for _, frame in frames])
    pitch = np.abs(np.fft.rfft(wave)).argmax() * frames[0][1].sample_rate / len(wave)
    return round((pitch - 200) / 100)


def check(clip: VideoClip) -> None:
    """Pictures and sound of a clip are those of the film from where the clip says that it starts."""
    times = shown(clip.path)
    expected = clip.start + np.arange(len(times)) / 10
    np.testing.assert_allclose(times, expected, atol=0.16)  # half a frame, and what is lost of greys
    assert len(times) / 10 == pytest.approx(clip.end - clip.start, abs=0.21)
    assert clip.sound
    for at in (0.2, 1.2, 2.2):
        middle = clip.start + at + 0.15
        if 0.25 < middle % 1 < 0.75:  # one pitch sounds all the while
            assert heard(clip.path, at) == int(middle)


@pytest.mark.parametrize(
    ("film", "ending"), [("plain.mp4", ".mov"), ("reordered.mkv", ".mp4"), ("broadcast.ts", ".mkv")]
)
def test_a_clip_is_copied_from_the_key_frame_before(films: Path, film: str, ending: str, tmp_path: Path) -> None:
    clip = write_clip(films / film, START, END, tmp_path / f"a{ending}", exact=False)
    assert clip.copied
    assert clip.start == pytest.approx(4.0, abs=0.03)  # MPEG-TS begins with the sound, a little before the picture
    assert END <= clip.end <= END + 0.5  # frames that others need come along
    check(clip)


def test_a_clip_of_the_last_frames_is_copied(tmp_path: Path) -> None:
    """The decoder holds back more frames than follow the last key frame."""
    film = write_film(tmp_path / "film.mkv", options={"g": "96", "sc_threshold": "0", "bf": "2"})
    clip = write_clip(film, 9.65, 10.0, tmp_path / "a.mkv")
    assert (clip.copied, clip.start) == (True, pytest.approx(9.6, abs=0.03))
    np.testing.assert_allclose(shown(clip.path), [9.6, 9.7, 9.8, 9.9], atol=0.06)


@pytest.mark.parametrize("film", FILMS)
def test_an_exact_clip_starts_exactly(films: Path, film: str, tmp_path: Path) -> None:
    clip = write_clip(films / film, START, END, tmp_path / "a.mp4", exact=True)
    assert (clip.start, clip.end, clip.copied) == (START, END, False)
    check(clip)


@pytest.mark.parametrize(
    ("film", "ending", "copied"),
    [("free.webm", ".webm", True), ("plain.mp4", ".webm", False), ("old.avi", ".mkv", True)],
)
def test_what_a_format_does_not_take_is_encoded(
    films: Path, film: str, ending: str, copied: bool, tmp_path: Path
) -> None:
    clip = write_clip(films / film, START, END, tmp_path / f"a{ending}", exact=False)
    assert clip.copied == copied
    assert clip.start == START or copied
    assert clip.start <= START
    check(clip)


@pytest.mark.parametrize(("start", "copied"), [(4.9, True), (5.2, False)])
def test_a_clip_starts_at_most_a_second_early(films: Path, start: float, copied: bool, tmp_path: Path) -> None:
    clip = write_clip(films / "plain.mp4", start, END, tmp_path / clip_name("plain.mp4", start, END))
    assert (clip.copied, clip.start) == (copied, 4.0 if copied else start)
    check(clip)


def test_a_clip_shows_frames_whose_time_stamps_are_wrong(films: Path, tmp_path: Path) -> None:
    damaged = move_stamps(films / "plain.mp4", tmp_path / "damaged.mkv", (70, 71))
    clip = write_clip(damaged, 6.0, END, tmp_path / "a.mkv")
    times = shown(clip.path)
    assert (clip.copied, clip.end, len(times)) == (False, END, pytest.approx(20, abs=1))
    np.testing.assert_allclose(times, 6.0 + np.arange(len(times)) / 10, atol=0.16)


def test_a_silent_and_turned_film_stays_so(tmp_path: Path) -> None:
    film = write_video(tmp_path / "film.mp4", plain([90] * 40, 48, 64), turned=(90, False, False))
    for exact in (False, True):
        clip = write_clip(film, 1.0, 2.0, tmp_path / "a.mp4", exact=exact, force=True)
        assert not clip.sound
        with open_video(clip.path) as video:
            assert video.info.comment == CLIP
            shape = next(video.sample(1.0)).pixels.shape
        assert shape == (64, 48, 3)


def test_an_encoded_clip_has_the_colours_of_the_film(tmp_path: Path) -> None:
    """Players take what does not say its colours for BT.709 from 720 rows on."""
    film, colour = tmp_path / "film.mp4", (200, 40, 60)
    write_mp4(film, np.full((4, 180, 80, 3), colour, np.uint8))
    with open_video(write_clip(film, 0.0, 2.0, tmp_path / "a.mp4", exact=True).path) as video:
        assert next(video.sample(2.0)).pixels.mean((0, 1)) == pytest.approx(colour, abs=5)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process grow to so many bytes at most, as on a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_nothing_is_overwritten_or_half_written(films: Path, tmp_path: Path) -> None:
    film, target = films / "plain.mp4", tmp_path / "new" / "a.mp4"
    write_clip(film, 1.0, 2.0, target)
    before = target.read_bytes()
    with pytest.raises(DataError, match="the video itself"):
        write_clip(film, 3.0, 4.0, film, force=True)
    broken = cut(film, tmp_path / "broken.mp4", 0.3)
    with pytest.raises(VideoError, match="truncated or broken"):
        write_clip(broken, 3.0, 4.0, target, force=True)
    for exact in (False, True):
        with largest_file(1000), pytest.raises(DataError, match="cannot be written"):
            write_clip(film, 3.0, 4.0, target, exact=exact, force=True)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["a.mp4"]


def test_what_is_no_clip_is_refused(films: Path, tmp_path: Path) -> None:
    for start, end, name, error, said in (
        (2.0, 2.0, "a.mp4", InputError, "an end after it"),
        (1.0, 2.0, "a.gif", InputError, r"ends in \.mp4"),
        (11.0, 12.0, "a.mp4", VideoError, "lasts 10"),
    ):
        with pytest.raises(error, match=said):
            write_clip(films / "plain.mp4", start, end, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_names_fit_a_file_system() -> None:
    assert clip_name("x" * 251 + ".mp4", 0.0, 1.0) == "x" * 180 + " 0m00s-0m01s.mp4"


def test_the_command_says_where_the_clip_starts(
    films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    film = str(films / "plain.mp4")
    assert main(["clip", film, "0:05.35-0:08", "--no-exact"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("plain 0m05.35s-0m08s.mp4: written, 0:04.00 to 0:08.")
    assert "copied; starts at the key frame 1.35 s before 0:05.35 (use --exact to start at 0:05.35)" in out
    for name, options in (("b.mkv", ["--exact"]), ("c.mp4", [])):
        assert main(["clip", film, "5.35-8", "--output", name, *options]) == 0
        assert capsys.readouterr().out == f"{name}: written, 0:05.35 to 0:08.00, encoded\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.mkv", "c.mp4", "plain 0m05.35s-0m08s.mp4"]
    assert "already exists" in explained(["clip", film, "1-2", "--output", "b.mkv"], capsys)
    assert main(["clip", film, "1-2", "--output", "b.mkv", "--force"]) == 0
    for text in ("5", "8-5", "1:75-2:00"):
        assert "expected" in explained(["clip", film, text, "--output", "never.mp4"], capsys)


def moving(count: int) -> list[np.ndarray]:
    """Frames that differ from each other by 40 grey levels or more, and are predicted well."""
    large = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    return [np.roll(large, 5 * number, 1) for number in range(count)]


def test_pictures_after_a_jump_are_those_of_a_decoding_from_the_start(tmp_path: Path) -> None:
    """Of a film of which not all that are called key frames can be decoded alone."""
    parameters = {"x264-params": "intra-refresh=1:keyint=40:bframes=0:ref=1:scenecut=0"}
    film = write_video(tmp_path / "refreshed.mp4", moving(180), encoder=parameters)
    with open_video(film) as video:
        everything = [*video.excerpt(0, 60, most=1000, rate=1000)]
        for start in np.arange(0.13, 17, 2.3).tolist():
            frames = [*video.excerpt(start, start + 0.45, most=1000, rate=1000)]
            place = int(np.searchsorted([one.time for one in everything], start)) - 1
            assert frames[0].time == start
            assert len(frames) == 5
            for frame, expected in zip(frames, everything[place:], strict=False):
                np.testing.assert_array_equal(frame.pixels, expected.pixels)
    start = 15.63
    for exact in (True, False, None):
        clip = write_clip(film, start, start + 1, tmp_path / "clip.mp4", exact=exact, force=True)
        assert clip.start <= start
        with open_video(clip.path) as video:
            for frame in video.sample(10.0):
                shown = [one for one in everything if one.time <= clip.start + frame.time + 1e-6][-1]
                assert np.abs(frame.pixels.astype(int) - shown.pixels).mean() < 20


def test_a_jump_does_not_read_what_comes_before(tmp_path: Path) -> None:
    class Counted(FileIO):
        total = 0

        def read(self, size: int = -1) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
            content = super().read(size)
            self.total += len(content)
            return content

    noise = np.random.default_rng(0).integers(0, 256, (100, 120, 160, 3), dtype=np.uint8)
    film = write_video(tmp_path / "noise.mp4", noise, encoder={"g": "10", "crf": "15"})
    with Counted(film) as file, open_video(cast(BinaryIO, file)) as video:
        before = file.total
        (frame,) = islice(video.excerpt(8.55, 9.0, most=1000), 1)
        assert frame.time == 8.55
        assert file.total - before < film.stat().st_size / 3
