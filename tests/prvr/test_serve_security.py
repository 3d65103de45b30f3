"""One hostile request or file for each thing that `prvr serve` promises to refuse."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from clip_sources import BruteBackend
from commands import explained
from jaxtyping import TypeCheckError

pytest.importorskip("fastapi")
pytest.importorskip("av")

import httpx2
from pydantic import ValidationError
from serving import EVIL, GREYS, HOST, TOKEN, WATCHED, Served, Watched, app_of, keys_of, make_library, wait_for
from starlette.testclient import TestClient
from video_files import noise, write_video

from prvr.config import ConfigError
from prvr.errors import DataError
from prvr_search.films import Limits
from prvr_search.ranking.backends import BACKENDS, ClipSource
from prvr_search.serve import ServeLimits, ServeSettings, check_bind, create_app, read_token
from prvr_search.serve.security import COOKIE, Sessions
from prvr_search.serve.settings import read_root


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return make_library(tmp_path_factory.mktemp("small"), "a.mp4", "b.mp4", EVIL)


@pytest.fixture
def client(served: Served) -> Iterator[TestClient]:
    with TestClient(app_of(served), base_url=HOST) as client:
        yield client


@pytest.fixture
def locked(served: Served) -> Iterator[TestClient]:
    with TestClient(app_of(served, token=TOKEN, session_seconds=2), base_url=HOST) as client:
        yield client


@pytest.mark.parametrize("passed", ["/videos", ""])  # proxies pass the path on, or cut it
def test_below_a_path_the_same_is_refused(served: Served, passed: str) -> None:
    with TestClient(app_of(served, token=TOKEN, root_path="/videos/"), base_url=f"{HOST}{passed}/") as client:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        page = client.get("")
        assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
        assert [client.get(path).status_code for path in ("health", "static/app.js", "api/info")] == [200, 200, 401]
        assert client.get("static/api.js", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert client.get("", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
        key = next(iter(client.get("api/videos", headers=bearer).json()["videos"]))["key"]
        cookie = client.post("api/session", headers=bearer).headers["set-cookie"]
        assert "Path=/videos;" in cookie
        sent = {"Cookie": cookie.partition(";")[0]}
        assert client.get(f"api/videos/{key}/file", headers=sent).status_code == 200
        assert client.get("api/videos", headers=sent).status_code == 401
        assert client.post("api/search/picture", content=b"x" * 200_000, headers=bearer).status_code == 415
        assert client.post("api/search", content=b"x" * 200_000, headers=bearer).status_code == 413
        counted = client.get("metrics", headers=bearer).text
        assert 'prvr_requests_total{route="/static",status="200"} 1.0' in counted
        assert client.get(f"{HOST}/videosx/api/info").status_code == 401
    for wrong in ("videos", "/a b", "/../x", "//x", "/a?b"):
        with pytest.raises(ConfigError, match="not a path"):
            read_root(wrong)


MEDIA = ("file", "thumbnail", "preview?end=1")


def media(client: TestClient, key: str, headers: dict[str, bytes] | None = None) -> set[int]:
    """The answers to all that can be asked of a video."""
    return {client.get(f"/api/videos/{key}/{kind}", headers=headers).status_code for kind in MEDIA}


# Who may ask

FOREIGN = (
    "evil.example", "127.0.0.1.evil.example", "", "user@127.0.0.1", "[::2]", "[127.0.0.1]", "127.0.0.1:99999", "127.1",
    "localhost,evil.example",
)  # fmt: skip
OWN = ("127.0.0.1:8000", "LOCALHOST:1", "localhost.", "[::1]:8000", "films.lan:8000", "[FD00::7]:80")


def test_another_name_is_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """DNS rebinding: a page's own name made to point here."""
    with TestClient(app_of(served, hosts=("films.lan:80", "fd00::7")), base_url=HOST) as client:
        for status, hosts in ((400, FOREIGN), (200, OWN)):
            for host in hosts:
                assert client.get("/api/info", headers={"Host": host.encode("latin-1")}).status_code == status, host
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
        assert client.get("/health", headers=[("Host", "127.0.0.1")] * 2).status_code == 400  # a request has one name
    assert "not a host name" in explained(["serve", str(served.films), "--allow-host", "films lan"], capsys)


