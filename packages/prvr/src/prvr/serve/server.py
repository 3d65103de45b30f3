"""A process that serves an index."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from prvr.config import ConfigError
from prvr.search import VideoIndex
from prvr.serve.app import ServeSettings, create_app
from prvr.serve.security import is_loopback

__all__ = ["check_bind", "serve"]

_HEADER_BYTES = 16 * 1024
_CONNECTIONS = 256
_GRACE = 15  # seconds that requests have to end


def check_bind(host: str, token: str | None, without_token: bool) -> None:
    """Refuses to serve a network without a token.

    Raises:
        ConfigError: says what to do.
    """
    if not is_loopback(host) and token is None and not without_token:
        raise ConfigError(
            f"--host {host}: other machines could watch every indexed video. Set a token (--token-file FILE, or "
            "PRVR_TOKEN), keep to --host 127.0.0.1, or say --without-token if something before it asks for one."
        )


def serve(
    index_folder: Path | str,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    settings: ServeSettings | None = None,
    without_token: bool = False,
    device: Any = "cpu",
    backend: str = "auto",
    started: Callable[[str], object] | None = None,
) -> None:
    """Serves an index until SIGINT or SIGTERM; requests that run are answered first, then the index is closed.

    Args:
        index_folder: of `prvr index`.
        host: address to listen at.
        port: 0: any that is free.
        settings: names, token, limits.
        without_token: serve a network though no token is set.
        device: of torch.
        backend: of the index.
        started: called with the address once the server listens.

    Raises:
        ConfigError: a network would be served without a token.
        prvr.data.DataError: the index cannot be read.
        OSError: the address is taken.
        prvr.MissingExtraError: uvicorn is not installed.

    Example:
        >>> serve("index", port=8000)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    check_bind(host, settings.token, without_token)
    own = () if host in ("0.0.0.0", "::", "") else (host,)
    settings = ServeSettings((*settings.hosts, *own), settings.token, settings.session_seconds, settings.limits)
    address = host.strip("[]")
    with socket.create_server((address, port), family=_family(address)) as listening:
        app = create_app(VideoIndex.open(index_folder, device=device, backend=backend), settings)
        if started is not None:
            name = f"[{address}]" if ":" in address else address
            started(f"http://{name}:{listening.getsockname()[1]}")
        _run(app, listening)


def _run(app: FastAPI, listening: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # queries are nobody's business
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=_GRACE,
    )
    server = uvicorn.Server(config)
    with _ended_quietly(server.handle_exit):
        server.run(sockets=[listening])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@contextmanager
def _ended_quietly(end: Callable[..., object]) -> Iterator[None]:
    """uvicorn raises the signals that ended it once more when all is done: that is a good end.

    Args:
        end: ends the server, also if the signal comes before it listens to signals.
    """
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
