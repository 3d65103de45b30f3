"""Decoding: frames by time stamps, upright, from any file, in little memory; or one clear error."""

import socket
import sys
from contextlib import suppress
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kills import growth
from video_files import (
    READABLE,
    UNREADABLE,
    greys,
    move_stamps,
    noise,
    plain,
    png_bomb,
    write_film,
    write_video,
)

from prvr_search.films import Limits, VideoError, open_video
from prvr_search.films.picture import upright
from prvr_search.films.thumbnails import thumbnail
from prvr_search.films.timestamps import interpolate_stamps, resample

av = pytest.importorskip("av")

VALUES = list(range(20, 220, 4))  # 50 frames: 5 s


def sampled(path: Path, rate: float, **limits: Any) -> tuple[list[Any], Any]:
    with open_video(path, Limits(**limits)) as video:
        return list(video.sample(rate)), video


@given(
    gaps=st.lists(st.fractions(0, 3, max_denominator=50), min_size=1, max_size=12),
    first=st.fractions(0, 2, max_denominator=50),
    rate=st.fractions(Fraction(1, 4), 8, max_denominator=12),
)
def test_each_sample_is_what_a_plain_search_finds_on_the_screen(
    gaps: list[Fraction], first: Fraction, rate: Fraction
) -> None:
    starts = [first]
    for gap in gaps[:-1]:
        starts.append(starts[-1] + gap)
    end = starts[-1] + gaps[-1]
    items = [(start, gap, number) for number, (start, gap) in enumerate(zip(starts, gaps, strict=True))]
    middles = [(k + Fraction(1, 2)) / rate for k in range(1000) if (k + Fraction(1, 2)) / rate < end]
    middles = middles or [Fraction(1, 2) / rate]
    shown = [max([n for n, start in enumerate(starts) if start <= middle], default=0) for middle in middles]
    assert list(resample(items, rate)) == list(zip(middles, shown, strict=True))


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.ts", "libx264"),
        ("a.h264", "libx264"),
        ("a.webm", "libvpx"),
        ("a.avi", "mpeg4"),
    ],
)
def test_any_container_gives_the_frames_in_the_middle_of_each_period(tmp_path: Path, name: str, codec: str) -> None:
    """Also where it is read again, from the beginning or from elsewhere."""
    path = write_video(tmp_path / name, plain(VALUES), codec=codec)
    with open_video(path) as video:
        assert video.info.duration == (0.0 if name == "a.h264" else pytest.approx(5.0, abs=0.01))
        for _ in range(2):
            frames = list(video.sample(5.0))
            assert [frame.time for frame in frames] == pytest.approx([0.1 + 0.2 * k for k in range(25)])
            assert np.abs(np.array(greys(frames)) - VALUES[1::2]).max() <= 8  # vp8 and mpeg4 are rough
            assert video.duration == pytest.approx(5.0, abs=0.01)
            assert video.warnings == []
            assert greys([next(video.excerpt(2.0, 2.0, most=64))]) == pytest.approx([100], abs=8)


def test_a_reading_ends_the_one_before(tmp_path: Path) -> None:
    with open_video(write_video(tmp_path / "a.mp4", plain(VALUES))) as video:
        first, second = video.sample(10.0), video.sample(10.0)
        assert next(first).time == next(second).time
        with pytest.raises(RuntimeError, match="closed or read from the start"):
            list(first)
    with pytest.raises(RuntimeError, match="was closed"):
        list(second)


@given(
    gaps=st.lists(st.fractions(Fraction(1, 50), 1, max_denominator=50), min_size=12, max_size=60),
    place=st.integers(1, 10),
    wrong=st.lists(st.integers(-9, 9).filter(bool), max_size=8),
)
def test_wrong_time_stamps_lie_between_their_neighbours_and_others_stay(
    gaps: list[Fraction], place: int, wrong: list[int]
) -> None:
    stamps = [sum(gaps[:number], Fraction(0)) for number in range(len(gaps))]
    wrong = wrong[: len(gaps) - place - 1]
    after = place + len(wrong)
    damaged = [*stamps[:place], *(1000 * value for value in wrong), *stamps[after:]]
    step = (stamps[after] - stamps[place - 1]) / (len(wrong) + 1)
    expected = [stamps[place - 1] + step * number for number in range(1, len(wrong) + 1)]
    mended = list(interpolate_stamps((Fraction(stamp), number) for number, stamp in enumerate(damaged)))
    assert [number for _, number, _ in mended] == list(range(len(gaps)))
    if stamps[after] - stamps[place - 1] <= 1:
        assert [stamp for stamp, _, _ in mended] == [*stamps[:place], *expected, *stamps[after:]]
        assert sum(is_wrong for _, _, is_wrong in mended) == len(wrong)


