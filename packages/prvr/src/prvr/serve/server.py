"""A process that serves an index."""

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from prvr.config import ConfigError
from prvr.search import VideoIndex
from prvr.serve.app import CLOSING, ServeSettings, build_app
from prvr.serve.connections import Connection, Connections
from prvr.serve.security import is_loopback
from prvr.serve.service import Service

__all__ = ["Server", "check_bind", "serve"]

_HEADER_BYTES = 16 * 1024
_ANSWERED, _CUT, _GIVEN_UP = 0.5, 0.65, 0.8  # parts of the time for the end: answers, connections, requests


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


class Server(uvicorn.Server):
    """A server that ends in time, whatever its clients do.

    Once it was told to end, it takes no more connections and answers what is asked. After a part of the time for the
    end, what still waits for a search or a picture gets 503; a little later, every connection is cut.

    Args:
        index: open.
        settings: names, token, limits.
    """

    def __init__(self, index: VideoIndex, settings: ServeSettings) -> None:
        self.service, self.limits = Service(index, settings.limits), settings.limits
        self._connections = Connections(self.limits, self.service.metrics)
        super().__init__(
            uvicorn.Config(
                build_app(self.service, settings),
                http=partial(Connection, self._connections),  # pyright: ignore[reportArgumentType]
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,  # queries are nobody's business
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_HEADER_BYTES,
                timeout_keep_alive=math.ceil(self.limits.head_seconds),
                timeout_graceful_shutdown=max(1, int(_GIVEN_UP * self.limits.grace_seconds)),
            )
        )

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop, grace = asyncio.get_running_loop(), self.limits.grace_seconds
        loop.call_later(_ANSWERED * grace, self.service.end)
        loop.call_later(_CUT * grace, self._connections.cut)
        await super().shutdown(sockets)


def serve(
    index: Path | str | VideoIndex,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    settings: ServeSettings | None = None,
    without_token: bool = False,
    device: Any = "cpu",
    backend: str = "auto",
    started: Callable[[str], object] | None = None,
) -> bool:
    """Serves an index until SIGINT or SIGTERM; requests that run are answered first, then the index is closed.

    All of that takes `ServeLimits.grace_seconds` at most.

    Args:
        index: folder of `prvr index`, or an open one.
        host: address to listen at.
        port: 0: any that is free.
        settings: names, token, limits.
        without_token: serve a network though no token is set.
        device: of torch.
        backend: of the index.
        started: called with the address once the server listens. It is ready once `GET /ready` says so.

    Returns:
        whether no thread is left. One may still work on a search or a preview that nobody waits for any more; then the
        process should end without waiting for it.

    Raises:
        ConfigError: a network would be served without a token, or the address is taken or none of this machine.
        prvr.data.DataError: the index cannot be read.
        prvr.PrvrError: the first search, made by the server itself, says why none is possible.

    Example:
        >>> serve("index", port=8000)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    check_bind(host, settings.token, without_token)
    own = () if host in ("0.0.0.0", "::", "") else (host,)
    settings = replace(settings, hosts=(*settings.hosts, *own))
    address = host.strip("[]")
    with _listen(address, port) as listening:
        if not isinstance(index, VideoIndex):
            index = VideoIndex.open(index, device=device, backend=backend)
        server = Server(index, settings)
        if started is not None:
            name = f"[{address}]" if ":" in address else address
            started(f"http://{name}:{listening.getsockname()[1]}")
        try:
            with _ended_quietly(server.handle_exit):
                server.run(sockets=[listening])
        finally:
            ended = server.service.close(settings.limits.grace_seconds * CLOSING)
        if server.service.failure is not None:
            raise server.service.failure
        return ended


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except (OSError, OverflowError) as error:  # taken, not allowed, unknown; no number of a port
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen at {address or 'all addresses'}, port {port} ({reason}). Name an address of this machine "
            "with --host, and a free port with --port; 0 takes any that is free."
        ) from error


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
