"""Search results as files: JSON, CSV, timelines by OpenTimelineIO and chapters; a file appears whole or not at all.

The name `-` stands for standard output.
"""

import csv
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prvr.data.atomic import write_output
from prvr.encoders import VideoEntry
from prvr.errors import InputError, require
from prvr.reading import is_unicode, printable
from prvr_search.films import Film, SubtitleLine, VideoError, open_video
from prvr_search.ranking.results import SearchHit, SearchResult

FORMAT = 3
"""Version of the JSON: since 2 a hit holds its video as an object of its own, since 3 it has no confidence."""
Place = Callable[[VideoEntry], str]
"""Where a video lies, for another program."""
_SURROGATE = re.compile("[\ud800-\udfff]")  # lone ones: they stand for bytes that are not UTF-8
_FORMULA = "=+-@\t\r\n＝＋－＠"  # the wide ones too: some programs take them for the narrow


def write_json(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes results as one JSON file, ASCII only: every field of every hit, with its rank; times in seconds.

    A part of a curve without a score (-inf) is null.
    Names that are not UTF-8 are written as `printable` shows them, and `path_bytes` is the path, percent-encoded.

    Raises:
        prvr.data.DataError: the file cannot be written.
    """
    rows = [
        vars(result) | {"hits": [_hit_fields(rank, hit) for rank, hit in enumerate(result.hits, 1)]}
        for result in results
    ]
    text = json.dumps({"format": FORMAT, "results": rows}, default=_fields, ensure_ascii=False, allow_nan=False)
    unicode = _SURROGATE.sub(lambda letter: f"\\\\u{ord(letter[0]):x}", text)
    write_text(path, json.dumps(json.loads(unicode), indent=1) + "\n")


def write_csv(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes the table of `csv_table`.

    Raises:
        prvr.data.DataError: the file cannot be written.
    """
    write_text(path, csv_table(results))


def csv_table(results: Sequence[SearchResult], place: Place = lambda video: video.path) -> str:
    """A line for each hit, UTF-8: query, rank, video, score, start, end, duration (seconds), path, the
    videos that were folded into it, with `; ` between them, the line that matches best, when it was
    filmed and what says so, and whether the line is `said` or `written`; neither for subtitles.

    A text that a spreadsheet would take for a formula, because it begins with `=`, `+`, `-`, `@`, a tab or a line end,
    gets a `'` before it. Control characters in names are written as escapes.

    Args:
        results: the results of searches.
        place: gives the path of a video.
    """
    content = io.StringIO(newline="")
    writer = csv.writer(content)
    names = "query,rank,video,score,start,end,duration,path,alike,line,filmed,filmed_by,line_kind"
    writer.writerow(names.split(","))
    for result in results:
        for rank, hit in enumerate(result.hits, 1):
            video, line = hit.video, hit.lines[0] if hit.lines else SubtitleLine(0.0, 0.0, "")
            times = [f"{value:.3f}" for value in (hit.start, hit.end, video.duration)]
            texts = map(cell, (place(video), "; ".join(other.id for other in hit.alike), line.text))
            first = cell(result.query), rank, cell(video.id), f"{hit.score:.6f}"
            writer.writerow([*first, *times, *texts, video.filmed, video.filmed_by, line.kind])
    return content.getvalue()


def _hit_fields(rank: int, hit: SearchHit) -> dict[str, Any]:
    curve = [value if math.isfinite(value) else None for value in hit.relevance]
    return {"rank": rank, "start": hit.start, "end": hit.end, **vars(hit), "relevance": curve}


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record, and the bytes of a path that is not Unicode."""
    path = vars(record).get("path", "")
    return vars(record) if is_unicode(path) else vars(record) | {"path_bytes": quote(os.fsencode(path))}


def cell(text: str) -> str:
    """A text that no spreadsheet runs.

    Examples:
        >>> cell("=1+1"), cell("a = b"), cell("\\t=1+1")
        ("'=1+1", 'a = b', "'\\\\t=1+1")
    """
    return ("'" if text.lstrip(" ")[:1] in tuple(_FORMULA) else "") + printable(text)


def write_text(path: Path | str, text: str) -> None:
    """Writes a file as UTF-8, its line ends as they are; what stood there stays until it is complete.

    Args:
        path: the file; `-` is standard output.
        text: its content.

    Raises:
        DataError: the file cannot be written.
    """
    content = text.encode()
    if str(path) == "-":
        write_stdout(content)
    else:
        write_output(Path(path).expanduser(), content)


def write_stdout(content: bytes) -> None:
    """Writes bytes to standard output as they are, whatever its encoding and line ends."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


logger = logging.getLogger(__name__)

TIMELINES = {".otio": "otio_json", ".edl": "cmx_3600", ".fcpxml": "fcpx_xml", ".xml": "fcp_xml"}
"""Endings of files of a timeline, and what OpenTimelineIO calls the format of each."""
_SMPTE = (".edl", ".xml")  # formats that hold timecodes, which not every rate has
CHAPTERS = (".vtt", ".ffmeta", ".txt")
"""Endings of files of chapters: WebVTT, or the metadata of FFmpeg."""
_NEAR = 0.05  # share by which an average rate may be below that of the timecode: frames are dropped
_ROUNDING = 1e-4  # frames


def write_timeline(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes the moments of results as clips of a timeline, see `timeline`; the ending of the file is its format.

    Raises:
        InputError: the format is unknown, or cannot hold the timeline.
        MissingExtraError: OpenTimelineIO is not installed.
        DataError: it cannot be written.
    """
    write_text(path, timeline(results, kind_of(path, TIMELINES)))


def timeline(
    results: Sequence[SearchResult], suffix: str, place: Place = lambda video: Path(video.path).as_uri()
) -> str:
    """A timeline: a track for each query, in it a clip for each of `SearchHit.spans`, hit by hit in order of time.

    A clip has the timecode of its source, from its first frame that is shown in the moment to the last. The rate is
    that of the film, or where it varies that of the standard next to its average. A video that cannot be read, or whose
    rate the format does not have, is left out with a warning.

    Args:
        results: the results of searches.
        suffix: one of `TIMELINES`.
        place: gives the address of a file.

    Raises:
        InputError: the format cannot hold it, or none of the videos.
        MissingExtraError: OpenTimelineIO is not installed.
    """
    otio: Any = require("opentimelineio", "prvr-search[otio]", "a timeline")
    time, span = otio.opentime.RationalTime, otio.opentime.TimeRange
    cuts, rates = otio.schema.Timeline("prvr"), set[float]()
    for result in results:
        track = otio.schema.Track(printable(result.query), kind=otio.schema.TrackKind.Video)
        for hit in result.hits:
            try:
                with open_video(hit.video.path) as file:
                    info = file.info
            except VideoError as error:
                logger.warning("not in the timeline: %s", error)
                continue
            zero, kind = _clock(otio, info)
            rate = zero.rate
            if suffix in _SMPTE and not time.is_valid_timecode_rate(rate):
                logger.warning("not in the timeline: %s: %.5g frames per second. Write .otio.", hit.video.path, rate)
                continue
            if suffix == ".edl" and kind == "NDF" and ";" in zero.to_timecode():  # of this rate the adapter writes DF
                zero = time(zero.value, round(rate))
            rates.add(zero.rate)
            length = max(1, round((info.duration or hit.video.duration) * rate))
            whole = span(zero, time(length, zero.rate))
            about = {"fcp_xml": {"timecode": {"displayformat": kind}}}
            source = otio.schema.ExternalReference(place(hit.video), whole, about)
            source.name = printable(hit.video.id.rpartition("/")[2])
            for interval in sorted(hit.spans, key=lambda each: each.start):
                first = min(length - 1, math.floor(interval.start * rate + _ROUNDING))
                stop = min(length, max(first + 1, math.ceil(interval.end * rate - _ROUNDING)))
                about = {"prvr": {"query": track.name, "score": getattr(interval, "score", hit.score)}}
                part = span(zero + time(first, zero.rate), time(stop - first, zero.rate))
                track.append(otio.schema.Clip(source.name, source.deepcopy(), part, about))
        cuts.tracks.append(track)
    if not rates and any(result.hits for result in results):
        raise InputError(f"{suffix}: none of these videos can be in the timeline.")
    if suffix == ".edl" and (len(rates) > 1 or len(results) > 1):
        numbers = ", ".join(f"{rate:.5g}" for rate in sorted(rates))
        raise InputError(
            f"an EDL has one track and one frame rate; got {len(results)} queries and {numbers} frames per second. "
            f"Search some of the videos, or write {', '.join(kind for kind in TIMELINES if kind != suffix)}."
        )
    if suffix == ".fcpxml":  # the adapter knows the rates of NTSC by two places behind the point alone
        durations = otio.adapters.from_name(TIMELINES[suffix]).module().FRAMERATE_FRAMEDURATION
        durations |= {rate: f"{1 / Fraction(rate).limit_denominator(1001)}s" for rate in rates if rate not in durations}
    try:
        return otio.adapters.write_to_string(cuts, TIMELINES[suffix])
    except (otio.exceptions.OTIOError, ValueError) as error:
        raise InputError(f"{suffix} cannot hold this timeline ({error}). Write .otio.") from error


def _clock(otio: Any, info: Film) -> tuple[Any, str]:
    """The timecode of the first frame of a film, at its rate, and whether it drops numbers: DF or NDF."""
    rate = info.frame_rate or 25.0
    if info.base_rate and abs(info.base_rate - rate) <= _NEAR * rate:  # of a variable rate, without dropped frames
        rate = info.base_rate
    standard = otio.opentime.RationalTime.nearest_valid_timecode_rate(rate)
    rate = standard if abs(standard - rate) <= _NEAR * rate else rate
    with suppress(ValueError):  # none, or none of this rate
        return otio.opentime.from_timecode(info.timecode, rate), "DF" if ";" in info.timecode else "NDF"
    return otio.opentime.RationalTime(0, rate), ""


def write_chapters(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes `SearchHit.spans` of the best hit as chapters of its film, in order of time: WebVTT, or FFmpeg's metadata.

    Raises:
        InputError: the ending is none of `CHAPTERS`, or nothing was found.
        DataError: it cannot be written.
    """
    suffix = kind_of(path, CHAPTERS)
    result = next((result for result in results if result.hits), None)
    if result is None:
        raise InputError(f"{path}: no results, so there are no chapters.")
    title = " ".join(printable(result.query).split())
    times = sorted((round(1000 * span.start), round(1000 * span.end)) for span in result.hits[0].spans)
    if suffix == ".vtt":
        cues = (f"{_stamp(start)} --> {_stamp(end)}\n{escape(title, quote=False)}" for start, end in times)
        write_text(path, "\n\n".join(["WEBVTT", *cues]) + "\n")
        return
    title = re.sub(r"([=;#\\])", r"\\\1", title)
    parts = (f"[CHAPTER]\nTIMEBASE=1/1000\nSTART={start}\nEND={end}\ntitle={title}" for start, end in times)
    write_text(path, "\n".join([";FFMETADATA1", *parts]) + "\n")


def kind_of(path: Path | str, kinds: Sequence[str] | dict[str, str]) -> str:
    """The ending of a file.

    Raises:
        InputError: it is none of these kinds.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in kinds:
        raise InputError(f"{path}: expected a name that ends in {', '.join(kinds)}")
    return suffix


def _stamp(milliseconds: int) -> str:
    """A time of WebVTT.

    Examples:
        >>> _stamp(3_723_004)
        '01:02:03.004'
    """
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"
