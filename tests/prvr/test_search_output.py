"""Results as table, JSON, CSV and HTML: what was found is in them, and nothing in a name is more than text."""

import csv
import io
import json
import os
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.cells import cell_len
from rich.console import Console
from video_files import plain, write_video

from prvr.data import DataError
from prvr.encoders import VideoEntry
from prvr.reading import parse_record
from prvr_search import CURVE_PARTS, Moment, SearchHit, SearchResult
from prvr_search.output import clock, clock_span, result_table, write_csv, write_html, write_json
from prvr_search.output.files import cell
from prvr_search.output.terminal import BLOCKS, blocks, shortened, split_name
from prvr_search.video import VideoError

EVIL = '<script>alert("1")</script><img src=x onerror=y>&amp;\'"'


def hit(
    video: str = "a.mp4",
    score: float = 0.5,
    path: str = "/films/a.mp4",
    peak: int = 10,
) -> SearchHit:
    entry = VideoEntry(video, path, 1000, 0, "0" * 64, 128.0, 256, 64, 48, "h264")
    moments = (Moment(12.5, 17.25, score), Moment(60.0, 70.0, 0.25))
    curve = tuple(0.9 if part == peak else 0.1 for part in range(CURVE_PARTS))
    return SearchHit(entry, score, 12.5, 17.25, moments, curve)


def result(*hits: SearchHit, query: str = "a dog runs") -> SearchResult:
    return SearchResult(query, hits, 1234, "exact")


def shown(one: SearchResult, width: int = 80, **options: bool) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(result_table(one, width=width, **options))
    return console.file.getvalue()


def no_picture(one: SearchHit) -> bytes:
    raise VideoError(Path(one.video.path), f"gone {EVIL}", "Copy it again.")


class TestTimes:
    @given(st.floats(0, 1e6), st.floats(0, 1e5))
    def test_spans_hold_the_moment(self, start: float, length: float) -> None:
        def seconds(text: str) -> int:
            found = 0
            for part in text.split(":"):
                found = 60 * found + int(part)
            return found

        first, last = map(seconds, clock_span(start, start + length).split("-"))
        assert first <= start < first + 1
        assert first < last
        assert start + length <= last + 1e-5
        assert last <= max(start + length + 1, first + 1)

    def test_examples(self) -> None:
        assert [clock(s) for s in (0, 59.99, 60, 3599, 3600, 86399)] == [
            "0:00", "0:59", "1:00", "59:59", "1:00:00", "23:59:59",
        ]  # fmt: skip
        assert [clock_span(0, 0), clock_span(5, 6), clock_span(5.5, 5.6)] == ["0:00-0:01", "0:05-0:06", "0:05-0:06"]


