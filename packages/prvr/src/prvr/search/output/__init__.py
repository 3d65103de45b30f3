"""Output of search results: a table for the terminal, JSON, CSV, and one HTML page with pictures."""

from prvr.search.output.files import write_csv, write_json
from prvr.search.output.html import write_html
from prvr.search.output.terminal import clock, clock_span, half_blocks, result_table

__all__ = ["clock", "clock_span", "half_blocks", "result_table", "write_csv", "write_html", "write_json"]
