"""Results for editors: the moments as clips of a timeline, by OpenTimelineIO, and those of one film as chapters."""

import logging
import math
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prvr.errors import InputError, require
from prvr.reading import printable
from prvr_search.films import VideoError, VideoInfo, open_video
from prvr_search.output.files import Place, write_text
from prvr_search.ranking.results import SearchResult

logger = logging.getLogger(__name__)

TIMELINES = {".otio": "otio_json", ".edl": "cmx_3600", ".fcpxml": "fcpx_xml", ".xml": "fcp_xml"}
"""Endings of files of a timeline, and what OpenTimelineIO calls the format of each."""
CHAPTERS = (".vtt", ".ffmeta", ".txt")
"""Endings of files of chapters: WebVTT, or the metadata of FFmpeg."""
_NEAR = 0.05  # share by which an average rate may be below that of the timecode: frames are dropped
_ROUNDING = 1e-4  # frames


def has_timelines() -> bool:
    """Whether OpenTimelineIO is installed."""
    return find_spec("opentimelineio") is not None


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
    """A timeline: a track for each query, in it a clip for each moment, hit by hit in order of time.

    A clip has the timecode of its source, from its first frame that is shown in the moment to the last. The rate is
    that of the film, or where it varies that of the standard next to its average.

    Args:
        results: of searches.
        suffix: one of `TIMELINES`.
        place: gives the address of a file.

    Raises:
        InputError: the format cannot hold it.
        MissingExtraError: OpenTimelineIO is not installed.
    """
    otio: Any = require("opentimelineio", "prvr-search[otio]", "a timeline")
    whole, rates = otio.schema.Timeline("prvr"), set[float]()
    for result in results:
        track = otio.schema.Track(printable(result.query), kind=otio.schema.TrackKind.Video)
        for hit in result.hits:
            try:
                with open_video(hit.video.path) as file:
                    info = file.info
            except VideoError as error:
                logger.warning("not in the timeline: %s", error)
                continue
            rate, zero = _clock(otio, info)
            rates.add(rate)
            length = max(1, round((info.duration or hit.video.duration) * rate))
            source = otio.schema.ExternalReference(place(hit.video), _range(otio, zero, 0, length, rate))
            source.name = printable(hit.video.id.rpartition("/")[2])
            for moment in sorted(hit.moments, key=lambda moment: moment.start):
                first = min(length - 1, math.floor(moment.start * rate + _ROUNDING))
                stop = min(length, max(first + 1, math.ceil(moment.end * rate - _ROUNDING)))
                about = {"prvr": {"query": track.name, "score": moment.score}}
                span = _range(otio, zero, first, stop - first, rate)
                track.append(otio.schema.Clip(source.name, source.deepcopy(), span, about))
        whole.tracks.append(track)
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
        return otio.adapters.write_to_string(whole, TIMELINES[suffix])
    except (otio.exceptions.OTIOError, ValueError) as error:
        raise InputError(f"{suffix} cannot hold this timeline ({error}). Write .otio.") from error


def _clock(otio: Any, info: VideoInfo) -> tuple[float, Any]:
    """The rate of a film, and the timecode of its first frame."""
    rate = info.frame_rate or 25.0
    if info.base_rate and abs(info.base_rate - rate) <= _NEAR * rate:  # of a variable rate, without dropped frames
        rate = info.base_rate
    standard = otio.opentime.RationalTime.nearest_valid_timecode_rate(rate)
    rate = standard if abs(standard - rate) <= _NEAR * rate else rate
    try:
        return rate, otio.opentime.from_timecode(info.timecode or "00:00:00:00", rate)
    except ValueError:  # none of this rate
        return rate, otio.opentime.RationalTime(0, rate)


def _range(otio: Any, zero: Any, first: int, frames: int, rate: float) -> Any:
    time = otio.opentime.RationalTime
    return otio.opentime.TimeRange(zero + time(first, rate), time(frames, rate))


def write_chapters(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes the moments of the best hit as chapters of its film, in order of time: WebVTT, or metadata of FFmpeg.

    Raises:
        InputError: the ending is none of `CHAPTERS`, or nothing was found.
        DataError: it cannot be written.
    """
    suffix = kind_of(path, CHAPTERS)
    result = next((result for result in results if result.hits), None)
    if result is None:
        raise InputError(f"{path}: no results, so there are no chapters.")
    title = " ".join(printable(result.query).split())
    times = [(round(1000 * span.start), round(1000 * span.end)) for span in result.hits[0].moments]
    if suffix == ".vtt":
        cues = (f"{_stamp(start)} --> {_stamp(end)}\n{escape(title, quote=False)}" for start, end in sorted(times))
        write_text(path, "\n\n".join(["WEBVTT", *cues]) + "\n")
        return
    title = "".join(f"\\{letter}" if letter in "=;#\\" else letter for letter in title)
    parts = (f"[CHAPTER]\nTIMEBASE=1/1000\nSTART={start}\nEND={end}\ntitle={title}" for start, end in sorted(times))
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
