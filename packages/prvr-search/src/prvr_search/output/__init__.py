"""Output of search results: a table for the terminal, JSON, CSV, an HTML page with pictures, timelines, chapters."""

from prvr_search.output.files import write_chapters, write_csv, write_json, write_timeline
from prvr_search.output.report import result_table, write_html
from prvr_search.ranking.results import clock, clock_span

WRITERS = {
    "json": write_json,
    "csv": write_csv,
    "html": write_html,
    "otio": write_timeline,
    "chapters": write_chapters,
}
"""What writes results to a file, by the option of `prvr search`."""

__all__ = [
    "WRITERS",
    "clock",
    "clock_span",
    "result_table",
    "write_chapters",
    "write_csv",
    "write_html",
    "write_json",
    "write_timeline",
]
