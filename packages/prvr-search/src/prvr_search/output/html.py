"""Search results as one HTML page with pictures: no script, nothing loaded from elsewhere."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from prvr.reading import printable
from prvr_search.films import VideoError
from prvr_search.films.thumbnails import thumbnail
from prvr_search.output.files import write_text
from prvr_search.output.terminal import basis, blocks, count_line, date_line, line_head, split_name
from prvr_search.ranking.results import SearchHit, SearchResult, clock, clock_span

_BARS = 48  # of a curve

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
    body = "\n".join(_result(result, not alone) for result in results)
    write_text(
        path,
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body></html>\n",
    )


def _result(result: SearchResult, headed: bool) -> str:
    heading = f"<h2>{escape(printable(result.query))}</h2>" if headed else ""
    items = "\n".join(_hit(rank, hit, result) for rank, hit in enumerate(result.hits, 1))
    return (
        f"<section>{heading}\n"
        f'<p class="small">{count_line(result)}; higher bars match better</p>\n'
        f"<ol>\n{items}\n</ol></section>"
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
    spans = ", ".join(clock_span(span.start, span.end) for span in hit.moments[1:])
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
