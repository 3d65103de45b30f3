"""The API of `prvr serve` on a real index of real files: what is found, parts of files, pictures, previews, load."""

import asyncio
import csv
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

import av
import httpx2
from counting_encoder import NAME, Colours, film
from PIL import Image
from serving import EVIL, GREYS, HOST, Served, app_of, keys_of, listening, make_library, shared, wait_for
from starlette.testclient import TestClient
from video_files import write_video

from prvr.cli import main
from prvr_search import Library, Query, SearchFilter
from prvr_search.films import Listing, open_video
from prvr_search.serve import ServeLimits, ServeSettings, create_app
from prvr_search.serve.service import Busy, Workers


@pytest.fixture(scope="module")
def served(_caches: Path, toy_root: Path) -> Served:
    return shared(_caches, toy_root)[0]


@pytest.fixture(scope="module")
def told(_caches: Path, toy_root: Path) -> list[str]:
    """A sentence about each drawn film."""
    return shared(_caches, toy_root)[1]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[TestClient]:
    with TestClient(app_of(served), base_url=HOST) as client:
        yield client


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["video"]["name"] for hit in answer.json()["hits"]]


def test_search_gives_what_the_index_gives(client: TestClient, served: Served, told: list[str]) -> None:
    with served.opened() as index:
        expected = index.search(told[0], 4, moments=2)
    answer = client.get("/api/search", params={"q": told[0], "k": 4, "moments": 2})
    assert names(answer) == [hit.video_id for hit in expected.hits]
    body = answer.json()
    assert (body["query"], body["videos"], body["backend"]) == (told[0], expected.videos, expected.backend)
    for rank, (hit, true) in enumerate(zip(body["hits"], expected.hits, strict=True), 1):
        assert (hit["rank"], hit["start"], hit["end"]) == (rank, true.start, true.end)
        assert hit["score"] == pytest.approx(true.score)
        assert [(each["start"], each["end"]) for each in hit["moments"]] == [(m.start, m.end) for m in true.moments]
        assert hit["relevance"] == pytest.approx(list(true.relevance))
    assert str(served.films) not in answer.text  # where files lie is nobody's business


def test_all_that_an_index_can_be_asked_is_asked_by_address(
    client: TestClient, served: Served, told: list[str]
) -> None:
    key = keys_of(client)["old.avi"]
    like = {"key": key, "start": 1, "end": 2}
    for params, query in (
        ({"q": told[:2], "without": [told[2], "blue"]}, Query(told[:2], [told[2], "blue"])),
        (like | {"like": key, "q": "red", "without": "blue"}, Query("red", "blue", None, ("old.avi", 1, 2))),
    ):
        answer = client.get("/api/search", params=params | {"k": 5})
        with served.opened() as index:
            expected = index.search(query, 5)
        assert names(answer) == [hit.video_id for hit in expected.hits]
        assert answer.json()["query"] == expected.query
        first = {"texts": query.texts, "without": query.without, "like": query.passage and like}
        both = client.post("/api/search", json={"queries": [first, told[0]], "k": 5}).json()["results"]
        assert [hit["video"]["name"] for hit in both[0]["hits"]] == names(answer)
        assert both[1]["query"] == told[0]


def test_a_picture_is_sent_as_the_file_that_it_is(served: Served) -> None:
    """It has a limit of its own."""
    file = io.BytesIO()
    Image.new("RGB", (300, 200), (200, 30, 30)).save(file, "BMP")
    picture = file.getvalue()
    with served.opened() as index:
        expected = index.search(Query("a square", "blue", picture), 3)
    limits = ServeLimits(body_bytes=100, picture_bytes=len(picture))
    with TestClient(app_of(served, limits=limits), base_url=HOST) as client:
        answer = client.post("/api/search/picture?k=3&q=a+square&without=blue", content=picture)
        assert names(answer) == [hit.video_id for hit in expected.hits]
        assert answer.json()["query"] == "a square + like a picture, without blue"
        for content in (picture + b"x", iter([picture, b"x"])):  # the second does not say how long it is
            assert client.post("/api/search/picture", content=content).status_code == 413
        refused = client.post("/api/search/picture", content=picture[:60])
    assert refused.status_code == 415
    assert "cannot be read as a picture" in refused.json()["detail"]


