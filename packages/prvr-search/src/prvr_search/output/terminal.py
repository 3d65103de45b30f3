"""Search results and times as text, for people."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from prvr.encoders import VideoEntry
from prvr.reading import printable
from prvr_search.films import SubtitleLine
from prvr_search.ranking.results import SearchHit, SearchResult, clock, clock_span

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#"  # for terminals without block characters
_OTHER_COLUMNS = 28  # width of the table without names and curve
_NAMES = (18, 32)  # width of the names: the least, and the most


def result_table(result: SearchResult, *, width: int = 80, plain: bool = False) -> Table:
    """A table with a row for each hit: rank, video, score (or what found it), best moment, and the relevance curve.

    A video is shown as its file name, and below it the folder and when it was filmed. Copies of the file, and videos
    that are folded into the hit, are named below; the caption says how many videos were folded.

    The curve shows how well each part of the video fits, from left to right. All hits of the query share one scale, see
    `SearchResult.scale`.

    Args:
        result: the result of one query.
        width: the width of the terminal, in columns.
        plain: draw with ASCII characters only.
    """
    many = count_line(result)
    table = Table(
        title=Text(printable(result.query), "bold"), caption=many, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("video", overflow="fold", min_width=8)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("moment", justify="right", no_wrap=True)
    table.add_column("relevance", no_wrap=True)
    low, high = result.scale
    names = [split_name(printable(hit.video.id)) for hit in result.hits]
    column = min(max([_NAMES[0], *(cell_len(file) for file, _ in names)]), _NAMES[1])
    room = max(8, min(64, width - _OTHER_COLUMNS - column))
    for rank, (hit, (file, folder)) in enumerate(zip(result.hits, names, strict=True), 1):
        line = Text(blocks(hit.relevance, low, high, room, PLAIN if plain else BLOCKS))
        moment = clock_span(hit.start, hit.end)
        # Text, not str: a name may hold square brackets, which rich would read as markup
        name = Text(file)
        if folder:
            name.append(f"\n{folder}", "dim")
        if filmed := date_line(hit.video):
            name.append(f"\n{filmed}", "dim")
        for also, videos in (("also", hit.copies), ("also as", hit.alike)):
            for video in videos:
                name.append(f"\n{also} {printable(video.id)}", "dim")
        for subtitle in hit.lines[:1]:
            text = f"{line_head(subtitle)} {printable(subtitle.text)}"
            line.append("\n" + fill(text if plain else f"“{text}”", room), "italic")
        table.add_row(str(rank), name, basis(hit), moment, line)
    return table


def basis(hit: SearchHit) -> str:
    """The score of a hit; of one that was found by a line, what the line is: `said`, `written` or `subtitles`."""
    return (hit.lines[0].kind or "subtitles") if hit.lines else f"{hit.score:.3f}"


def line_head(line: SubtitleLine) -> str:
    """When a line is shown, and `said` or `written` if a recogniser gave it.

    Examples:
        >>> line_head(SubtitleLine(65.0, 67.0, "the harbour", kind="said"))
        '1:05 said:'
    """
    return clock(line.start) + (f" {line.kind}:" if line.kind else "")


def count_line(result: SearchResult) -> str:
    """How many videos are shown, and how many were folded into another one.

    Examples:
        >>> count_line(SearchResult("a dog", (), 100, "exact"))
        '0 of 100 videos'
    """
    folded = f"; {result.folded} more grouped with similar results" if result.folded else ""
    return f"{len(result.hits)} of {result.videos:,} videos{folded}"


def date_line(video: VideoEntry) -> str:
    """The day on which a video was filmed, and what says so if it is not its container; empty where nothing does.

    Examples:
        >>> date_line(VideoEntry(*"12", 1, 0, "", 1.0, 2, 64, 48, "h264", filmed="2019-07-12", filmed_by="name"))
        '2019-07-12 by name'
    """
    return video.filmed[:10] + (f" by {video.filmed_by}" if video.filmed_by in ("name", "file") else "")


def split_name(video_id: str) -> tuple[str, str]:
    """The file name of a video, and the folder that it lies in; an empty text where there is none.

    Examples:
        >>> split_name("holiday/day 1/beach.mp4"), split_name("beach.mp4")
        (('beach.mp4', 'holiday/day 1'), ('beach.mp4', ''))
    """
    folder, _, file = video_id.rpartition("/")
    return file, folder


def blocks(values: Sequence[float], low: float, high: float, width: int, letters: str = BLOCKS) -> str:
    """A curve as one line of characters; where there is less room than values, the highest of each part is shown.

    Args:
        values: the values of the curve, in order of time, at least one; -inf is drawn as the lowest.
        low, high: the values that the first and the last character stand for.
        width: the largest number of characters.
        letters: the characters, from low to high.

    Examples:
        >>> blocks([0.0, 0.5, 1.0, 0.25], 0.0, 1.0, 4), blocks([0.0, 0.5, 1.0, 0.25], 0.0, 1.0, 2)
        ('▁▅█▃', '▅█')
    """
    count, last = min(width, len(values)), len(letters) - 1
    best = np.maximum.reduceat(values, np.arange(count) * len(values) // count)
    places = (last * (best - low) / ((high - low) or 1.0)).round().clip(0, last)
    return "".join(letters[place] for place in places.astype(int))
