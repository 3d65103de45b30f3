"""Results as table, JSON, CSV and HTML: what was found is in them, and nothing in a name is more than text."""

import csv
import io
import json
import os
import re
from base64 import b64decode
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from video_files import plain, write_video

from prvr.data import DataError
from prvr.encoders import VideoEntry
from prvr.reading import parse_record
from prvr_search import CURVE_PARTS, Moment, SearchHit, SearchResult
from prvr_search.films import SubtitleLine, VideoError
from prvr_search.output import clock_span, report, result_table, write_csv, write_html, write_json
from prvr_search.output.files import cell
from prvr_search.output.report import BLOCKS, blocks

EVIL = '<script>alert("1")</script><img src=x onerror=y>&amp;\'"'
FORMULA = '=cmd|" /C calc"!A0'


def hit(video: str = "a.mp4", score: float = 0.5, path: str = "/films/a.mp4") -> SearchHit:
    """The tenth part of its curve is the best."""
    entry = VideoEntry(video, path, 1000, 0, "0" * 64, 128.0, 256, 64, 48, "h264")
    curve = tuple(0.9 if part == 10 else 0.1 for part in range(CURVE_PARTS))
    return SearchHit(entry, score, (Moment(12.5, 17.25, score), Moment(60.0, 70.0, 0.25)), curve)


def result(*hits: SearchHit, query: str = "a dog runs") -> SearchResult:
    return SearchResult(query, hits, 1234, "exact")


def shown(answer: SearchResult, width: int = 80, **options: bool) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(result_table(answer, width=width, **options))
    return console.file.getvalue()


@given(st.floats(0, 1e6), st.floats(0, 1e5))
def test_spans_hold_the_moment(start: float, length: float) -> None:
    def seconds(text: str) -> int:
        return sum(int(part) * 60**place for place, part in enumerate(reversed(text.split(":"))))

    first, last = map(seconds, clock_span(start, start + length).split("-"))
    assert first <= start < first + 1
    assert first < last
    assert start + length <= last + 1e-5
    assert last <= max(start + length + 1, first + 1)


def test_a_table_holds_a_row_for_each_hit() -> None:
    out = shown(result(hit("day 1/a.mp4"), hit("b [red] é\x1b[31m.mp4", -0.25), query="q\x1b]0;x"))
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out  # codes of a terminal are shown, not obeyed
    assert {"q\\x1b]0;x", "2 of 1,234 videos"} <= {line.strip() for line in lines}
    (at,) = (number for number, line in enumerate(lines) if "a.mp4" in line)
    assert lines[at].split()[:4] == ["1", "a.mp4", "0.500", "0:12-0:18"]
    assert lines[at + 1].strip() == "day 1"
    assert lines[at + 2].split()[:3] == ["2", "b", "[red]"]
    (wide,) = (line.split()[-1] for line in shown(result(hit()), width=120).splitlines() if "0:12" in line)
    assert (len(wide), wide.index("█")) == (CURVE_PARTS, 10)
    assert not set(BLOCKS) & set(shown(result(hit()), plain=True))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.integers(1, 80))
def test_blocks_keep_the_best_of_each_part(values: list[float], width: int) -> None:
    count = min(width, len(values))
    parts = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    assert blocks(values, -1.0, 1.0, width) == "".join(BLOCKS[round(7 * (max(part) + 1) / 2)] for part in parts)
    assert blocks([0.5, 0.5], 0.5, 0.5, 8) == "▁▁"
    assert blocks([float("-inf"), 1.0], 0.0, 1.0, 8) == "▁█"


def test_json_holds_everything(tmp_path: Path) -> None:
    other = hit("é\udcff.mp4", -0.25, "/films/é\udcff.mp4")
    answer = result(hit(), other, query=EVIL)
    write_json(tmp_path / "new" / "a.json", [answer, result()])
    first, empty = json.loads((tmp_path / "new" / "a.json").read_text("ascii"))["results"]
    assert (first["query"], first["videos"], first["backend"], empty["hits"]) == (EVIL, 1234, "exact", [])
    video = first["hits"][1]["video"]
    assert (video["id"], video["path"]) == ("é\\udcff.mp4", "/films/é\\udcff.mp4")  # no half of a surrogate pair
    assert os.fsdecode(unquote_to_bytes(video.pop("path_bytes"))) == other.video.path
    video |= {"id": other.video.id, "path": other.video.path}
    for rank, (row, expected) in enumerate(zip(first["hits"], answer.hits, strict=True), 1):
        assert [row.pop(name) for name in ("rank", "start", "end")] == [rank, expected.start, expected.end]
        assert parse_record(SearchHit, row, "hit", file_names=True) == expected


def test_json_has_null_where_a_curve_has_no_score(tmp_path: Path) -> None:
    curve = (-np.inf, *hit().relevance[1:])  # as of a model whose moments leave gaps
    write_json(tmp_path / "a.json", [result(replace(hit(), relevance=curve))])
    (row,) = json.loads((tmp_path / "a.json").read_text("ascii"))["results"][0]["hits"]
    assert row["relevance"] == [None, *curve[1:]]