class TestTable:
    def test_rows(self) -> None:
        out = shown(result(hit(), hit("b [red] é.mp4", -0.25)))
        assert max(map(len, out.splitlines())) <= 80
        rows = [line.split() for line in out.splitlines() if "0:12-0:18" in line]
        assert [row[0] for row in rows] == ["1", "2"]
        assert rows[0][1:4] == ["a.mp4", "0.500", "0:12-0:18"]
        assert "[red]" in out
        assert "2 of 1,234 videos" in out
        assert "a dog runs" in out

    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_names_keep_their_end(self, width: int) -> None:
        folders = "/".join(["a long folder of films"] * 5 + ["the last one"])
        file = "a very long name of a film that says at its very end which part it is, " * 2 + "part 7.mp4"
        out = shown(result(hit(f"{folders}/{file}")), width)
        lines = [line for line in out.splitlines() if "─" not in line]
        column = re.sub(r"^1|0\.500|0:12-0:18|video|score|moment|relevance|[▁-█]+", " ", "\n".join(lines), flags=re.M)
        column = "".join(column.split())
        assert "".join(file.split()) in column
        assert column.index("part7.mp4") < column.index("alongf")
        assert "…" in column  # the folder is shortened in the middle
        assert "lastone" in column

    @given(st.text(), st.integers(3, 40))
    def test_shortened_names_fit_and_keep_both_ends(self, text: str, width: int) -> None:
        found = shortened(text, width)
        assert found == text if cell_len(text) <= width else cell_len(found) <= width
        head, _, tail = found.partition("…")
        assert found == text or (text.startswith(head) and text.endswith(tail) and "…" in found)

    def test_what_is_shown(self) -> None:
        assert shown(result()).split()[-4:] == ["0", "of", "1,234", "videos"]
        lines = shown(result(hit("day 1/a.mp4"), hit("b.mp4"))).splitlines()
        (at,) = (number for number, line in enumerate(lines) if "a.mp4" in line)
        assert [lines[at + 1].strip(), lines[at + 2].split()[1]] == ["day 1", "b.mp4"]
        codes = shown(result(hit("a\x1b[31m\n.mp4"), query="q\x1b]0;x"))
        assert "\x1b" not in codes
        assert "q\\x1b]0;x" in codes
        plain = shown(result(hit()), plain=True)
        assert plain.split("0:12-0:18")[1].strip().splitlines()[0].count("#") == 1
        assert not set(BLOCKS) & set(plain)
        (wide,) = (line for line in shown(result(hit()), width=120).splitlines() if "0:12" in line)
        assert (len(wide.split()[-1]), wide.split()[-1].index("█")) == (CURVE_PARTS, 10)

    @given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.integers(1, 80))
    def test_blocks_keep_the_best_of_each_part(self, values: list[float], width: int) -> None:
        found = blocks(values, -1.0, 1.0, width)
        count = min(width, len(values))
        parts = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
        assert found == "".join(BLOCKS[round(7 * (max(part) + 1) / 2)] for part in parts)

    def test_blocks_of_what_is_flat_or_unknown(self) -> None:
        assert blocks([0.5, 0.5], 0.5, 0.5, 8) == "▁▁"
        assert blocks([], 0.0, 1.0, 8) == ""
        assert blocks([float("-inf"), 1.0], 0.0, 1.0, 8) == "▁█"


def test_json_holds_everything(tmp_path: Path) -> None:
    other = hit("é\udcff.mp4", -0.25)
    other = replace(other, video=replace(other.video, path="/films/é\udcff.mp4"))
    one = result(hit(), other, query=EVIL)
    write_json(tmp_path / "new" / "a.json", [one, result()])
    found = json.loads((tmp_path / "new" / "a.json").read_text("ascii"))["results"]
    assert [(row["query"], row["videos"], row["backend"], len(row["hits"])) for row in found] == [
        (EVIL, 1234, "exact", 2),
        ("a dog runs", 1234, "exact", 0),
    ]
    for rank, (row, expected) in enumerate(zip(found[0]["hits"], one.hits, strict=True), 1):
        assert row.pop("rank") == rank
        if rank == 2:  # Unicode has no half of a surrogate pair
            video = row["video"]
            assert (video["id"], video["path"]) == ("é\\udcff.mp4", "/films/é\\udcff.mp4")
            assert os.fsdecode(unquote_to_bytes(video.pop("path_bytes"))) == expected.video.path
            video |= {"id": expected.video.id, "path": expected.video.path}
        assert parse_record(SearchHit, row, "hit", file_names=True) == expected
    assert "\\ud" not in (tmp_path / "new" / "a.json").read_text("ascii").replace("\\\\ud", "")


def test_every_output_names_what_was_folded(tmp_path: Path) -> None:
    """Beside copies, and says how many there are."""
    copy, first, second = (hit(name).video for name in ("copy.mp4", "a.webm", "=a.avi"))
    one = result(replace(hit(), copies=(copy,), alike=(first, second)), hit("b.mp4", 0.25))
    table = shown(one)
    assert [line.strip() for line in table.splitlines() if "also" in line] == [
        "also copy.mp4", "also as a.webm", "also as =a.avi",
    ]  # fmt: skip
    assert "2 of 1,234 videos; 2 more grouped with similar results" in " ".join(table.split())
    write_json(tmp_path / "a.json", [one])
    row = json.loads((tmp_path / "a.json").read_text())["results"][0]["hits"][0]
    assert [video["id"] for video in row["alike"]] == ["a.webm", "=a.avi"]
    write_csv(tmp_path / "a.csv", [one])
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [row["alike"] for row in csv.DictReader(file)] == ["a.webm; =a.avi", ""]
    write_html(tmp_path / "a.html", [one], picture=no_picture)
    text = read_page(tmp_path / "a.html").text
    assert "same content: copy.mp4" in text
    assert "similar score at the same moment: a.webm, =a.avi" in text
    assert "2 of 1,234 videos; 2 more grouped with similar results; higher bars" in text


