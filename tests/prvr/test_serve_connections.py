"""Slow, silent and many clients, and the end of the server while they are there: real sockets, a real server."""

import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection as PipeConnection
from multiprocessing.process import BaseProcess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

import httpx2
from kills import START
from serving import GREYS, HOST, WATCHED, Served, Watched, app_of, keys_of, listening, make_library, wait_for
from starlette.testclient import TestClient
from video_files import write_video

from prvr_search.serve import ServeLimits, ServeSettings, serve

LARGE = 24 * 1024 * 1024
"""Bytes: more than the buffers of a connection on loopback hold."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("connections")
    (folder / "films").mkdir()
    with write_video(folder / "films" / "large.mp4", GREYS).open("ab") as file:
        file.write(LARGE.to_bytes(4, "big") + b"free" + bytes(LARGE - 8))  # a box that players skip
    return make_library(folder, "a.mp4")


def limited(**limits: float) -> ServeSettings:
    return ServeSettings(limits=ServeLimits(**limits))  # type: ignore[arg-type]


def connect(address: str) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=30)


def said(connection: socket.socket) -> bytes:
    """All until the server closes the connection; what it throws away with it counts as nothing."""
    found = bytearray()
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            found += piece
    return bytes(found)


@contextmanager
def silent(address: str, count: int, begin: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(address)) for _ in range(count)]
        for each in connections:
            each.sendall(begin)
        yield connections


HALF_SENT = (
    b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n{"
)


@pytest.mark.parametrize(
    ("begin", "limits"), [(b"GET /hea", {"client_connections": 0}), (HALF_SENT, {"connections": 9999})]
)
def test_silent_connections_stop_nobody(served: Served, begin: bytes, limits: dict[str, int]) -> None:
    with listening(served, limited(head_seconds=60.0, **limits)) as address, silent(address, 300, begin):
        assert httpx2.get(f"{address}/api/search", params={"q": "a red square"}, timeout=30).status_code == 200


@contextmanager
def in_a_process(serving: Callable[..., None], served: Served) -> Iterator[tuple[BaseProcess, PipeConnection, str]]:
    """A server in a process of its own: the process, what it sends, and its address."""
    context = get_context(START)
    receiver, sender = context.Pipe()
    process = context.Process(target=serving, args=(served.films, served.home, sender.send))
    process.start()
    try:
        assert receiver.poll(60)
        yield process, receiver, receiver.recv()
    finally:
        process.kill()
        process.join()


def serve_with_few_files(films: Path, home: Path, say: Callable[[str], object]) -> None:
    """A server in a process that may open 250 files more."""
    import resource

    # a fork keeps files of its parent, with gaps between their numbers
    most = 250 + max(int(file.name) for file in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    log = logging.getLogger("asyncio")
    log.addFilter(lambda record: say(record.getMessage()))
    serve(Served(films, home).library(), port=0, settings=limited(client_connections=0), started=say)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of open files")
def test_more_connections_than_open_files_stop_nobody_and_fill_no_log(served: Served) -> None:
    with in_a_process(serve_with_few_files, served) as (_, receiver, address), silent(address, 300, b"GET /hea"):
        assert httpx2.get(f"{address}/api/search", params={"q": "a red square"}, timeout=30).status_code == 200
        assert not receiver.poll(), receiver.recv()


def test_few_pictures_are_received_at_once(served: Served) -> None:
    with listening(served, limited(pictures=1)) as address, connect(address) as upload:
        upload.sendall(HALF_SENT.replace(b"search", b"search/picture"))
        picture = f"{address}/api/search/picture"
        wait_for(lambda: httpx2.post(picture, content=b"no picture").status_code == 503)
        upload.sendall(b" " * 23)
        assert upload.recv(12) == b"HTTP/1.1 415"
        assert httpx2.post(picture, content=b"no picture").status_code == 415


def test_connections_that_are_used_are_not_closed_for_others(served: Served) -> None:
    """Where nobody can be closed, the newest is answered with 503."""
    with TestClient(app_of(served), base_url=HOST) as client:
        key = keys_of(client)["large.mp4"]
    with listening(served, limited(connections=3, stalled_seconds=60.0)) as address:
        asked = f"GET /api/videos/{key}/file HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        with silent(address, 3, asked) as busy:
            for one in busy:
                assert one.recv(4) == b"HTTP"
            refused = httpx2.get(f"{address}/api/info")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
        with connect(address) as after:
            after.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert b'prvr_requests_total{route="other",status="503"} 1' in said(after)


@pytest.mark.parametrize("begin", [b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", HALF_SENT])
def test_what_comes_slowly_is_cut(served: Served, begin: bytes) -> None:
    """Nor is a connection kept that says nothing."""
    with listening(served, limited(head_seconds=0.5, body_seconds=0.5)) as address, connect(address) as slow:
        slow.sendall(begin.replace(b"Content-Length: 24", b"Transfer-Encoding: chunked"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012
            for _ in range(100):
                slow.sendall(b" ")
                time.sleep(0.1)
        with connect(address) as idle:
            assert said(idle) == b""
        assert httpx2.get(f"{address}/health").status_code == 200


def test_a_slow_download_is_not_cut_and_a_stalled_one_is(served: Served) -> None:
    """The slow one takes several times the time after which a stalled one is cut."""
    with listening(served, limited(head_seconds=1.0, body_seconds=1.0, stalled_seconds=1.0)) as address:
        with httpx2.Client(base_url=address) as client:
            key = keys_of(client)["large.mp4"]
        ask = f"GET /api/videos/{key}/file HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        slow, stalled = connect(address), connect(address)
        with slow, stalled:
            for one in (slow, stalled):
                one.sendall(ask)
            got = 0
            while piece := slow.recv(256 * 1024):
                got += len(piece)
                time.sleep(0.03)
            assert got > LARGE
            assert len(said(stalled)) < LARGE


def test_what_is_not_http_is_refused_and_ends_no_server(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Also behind a request that is still being answered."""
    key = "0" * 24
    good = f"GET /api/videos/{key}/file?x=%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    pieces = (
        b"\xff\x00\r\n\r\n", b"GET * HTTP/9\r\n\r\n", b"CONNECT evil.example:80 HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    )  # fmt: skip
    with listening(served, limited(head_seconds=0.5, body_seconds=0.5)) as address:
        for piece in (*pieces, *(good + piece for piece in pieces)):
            with connect(address) as connection:
                with suppress(ConnectionError):  # it may be closed before all is sent
                    connection.sendall(piece)
                codes = re.findall(rb"HTTP/1.1 (\d\d\d) ", said(connection))
            assert {*codes} <= {b"400", b"404", b"405"}, piece
        assert 'status="5' not in httpx2.get(f"{address}/metrics").text
        assert httpx2.get(f"{address}/api/search", params={"q": "a red square"}).status_code == 200
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


