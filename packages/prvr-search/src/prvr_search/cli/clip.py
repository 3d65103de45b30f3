"""`prvr clip`: a part of a video as a file; and the options that several commands on videos share."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from prvr.cli.options import app, parsed_by
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr_search.films import VideoClip

VIDEOS = Group("Search your own videos", sort_key=0)
"""The first section of `prvr --help`."""


def seconds(text: str) -> float:
    """A time or a duration as a table of captions has it; raises `ValueError` if it is something else."""
    from prvr.corpora.user_captions import seconds

    return seconds(text)


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expected a date like 2026-03-01 or 2026-03-01T18:30, got {text!r}") from error


Seconds = Annotated[float, parsed_by(seconds, "SECONDS")]
Date = Annotated[datetime, parsed_by(_date, "DATE")]
File = Annotated[str | None, Parameter(metavar="FILE")]
Name = Annotated[str | None, Parameter(metavar="NAME")]
Place = Annotated[Path | None, Parameter(metavar="FOLDER")]
Sentence = Annotated[str, Parameter(metavar="SENTENCE", show_default=False)]
Exact = Annotated[
    bool | None,
    Parameter(
        negative="--no-exact",
        help="re-encode to start exactly at the moment; --no-exact: copy from the key frame before it (default: copy "
        "if the key frame is at most a second earlier)",
    ),
]
Force = Annotated[bool, Parameter(help="overwrite existing files")]


def moment(text: str) -> tuple[float, float]:
    """A part of a video, START-END, in seconds.

    Raises:
        ValueError: the text is something else, or the end is not after the start.

    Examples:
        >>> moment("12:30-12:45"), moment("1:02:03.5-1:03:00"), moment("90-95.5")
        ((750.0, 765.0), (3723.5, 3780.0), (90.0, 95.5))
    """
    first, dash, second = text.partition("-")
    if not dash:
        raise ValueError(f"expected START-END, for example 12:30-12:45, got {text!r}")
    start, end = seconds(first), seconds(second)
    if start >= end:
        raise ValueError(f"expected an end after the start, got {text!r}")
    return start, end


@app.command(group=VIDEOS)
def clip(
    video: str,
    moment: Annotated[tuple[float, float], parsed_by(moment, "START-END")],
    /,
    *,
    output: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    exact: Exact = None,
    force: Force = False,
) -> None:
    """Write a part of a video to a file.

    Write a part of a video to a file. It is copied without loss if a key frame lies within a second before START: it
    starts there, and the output says where that is. Otherwise, it is re-encoded and starts at START. It is also
    re-encoded if the format of FILE does not support the streams of the video. Sound is kept where possible.

    Args:
        video: a video file
        moment: two times, for example 12:30-12:45, 1:02:03.5-1:03:00 or 90-95
        output: the file to write: .mp4, .mov, .mkv or .webm (default: one in the current folder that is named after the
            video and the moment)
    """
    from prvr_search.films import clip_name, write_clip

    start, end = moment
    target = output or clip_name(video, start, end)
    print(clip_line(write_clip(video, start, end, target, exact=exact, force=force), start))


def clip_line(clip: "VideoClip", start: float) -> str:
    """The line of output about a clip.

    Args:
        clip: the clip that was written.
        start: the requested start, in seconds.
    """
    how = "copied" if clip.copied else "encoded"
    line = f"{printable(str(clip.path))}: written, {_clock(clip.start)} to {_clock(clip.end)}, {how}"
    line += "" if clip.sound else ", without sound"
    early = start - clip.start
    if early >= 0.05:
        line += (
            f"; starts at the key frame {early:.2f} s before {_clock(start)} (use --exact to start at {_clock(start)})"
        )
    return line


def _clock(time: float) -> str:
    """A time with hundredths of a second.

    Examples:
        >>> _clock(65.678), _clock(3599.999)
        ('1:05.68', '1:00:00.00')
    """
    from prvr_search.output import clock

    hundredths = round(100 * time)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"
