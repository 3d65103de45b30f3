"""Every backend against brute force over a source in memory; what a kill and damage leave; messages."""

import hashlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from clip_sources import MemorySource, Torn, brute_force, check_complete, check_life, check_order, queries, synced
from hypothesis import given
from hypothesis import strategies as st
from kills import at_write, killed

from prvr.data.atomic import LOCK, locked
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


def test_no_windows_and_no_queries(opened: Callable[[], CandidateBackend], small: MemorySource, tmp_path: Path) -> None:
    backend = opened()
    with pytest.raises(RuntimeError, match="before sync"):
        backend.nearest(queries(), 5)
    backend.sync(MemorySource(tmp_path / "gone", windows=1, seed="x"))
    backend.close()
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
    if loss == "folder":
        small.folder.rename(
            small.folder.with_name(f"{small.folder.name} lost")
        )  # Milvus Lite may write a little longer
    if loss == "other pack":
        other = MemorySource(small.folder, seed="other", windows=30)
        synced(opened(), other).close()
    backend = synced(opened(), small)
    check_complete(backend, small)
    backend.close()


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "return", "reopen"]), st.integers(0, 7)), min_size=1, max_size=8
)


@given(OPERATIONS)
def test_any_order_of_changes(tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]) -> None:
    source = MemorySource(tmp_path_factory.mktemp("index"))
    backend = FaissBackend()
    for what, number in operations:
        if what == "add":
            source.windows += 3 * number + 1
        elif what == "return":
            source.removed = set(sorted(source.removed)[::2])
        elif what == "remove":
            source.removed |= set(source.live[:: number + 1].tolist())
        elif what == "reopen":
            backend = FaissBackend()
        if source.windows:
            backend.sync(source)
            check_complete(backend, source)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> MemorySource:
    return MemorySource(tmp_path_factory.mktemp("large"), clips=16, windows=800)


class TestManyVectors:
    """So many that they are compressed."""

    def test_recall(self, large: MemorySource) -> None:
        text = queries(10)
        wanted = [set(brute_force(large, query, 50)) for query in text]
        backend = synced(FaissBackend(), large)
        kept = [len(want & set(found.tolist())) for want, found in zip(wanted, backend.nearest(text, 200), strict=True)]
        assert sum(kept) / sum(map(len, wanted)) > 0.9
        check_complete(backend, large)

    def test_grown_corpus_is_kept_in_another_way(self, source: MemorySource) -> None:
        source.windows = 100
        backend = synced(FaissBackend(), source)
        check_order(backend, source)
        size = (source.folder / f"{source.name}.faiss").stat().st_size / source.vectors
        source.windows = 2600
        backend.sync(source)
        assert (source.folder / f"{source.name}.faiss").stat().st_size / source.vectors < 0.5 * size
        check_complete(backend, source)