def test_filters_are_those_of_the_index(client: TestClient, served: Served, told: list[str]) -> None:
    for params, where in (
        ({"in": ["day 1", "none"]}, SearchFilter(folders=["day 1", "none"])),
        ({"name": "*.avi", "longer": 1, "shorter": 60}, SearchFilter(names=["*.avi"], longer=1.0, shorter=60.0)),
        ({"before": "2001-01-01T00:00:00Z"}, SearchFilter(before=datetime(2001, 1, 1, tzinfo=UTC))),
    ):
        with served.opened() as index:
            expected = [hit.video_id for hit in index.search(told[0], 20, where=where).hits]
        assert names(client.get("/api/search", params=params | {"q": told[0], "k": 20})) == expected
        assert len(expected) == (0 if "before" in params else 1)


def test_what_cannot_be_asked_by_address(client: TestClient) -> None:
    key = keys_of(client)["old.avi"]
    for params, status in (
        ({"without": "snow"}, 400),
        ({"like": "0" * 24}, 404),
        ({"like": key, "start": 1000}, 400),
        ({"q": "a", "after": "0001-01-01T00:00:00"}, 400),
    ):
        answer = client.get("/api/search", params=params)
        assert answer.status_code == status, answer.text
        assert len(answer.content) < 1000
    assert "word" in client.get("/api/search", params={"q": "!!!"}).json()["detail"]
    assert client.post("/api/search", json={"queries": ["a red circle", "word " * 90]}).status_code == 400


def test_the_list_of_videos_and_what_is_known_of_them(client: TestClient, served: Served) -> None:
    everything = client.get("/api/videos").json()
    assert everything["total"] == len(everything["videos"]) == 10
    assert len(set(keys_of(client).values())) == 10  # two files of the same content and another name are two videos
    page = client.get("/api/videos", params={"offset": 2, "limit": 3}).json()["videos"]
    assert page == everything["videos"][2:5]
    named = client.get("/api/videos", params={"name": "TEST0001", "limit": 1}).json()
    assert (named["total"], named["videos"][0]["name"]) == (1, "test0001.mp4")
    newest = client.get("/api/videos", params={"newest": True}).json()["videos"]
    changed = [(served.films / one["name"]).stat().st_mtime_ns for one in newest]
    assert changed == sorted(changed, reverse=True)
    info = client.get("/api/info").json()
    assert (info["videos"], info["zero_shot"], info["encoder"]) == (10, True, "toy")


def test_a_clip_is_a_file_of_its_own(client: TestClient, tmp_path: Path) -> None:
    """Copied where that is near enough; of any kind of film."""
    keys = keys_of(client)
    assert client.get(f"/api/videos/{keys['old.avi']}").json()["name"] == "old.avi"
    for name, suffix in (("test0001.mp4", "mp4"), ("old.avi", "mkv")):
        answer = client.get(f"/api/videos/{keys[name]}/clip", params={"start": 0.5, "end": 1.5})
        assert answer.status_code == 200, answer.text
        expected = f"{name.partition('.')[0]} 0m00.5s-0m01.5s.{suffix}"
        assert unquote(answer.headers["content-disposition"]) == f"attachment; filename*=utf-8''{expected}"
        clip = tmp_path / expected
        clip.write_bytes(answer.content)
        with open_video(clip) as film:
            assert film.info.comment == "clip by prvr"
            assert 0.9 <= (film.info.duration or 0) <= 3
    for start, end, status in ((1, 1, 400), (0, 700, 400), (600, 601, 415)):
        answer = client.get(f"/api/videos/{keys['old.avi']}/clip", params={"start": start, "end": end})
        assert answer.status_code == status


