"""What is sent of a file: what was encoded, whatever its path leads to meanwhile; whole, in parts, or not again."""

import asyncio
import gc
import hashlib
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

import httpx2
from fastapi import HTTPException
from serving import HOST, Served, app_of, keys_of, listening, make_library
from starlette.testclient import TestClient

from prvr.encoders import VideoEntry
from prvr_search.serve import ServeSettings
from prvr_search.serve.files import Catalogue, OpenFile, volume_and_stamp

LINKS = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
SELDOM = ServeSettings(rescan_seconds=600.0)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return make_library(tmp_path, "a.mp4")


@pytest.fixture
def private(tmp_path: Path, served: Served) -> Path:
    """Another file, of the size and the time of the film."""
    film = served.films / "a.mp4"
    private = tmp_path / "private"
    private.write_bytes((b"secret " * film.stat().st_size)[: film.stat().st_size])
    os.utime(private, ns=(film.stat().st_atime_ns, film.stat().st_mtime_ns))
    return private


@LINKS
def test_a_link_to_a_private_file_is_not_followed(served: Served, private: Path) -> None:
    """Though it has the size and the time of the film that lay there, which was sent before."""
    film = served.films / "a.mp4"
    with listening(served, SELDOM) as address, httpx2.Client(base_url=address) as client:
        place = f"/api/videos/{keys_of(client)['a.mp4']}"
        assert client.get(f"{place}/file").content == film.read_bytes()
        film.unlink()
        film.symlink_to(private)
        for kind in ("file", "thumbnail", "preview?end=1"):
            answer = client.get(f"{place}/{kind}")
            assert answer.status_code == 409
            assert b"secret" not in answer.content
        film.unlink()
        shutil.copy(private, film)
        os.utime(film, ns=(private.stat().st_atime_ns, private.stat().st_mtime_ns))
        assert client.get(f"{place}/file").status_code == 409


@LINKS
def test_a_file_that_is_swapped_while_it_is_sent_is_never_another_one(served: Served, private: Path) -> None:
    film, held = served.films / "a.mp4", private.with_name("held")
    content = film.read_bytes()
    stop, swaps = threading.Event(), 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            film.rename(held)
            film.symlink_to(private)
            swaps += 1
            held.replace(film)

    with listening(served, SELDOM) as address, httpx2.Client(base_url=address, timeout=60) as client:
        place = f"/api/videos/{keys_of(client)['a.mp4']}/file"
        thread = threading.Thread(target=swap)
        thread.start()

        def ask(number: int) -> tuple[int, bytes]:
            answer = client.get(place, headers={"Range": "bytes=0-"} if number % 2 else {})
            return answer.status_code, answer.content

        try:
            with ThreadPoolExecutor(4) as clients:
                answers = list(clients.map(ask, range(200)))
        finally:
            stop.set()
            thread.join()
    assert swaps > 200
    assert not [status for status, sent in answers if b"secret" in sent]
    assert {status for status, _ in answers} <= {200, 206, 409, 410}
    assert {sent for status, sent in answers if status < 300} == {content}


def test_what_is_asked_for_again_is_not_sent_again(served: Served) -> None:
    """And of several ranges, or of one that is none, the whole file is."""
    content = (served.films / "a.mp4").read_bytes()
    with TestClient(app_of(served), base_url=HOST) as client:
        place = f"/api/videos/{keys_of(client)['a.mp4']}/file"
        tag = client.head(place).headers["etag"]
        again = client.get(place, headers={"If-None-Match": f'"another", {tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert client.get(place, headers={"If-None-Match": '"another"'}).content == content
        for wanted in ("bytes=0-1,5-6", "bytes=-", "letters=0-1", "bytes=x-"):
            answer = client.get(place, headers={"Range": wanted})
            assert (answer.status_code, answer.content) == (200, content)
        part = client.head(place, headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.content, part.headers["content-length"]) == (206, b"", "5")
        assert client.get(place, headers={"Range": "bytes=-999999999"}).content == content


def test_no_file_stays_open_whenever_a_client_leaves(tmp_path: Path) -> None:
    """Before its file is opened for reading, too; and where nothing of it is sent."""
    film = tmp_path / "a.mp4"
    film.write_bytes(bytes(10**6))

    def count() -> int:
        """The number of open files."""
        gc.collect()
        numbers = 0
        for number in range(4096):
            with suppress(OSError):
                os.fstat(number)
                numbers += 1
        return numbers

    async def ask(method: str, name: str, value: str, yields: int) -> None:
        async def receive() -> dict[str, str]:
            for _ in range(yields):
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            await asyncio.sleep(0)

        scope = {"type": "http", "method": method, "headers": [(name.encode(), value.encode())]}
        await OpenFile(film.open("rb", buffering=0), media_type="video/mp4")(scope, receive, send)  # type: ignore[arg-type]

    async def ask_all() -> None:
        for yields in range(40):
            for wanted in ("bytes=0-9", "bytes=9000000-", "", "bytes=1-0"):
                await ask("GET", "range", wanted, yields)
            await ask("HEAD", "range", "", yields)
            await ask("GET", "if-none-match", OpenFile(film.open("rb"), media_type="video/mp4").headers["etag"], yields)

    before = count()
    asyncio.run(ask_all())
    assert count() == before


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was hashed."""
    files, digest = list[object](), hashlib.file_digest

    def watched(file: object, name: str) -> object:
        files.append(file)
        return digest(file, name)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(hashlib, "file_digest", watched)
    return files


def test_a_file_is_hashed_once_for_each_state_unless_its_stamp_is_known(tmp_path: Path, hashed: list[object]) -> None:
    film = tmp_path / "a.mp4"
    film.write_bytes(b"film")
    sha256, noted = hashlib.sha256(b"film").hexdigest(), dict[str, Any]()
    video = VideoEntry("a.mp4", str(film), 4, 0, sha256, 1.0, 2, 8, 8, "h264")
    catalogue = Catalogue(lambda video: noted.get(video.id))

    def opened() -> bytes:
        with catalogue.opened(video) as file:
            return file.read()

    assert [opened(), opened(), len(hashed)] == [b"film", b"film", 1]
    os.utime(film)
    assert [opened(), len(hashed)] == [b"film", 2]
    with catalogue.opened(video) as file:
        noted["a.mp4"] = volume_and_stamp(file)
    catalogue = Catalogue(lambda video: noted.get(video.id))
    assert [opened(), len(hashed)] == [b"film", 2]  # of another start of the server
    film.write_bytes(b"feel")
    for _ in range(2):
        with pytest.raises(HTTPException, match="changed"):
            opened()
    assert len(hashed) == 3
    film.write_bytes(b"of another size")
    with pytest.raises(HTTPException, match="changed"):
        opened()
    assert len(hashed) == 3
    film.unlink()
    with pytest.raises(HTTPException, match="not found"):
        opened()
