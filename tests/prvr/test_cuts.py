"""Cuts for editors, read back by OpenTimelineIO: right to the frame, with the timecode of the source; and chapters."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from film_collections import Collection
from video_files import plain

from prvr.encoders import VideoEntry
from prvr.errors import InputError
from prvr_search import Moment, SearchHit, SearchResult
from prvr_search.films import SubtitleLine
from prvr_search.output import write_chapters, write_timeline

otio: Any = pytest.importorskip("opentimelineio")
FRAMES = 60
RATES = {
    "film.mov": (Fraction(24000, 1001), "01:00:00:00"),
    "drop.mov": (Fraction(30000, 1001), "00:59:59;20"),
    "whole.mov": (Fraction(30000, 1001), "01:00:00:00"),
    "pal.mp4": (Fraction(25), "10:00:00:00"),
    "tv.mxf": (Fraction(25), "09:59:59:00"),
    "none.mkv": (Fraction(25), ""),
}


def write(path: Path, rate: Fraction, timecode: str, times: Sequence[int] = range(FRAMES)) -> Path:
    """A film of a rate, of which the pictures are shown at these times, in frames."""
    import av

    with av.open(str(path), "w") as container:
        codec, options = ("mpeg2video", {}) if path.suffix == ".mxf" else ("libx264", {"preset": "ultrafast"})
        stream: Any = container.add_stream(codec, rate=rate, options=options | {"g": "8"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        if timecode:
            stream.metadata["timecode"] = timecode
        for time, pixels in zip(times, plain(range(20, 20 + len(times))), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def found(*paths: Path, start: float = 1.0, end: float = 1.5, query: str = "a dog; runs = #1") -> SearchResult:
    """A result of which each hit has two moments, the later one first."""
    hits = []
    for path in paths:
        entry = VideoEntry(path.name, str(path), 1, 0, "0" * 64, 2.5, 5, 64, 48, "h264")
        moments = (Moment(start, end, 0.5), Moment(0.0, 0.5, 0.25))
        hits.append(SearchHit(entry, 0.5, moments, (0.0,)))
    return SearchResult(query, tuple(hits), len(hits), "exact")


def clips(path: Path, **options: Any) -> list[Any]:
    return [*otio.adapters.read_from_file(str(path), **options).find_clips()]


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("suffix", [".otio", ".edl", ".fcpxml", ".xml"])
def test_a_moment_is_a_clip_right_to_the_frame(tmp_path: Path, name: str, suffix: str) -> None:
    """The moment from the middle of frame 24 to that of frame 35 shows the frames 24 to 35."""
    rate, timecode = RATES[name]
    film = write(tmp_path / name, rate, timecode)
    target = tmp_path / f"cuts{suffix}"
    write_timeline(target, [found(film, start=float(24.5 / rate), end=float(35.5 / rate))])
    zero = otio.opentime.from_timecode(timecode or "00:00:00:00", float(rate)).to_frames()
    if suffix == ".fcpxml":  # its reader counts whole frames per second
        spans = [
            [Fraction((clip.get(name) or "0").rstrip("s")) * rate for name in ("start", "duration")]
            for clip in ElementTree.parse(target).iterfind(".//spine/clip")
        ]
        (duration,) = {media.get("frameDuration") for media in ElementTree.parse(target).iterfind(".//format")}
        assert Fraction(duration.rstrip("s")) == 1 / rate
    else:
        read = clips(target, **({"rate": float(rate)} if suffix == ".edl" else {}))
        spans = [[each.to_frames() for each in (c.source_range.start_time, c.source_range.duration)] for c in read]
    offset = 0 if suffix == ".xml" and spans[1][0] < zero else zero  # some count from the start of the file
    assert spans == [[offset, math.ceil(Fraction(1, 2) * rate)], [offset + 24, 12]]
    if suffix == ".otio":
        late = read[1]
        begin = late.media_reference.available_range.start_time
        assert begin.to_timecode(begin.rate, ";" in timecode) == (timecode or "00:00:00:00")
        assert late.media_reference.available_range.duration.value == FRAMES
        assert late.media_reference.target_url == film.as_uri()
        assert late.metadata["prvr"] == {"query": "a dog; runs = #1", "score": 0.5}
    if name == "drop.mov" and suffix == ".edl":  # 20 + 24 frames later: a minute begins with frame 2
        assert "01:00:00;14" in target.read_text()
    if name == "whole.mov" and suffix == ".edl":  # its timecode drops nothing
        assert " 01:00:00:24 01:00:01:06 " in target.read_text()
    if suffix == ".xml" and timecode:
        stated = ElementTree.parse(target).find(".//clipitem/file/timecode")
        assert stated is not None
        assert stated.findtext("string") == timecode
        assert stated.findtext("displayformat") == ("DF" if ";" in timecode else "NDF")
        assert len(ElementTree.parse(target).findall(".//clipitem/file/timecode")) == 1


def test_a_variable_rate_has_that_of_its_standard(tmp_path: Path) -> None:
    """Frames are dropped here and there, as a phone does."""
    times = [time for time in range(90) if time % 30 != 7]
    film = write(tmp_path / "phone.mp4", Fraction(30), "", times)
    write_timeline(tmp_path / "cuts.otio", [found(film)])
    _, late = clips(tmp_path / "cuts.otio")
    assert late.source_range.start_time == otio.opentime.RationalTime(30, 30)
    assert late.source_range.duration == otio.opentime.RationalTime(15, 30)


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    films = [write(tmp_path / name, *RATES[name]) for name in RATES]
    with pytest.raises(InputError, match=r"one frame rate; got 1 queries and 23\.976, 25, 29\.97, 30"):
        write_timeline(tmp_path / "a.edl", [found(*films)])
    with pytest.raises(InputError, match=r"got 1 queries and 29\.97, 30 frames per second"):
        write_timeline(tmp_path / "a.edl", [found(tmp_path / "drop.mov", tmp_path / "whole.mov")])
    with pytest.raises(InputError, match=r"ends in \.otio, \.edl"):
        write_timeline(tmp_path / "a.mp4", [found(*films)])
    assert not [*tmp_path.glob("a.*")]
    write_timeline(tmp_path / "a.otio", [found(*films, tmp_path / "gone.mp4"), found(films[0], query="second")])
    assert "gone.mp4: no such file" in caplog.text
    tracks = otio.adapters.read_from_file(str(tmp_path / "a.otio")).tracks
    assert [(track.name, len(track)) for track in tracks] == [("a dog; runs = #1", 2 * len(RATES)), ("second", 2)]


@pytest.mark.parametrize("suffix", [".edl", ".xml"])
def test_a_film_whose_rate_has_no_timecode_is_left_out(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    films = [write(tmp_path / name, Fraction(rate), "") for name, rate in (("slow.mp4", 15), ("pal.mp4", 25))]
    target = tmp_path / f"a{suffix}"
    write_timeline(target, [found(*films)])
    read = clips(target, **({"rate": 25.0} if suffix == ".edl" else {}))
    assert [clip.name.removesuffix(".mp4") for clip in read] == ["pal", "pal"]
    assert "slow.mp4: 15 frames per second. Write .otio." in caplog.text
    with pytest.raises(InputError, match="none of these videos can be in the timeline"):
        write_timeline(tmp_path / f"b{suffix}", [found(films[0])])
    assert not [*tmp_path.glob("b.*")]


def test_what_was_found_by_a_line_is_cut_where_the_line_is(tmp_path: Path) -> None:
    result = found(write(tmp_path / "pal.mp4", *RATES["pal.mp4"]))
    lines = (SubtitleLine(2.0, 2.2, "runs"), SubtitleLine(0.2, 0.4, "a dog"))
    result = replace(result, hits=tuple(replace(hit, lines=lines) for hit in result.hits))
    write_timeline(tmp_path / "a.otio", [result])
    starts = [clip.source_range.start_time.to_timecode() for clip in clips(tmp_path / "a.otio")]
    assert starts == ["10:00:00:05", "10:00:02:00"]
    write_chapters(tmp_path / "a.vtt", [result])
    assert "00:00:02.000 --> 00:00:02.200" in (tmp_path / "a.vtt").read_text()


def test_chapters_are_those_of_ffmpeg_and_of_browsers(tmp_path: Path) -> None:
    import av

    film = write(tmp_path / "pal.mp4", *RATES["pal.mp4"])
    for name in ("a.txt", "a.vtt"):
        write_chapters(tmp_path / name, [found(film)])
    with av.open(str(tmp_path / "a.txt"), format="ffmetadata") as file:
        chapters = [(c["start"] * c["time_base"], c["end"] * c["time_base"], c["metadata"]) for c in file.chapters()]
    title = {"title": "a dog; runs = #1"}
    assert chapters == [(0, Fraction(1, 2), title), (1, Fraction(3, 2), title)]
    with av.open(str(tmp_path / "a.vtt")) as file:
        lines = [(float(p.pts * p.time_base), bytes(p).decode()) for p in file.demux() if p.size]
    assert lines == [(0.0, "a dog; runs = #1"), (1.0, "a dog; runs = #1")]
    with pytest.raises(InputError, match="no results"):
        write_chapters(tmp_path / "b.vtt", [found()])


def test_by_command(collection: Collection, tmp_path: Path) -> None:
    targets = {kind: tmp_path / f"a{kind}" for kind in (".otio", ".vtt")}
    collection.search("red", "--otio", str(targets[".otio"]), "--chapters", str(targets[".vtt"]))
    assert clips(targets[".otio"])[0].name == "red.mp4"
    assert targets[".vtt"].read_text().startswith("WEBVTT\n\n00:00:00.000 --> 00:00:04.000\nred")
    encoded = collection.encodings
    collection.add("new.mp4")
    collection.run("search", str(collection.films), "red", "--otio", "a.mp4", status=2)
    assert "a.mp4: expected a name that ends in .otio" in collection.said
    assert collection.encodings == encoded
