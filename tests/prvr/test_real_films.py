"""Real films, and odd forms that FFmpeg makes of one: pictures, times, clips, search and parts of files are right."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("fastapi")

import av
from real_films import FILMS, FOLDER, make, program, real_film
from serving import HOST, keys_of
from starlette.testclient import TestClient
from video_files import cut

from prvr_search import Library
from prvr_search.films import clip_name, open_video, write_clip
from prvr_search.serve import create_app

RATE = 2.0


def small(pixels: np.ndarray) -> np.ndarray:
    """A frame as a small grey picture."""
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    return picture.reformat(32, 18, "gray", interpolation="AREA").to_ndarray().astype(np.float32)


class Frames:
    """The frames of the first seconds of a film by FFmpeg's own program: their times, in seconds from where a player
    starts, and a small picture of each."""

    def __init__(self, film: Path, seconds: float) -> None:
        self.seconds = seconds
        command = [program("ffmpeg"), "-nostdin", "-threads", "1", "-i", film, "-map", "0:v:0", "-t", str(seconds)]
        shape = "scale=32:18:flags=area,format=gray,showinfo"
        command += ["-vf", shape, "-fps_mode", "passthrough", "-f", "rawvideo", "-"]
        done = subprocess.run(command, capture_output=True, check=True)
        self.times = np.array([float(time) for time in re.findall(rb"pts_time:\s*(\S+)", done.stderr)])
        self.pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, 18, 32).astype(np.float32)
        self.times = self.times[: len(self.pictures)]  # a few frames more are read than written
        self.step = float(np.median(np.diff(self.times)))

    def check(self, time: float, pixels: np.ndarray, near: int = 1) -> None:
        """The picture is that of the frame that is shown at a time, or of one of its neighbours.

        Args:
            time: in seconds.
            pixels: the picture.
            near: by how many frames it may be off.
        """
        differences = np.abs(self.pictures - small(pixels)).mean((1, 2))
        place = max(0, int(np.searchsorted(self.times, time + 1e-6, side="right")) - 1)
        here, best = differences[max(0, place - near) : place + near + 1].min(), int(differences.argmin())
        # Encoding and conversions of colour cost 2 grey levels; a fifth of a second of `bikes.mp4` is 12.
        assert here <= min(differences[best] + 2, 12), f"at {time:.2f} s: the frame of {self.times[best]:.2f} s"


def check_clip(film: Path, folder: Path, frames: Frames, start: float, late: float = 0.0, near: int = 2) -> None:
    """A clip of a second is a film, and holds what was asked for.

    Args:
        film: the film.
        folder: for the clip.
        frames: of the film.
        start: of the clip, in seconds.
        late: by how many seconds the frames of the film come later.
        near: by how many frames a picture may be off.
    """
    clip = write_clip(film, start, start + 1, folder / clip_name(film, start, start + 1))
    assert clip.start <= start
    assert clip.end >= start + 1 - frames.step
    with open_video(clip.path) as video:
        assert max(stream.type == "audio" for stream in video.streams) == clip.sound
        for frame in video.sample(4.0):
            if (time := clip.start + frame.time - late) < frames.seconds:
                frames.check(time, frame.pixels, near)
    assert video.duration == pytest.approx(clip.end - clip.start, abs=2 * frames.step)


@pytest.mark.parametrize("name", FILMS)
def test_a_real_film(name: str, tmp_path: Path) -> None:
    film, seconds = real_film(name), FILMS[name].seconds
    frames = Frames(film, 4.0)
    with open_video(film) as video:
        for frame in takewhile(lambda frame: frame.time < min(frames.seconds, seconds) - 0.1, video.sample(RATE)):
            frames.check(frame.time, frame.pixels)
        assert not video.info.duration or video.info.duration == pytest.approx(seconds, abs=0.1)
    check_clip(film, tmp_path, frames, min(0.4 * seconds, 2.5) if seconds > 2 else 0.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """All films, searched by the toy encoder."""
    for name in FILMS:
        real_film(name)
    home = tmp_path_factory.mktemp("library")  # another worker may do the same
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        with Library(FOLDER, encoder="toy", home=home) as library:
            report = library.update()
            assert set(report.encoded) == set(FILMS)
            assert not report.unreadable
            yield library


def test_real_films_are_searched(library: Library) -> None:
    hits = library.search("a red square", len(FILMS)).hits
    grouped = {video.id for hit in hits for video in hit.alike}  # one of them is there in two containers
    assert {hit.video_id for hit in hits} | grouped == set(FILMS)
    for hit in hits:
        seconds = FILMS[hit.video_id].seconds
        assert hit.video.duration == pytest.approx(seconds, abs=0.1)
        assert hit.video.frames == pytest.approx(RATE * seconds, abs=1)
        assert all(0 <= moment.start < moment.end <= hit.video.duration + 1 / RATE for moment in hit.moments)
        assert hit.video.warnings == ()


def test_real_films_are_served(library: Library) -> None:
    app = create_app(library, update=False)
    with TestClient(app, base_url=HOST) as client:
        for name, key in keys_of(client).items():
            content = (FOLDER / name).read_bytes()
            address = f"/api/videos/{key}"
            for first in (0, len(content) // 2, len(content) - 7):
                part = client.get(f"{address}/file", headers={"Range": f"bytes={first}-{first + 999}"})
                assert part.status_code == 206
                assert part.content == content[first : first + 1000]
            assert client.get(f"{address}/thumbnail", params={"t": 0.5}).content.startswith(b"\xff\xd8")


@dataclass(frozen=True)
class Form:
    """What FFmpeg is told to make of 6 seconds of `bikes.mp4` with a tone.

    Args:
        options: of FFmpeg, after the input.
        before: the same, before the input.
        late: seconds by which the picture comes later than in the original.
        near: frames by which a picture may be off.
        turned: degrees by which a player is told to turn the picture, anticlockwise.
        seconds: how long it lasts, in seconds.
        sound: whether it has sound.
    """

    options: str
    before: str = ""
    late: float = 0.0
    near: int = 1
    turned: int = 0
    seconds: float = 6.0
    sound: bool = True


FAST = "-c:v libx264 -preset ultrafast -c:a copy"
SOUND_FIRST = "-map 1:v -map 0:a -c copy"
FORMS = {
    "vp9.webm": Form("-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 1M -c:a libopus"),
    "av1.mp4": Form("-c:v libsvtav1 -preset 12 -crf 35 -c:a aac"),
    "hevc.mp4": Form("-c:v libx265 -preset ultrafast -crf 20 -tag:v hvc1 -c:a copy"),
    "turned.mov": Form(f"-vf transpose=clock {FAST}", turned=90),
    "variable.mp4": Form(f"-vf select='lt(t,2)+gte(t,2)*not(mod(n,5))' -fps_mode vfr {FAST}", near=5, seconds=5.84),
    "ntsc.mkv": Form(f"-vf fps=30000/1001 {FAST} -bf 3"),
    "broadcast.ts": Form("-c copy"),
    "clock-turns-over.m2ts": Form("-c copy -output_ts_offset 95440 -f mpegts"),
    "mpeg4.avi": Form("-c:v mpeg4 -q:v 4 -bf 2 -c:a libmp3lame"),
    "h264.avi": Form("-c copy", near=3),  # AVI has no times of its own
    "windows.wmv": Form("-c:v wmv2 -b:v 2M -c:a wmav2"),
    "phone.3gp": Form("-vf scale=352:288 -c:v h263 -b:v 2M -c:a copy"),
    "interlaced.mpg": Form("-c:v mpeg2video -flags +ilme+ildct -top 1 -b:v 2M -c:a mp2"),
    "sizes.mp4": Form("-vf scale=321:137 -pix_fmt yuv444p -c:v libx264 -preset ultrafast -an", sound=False),
    "sound-first.mp4": Form(SOUND_FIRST, "-i {base} -itsoffset 3", late=3.0, seconds=9.0),
    "sound-first.ts": Form(SOUND_FIRST, "-i {base} -itsoffset 3", late=3.0, seconds=9.0),
    "fragments.mp4": Form("-c copy -movflags frag_keyframe+empty_moov"),
    "bare.h264": Form("-c copy -an", sound=False),
}


@dataclass(frozen=True)
class Original:
    """The film that odd forms are made of, and its frames."""

    film: Path
    frames: Frames


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    base = tmp_path_factory.mktemp("forms") / "base.mp4"
    make(real_film("bikes.mp4"), base, f"-vf scale=320:136 {FAST} -c:a aac -g 25 -t 6", "-f lavfi -i sine")
    return Original(base, Frames(base, 6.0))


def turn(source: Path, target: Path, degrees: int) -> Path:
    """The same streams in a file that tells players to turn the picture."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        streams = [written.add_stream_from_template(stream) for stream in read.streams]
        streams[read.streams.video[0].index].set_display_rotation(degrees)
        for packet in read.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                written.mux(packet)
    return target


