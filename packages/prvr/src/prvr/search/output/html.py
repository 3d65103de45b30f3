"""Search results as one HTML page with pictures: no script, nothing loaded from elsewhere."""

import base64
from collections.abc import Callable, Sequence
from html import escape
from math import isfinite
from pathlib import Path

from prvr.reading import printable
from prvr.search.output.files import write_text
from prvr.search.output.terminal import clock, clock_span, percent, split_name
from prvr.search.results import SearchHit, SearchResult
from prvr.search.thumbnails import thumbnail
from prvr.video import VideoError

Picture = Callable[[SearchHit], bytes]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
ol { list-style: none; padding: 0; }
li { display: flex; flex-wrap: wrap; gap: 1rem; padding: .75rem 0; border-top: 1px solid #8886; }
figure { margin: 0; width: 15rem; }
img { display: block; max-width: 100%; height: auto; }
figcaption, .small { color: #777; font-size: .85rem; }
div { flex: 1 1 16rem; min-width: 0; }
p { margin: 0 0 .25rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: 1.5rem; }
"""


def write_html(path: Path | str, results: Sequence[SearchResult], picture: Picture | None = None) -> None:
    """Writes a page with the hits of each query: a picture of the best moment, times, score, and the relevance
    curve.

    The file holds all it needs, pictures included, and can be sent as it is; whatever stands in names and queries is
    shown as text. A moment whose picture cannot be had says why.

    Args:
        path: the file to write.
        results: of some queries.
        picture: JPEG of a hit; default: `picture_of`, which reads the video file.

    Raises:
        prvr.data.DataError: it cannot be written.
        prvr.MissingExtraError: PyAV is not installed.
    """
    alone = len(results) == 1
    title = printable(results[0].query) if alone else f"{len(results)} searches"
    body = "\n".join(_result(result, picture or picture_of, not alone) for result in results)
    write_text(
        path,
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body></html>\n",
    )


def picture_of(hit: SearchHit) -> bytes:
    """The middle of the best moment of a hit, as a JPEG.

    Raises:
        VideoError: the file is not there any more, or cannot be decoded.
    """
    return thumbnail(hit.video.path, (hit.start + hit.end) / 2, width=240)


def _result(result: SearchResult, picture: Picture, headed: bool) -> str:
    heading = f"<h2>{escape(printable(result.query))}</h2>" if headed else ""
    values = [value for hit in result.hits for value in hit.relevance if isfinite(value)]
    scale = (min(values, default=0.0), max(values, default=0.0))
    shown = [_hit(rank, hit, scale, picture) for rank, hit in enumerate(result.hits, 1)]
    if result.fitting < len(shown):
        shown.insert(result.fitting, '<li class="small">weaker matches</li>')
    items = "\n".join(shown)
    verdict = "; nothing fits well" if result.nothing_fits else ""
    return (
        f"<section>{heading}\n"
        f'<p class="small">{len(result.hits)} of {result.videos:,} videos{verdict}; '
        "dark is where a video fits best</p>\n"
        f"<ol>\n{items}\n</ol></section>"
    )


def _hit(rank: int, hit: SearchHit, scale: tuple[float, float], picture: Picture) -> str:
    moment = clock_span(hit.start, hit.end)
    name = escape(printable(hit.video.id))
    file, folder = (escape(part) for part in split_name(printable(hit.video.id)))
    where = f' <span class="small">{folder}</span>' if folder else ""
    try:
        content = base64.b64encode(picture(hit)).decode("ascii")
        shown = f'<img alt="{name} at {moment}" src="data:image/jpeg;base64,{content}">'
    except VideoError as error:
        shown = f"<figcaption>no picture: {escape(printable(error.reason))}</figcaption>"
    others = ", ".join(clock_span(one.start, one.end) for one in hit.moments[1:])
    also = f"<p>also {others}</p>" if others else ""
    places = escape(", ".join(printable(copy.id) for copy in hit.copies))
    also += f'<p class="small">the same film: {places}</p>' if places else ""
    sure = "" if hit.confidence is None else f", confidence {percent(hit.confidence)}"
    return (
        f"<li><figure>{shown}</figure><div><p><b>{rank}. {file}</b>{where}</p>\n"
        f"<p>{moment} of {clock(hit.video.duration)}, score {hit.score:.3f}{sure}</p>{also}\n"
        f'{_curve(hit, scale)}<p class="small">{escape(printable(hit.video.path))}</p></div></li>'
    )


def _curve(hit: SearchHit, scale: tuple[float, float]) -> str:
    """The relevance curve, the darker the better, with a line below the moment."""
    low, span = scale[0], (scale[1] - scale[0]) or 1.0
    shares = ((value - low) / span if isfinite(value) else 0.0 for value in hit.relevance)
    bars = "".join(
        f'<rect x="{place}" y="0" width="1.02" height="10" fill-opacity="{min(max(share, 0.0), 1.0):.2f}"/>'
        for place, share in enumerate(shares)
    )
    parts = len(hit.relevance) or 1
    start, end = (parts * time / (hit.video.duration or 1.0) for time in (hit.start, hit.end))
    mark = f'<rect x="{start:.3f}" y="11" width="{max(end - start, 0.3):.3f}" height="3" fill="#c30"/>'
    return (
        f'<svg viewBox="0 0 {parts} 14" preserveAspectRatio="none" role="img" '
        f'aria-label="best from {clock(hit.start)} to {clock(hit.end)}"><g fill="#06c">{bars}</g>{mark}</svg>'
    )
