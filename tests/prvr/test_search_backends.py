"""Every backend against brute force over a source in memory; what a kill and damage leave; messages."""

import hashlib
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clip_sources import MemorySource, Torn, brute_force, check_complete, check_life, check_order, queries, synced

from prvr.errors import DataError, InputError
from prvr_search.ranking.backends import BACKENDS, milvus, open_backend
from prvr_search.ranking.backends.faiss import FaissBackend
from prvr_search.ranking.backends.milvus import MilvusBackend

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
def opened(request: pytest.FixtureRequest) -> Any:
    """Opens a backend; every one of the registry is held to the law of `CandidateBackend`."""
    return partial(open_backend, request.param)


def test_life(opened: Any, source: MemorySource) -> None:
    check_life(opened, source)


def test_no_windows_and_no_queries(opened: Any, small: MemorySource) -> None:
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
def test_what_is_kept_is_a_copy(opened: Any, small: MemorySource, loss: str) -> None:
    backend = opened()
    if loss == "kill":
        with pytest.raises(KeyboardInterrupt):
            backend.sync(Torn(small.folder, windows=small.windows))
    else:
        backend.sync(small)
    backend.close()
    if loss == "folder":  # Milvus Lite may write into it a little longer
        small.folder.rename(small.folder.with_name(f"{small.folder.name} lost"))
    if loss == "other pack":
        synced(opened(), MemorySource(small.folder, seed="other", windows=30)).close()
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


@pytest.mark.parametrize("damage", ["bit", "format", "pipe"])
def test_a_damaged_file_is_made_again(small: MemorySource, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    FaissBackend().sync(small)
    path = faiss_file(small)
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "pipe":  # opening it would wait for ever
        os.mkfifo(path)
    elif damage == "bit":
        content[len(content) // 2] ^= 0x41
        path.write_bytes(content)
    else:
        other = b"\x09" + content[65:]
        path.write_bytes(hashlib.blake2b(other).digest() + other)
    FaissBackend().sync(small)
    assert "is rebuilt" in caplog.text
    caplog.clear()
    check_complete(synced(FaissBackend(), small), small)
    assert not caplog.records


def test_collections_of_milvus(small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the server gives at once; lost rows are inserted again; collections of packs that are gone go."""
    from pymilvus import MilvusClient

    monkeypatch.setattr(milvus, "MOST", 50)
    first, file = small.name, str(small.folder / "milvus.db")
    synced(MilvusBackend(), small).close()
    with closing(MilvusClient(file)) as client:
        client.delete(f"prvr_{first}", filter="key < 10")
    backend = synced(MilvusBackend(), small)
    check_complete(backend, small)
    backend.close()
    small.windows, small.replaced = 60, (first, "0" * 64)
    synced(MilvusBackend(), small).close()
    with closing(MilvusClient(file)) as client:
        assert client.list_collections() == [f"prvr_{small.name}"]
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
    monkeypatch.setitem(sys.modules, "milvus_lite", None)
    with pytest.raises(ImportError, match="pip install milvus-lite"):
        open_backend("milvus")
    assert isinstance(open_backend("milvus:http://localhost:19530"), MilvusBackend)  # a server needs no milvus-lite