@pytest.mark.parametrize("name", FORMS)
def test_an_odd_form(name: str, original: Original, tmp_path: Path) -> None:
    form, frames = FORMS[name], original.frames
    film = make(original.film, tmp_path / name, form.options, form.before)
    if form.turned:
        film = turn(film, tmp_path / f"turned-{name}", form.turned)
    with open_video(film) as video:
        found = list(video.sample(RATE))
        assert (len(video.streams) > 1) == form.sound
    assert video.warnings == []
    assert video.duration == pytest.approx(form.seconds, abs=0.1)
    assert not video.info.duration or video.info.duration == pytest.approx(video.duration, abs=0.1)
    assert len(found) == round(RATE * form.seconds)
    for frame in found:
        frames.check(frame.time - form.late, frame.pixels, form.near)
    check_clip(film, tmp_path, frames, form.late + 1.3, form.late, max(2, form.near))


@pytest.mark.parametrize("name", ["broken.mkv", "broken.avi", "broken.ts"])
def test_a_film_that_breaks_off(name: str, original: Original, tmp_path: Path) -> None:
    whole = make(original.film, tmp_path / f"whole{Path(name).suffix}", "-c copy")
    film = cut(whole, tmp_path / name, 0.6)
    with open_video(film) as video:
        for frame in video.sample(RATE):
            original.frames.check(frame.time, frame.pixels, near=3)
    assert 2.5 < (video.duration or 0) < 4.5
    check_clip(film, tmp_path, original.frames, 1.3, near=3)


def test_a_film_of_20_minutes(original: Original, tmp_path: Path) -> None:
    options = "-vf fps=5,scale=160:68 -c:v libx264 -preset ultrafast -g 10 -an"
    film = make(make(original.film, tmp_path / "6s.mp4", options), tmp_path / "long.mkv", "-c copy", "-stream_loop 199")
    with open_video(film) as video:
        found = [frame for frame in video.sample(RATE) if round(frame.time) % 41 == 0]
    assert video.duration == pytest.approx(1200, abs=0.2)
    for frame in found:
        original.frames.check(frame.time % 6, frame.pixels, near=5)
    assert len(found) > 40
    check_clip(film, tmp_path, original.frames, 1102.2, 1098.0, near=5)