def test_csv_holds_a_line_for_each_hit_and_no_formula(tmp_path: Path) -> None:
    formula = hit(FORMULA, path=FORMULA)
    first, other, last = csv_rows(tmp_path, result(hit(), hit('b, "c".mp4', -0.25)), result(formula, query=FORMULA))
    assert [first[name] for name in ("query", "rank", "video", "score")] == ["a dog runs", "1", "a.mp4", "0.500000"]
    assert [float(first[name]) for name in ("start", "end", "duration")] == [12.5, 17.25, 128.0]
    assert (other["rank"], other["video"]) == ("2", 'b, "c".mp4')
    assert {last[name] for name in ("query", "video", "path")} == {f"'{FORMULA}"}


def csv_rows(folder: Path, *answers: SearchResult) -> list[dict[str, str]]:
    write_csv(folder / "a.csv", answers)
    with (folder / "a.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@given(st.sampled_from(["", "=", "+", "-", "@", "\t", "\r", "\n", "＝", "  ="]), st.text())
def test_no_cell_begins_as_a_formula(start: str, text: str) -> None:
    assert not cell(start + text).lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))
    assert not set(cell(start + text)) & set("\r\n\t\x00\x1b")


def text_of(page: str) -> str:
    return unescape(re.sub("<[^>]+>", "", page))


def test_names_and_queries_of_a_page_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *_: object, **options: object) -> bytes:
        raise VideoError(Path(path), f"gone {EVIL}", "Copy it again.")

    monkeypatch.setattr(report, "thumbnail", refuse)
    write_html(tmp_path / "a.html", [result(hit(EVIL, path=EVIL), query=EVIL), result()])
    page = (tmp_path / "a.html").read_text("utf-8")
    assert not re.search('<(script|img)|onerror=y>|(src|href)="', page)
    assert text_of(page).count(EVIL) == 3  # heading, path, why there is no picture
    assert 'http-equiv="Content-Security-Policy" content="default-src ' in page


def test_a_page_holds_its_pictures_and_time_lines(tmp_path: Path) -> None:
    film = write_video(tmp_path / "film.mp4", plain([40] * 150 + [200] * 50))  # 15 s dark, then light
    write_html(tmp_path / "a.html", [result(hit(path=str(film)), hit(path=str(tmp_path / "gone.mp4")))])
    page = (tmp_path / "a.html").read_text("utf-8")
    (content,) = re.findall('src="data:image/jpeg;base64,([^"]+)"', page)
    with Image.open(io.BytesIO(b64decode(content))) as picture:
        assert np.asarray(picture).mean() == pytest.approx(40, abs=3)  # the middle of 12.5 - 17.25 is 14.875
    for text in ("no picture: no such file", "0:12-0:18 of 2:08, score 0.500", "also 1:00-1:10"):
        assert text in text_of(page)
    (*_, curve) = re.findall(f"[{BLOCKS}]{{48}}", page)
    assert curve.index("█") == 8  # part 10 of 64


def test_every_output_names_what_was_folded(tmp_path: Path) -> None:
    """Beside copies, and says how many there are."""
    copy, first, second = (hit(name).video for name in ("copy.mp4", "a.webm", "=a.avi"))
    answer = result(replace(hit(), copies=(copy,), alike=(first, second)), hit("b.mp4", 0.25))
    table = shown(answer)
    also = [line.strip() for line in table.splitlines() if "also" in line]
    assert also == ["also copy.mp4", "also as a.webm", "also as =a.avi"]
    count = "2 of 1,234 videos; 2 more grouped with similar results"
    assert count in " ".join(table.split())
    assert [row["alike"] for row in csv_rows(tmp_path, answer)] == ["a.webm; =a.avi", ""]
    write_html(tmp_path / "a.html", [answer])
    text = text_of((tmp_path / "a.html").read_text("utf-8"))
    for part in ("same content: copy.mp4", "similar score at the same moment: a.webm, =a.avi", f"{count}; higher bars"):
        assert part in text


def test_a_line_is_told_by_its_kind_in_place_of_a_score(tmp_path: Path) -> None:
    """The score of a line is of another kind, and may be 0 where most videos have its words; where it is, is shown."""
    lines = {kind: replace(hit(), lines=(SubtitleLine(1.0, 2.0, "a", kind=kind),)) for kind in ("", "said", "written")}
    for kind, answer in lines.items():
        source = kind or "subtitles"
        (row,) = (line.split() for line in shown(result(answer)).splitlines() if "a.mp4" in line)
        assert row[1:4] == ["a.mp4", source, "0:01-0:02"]
        write_html(tmp_path / "a.html", [result(answer)])
        assert f"0:01-0:02 of 2:08, {source}" in text_of((tmp_path / "a.html").read_text("utf-8"))
        assert [row["line_kind"] for row in csv_rows(tmp_path, result(answer))] == [kind]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    for write in (write_json, write_csv, write_html):
        with pytest.raises(DataError, match="cannot be written"):
            write(tmp_path / "there" / "below", [result()])
