"""Results for the terminal."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.reading import printable
from prvr.search.hits import SearchResult
from prvr.search.output.times import clock_span

__all__ = ["blocks", "result_table"]

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#"  # where the terminal knows no blocks
_BESIDE = 40  # columns of an 80-column terminal that are not the time line's


def result_table(result: SearchResult, *, width: int = 80, plain: bool = False) -> Table:
    """A row for each hit: rank, video, score, its best moment, and the time line of the video.

    The time line shows how well each part of the video fits, from left to right; its scale is that of all hits of the
    query, from the worst part to the best.

    Args:
        result: of one query.
        width: of the terminal, in columns.
        plain: draw with ASCII.
    """
    many = f"{len(result.hits)} of {result.videos:,} videos"
    table = Table(
        title=Text(printable(result.query), "bold"), caption=many, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("video", overflow="fold", min_width=8)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("moment", justify="right", no_wrap=True)
    table.add_column("time line", no_wrap=True)
    values = [value for hit in result.hits for value in hit.strip if isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = max(8, min(64, width - _BESIDE))
    for rank, hit in enumerate(result.hits, 1):
        line = blocks(hit.strip, low, high, room, PLAIN if plain else BLOCKS)
        moment = clock_span(hit.start, hit.end)
        # Text, not str: a name may hold square brackets, which rich would read as markup
        table.add_row(str(rank), Text(printable(hit.video_id)), f"{hit.score:.3f}", moment, Text(line))
    return table


def blocks(strip: Sequence[float], low: float, high: float, width: int, letters: str = BLOCKS) -> str:
    """A strip as one line of letters, the higher the fuller; where there is less room, the best of each part counts.

    Args:
        strip: values along the time line.
        low, high: that the first and the last letter stand for.
        width: most letters.
        letters: from low to high.

    Example:
        >>> blocks([0.0, 0.5, 1.0, 0.25], 0.0, 1.0, 4), blocks([0.0, 0.5, 1.0, 0.25], 0.0, 1.0, 2)
        ('▁▅█▃', '▅█')
    """
    count = min(width, len(strip))
    edges = [len(strip) * part // count for part in range(count + 1)] if count else []
    best = [max(strip[start:end]) for start, end in pairwise(edges)]
    span = high - low if high > low else 1.0
    last = len(letters) - 1
    places = (round(last * (value - low) / span) if isfinite(value) else 0 for value in best)
    return "".join(letters[min(max(place, 0), last)] for place in places)