def test_what_is_shown_is_exported(client: TestClient) -> None:
    keys = keys_of(client)
    hit = {"key": keys["old.avi"], "start": 0.5, "end": 1.0, "score": 0.25}
    hit["lines"] = [{"start": 0.5, "end": 1.0, "text": "=a line", "kind": "said"}]
    answer = client.post("/api/export", json={"kind": "csv", "query": "red", "hits": [hit]})
    (row,) = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert [row[name] for name in ("video", "path", "start")] == ["old.avi", "old.avi", "0.500"]
    assert (row["line"], row["line_kind"]) == ("'=a line", "said")
    assert answer.headers["content-disposition"] == 'attachment; filename="results.csv"'
    for wrong in ({"kind": "html", "hits": []}, {"kind": "csv", "hits": [hit | {"path": "/etc/passwd"}]}):
        assert client.post("/api/export", json=wrong).status_code == 422
    unknown = {"kind": "csv", "hits": [hit | {"key": "0" * 24}]}
    assert client.post("/api/export", json=unknown).status_code == 404


def test_first_this_then_that(client: TestClient) -> None:
    """As by command and in Python."""
    first, then = "a red square", "a blue circle"
    answer = client.get("/api/search", params={"q": first, "then": then, "within": 5}).json()
    assert answer["query"] == f"{first}, then {then}"
    body = {"queries": [{"texts": [first], "then": then, "within": 5}]}
    assert client.post("/api/search", json=body).json()["results"] == [answer]
    assert all(len(hit["moments"]) == 1 for hit in answer["hits"])
    assert client.get("/api/search", params={"q": first, "then": then, "within": 0}).status_code == 422


def test_a_file_whole_and_in_parts(client: TestClient, served: Served) -> None:
    content = (served.films / "test0001.mp4").read_bytes()
    address = f"/api/videos/{keys_of(client)['test0001.mp4']}/file"
    whole = client.get(address)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "video/mp4")
    assert whole.content == content
    size = len(content)
    for wanted, start, stop in (("3-9", 3, 10), (f"{size - 5}-", size - 5, size), ("-7", size - 7, size)):
        answer = client.get(address, headers={"Range": f"bytes={wanted}"})
        assert (answer.status_code, answer.content) == (206, content[start:stop])
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
    beyond = client.get(address, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    for tag, status in ((whole.headers["etag"], 206), ('"another"', 200)):
        assert client.get(address, headers={"Range": "bytes=0-9", "If-Range": tag}).status_code == status
    head = client.head(address)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(size))


def test_another_content_has_another_address(tmp_path: Path) -> None:
    """What a browser has kept of an address stays true."""
    served = make_library(tmp_path, "a.mp4", "b.mp4")
    with TestClient(app_of(served), base_url=HOST) as client:
        before = keys_of(client)
    write_video(served.films / "a.mp4", GREYS[::-1])
    with served.library() as library:
        library.update()
    with TestClient(app_of(served), base_url=HOST) as client:
        after = keys_of(client)
        assert client.get(f"/api/videos/{before['a.mp4']}/thumbnail").status_code == 404
    assert after["a.mp4"] != before["a.mp4"]
    assert after["b.mp4"] == before["b.mp4"]


def test_thumbnails_and_previews_show_the_time_that_was_asked_for(client: TestClient) -> None:
    """What a preview shows is tested with clips."""
    address = f"/api/videos/{keys_of(client)['old.avi']}"
    early, late = (client.get(f"{address}/thumbnail", params={"t": t, "width": 64}) for t in (0.05, 2.5))
    assert early.headers["content-type"] == "image/jpeg"
    assert np.asarray(Image.open(io.BytesIO(early.content))).mean() == pytest.approx(40, abs=8)  # the first grey
    red = np.asarray(Image.open(io.BytesIO(late.content))).reshape(-1, 3).mean(0)
    assert red[0] > 150 > 80 > red[1]
    for kind in ("mp4", "webm"):
        answer = client.get(f"{address}/preview", params={"start": 1.0, "end": 3.0, "kind": kind})
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"video/{kind}")
        with av.open(io.BytesIO(answer.content)) as container:
            assert len(list(container.decode(video=0))) == 20  # ten per second
    for start, end, status in ((0, 61, 400), (2, 1, 400), (9000, 9001, 200)):  # of the last, the last frame
        assert client.get(f"{address}/preview", params={"start": start, "end": end}).status_code == status