@pytest.mark.parametrize(
    ("interval", "ahead", "is_wrong"), [("1/10", 2, True), ("1/10", "9/10", False), ("1/2", 6, True), ("1/2", 4, False)]
)
def test_a_time_stamp_is_wrong_by_a_second_and_ten_intervals(interval: str, ahead: int | str, is_wrong: bool) -> None:
    step = Fraction(interval)
    stamps = [0 * step, step, step + Fraction(ahead), 2 * step, 3 * step, 4 * step]
    mended = list(interpolate_stamps((stamp, "") for stamp in stamps))
    assert [wrong for *_, wrong in mended] == [False, False, is_wrong, False, False, False]
    assert mended[2][0] == (3 * step / 2 if is_wrong else stamps[2])


@pytest.mark.parametrize(("name", "damaged"), [("b.mp4", (10, 20, 21)), ("b.mkv", (25, 26))])
def test_time_stamps_that_jump_and_return_are_interpolated(tmp_path: Path, name: str, damaged: tuple[int, ...]) -> None:
    path = move_stamps(write_video(tmp_path / "a.mp4", plain(VALUES)), tmp_path / name, damaged)
    frames, video = sampled(path, 10.0)
    assert video.duration == pytest.approx(5.0, abs=0.01)
    assert np.abs(np.array(greys(frames)) - VALUES).max() <= 2
    assert f"{len(damaged)} wrong time stamps were interpolated" in video.warnings


