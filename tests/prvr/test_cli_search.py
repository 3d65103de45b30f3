"""prvr search: what it prints and writes is what the index finds."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import explained
from video_files import plain, write_video

from prvr.cli import main
from prvr.search import SearchResult, VideoIndex, open_model
from prvr.search.output import clock_span
from prvr.video import VideoStore, extract, open_encoder

QUERY = "a red square"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four films of 6 s, each with one coloured second, in a zero-shot index."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "films").mkdir()
    for place, name in enumerate(["red [x].mp4", "green.mp4", "=blue.mp4", "grey.mp4"]):
        frames = plain([60] * 60, 64, 64)
        for frame in frames[10 * place : 10 * place + 10]:
            frame[16:48, 16:48, min(place, 2)] = 250 if place < 3 else 60
        write_video(folder / "films" / name, frames)
    extract([folder / "films"], open_encoder("embedded"), folder / "store")
    store = VideoStore(folder / "store")
    with VideoIndex.create(folder / "index", open_model("zero-shot", store.header), store.header) as made:
        made.add(store)
    return folder / "index"


def found(index: Path, query: str, k: int = 10) -> SearchResult:
    with VideoIndex.open(index) as opened:
        return opened.search(query, k)


def rows(out: str) -> list[tuple[str, ...]]:
    """rank, video, score, moment of each line of the table."""
    return re.findall(r"^(\d+) +(\S.*?) +(-?\d\.\d{3}) +([\d:]+-[\d:]+) ", out, flags=re.MULTILINE)


def test_the_table_is_what_the_index_finds(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(index), QUERY, "-k", "3"]) == 0
    expected = found(index, QUERY, 3)
    out = capsys.readouterr().out
    assert rows(out) == [
        (str(rank), hit.video_id, f"{hit.score:.3f}", clock_span(hit.start, hit.end))
        for rank, hit in enumerate(expected.hits, 1)
    ]
    assert expected.hits[0].video_id == "red [x].mp4"
    assert "3 of 4 videos" in out
    assert len({len(line.split()[-1]) for line in out.splitlines() if "mp4" in line}) == 1


def test_files(index: Path, tmp_path: Path) -> None:
    names = {kind: tmp_path / "out" / f"a.{kind}" for kind in ("json", "csv", "html")}
    assert main(["search", str(index), QUERY, *(f"--{kind}={path}" for kind, path in names.items())]) == 0
    expected = found(index, QUERY)
    hits = json.loads(names["json"].read_text())["results"][0]["hits"]
    assert [(hit["video"]["id"], hit["score"], hit["start"]) for hit in hits] == [
        (hit.video_id, hit.score, hit.start) for hit in expected.hits
    ]
    with names["csv"].open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["video"] for line in lines] == [hit.video_id.replace("=blue", "'=blue") for hit in expected.hits]
    page = names["html"].read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 4
    assert "red [x].mp4" in page


def test_a_file_of_sentences(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queries = [QUERY, "a green square", "étoile"]
    (tmp_path / "q.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join([*queries, "  "]).encode())
    answers = tmp_path / "a.json"
    assert main(["search", str(index), "--file", str(tmp_path / "q.txt"), "-k", "2", "--json", str(answers)]) == 0
    out = capsys.readouterr().out
    places = [out.index(query) for query in queries]
    assert places == sorted(places)
    assert len(rows(out)) == 6
    results = json.loads(answers.read_text())["results"]
    assert [one["query"] for one in results] == queries
    for one in results:
        expected = found(index, one["query"], 2)
        assert [hit["video"]["id"] for hit in one["hits"]] == [hit.video_id for hit in expected.hits]
        np.testing.assert_allclose([h["score"] for h in one["hits"]], [h.score for h in expected.hits], atol=1e-6)


def test_what_is_refused(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    for arguments, why in (
        ([str(index)], "takes a sentence, or --file"),
        ([str(index), QUERY, "--file", "q.txt"], "takes a sentence, or --file"),
        ([str(index), "--file", str(tmp_path / "none.txt")], "cannot be read"),
        ([str(index), "--file", str(tmp_path / "latin.txt")], "not UTF-8"),
        ([str(index), "--file", str(tmp_path / "empty.txt")], "0 sentences"),
        ([str(index), "?!"], "no word in"),
        ([str(index), "word " * 65], "65 words"),
        ([str(index), QUERY, "-k", "0"], "expected positive numbers"),
        ([str(index), QUERY, "--moments", "0"], "expected positive numbers"),
        ([str(index), QUERY, "--backend", "magic"], "expected one of"),
        ([str(tmp_path / "none"), QUERY], "not found"),
        ([str(index), QUERY, "--encoder", str(tmp_path)], "no model of transformers"),
    ):
        assert why in explained(["search", *arguments], capsys), arguments