def test_a_server_that_cannot_search_ends_and_says_why(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--encoder", "toy", "--port", "0", "--backend", "another", "--device", "cpu"]
    assert main(["serve", str(served.films), *options]) == 2
    said = capsys.readouterr().err
    assert "'another'" in said
    assert "Traceback" not in said


def test_a_library_is_served_while_it_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers before the first video is encoded, tells how far it is, and new videos appear by themselves."""
    may, finish = threading.Semaphore(0), Colours.finish

    def held(encoder: Colours, rows: np.ndarray) -> np.ndarray:
        assert len(rows) <= 2 or may.acquire(timeout=60)  # a few are the trial when it is opened
        return finish(encoder, rows)

    monkeypatch.setattr(Colours, "finish", held)
    films = tmp_path / "films"
    for colour in range(3):
        film(films / f"{'rgb'[colour]}.mp4", colour)
    library = Library(films, encoder=NAME, home=tmp_path / "home")
    with library, TestClient(create_app(library, ServeSettings(rescan_seconds=0.1)), base_url=HOST) as client:
        assert client.get("/api/search", params={"q": "red"}).json()["hits"] == []
        wait_for(lambda: client.get("/ready").json().get("total") == 3)
        may.release()
        wait_for(lambda: len(keys_of(client)) == 1)
        assert client.get("/api/info").json()["progress"].items() >= {"total": 3, "error": None}.items()
        may.release(2)
        wait_for(lambda: sorted(keys_of(client)) == ["b.mp4", "g.mp4", "r.mp4"])
        assert client.get("/ready").json() == {"status": "ready", "done": 3, "total": 3}
        films.rename(tmp_path / "away")
        films.touch()
        wait_for(lambda: "not a directory" in (client.get("/api/info").json()["progress"]["error"] or ""))


def test_an_idle_server_rests_nine_times_as_long_as_it_looks(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, listing = list[float](), served.library().list_videos()

    def look(_: Library) -> Listing:
        looks.append(time.monotonic())
        time.sleep(0.1)
        return listing

    monkeypatch.setattr(Library, "list_videos", look)
    settings = ServeSettings(rescan_seconds=0.01)
    with TestClient(create_app(served.library(), settings, update=False), base_url=HOST):
        wait_for(lambda: len(looks) >= 3)
    assert np.diff(looks).min() >= 1.0


def test_eight_clients_at_once_get_no_error(served: Served, told: list[str]) -> None:
    with listening(served) as address, httpx2.Client(base_url=address, timeout=60) as client:
        keys = keys_of(client)
        expected = {query: names(client.get("/api/search", params={"q": query})) for query in told}

        def use(number: int) -> None:
            for turn in range(6):
                query = told[(number + turn) % len(told)]
                assert names(client.get("/api/search", params={"q": query})) == expected[query]
                video = keys[["old.avi", "link.mp4", EVIL][turn % 3]]
                assert client.get(f"/api/videos/{video}/thumbnail", params={"t": number}).status_code == 200

        with ThreadPoolExecutor(8) as clients:
            list(clients.map(use, range(8)))
        metrics = client.get("/metrics").text
    assert 'prvr_requests_total{route="/api/search",status="200"} 52' in metrics
    assert "prvr_requests_active 1.0\n" in metrics  # this one


def test_work_that_is_too_much_or_too_slow_is_given_up() -> None:
    go = threading.Event()

    async def ask() -> None:
        workers = Workers(threads=1, waiting=1, seconds=0.05)
        held = [asyncio.ensure_future(workers.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="busy"):
            await workers.run(go.wait)
        for one in held:
            with pytest.raises(Busy, match="longer"):
                await one
        go.set()
        while workers.pending:
            await asyncio.sleep(0.005)
        assert await workers.run(lambda: 3) == 3
        assert workers.close(30.0)

    asyncio.run(ask())
