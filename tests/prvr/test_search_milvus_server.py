"""The laws of the backends on a Milvus server: the process that the PyPI package `milvus` brings along (2.3.5)."""

import multiprocessing
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clip_sources import MemorySource, brute_force, check_complete, check_life, check_order, queries, synced
from filelock import FileLock
from serving import wait_for

from prvr_search.ranking import milvus
from prvr_search.ranking.milvus import MilvusBackend

if sys.platform != "linux":
    pytest.skip("the package milvus has a server for Linux only", allow_module_level=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a server, on a port that is free; stops it and deletes its data."""
    pytest.importorskip("pymilvus")  # only here: it takes half a second of every process that collects the tests
    package = pytest.importorskip("milvus", reason="the PyPI package milvus, a server, is not installed")
    server = package.MilvusServer(wait_for_started=False)
    server.set_base_dir(str(tmp_path_factory.mktemp("milvus")))
    with FileLock(Path(tempfile.gettempdir()) / f"prvr-milvus-{os.getuid()}.lock"):  # two at once share inner ports
        try:
            server.start()
            wait_for_health(server)
            yield f"http://127.0.0.1:{server.listen_port}"
        finally:
            server.stop()
            server.cleanup()


def wait_for_health(server: Any) -> None:
    """Waits as the package would, but not for a process that has died."""

    def is_healthy() -> bool:
        assert server.server_proc.poll() is None, f"the server ended: see its log in {server.config.base_data_dir}"
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{server.webservice_port}/healthz") as answer:
            return b"OK" in answer.read()
        return False

    wait_for(is_healthy, 180.0)


PROCESSES = multiprocessing.get_context("spawn")


def search(address: str, start: Any, results: Any) -> None:
    """What a computer does, and how often it has read the clips."""
    source, backend = MemorySource(seed="shared", windows=90), MilvusBackend(address)
    start.wait()
    backend.sync(source)
    while (found := backend.nearest(queries(), 40)) is None:
        time.sleep(0.1)
    results.put((source.read, [keys.tolist() for keys in found]))


class Halting(MemorySource):
    """Says that it has come to the second block, and stays there."""

    def halt(self, address: str, reached: Any) -> None:
        self.reached = reached
        MilvusBackend(address).sync(self)

    def blocks(self) -> Iterator[np.ndarray]:
        yield next(super().blocks())
        self.reached.set()
        time.sleep(600)


def test_server(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, so that however tests are spread over processes one server is started."""
    from pymilvus import MilvusClient

    check_life(lambda: MilvusBackend(address), MemorySource(seed="life"))
    small = MemorySource(seed="shared", windows=90)
    with closing(MilvusClient(address)) as client:

        def collections() -> list[str]:
            return [name for name in client.list_collections() if small.name in name]

        # Two computers open one new pack: one of them copies it, once, and both find what brute force finds.
        start, results = PROCESSES.Barrier(2), PROCESSES.Queue()
        both = [PROCESSES.Process(target=search, args=(address, start, results)) for _ in range(2)]
        for process in both:
            process.start()
        answers = [results.get(timeout=120) for _ in both]
        for process in both:
            process.join()
        assert sorted(read for read, _ in answers) == [0, 1]
        assert [found for _, found in answers] == [[brute_force(small, query, 40) for query in queries()]] * 2
        (first,) = collections()
        assert client.query(first, output_fields=["count(*)"])[0]["count(*)"] == small.vectors
        # It is dropped in the middle: no error, and a copy is made again.
        backend = synced(MilvusBackend(address), small)
        check_order(backend, small)
        client.drop_alias(f"prvr_{small.name}_whole")
        client.drop_collection(first)
        assert backend.nearest(queries(), 40) is None
        check_complete(backend, small)
        assert small.read == 1
        assert len(collections()) == 1
        backend.close()
        # A writer is killed; another waits for him a while, and takes over.
        small.seed, reached = "killed", PROCESSES.Event()
        killed = PROCESSES.Process(target=Halting(seed="killed", windows=90).halt, args=(address, reached), daemon=True)
        killed.start()
        assert reached.wait(120)
        (half,) = collections()
        backend.sync(small)
        assert backend.nearest(queries(), 40) is None
        killed.kill()
        killed.join()
        assert backend.nearest(queries(), 40) is None
        monkeypatch.setattr(milvus, "_DEAD", 5.0)
        time.sleep(5)
        check_complete(backend, small)
        check_order(backend, small)
        (whole,) = collections()
        assert whole != half
        backend.close()