class TestCsv:
    def test_lines(self, tmp_path: Path) -> None:
        evil = '=cmd|" /C calc"!A0'
        write_csv(
            tmp_path / "a.csv", [result(hit(), hit('b, "c".mp4', -0.25)), result(hit(evil, path=evil), query=evil)]
        )
        with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [(row["query"], row["rank"], row["video"], float(row["score"])) for row in rows] == [
            ("a dog runs", "1", "a.mp4", 0.5),
            ("a dog runs", "2", 'b, "c".mp4', -0.25),
            (f"'{evil}", "1", f"'{evil}", 0.5),
        ]
        assert [float(rows[0][name]) for name in ("start", "end", "duration")] == [12.5, 17.25, 128.0]
        assert rows[2]["path"] == f"'{evil}"

    @given(st.sampled_from(["", "=", "+", "-", "@", "\t", "\r", "\n", "＝", "  ="]), st.text())
    def test_no_cell_begins_as_a_formula(self, start: str, text: str) -> None:
        assert not cell(start + text).lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))
        assert not set(cell(start + text)) & set("\r\n\t\x00\x1b")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text("utf-8"))
    return page


class TestHtml:
    def test_names_and_queries_are_text(self, tmp_path: Path) -> None:
        write_html(tmp_path / "a.html", [result(hit(EVIL, path=EVIL), query=EVIL), result()], picture=no_picture)
        page = read_page(tmp_path / "a.html")
        assert "script" not in page.tags
        assert "img" not in page.tags
        assert page.text.count(EVIL) == 3  # heading, path, why there is no picture
        file, folder = split_name(EVIL)
        assert f"1. {file} {folder}" in page.text
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in page.attributes)
        assert ("http-equiv", "Content-Security-Policy") in page.attributes
        assert any("default-src 'none'" in (value or "") for _, value in page.attributes)

    def test_pictures_are_in_the_file(self, tmp_path: Path) -> None:
        film = write_video(tmp_path / "film.mp4", plain([40] * 150 + [200] * 50))  # 15 s dark, then light
        write_html(tmp_path / "a.html", [result(hit(path=str(film)), hit(path=str(tmp_path / "gone.mp4")))])
        page = read_page(tmp_path / "a.html")
        (source,) = (value for name, value in page.attributes if name == "src")
        assert source is not None
        kind, _, content = source.partition(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(b64decode(content))) as picture:
            assert np.asarray(picture).mean() == pytest.approx(40, abs=3)  # the middle of 12.5 - 17.25 is 14.875
        assert "no picture: no such file" in page.text
        assert "0:12-0:18 of 2:08, score 0.500" in page.text
        assert "also 1:00-1:10" in page.text

    def test_headings_and_the_time_line(self, tmp_path: Path) -> None:
        for number in (2, 1):
            write_html(tmp_path / "a.html", [result(hit(peak=7))] * number, picture=no_picture)
            page = read_page(tmp_path / "a.html")
            assert page.tags.count("h1") == 1
            assert page.tags.count("h2") == (0 if number == 1 else 2)
            assert page.text.count("a dog runs") == 2  # with the title
        heights = [float(value or 0) for name, value in page.attributes if name == "height"]
        assert len(heights) == len(hit().moments) + CURVE_PARTS
        assert np.argmax(heights[-CURVE_PARTS:]) == 7
        assert ("aria-label", "best from 0:12 to 0:17") in page.attributes


@pytest.mark.parametrize("write", [write_json, write_csv, write_html])
def test_what_stood_there_stays_until_the_new_one_is_whole(write, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    with pytest.raises(DataError, match="cannot be written"):
        write(tmp_path / "there" / "below", [result()])
    write(tmp_path / "there", [result()])
    assert (tmp_path / "there").read_text() != "before"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
