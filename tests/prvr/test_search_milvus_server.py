"""The laws of the backends on a Milvus server: the process that the PyPI package `milvus` brings along (2.3.5)."""

import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clip_sources import MemorySource, Torn, check_complete, check_life, check_order, synced
from filelock import FileLock
from serving import wait_for

from prvr_search.ranking.backends.milvus import MilvusBackend

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


def test_server(address: str, tmp_path: Path) -> None:
    """One test, so that however tests are spread over processes one server is started."""
    check_life(lambda: MilvusBackend(address), MemorySource(tmp_path / "life", seed="life"))
    small = MemorySource(tmp_path / "small", seed="small", windows=90)
    with pytest.raises(KeyboardInterrupt):
        MilvusBackend(address).sync(Torn(small.folder, seed="small", windows=90))
    backend = synced(MilvusBackend(address), small)
    check_order(backend, small)  # so few rows are compared one by one
    check_complete(backend, small)
    # A second machine: the rows are on the server, nothing is sent again.
    elsewhere = MemorySource(tmp_path / "elsewhere", seed="small", windows=90)
    other = synced(MilvusBackend(address), elsewhere)
    assert elsewhere.read == 0
    check_order(other, elsewhere)
    for each in (backend, other):
        each.close()