@pytest.mark.parametrize(("name", "steady"), [("a.mp4", True), ("a.mkv", False), ("a.ts", True)])
def test_frames_are_the_same_where_others_are_not_decoded(tmp_path: Path, name: str, steady: bool) -> None:
    rng = np.random.default_rng(0)
    large = rng.integers(0, 255, (48, 64, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    moving = [np.roll(large, 3 * k, 1) + rng.integers(0, 9, large.shape, np.uint8) for k in range(200)]
    times = None if steady else np.cumsum(rng.integers(20, 120, 200)).tolist()
    path = write_video(tmp_path / name, moving, fps=25, times=times, preset="veryfast")
    with open_video(path) as video:
        everything = list(video.excerpt(0, 60, most=1000, rate=1000))
    assert len(everything) == 200
    frames, video = sampled(path, 2.0)
    assert len(frames) == round(2 * video.duration)
    for frame in frames:
        shown = [one for one in everything if one.time <= frame.time + 1e-9]
        assert np.array_equal(frame.pixels, (shown or everything)[-1 if shown else 0].pixels)


@pytest.mark.parametrize(("name", "start"), [("a.ts", 0.7), ("a.mkv", 90_000), ("a.webm", 5), ("a.mp4", 3600)])
def test_time_begins_where_a_player_does(tmp_path: Path, name: str, start: float) -> None:
    """A stream of television starts anywhere, and no file is as long as its last time stamp says."""
    times = [round(1000 * start) + 100 * number for number in range(50)]
    codec = "libvpx" if name == "a.webm" else "libx264"
    frames, video = sampled(write_video(tmp_path / name, plain(VALUES), times=times, codec=codec), 10.0)
    assert video.info.duration == pytest.approx(5.0, abs=0.2)
    if name != "a.ts":  # its muxer adds a delay
        assert video.info.start_time == start
    assert len(frames) >= 49
    assert np.abs(np.array(greys(frames)) - VALUES[: len(frames)]).max() <= 8
    assert video.warnings == []


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_a_picture_that_begins_after_the_sound(tmp_path: Path, name: str) -> None:
    """Until then its first frame stands for the time."""
    frames, video = sampled(write_film(tmp_path / name, late=20), 10.0)
    assert video.info.duration == pytest.approx(12.0, abs=0.1)
    assert video.duration == pytest.approx(12.0, abs=0.1)
    assert greys(frames[:21]) == pytest.approx([20] * 21, abs=2)
    assert greys(frames[60:61]) == pytest.approx([20 + 2 * 40], abs=2)


@pytest.mark.parametrize("turned", [*product((0, 90, 180, 270), (False, True), (False, True))])
def test_pictures_stand_upright(tmp_path: Path, turned: tuple[int, bool, bool]) -> None:
    degrees, mirrored, upside_down = turned
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32], picture[:24, 32:] = (250, 0, 0), (0, 0, 250)
    frames, _ = sampled(write_video(tmp_path / "a.mp4", [picture] * 3, turned=turned), 10.0)
    expected = np.rot90(picture, degrees // 90)
    expected = expected[:, ::-1] if mirrored else expected
    expected = expected[::-1] if upside_down else expected
    assert frames[1].pixels.shape == expected.shape
    assert np.abs(frames[1].pixels.astype(int) - expected).mean() < 5


def test_a_matrix_that_turns_by_a_little_is_taken_to_the_nearest_quarter() -> None:
    picture = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    for matrix, expected in (((9, 2, -2, 9), picture), ((-2, -9, 9, -2), np.rot90(picture)), (None, picture)):
        assert np.array_equal(upright(picture, matrix), expected)


def test_pixels_are_made_square_and_no_more_than_4k(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", plain([90, 90]), pixel_shape=Fraction(4, 3))
    assert sampled(path, 10.0)[0][0].pixels.shape == (48, 85, 3)
    path = write_video(tmp_path / "a.mp4", plain([90], 1440, 3840), pixel_shape=Fraction(4))
    (frame,) = sampled(path, 10.0)[0]
    height, width, _ = frame.pixels.shape
    assert 0.99 * 3840 * 2160 < height * width <= 3840 * 2160
    assert width / height == pytest.approx(4 * 3840 / 1440, rel=0.01)
    assert np.ptp(frame.pixels) <= 2


def test_more_frames_than_anybody_needs_are_not_taken(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", plain([20, 90]), times=[0, 3_600_000])
    frames, _ = sampled(path, 1.0, samples=3601)
    assert len(frames) == 3600
    assert len({id(frame.pixels) for frame in frames}) == 1  # not a copy for each second
    with pytest.raises(VideoError, match=r"more than 3,599 frames at 1 per second\. Choose a lower"):
        sampled(path, 1.0, samples=3599)


@pytest.mark.parametrize(("name", "count"), READABLE.items(), ids=[name[:20] for name in READABLE])
def test_odd_files_give_their_frames(hostile: Path, name: str, count: int | None) -> None:
    frames, video = sampled(hostile / name, 2.0)
    if count is None:
        assert 0 < len(frames) < 12
        assert [w for w in video.warnings if "truncated" in w]
        assert video.duration < 6
    else:
        assert len(frames) == count
        assert video.warnings == []


@pytest.mark.parametrize(("name", "said"), UNREADABLE.items(), ids=UNREADABLE)
def test_broken_files_give_one_clear_error(hostile: Path, name: str, said: str) -> None:
    with pytest.raises(VideoError) as caught:
        sampled(hostile / name, 2.0)
    error = caught.value
    assert said in error.reason
    assert str(error) == f"{hostile / name}: {error.reason}. {error.remedy}"


def test_what_precedes_a_mistake_in_reading_is_given(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", noise(20), options={"movflags": "frag_keyframe+empty_moov"})
    content = bytearray(path.read_bytes())
    sizes = content.index(b"trun") + 20
    content[sizes + 4 * 6 : sizes + 4 * 7] = b"\x7f\xff\xff\xff"  # more than any machine gives
    path.write_bytes(content)
    frames, video = sampled(path, 10.0)
    assert len(frames) == 6
    assert any("reading stopped before the end" in warning for warning in video.warnings)
    assert any("frames end at 0.6 s of 2.0 s" in warning for warning in video.warnings)
    assert thumbnail(path, 1.5)[:2] == b"\xff\xd8"


def test_parts_that_start_again_follow_each_other(tmp_path: Path) -> None:
    part = write_video(tmp_path / "a.ts", plain(VALUES)).read_bytes()
    (tmp_path / "b.ts").write_bytes(part + part)
    frames, video = sampled(tmp_path / "b.ts", 5.0)
    assert len(frames) == 50
    assert np.abs(np.array(greys(frames)) - 2 * VALUES[1::2]).max() <= 3
    assert "jump back (1)" in video.warnings[0]
    long, film = (write_video(tmp_path / "a.ts", noise(200)).read_bytes(), write_film(tmp_path / "b.ts").read_bytes())
    (tmp_path / "c.ts").write_bytes(long + film + long)  # its sound appears beyond what FFmpeg probes
    frames, video = sampled(tmp_path / "c.ts", 1.0)
    assert (len(frames), [warning[:25] for warning in video.warnings]) == (50, ["time stamps jump back (2)"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{}\n#EXT-X-ENDLIST\n"),
        ("list.mp4", "ffconcat version 1.0\nfile {}\n"),
    ],
)
def test_a_list_of_files_opens_none_of_them(tmp_path: Path, name: str, content: str) -> None:
    other, path = write_video(tmp_path / "other.ts", plain(VALUES)), tmp_path / name
    with socket.create_server(("127.0.0.1", 0)) as server:
        for place in (other, other.name, f"http://127.0.0.1:{server.getsockname()[1]}/other.ts"):
            path.write_text(content.format(place))
            with pytest.raises(VideoError):
                sampled(path, 2.0)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()


def test_limits_hold_where_the_file_lies(tmp_path: Path) -> None:
    """A stream without a duration, whose picture grows after a while."""
    small = write_video(tmp_path / "a.h264", plain(VALUES)).read_bytes()
    large = write_video(tmp_path / "b.h264", plain(VALUES, 96, 128)).read_bytes()
    (tmp_path / "c.h264").write_bytes(small + large)
    with pytest.raises(VideoError, match="the limit is 3 s"):
        sampled(tmp_path / "a.h264", 2.0, seconds=3.0)
    frames: list[Any] = []
    with open_video(tmp_path / "c.h264", Limits(pixels=64 * 48)) as video, suppress(VideoError):
        frames += video.sample(5.0)
    assert {frame.pixels.shape for frame in frames} <= {(48, 64, 3)}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is asked of Linux")
def test_neither_a_bomb_nor_a_long_film_takes_much_memory(tmp_path: Path) -> None:
    """FFmpeg would decode a picture of 16000 x 16000 pixels to learn its format; all frames of the film are 100 MB."""
    bomb, film = tmp_path / "bomb.mp4", write_video(tmp_path / "film.mp4", plain([90], 240, 320) * 480)
    bomb.write_bytes(png_bomb(16_000, bytes(16_000 * 16_001)))

    def refuse() -> None:
        with pytest.raises(VideoError, match="33,177,600 pixels"):
            sampled(bomb, 2.0)

    def count() -> None:
        with open_video(film) as video:
            assert sum(1 for _ in video.sample(10.0)) == 480

    assert growth(refuse) < 60e6  # 250 MB at least, if it were decoded
    assert growth(count) < 40e6


def test_a_rate_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", plain(VALUES))
    for rate in (0.0, 5e-324, 1e9):
        with pytest.raises(ValueError, match="expected a positive number"):
            sampled(path, rate)
    with pytest.raises(ValueError, match="expected positive"):
        Limits(pixels=2**31)


# High dynamic range.


def of_pq(light: np.ndarray) -> np.ndarray:
    """The signal of shares of white paper by PQ (ITU-R BT.2100)."""
    power = (light * 203 / 10_000) ** (2610 / 16384)
    return ((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32)


def of_hlg(light: np.ndarray) -> np.ndarray:
    """The same by HLG, on a display of 1000 candelas."""
    display = light * 0.203
    scene = display * ((display @ [0.2627, 0.678, 0.0593]) ** (1 / 1.2 - 1))[..., None]
    return np.where(
        scene <= 1 / 12, np.sqrt(3 * scene), 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 0.1)) + 0.55991073
    )


@pytest.mark.parametrize(("transfer", "signal"), [(16, of_pq), (18, of_hlg)])
def test_high_dynamic_range_looks_like_standard_range(transfer: int, signal: Any, tmp_path: Path) -> None:
    import av

    picture = np.random.default_rng(0).integers(20, 190, (64, 96, 3)).astype(np.float64)
    to_2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.088, 0.8956]])
    light = (picture / 255) ** 2.4 @ to_2020.T
    light[:, 48:] = np.linspace(1, 4, 48)[:, None]  # lamps: above white paper
    coded = np.rint(signal(light) * 65535).astype(np.uint16)
    for number in (transfer, 1):
        with av.open(str(tmp_path / f"{number}.mkv"), "w") as container:
            stream: Any = container.add_stream("ffv1", rate=2)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "gbrp16le"
            stream.codec_context.color_trc = number
            frame = av.VideoFrame.from_ndarray(coded, format="rgb48le").reformat(format="gbrp16le")
            container.mux([*stream.encode(frame), *stream.encode(None)])
    shown = {}
    for number in (transfer, 1):
        with open_video(tmp_path / f"{number}.mkv") as video:
            shown[number] = next(iter(video.sample(2.0))).pixels.astype(np.float64)
    np.testing.assert_allclose(shown[transfer][:, :48], picture[:, :48], atol=3)
    lamps = shown[transfer][0, 48:]
    assert lamps.min() >= 235
    assert (np.diff(lamps[:, 0]) >= 0).all()
    assert np.abs(shown[1][:, :48] - picture[:, :48]).mean() > 10  # what would be shown without


@given(st.lists(st.fractions(0, 7200, max_denominator=50), max_size=40).map(sorted))
def test_time_stamps_that_never_go_back_stay(stamps: list[Fraction]) -> None:
    items = list(enumerate(stamps))
    assert list(interpolate_stamps((stamp, number) for number, stamp in items)) == [
        (stamp, number, False) for number, stamp in items
    ]
