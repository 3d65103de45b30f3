"""Every backend against brute force over a source in memory; what a kill and damage leave; messages."""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from clip_sources import MemorySource, Torn, brute_force, check_complete, check_life, check_order, queries, synced
from kills import at_write, killed

from prvr.errors import DataError, InputError
from prvr_search.backends import BACKENDS, CandidateBackend, milvus, open_backend
from prvr_search.backends.faiss import FaissBackend
from prvr_search.backends.milvus import MilvusBackend

pytest.importorskip("faiss")
pytest.importorskip("milvus_lite")

NAMES = [name for name in BACKENDS.names if name != "exact"]


@pytest.fixture
def source(tmp_path: Path) -> MemorySource:
    return MemorySource(tmp_path)


@pytest.fixture
def small(source: MemorySource) -> MemorySource:
    source.windows, source.removed = 50, {3, 4, 40}
    return source


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest) -> Callable[[], CandidateBackend]:
    """Opens a backend; every one of the registry is held to the law of `CandidateBackend`."""
    return partial(backend_of, request.param)


def backend_of(name: str) -> CandidateBackend:
    backend = open_backend(name)
    assert backend is not None
    assert backend.name == name
    return backend


def test_life(opened: Callable[[], CandidateBackend], source: MemorySource) -> None:
    check_life(opened, source)


def test_no_windows_and_no_queries(opened: Callable[[], CandidateBackend], small: MemorySource) -> None:
    backend = opened()
    with pytest.raises(RuntimeError, match="before sync"):
        backend.nearest(queries(), 5)
    small.removed = set(range(50))
    backend.sync(small)
    assert [keys.tolist() for keys in backend.nearest(queries(2), 10)] == [[], []]
    small.removed = {3, 4, 40}
    backend.sync(small)
    assert backend.nearest(queries(0), 10) == []
    check_complete(backend, small)
    backend.close()


@pytest.mark.parametrize("loss", ["kill", "folder", "other pack"])
def test_what_is_kept_is_a_copy(opened: Callable[[], CandidateBackend], small: MemorySource, loss: str) -> None:
    backend = opened()
    if loss == "kill":
        torn = Torn(small.folder, windows=small.windows)
        with pytest.raises(KeyboardInterrupt):
            backend.sync(torn)
    else:
        backend.sync(small)
    backend.close()
    if loss == "folder":  # Milvus Lite may write into it a little longer
        small.folder.rename(small.folder.with_name(f"{small.folder.name} lost"))
    if loss == "other pack":
        other = MemorySource(small.folder, seed="other", windows=30)
        synced(opened(), other).close()
    backend = synced(opened(), small)
    check_complete(backend, small)
    backend.close()


def test_so_many_vectors_that_they_are_compressed(source: MemorySource) -> None:
    """Nine of ten of the nearest are candidates still, and a file of few vectors that grows is written anew."""
    source.windows = 100
    backend = synced(FaissBackend(), source)
    check_order(backend, source)
    path = faiss_file(source)
    size = path.stat().st_size / source.vectors
    source.windows = 2600
    backend.sync(source)
    assert faiss_file(source).stat().st_size / source.vectors < 0.5 * size
    check_complete(backend, source)
    text = queries(10)
    wanted = [set(brute_force(source, query, 50)) for query in text]
    shared = [len(want & set(each.tolist())) for want, each in zip(wanted, backend.nearest(text, 200), strict=True)]
    assert sum(shared) / sum(map(len, wanted)) > 0.9


def faiss_file(source: MemorySource) -> Path:
    return source.folder / f"{source.name}.faiss"


@pytest.mark.parametrize("damage", ["cut", "bit", "format", "folder", "pipe"])
def test_a_damaged_file_is_made_again(small: MemorySource, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    FaissBackend().sync(small)
    path = faiss_file(small)
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "pipe":  # opening it would wait for ever
        os.mkfifo(path)
    else:
        content[len(content) // 2] ^= 0x41 if damage == "bit" else 0
        other = b"\x09" + content[65:]
        signed = hashlib.blake2b(other).digest() + other
        path.write_bytes({"cut": content[: len(content) // 3], "bit": content, "format": signed}[damage])
    backend = FaissBackend()
    if damage == "folder":
        with pytest.raises(DataError, match="cannot be written"):
            backend.sync(small)
        path.rmdir()
    backend.sync(small)
    assert "is rebuilt" in caplog.text
    check_complete(backend, small)
    caplog.clear()
    check_complete(synced(FaissBackend(), small), small)
    assert not caplog.records


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_the_file_is_written_once_and_whole(small: MemorySource, caplog: pytest.LogCaptureFixture) -> None:
    assert killed(lambda: FaissBackend().sync(small), at_write(1, "written"))
    check_complete(synced(FaissBackend(), small), small)
    assert not caplog.records
    before = faiss_file(small).stat().st_mtime_ns
    small.removed |= {7}
    FaissBackend().sync(small)
    assert faiss_file(small).stat().st_mtime_ns == before
    assert {path.name for path in small.folder.iterdir()} <= {faiss_file(small).name, ".lock"}


def test_collections_of_milvus(small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the server gives at once; lost rows are inserted again; collections of packs that are gone go."""
    from pymilvus import MilvusClient

    monkeypatch.setattr(milvus, "MOST", 50)
    first = small.name
    backend = synced(MilvusBackend(), small)
    check_complete(backend, small)
    backend.close()
    client = MilvusClient(str(small.folder / "milvus.db"))
    client.delete(f"prvr_{first}", filter="key < 10")
    client.close()
    small.read = 0
    backend = synced(MilvusBackend(), small)
    assert small.read == 1
    check_complete(backend, small)
    backend.close()
    small.windows, small.replaced = 60, (first, "0" * 64)
    synced(MilvusBackend(), small).close()
    client = MilvusClient(str(small.folder / "milvus.db"))
    assert client.list_collections() == [f"prvr_{small.name}"]
    client.close()
    small.dim = 8
    with pytest.raises(DataError, match="width 16, the index of width 8"):
        MilvusBackend().sync(small)


def test_what_cannot_be_opened(small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_TIMEOUT", 2.0, raising=False)
    monkeypatch.setenv("PRVR_MILVUS_TOKEN", "root:secret")
    with pytest.raises(DataError, match=r"127.0.0.1:1: .*Is a server running there") as error:
        MilvusBackend("http://root:secret@127.0.0.1:1").sync(small)
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="faiss has no address"):
        open_backend("faiss:http://localhost:1")
    for module, name, remedy in (
        ("milvus_lite", "milvus", "pip install milvus-lite"),
        ("faiss", "faiss", "pip install"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=remedy):
            open_backend(name)
    assert isinstance(open_backend("milvus:http://localhost:19530"), MilvusBackend)  # a server needs no milvus-lite