class TestFaissFile:
    def file(self, source: MemorySource) -> Path:
        return source.folder / f"{source.name}.faiss"

    def test_nothing_is_written_where_nothing_changed(self, small: MemorySource) -> None:
        FaissBackend().sync(small)
        before = self.file(small).stat().st_mtime_ns
        small.removed |= {7}
        FaissBackend().sync(small)
        assert self.file(small).stat().st_mtime_ns == before
        assert {path.name for path in small.folder.iterdir()} <= {self.file(small).name, ".lock"}

    @pytest.mark.parametrize("damage", ["cut", "bit", "longer", "format", "folder"])
    def test_damage(self, small: MemorySource, damage: str, caplog: pytest.LogCaptureFixture) -> None:
        FaissBackend().sync(small)
        path = self.file(small)
        content = bytearray(path.read_bytes())
        if damage == "folder":
            path.unlink()
            path.mkdir()
        else:
            content[len(content) // 2] ^= 0x41 if damage == "bit" else 0
            body = {
                "cut": content[: len(content) // 3],
                "bit": content,
                "longer": content + b"x",
                "format": signed(b"\x09" + content[65:]),
            }[damage]
            path.write_bytes(body)
        backend = FaissBackend()
        with caplog.at_level(logging.WARNING):
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

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
    def test_a_pipe_in_the_place_of_the_file(self, small: MemorySource) -> None:
        """Opening it would wait for ever."""
        os.mkfifo(self.file(small))
        check_complete(synced(FaissBackend(), small), small)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
    def test_kill(self, small: MemorySource, caplog: pytest.LogCaptureFixture) -> None:
        assert killed(lambda: FaissBackend().sync(small), at_write(1, "written"))
        with caplog.at_level(logging.WARNING):
            check_complete(synced(FaissBackend(), small), small)
        assert not caplog.records
        assert {path.name for path in small.folder.iterdir()} <= {self.file(small).name, ".lock"}


def signed(content: bytes) -> bytes:
    """The content of a file, behind its hash."""
    return hashlib.blake2b(content).digest() + content


class TestMilvusLite:
    def test_more_than_the_server_gives_at_once(self, small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(milvus, "MOST", 50)
        backend = synced(MilvusBackend(), small)
        check_complete(backend, small)
        backend.close()

    def test_lost_rows_are_inserted_again(self, small: MemorySource) -> None:
        from pymilvus import MilvusClient

        synced(MilvusBackend(), small).close()
        client = MilvusClient(str(small.folder / "milvus.db"))
        client.delete(f"prvr_{small.name}", filter="key < 10")
        client.close()
        backend = synced(MilvusBackend(), small)
        assert small.read == 2
        check_complete(backend, small)
        backend.close()

    def test_collections_of_packs_that_are_gone_are_dropped(self, small: MemorySource) -> None:
        from pymilvus import MilvusClient

        first = small.name
        synced(MilvusBackend(), small).close()
        small.windows, small.replaced = 60, (first, "0" * 64)
        synced(MilvusBackend(), small).close()
        client = MilvusClient(str(small.folder / "milvus.db"))
        assert client.list_collections() == [f"prvr_{small.name}"]
        client.close()

    def test_collection_of_another_width(self, small: MemorySource) -> None:
        synced(MilvusBackend(), small).close()
        small.dim = 8
        with pytest.raises(DataError, match="holds vectors of width 16, the index of width 8"):
            MilvusBackend().sync(small)


class TestMessages:
    def test_who_waits_for_another_process_says_so(
        self, small: MemorySource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("prvr_search.backends.protocol.PATIENCE", 1.5)
        with locked(small.folder / LOCK) as is_mine, caplog.at_level(logging.INFO):
            assert is_mine
            with pytest.raises(DataError, match="used by another process for 2 s"):
                FaissBackend().sync(small)
        assert "waiting for another process, up to 2 s" in caplog.text

    def test_no_server(self, small: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(milvus, "_TIMEOUT", 2.0)
        monkeypatch.setenv("PRVR_MILVUS_TOKEN", "root:secret")
        for address in ("http://127.0.0.1:1", "http://root:secret@127.0.0.1:1"):
            with pytest.raises(DataError, match=r"127.0.0.1:1: Milvus refuses .*Is a server running there") as error:
                MilvusBackend(address).sync(small)
            assert "secret" not in str(error.value)

    @pytest.mark.parametrize(
        ("module", "name", "extra"),
        [
            ("faiss", "faiss", 'pip install "prvr-search"'),
            ("pymilvus", "milvus", r"prvr-search\[milvus\]"),
            ("milvus_lite", "milvus", "pip install milvus-lite"),
        ],
    )
    def test_library_is_missing(self, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=extra):
            open_backend(name)

    def test_address_of_a_backend_without_one(self) -> None:
        with pytest.raises(InputError, match="faiss has no address"):
            open_backend("faiss:http://localhost:1")

    def test_a_server_needs_no_milvus_lite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "milvus_lite", None)
        assert isinstance(open_backend("milvus:http://localhost:19530"), MilvusBackend)

    def test_folder_that_cannot_be_written(self, small: MemorySource) -> None:
        small.folder /= "file"
        small.folder.write_text("a file")
        with pytest.raises(DataError, match="'exact' needs no files"):
            FaissBackend().sync(small)
