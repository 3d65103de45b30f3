"""Backends against brute force over a source in memory; what a kill leaves; collections of Milvus; messages."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_sources import MemorySource, Torn, check_complete, check_life, nearest, queries, synced

from prvr.errors import DataError, InputError
from prvr_search.ranking import milvus
from prvr_search.ranking.backends import open_backend
from prvr_search.ranking.milvus import MilvusBackend

pytest.importorskip("milvus_lite")


@pytest.fixture
def small() -> MemorySource:
    return MemorySource(windows=50)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "new" / "milvus.db")


@pytest.fixture
def client(file: str) -> Iterator[Any]:
    from pymilvus import MilvusClient

    Path(file).parent.mkdir()
    with closing(MilvusClient(file)) as client:
        yield client


def test_life(file: str) -> None:
    check_life(lambda: open_backend(f"milvus:{file}"), MemorySource())


def test_no_queries(file: str, small: MemorySource) -> None:
    backend = synced(MilvusBackend(file), small)
    assert backend.nearest(queries(0), 10) == []
    check_complete(backend, small)
    backend.close()


@pytest.mark.parametrize("loss", ["interrupt", "other pack"])
def test_what_is_kept_is_a_copy(file: str, client: Any, small: MemorySource, loss: str) -> None:
    if loss == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            MilvusBackend(file).sync(Torn(windows=small.windows))
        assert client.list_collections() == []
    else:
        synced(MilvusBackend(file), MemorySource(seed="other", windows=30)).close()
    backend = synced(MilvusBackend(file), small)
    check_complete(backend, small)
    backend.close()


def test_only_whole_collections_of_ours_are_searched_and_old_ones_dropped(
    file: str, client: Any, small: MemorySource, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of rows says nothing: one that lacks its mark is left to a writer who lives, and made anew after."""
    client.create_collection(foreign := f"prvr_{small.name}", 4)
    backend = synced(MilvusBackend(file), small)
    (first,) = set(client.list_collections()) - {foreign}
    client.drop_alias(f"prvr_{small.name}_whole")
    small.read = 0
    other = synced(MilvusBackend(file), small)
    assert [other.nearest(queries(), 7) for _ in range(2)] == [None, None]
    assert caplog.text.count("every video is scored") == 1
    client.alter_collection_properties(first, {"prvr.used": str(time.time() - 700)})
    check_complete(other, small)
    assert small.read == 1
    (second,) = set(client.list_collections()) - {foreign, first}
    small.seed = "another"
    backend.sync(small)
    assert {foreign, second} < set(client.list_collections())
    assert first not in client.list_collections()  # the writer of nothing has died
    client.alter_collection_properties(second, {"prvr.used": str(time.time() - 8 * 86_400)})
    check_complete(synced(MilvusBackend(file), small), small)
    assert second not in client.list_collections()
    assert len(client.list_collections()) == 2


def test_a_collection_that_is_dropped_or_released_in_the_middle(file: str, client: Any, small: MemorySource) -> None:
    backend = synced(MilvusBackend(file), small)
    for lose in (client.drop_collection, client.release_collection):
        (name,) = client.list_collections()
        lose(name)
        found = backend.nearest(queries(), 7)
        assert found is None or lose == client.release_collection
        check_complete(backend, small)


def test_more_than_a_server_gives(file: str, small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "MOST", 50)
    backend = synced(MilvusBackend(file), small)
    assert backend.nearest(queries(), 51) is None
    assert len(nearest(backend, 3, 50)) == 3


def test_rows_that_are_lost(file: str, client: Any) -> None:
    class Short(MemorySource):
        def blocks(self) -> Iterator[np.ndarray]:
            yield next(super().blocks())

    with pytest.raises(DataError, match="has kept 64 rows of 200"):
        MilvusBackend(file).sync(Short(windows=50))
    assert client.list_collections() == []


def test_what_cannot_be_opened(small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_TIMEOUT", 2.0)
    monkeypatch.setenv("PRVR_MILVUS_TOKEN", "root:secret")
    with pytest.raises(DataError, match=r"127.0.0.1:1: .*Is a server running there") as error:
        MilvusBackend("http://root:secret@127.0.0.1:1").sync(small)
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="exact has no address"):
        open_backend("exact:http://localhost:1")
    assert open_backend("auto") is None
    monkeypatch.setitem(sys.modules, "milvus_lite", None)
    with pytest.raises(ImportError, match='pip install "milvus-lite"'):
        open_backend("milvus")
    assert isinstance(open_backend("milvus:http://localhost:19530"), MilvusBackend)  # a server needs no milvus-lite