# The end


def serve_slowly(films: Path, home: Path, started: Callable[[str], object]) -> None:
    """A server whose encoder of texts takes a minute for one sentence."""
    Watched.watch = lambda text: time.sleep({"a long red one": 60.0, "a short red one": 1.0}.get(text, 0.0))
    library = Served(films, home, WATCHED).library()
    library.update()
    if not serve(library, port=0, settings=limited(grace_seconds=3.0), started=started):
        os._exit(0)  # as the command does


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_end_comes_in_time_whatever_clients_do(served: Served) -> None:
    """What can be answered is answered; what takes longer gets 503; nobody can hold the process."""
    found: dict[str, httpx2.Response] = {}

    def search(query: str) -> None:
        found[query] = httpx2.get(f"{address}/api/search", params={"q": query}, timeout=60)

    with (
        in_a_process(serve_slowly, served) as (process, _, address),
        httpx2.Client(base_url=address) as client,  # a connection that is kept open
        ExitStack() as stack,
    ):
        key = keys_of(client)["large.mp4"]
        stalled = f"GET /api/videos/{key}/file HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for begin in (stalled, HALF_SENT, b""):
            stack.enter_context(connect(address)).sendall(begin)
        threads = [threading.Thread(target=search, args=[f"a {one} red one"]) for one in ("short", "long")]
        for number, thread in enumerate(threads, 1):
            thread.start()  # the short one runs already when the long one comes
            wait_for(lambda: f"prvr_searches_pending {number}.0" in client.get("/metrics").text)  # noqa: B023
        process.terminate()
        began = time.monotonic()
        for thread in threads:
            thread.join(60)
        process.join(60)
        assert time.monotonic() - began < 15
    assert process.exitcode == 0
    assert found["a short red one"].status_code == 200
    late = found["a long red one"]
    assert (late.status_code, late.json()["detail"]) == (503, "the server is shutting down")
