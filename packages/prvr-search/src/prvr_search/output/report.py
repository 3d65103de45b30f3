"""Search results for people: a table of the terminal, and one HTML page with pictures, without a script."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import fill

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

from prvr.encoders import VideoEntry
from prvr.reading import printable
from prvr_search.films import SubtitleLine, VideoError
from prvr_search.films.thumbnails import thumbnail
from prvr_search.output.files import write_text
from prvr_search.ranking.results import SearchHit, SearchResult, clock, clock_span

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#"  # for terminals without block characters
_OTHER_COLUMNS = 28  # width of the table without names and curve
_NAMES = (18, 32)  # width of the names: the least, and the most
_BARS = 48  # of a curve on a page
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f6f3; --ink: #1b1d21; --quiet: #63676f; --line: #dfdfd9; --hot: #cf4f0c;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #121316; --ink: #ecebe8; --quiet: #a0a4ad; --line: #30333a; --hot: #f98d3f; }
}
body { font: 16px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
body { background: var(--paper); color: var(--ink); }
h2 { margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
ol { list-style: none; padding: 0; }
li { display: flex; flex-wrap: wrap; gap: 1rem; padding: .75rem 0; border-top: 1px solid var(--line); }
figure { margin: 0; width: 15rem; }
img { display: block; max-width: 100%; height: auto; }
figcaption, .small { color: var(--quiet); font-size: .85rem; }
div { flex: 1 1 16rem; min-width: 0; }
p { margin: 0 0 .25rem; overflow-wrap: anywhere; }
.curve { color: var(--hot); font: min(1.25rem, 2.2vw)/1.5 monospace; white-space: pre; }
"""


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
    table = Table(
        Column(justify="right", no_wrap=True),
        Column("video", overflow="fold", min_width=8),
        Column("score", justify="right", no_wrap=True),
        Column("moment", justify="right", no_wrap=True),
        Column("relevance", no_wrap=True),
        title=Text(printable(result.query), "bold"),
        caption=count_line(result),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    low, high = result.scale
    names = [split_name(printable(hit.video.id)) for hit in result.hits]
    column = min(max([_NAMES[0], *(cell_len(file) for file, _ in names)]), _NAMES[1])
    room = max(8, min(64, width - _OTHER_COLUMNS - column))
    for rank, (hit, (file, folder)) in enumerate(zip(result.hits, names, strict=True), 1):
        line = Text(blocks(hit.relevance, low, high, room, PLAIN if plain else BLOCKS))
        copies = (f"also {printable(video.id)}" for video in hit.copies)
        alike = (f"also as {printable(video.id)}" for video in hit.alike)
        below = filter(None, (folder, date_line(hit.video), *copies, *alike))
        # Text, not str: a name may hold square brackets, which rich would read as markup
        name = Text(file).append("".join(f"\n{part}" for part in below), "dim")
        for subtitle in hit.lines[:1]:
            text = f"{line_head(subtitle)} {printable(subtitle.text)}"
            line.append("\n" + fill(text if plain else f"“{text}”", room), "italic")
        table.add_row(str(rank), name, basis(hit), clock_span(hit.start, hit.end), line)
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


def write_html(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes a page with the hits of each query: a picture of the best moment, times, score, and the relevance
    curve.

    The file holds all it needs, pictures included, and can be sent as it is; whatever stands in names and queries is
    shown as text. A moment whose picture cannot be had says why.

    Args:
        path: the file to write.
        results: the results of one or more queries.

    Raises:
        prvr.data.DataError: it cannot be written.
    """
    alone = len(results) == 1
    title = printable(results[0].query) if alone else f"{len(results)} searches"
    body = "\n".join(
        f"<section>{'' if alone else f'<h2>{escape(printable(result.query))}</h2>'}\n"
        f'<p class="small">{count_line(result)}; higher bars match better</p>\n<ol>\n'
        + "\n".join(_hit(rank, hit, result) for rank, hit in enumerate(result.hits, 1))
        + "\n</ol></section>"
        for result in results
    )
    write_text(
        path,
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body></html>\n",
    )


def _hit(rank: int, hit: SearchHit, result: SearchResult) -> str:
    moment = clock_span(hit.start, hit.end)
    name = escape(printable(hit.video.id))
    file, folder = (escape(part) for part in split_name(printable(hit.video.id)))
    where = f' <span class="small">{folder}</span>' if folder else ""
    try:
        picture = thumbnail(hit.video.path, (hit.start + hit.end) / 2, width=240)
        content = base64.b64encode(picture).decode("ascii")
        shown = f'<img alt="{name} at {moment}" src="data:image/jpeg;base64,{content}">'
    except VideoError as error:
        shown = f"<figcaption>no picture: {escape(printable(error.reason))}</figcaption>"
    filmed = f", filmed {date}" if (date := date_line(hit.video)) else ""
    spans = ", ".join(clock_span(span.start, span.end) for span in hit.moments if span != hit.spans[0])
    also = f"<p>also {spans}</p>" if spans else ""
    for what, videos in (("same content", hit.copies), ("similar score at the same moment", hit.alike)):
        places = escape(", ".join(printable(video.id) for video in videos))
        also += f'<p class="small">{what}: {places}</p>' if places else ""
    also += "".join(f"<p>{line_head(line)} “{escape(printable(line.text))}”</p>" for line in hit.lines)
    return (
        f"<li><figure>{shown}</figure><div><p><b>{rank}. {file}</b>{where}</p>\n"
        f"<p>{moment} of {clock(hit.video.duration)}, {'' if hit.lines else 'score '}{basis(hit)}{filmed}</p>{also}\n"
        f'<p class="curve">{blocks(hit.relevance, *result.scale, _BARS)}</p>'
        f'<p class="small">{escape(printable(hit.video.path))}</p></div></li>'
    )