def test_other_sites_may_not_ask(client: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        assert client.get("/api/info", headers={"Sec-Fetch-Site": site}).status_code == 403
    origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (client.get("/api/info", headers=origin), asked := client.options("/api/search", headers=origin)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert asked.status_code == 405
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/api/search", content="queries=a", headers=form).status_code == 422


def test_the_page_keeps_to_itself(client: TestClient) -> None:
    """In every answer by headers; nothing in it is inline, and nothing from elsewhere."""
    for path in ("/", "/static/app.js", "/api/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        names = ("x-content-type-options", "referrer-policy", "cross-origin-resource-policy")
        assert [headers[name] for name in names] == ["nosniff", "no-referrer", "same-origin"]
    page = client.get("/").text
    assert page.count("<script") == page.count('<script type="module" src="static/')
    for file in (Path(sys.modules["prvr_search.serve.app"].__file__ or "").parent / "web").iterdir():
        text = file.read_text(encoding="utf-8")
        assert client.get(f"/static/{file.name}").text == text
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert not [
            word for word in ("innerHTML", "insertAdjacentHTML", "eval(", "https://", "http://") if word in text
        ]


def test_a_network_is_not_served_without_a_token(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--without-token"):
        check_bind("films.lan", None, False)
    for host, token, without in (("::", TOKEN, False), ("::", None, True), ("127.8.8.8", None, False)):
        check_bind(host, token, without)
    assert "--token-file" in explained(["serve", str(served.films), "--host", "0.0.0.0"], capsys)
    assert read_token(None, {}) is None
    assert read_token(None, {"PRVR_TOKEN": f" {TOKEN}\n"}) == TOKEN
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_token(tmp_path / "token", {"PRVR_TOKEN": "x"}) == TOKEN
    for bad in ("x" * 15, "two words are not one token"):
        with pytest.raises(ConfigError, match="at least 16"):
            read_token(None, {"PRVR_TOKEN": bad})


CLOSED = ("/api/info", "/api/search?q=a", "/api/videos", "/metrics")


def test_without_the_token_nothing_is_told(locked: TestClient) -> None:
    key = keys_of(locked, TOKEN)["a.mp4"]
    closed = [*CLOSED, *(f"/api/videos/{key}/{kind}" for kind in MEDIA)]
    for header in (None, TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"):
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        for path in closed:
            answer = locked.get(path, headers=headers)
            assert answer.status_code == 401, (path, header)
            assert answer.headers["www-authenticate"] == "Bearer"
        assert locked.post("/api/search", json={"queries": ["a"]}, headers=headers).status_code == 401
        assert locked.post("/api/session", headers=headers).status_code == 401
    for path in ("/", "/health", "/static/app.js"):  # what there is to ask for the token with
        assert locked.get(path).status_code == 200
        assert "a.mp4" not in locked.get(path).text


def _compared(self: object, other: object) -> bool:
    """Letter by letter until one differs, so that the time tells how much of a token was guessed."""
    raise AssertionError("compared in a time that depends on the content")


class SecretBytes(bytes):
    __eq__, __hash__ = _compared, bytes.__hash__


class Secret(str):
    __slots__ = ()
    __eq__, __hash__ = _compared, str.__hash__

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return SecretBytes(super().encode())


def test_a_token_is_compared_in_constant_time() -> None:
    sessions = Sessions(Secret(TOKEN))
    assert sessions.accepts_header(f"Bearer {TOKEN}")
    assert not sessions.accepts_header(f"Bearer {TOKEN[:-1]}x")


def test_a_cookie_opens_media_for_a_while_and_nothing_else(locked: TestClient) -> None:
    key = keys_of(locked, TOKEN)["a.mp4"]
    header = locked.post("/api/session", headers={"Authorization": f"bearer {TOKEN}"}).headers["set-cookie"].lower()
    assert "httponly" in header
    assert "samesite=strict" in header
    cookie = locked.cookies[COOKIE]
    assert TOKEN not in cookie
    assert media(locked, key) == {200}
    for path in CLOSED:
        assert locked.get(path).status_code == 401
    ends, _, signature = cookie.partition(".")
    locked.cookies.clear()
    another = Sessions(TOKEN).new_cookie()  # of another start
    for forged in (f"{int(ends) + 999}.{signature}", f"{ends}.{'0' * 64}", "é.é", another):
        assert media(locked, key, {"Cookie": f"{COOKIE}={forged}".encode("latin-1")}) == {401}
    wait_for(lambda: time.time() >= int(ends))
    assert media(locked, key, {"Cookie": f"{COOKIE}={cookie}".encode()}) == {401}


# What may be asked


def test_too_much_is_refused(served: Served) -> None:
    limits = ServeLimits(query_characters=20, results=5, moments=2, batch=3, body_bytes=500)
    with TestClient(app_of(served, limits=limits), base_url=HOST) as client:
        assert client.get("/api/search", params={"q": "x" * 20, "k": 5, "moments": 2}).status_code == 200
        for extra, status in (({"q": "x" * 21}, 400), ({"k": 6}, 400), ({"moments": 3}, 400), ({"k": 0}, 422)):
            assert client.get("/api/search", params={"q": "x", "k": 1} | extra).status_code == status
        for queries, status in ((["x"] * 4, 400), (["x" * 21], 400), (["x" * 500], 413)):
            assert client.post("/api/search", json={"queries": queries}).status_code == status
        slowly = iter([b" " * 50] * 100)  # which does not say how long it is
        assert client.post("/api/search", content=slowly).status_code == 413


def test_errors_are_told_in_few_words(client: TestClient) -> None:
    """What was sent does not come back, nor does its size."""
    many = {"queries": ["a"]} | {f"unknown{number}": 1 for number in range(6000)}
    bodies = [many, {"queries": ["a"], "\ud800\x1b[31m\x00": 1}, {"queries": [["x" * 100_000]]}]
    deep = '{"queries": ' + "[" * 50_000 + "]" * 50_000 + "}"
    client.headers["Content-Type"] = "application/json"
    answers = [client.post("/api/search", content=body) for body in (*map(json.dumps, bodies), deep)]
    answers.append(client.get("/api/search", params={"q": "x" * 10_000}))
    for answer in answers:
        assert answer.status_code in (400, 422)
        assert len(answer.content) < 2000
        answer.json()
    assert "more problems" in answers[0].text


def test_limits_that_are_none_are_refused_at_the_start(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for field in fields(ServeLimits):
        for wrong in (-1, float("nan")) if field.name != "video" else ():
            with pytest.raises((ValidationError, TypeCheckError), match=field.name):
                ServeLimits(**{field.name: wrong})  # type: ignore[arg-type]
    for wrong in ({"session_seconds": 0}, {"rescan_seconds": 0.0}):
        with pytest.raises(ValidationError, match="_seconds"):
            ServeSettings(**wrong)  # type: ignore[arg-type]
    for option, value in (("--client-connections", "-1"), ("--rescan", "0")):
        assert option in explained(["serve", str(served.films), option, value], capsys)


def test_what_is_large_or_slow_is_given_up(served: Served, tmp_path: Path) -> None:
    for limits, what in ((Limits(pixels=1000), "1,000 pixels"), (Limits(seconds=0.5), "0 s")):
        with TestClient(app_of(served, limits=ServeLimits(video=limits)), base_url=HOST) as client:
            for kind in MEDIA[1:]:
                answer = client.get(f"/api/videos/{keys_of(client)['a.mp4']}/{kind}")
                assert answer.status_code == 415
                assert what in answer.json()["detail"]
                assert str(served.films) not in answer.text
    slow = make_library(tmp_path, "long.mp4", frames=noise(300, height=120, width=160))
    with TestClient(app_of(slow, limits=ServeLimits(media_seconds=0.02)), base_url=HOST) as client:
        assert client.get(f"/api/videos/{keys_of(client)['long.mp4']}/preview?end=30").status_code == 503


def test_a_search_that_is_impossible_for_a_while_is_explained_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is opened again until it can be searched; nobody has to start the server again."""
    served = make_library(tmp_path, "a.mp4")
    away = threading.Event()

    class Away(BruteBackend):
        def sync(self, source: ClipSource) -> None:
            if away.is_set():
                raise DataError(f"{served.films}: the server of the backend is away.")
            super().sync(source)

    monkeypatch.setattr(BACKENDS, "_entries", dict(BACKENDS._entries))
    BACKENDS.register("away", Away, "a backend whose server is away for a while")
    library, often = served.library(backend="away"), ServeSettings(rescan_seconds=0.2)
    with TestClient(create_app(library, often, update=False), base_url=HOST) as client:
        wait_for(lambda: client.get("/ready").status_code == 200)
        away.set()
        make_library(tmp_path, "b.mp4", frames=GREYS[::-1])
        wait_for(lambda: client.get("/api/search", params={"q": "a"}).status_code == 503)
        assert str(served.films) not in client.get("/api/search", params={"q": "a"}).text
        assert str(served.films) in caplog.text
        assert client.get("/health").status_code == 200
        away.clear()
        wait_for(lambda: client.get("/ready").status_code == 200)
        assert len(client.get("/api/search", params={"q": "a"}).json()["hits"]) == 2


def test_an_answer_to_a_fault_has_its_headers_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"a fault": RuntimeError("secret")}

    def fail(text: str) -> None:
        if text in faults:
            raise faults[text]

    monkeypatch.setattr(Watched, "watch", fail)
    with TestClient(app_of(make_library(tmp_path, "a.mp4", encoder=WATCHED)), base_url=HOST) as client:
        answer = client.get("/api/search", params={"q": "a fault"})
        assert (answer.status_code, answer.headers["cache-control"]) == (500, "no-store")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "secret" not in answer.text
        assert "secret" in caplog.text  # the traceback is for the log
        assert 'prvr_requests_total{route="/api/search",status="500"} 1' in client.get("/metrics").text


# Which files


def test_only_indexed_videos_and_parts_of_the_page_are_given(client: TestClient) -> None:
    for key in ("..%2f..%2fetc%2fpasswd", "a.mp4", "0" * 24, "%00"):
        assert media(client, key) <= {404, 422}
    for path in ("../app.py", "..%2fapp.py", "\\..\\app.py"):
        answer = client.get(f"/static/{path}")
        assert answer.status_code in (404, 405)
        assert "import" not in answer.text


def test_what_is_no_longer_the_indexed_file_is_refused(tmp_path: Path) -> None:
    """A search follows links of files and of folders, wherever they lead, and so does the server."""
    film, films = tmp_path / "elsewhere" / "outside.mp4", tmp_path / "films"
    film.parent.mkdir()
    films.mkdir()
    write_video(film, GREYS)
    (films / "day").symlink_to(film.parent)
    with TestClient(app_of(make_library(tmp_path)), base_url=HOST) as client:
        key, content = keys_of(client)["day/outside.mp4"], film.read_bytes()
        os.utime(film)  # touched, not changed
        assert media(client, key) == {200}  # what is kept of a file is not given out once the file is another
        film.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size
        assert media(client, key) == {409}
        film.unlink()
        assert media(client, key) == {410}
        os.mkfifo(film)  # opening it must not wait for a writer
        assert media(client, key) == {403}


# The process


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_command_answers_and_ends_in_order(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, which ends with the test, whatever happens. A port that is taken is explained."""
    options = ["serve", str(served.films), "--encoder", "toy", "--device", "cpu", "--port"]
    everywhere = ["--host", "0.0.0.0", "--allow-host", "films.lan"]
    command, pipe = [sys.executable, "-m", "prvr.cli", *options, "0", *everywhere], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"PRVR_TOKEN": TOKEN})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(r"http://localhost:\d+ +\(on all interfaces, for other machines as films.lan; ", line)
        address = line.split()[0]
        with httpx2.Client(base_url=address, timeout=60, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            answer = client.get("/api/search", params={"q": "a red square"})
            assert answer.status_code == 200
            assert "server" not in answer.headers
            wait_for(lambda: keys_of(client))  # they are encoded while they are served
            assert "in use" in explained([*options, address.rpartition(":")[2], "-q"], capsys)
            key = next(iter(keys_of(client).values()))
            with client.stream("GET", f"/api/videos/{key}/file") as response:
                process.send_signal(signal.SIGTERM)  # what was begun is finished
                assert len(response.read()) == int(response.headers["content-length"])
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err
        assert TOKEN not in out + err
    finally:
        process.kill()
        process.communicate()
