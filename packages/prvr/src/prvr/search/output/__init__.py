"""What was found, for people and programs: a table for the terminal, JSON, CSV, and one HTML page with pictures."""

from prvr.search.output.csv_file import write_csv as write_csv
from prvr.search.output.html_file import write_html as write_html
from prvr.search.output.json_file import write_json as write_json
from prvr.search.output.terminal import result_table as result_table
from prvr.search.output.times import clock as clock
from prvr.search.output.times import clock_span as clock_span

__all__ = ["clock", "clock_span", "result_table", "write_csv", "write_html", "write_json"]
