"""The process that serves an index."""

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from prvr.config import ConfigError
from prvr_search import Library
from prvr_search.serve.app import CLOSING, create_app
from prvr_search.serve.connections import BACKLOG, Connection, room_for
from prvr_search.serve.security import EVERYWHERE, is_loopback
from prvr_search.serve.service import Service
from prvr_search.serve.settings import ServeSettings

_HEADER_BYTES = 16 * 1024
# Shares of the grace period after which waiting clients get 503, connections are cut, and requests are abandoned.
_ANSWERED, _CUT, _ABANDONED = 0.5, 0.65, 0.8


def check_bind(host: str, token: str | None, without_token: bool) -> None:
    """Refuses to listen to other machines without a token.

    Args:
        host: address to listen at.
        token: the token that clients must send.
        without_token: whether to serve other machines without a token all the same.

    Raises:
        ConfigError: other machines could watch every indexed video.
    """
    if not is_loopback(host) and token is None and not without_token:
        raise ConfigError(
            f"--host {host}: other machines could watch every indexed video. Set a token (--token-file FILE, or "
            "PRVR_TOKEN), keep to --host 127.0.0.1, or pass --without-token behind a proxy that requires one."
        )


class Server(uvicorn.Server):
    """A uvicorn server that ends in time, whatever its clients do.

    On shutdown it accepts no more connections and answers open requests. After a share of the grace period, clients
    that still wait for a search or a picture get 503; a little later, every connection is cut.

    Args:
        library: what is served.
        settings: names, token and limits.
        update: whether new videos are encoded.
    """

    def __init__(self, library: Library, settings: ServeSettings, update: bool) -> None:
        app, self.limits = create_app(library, settings, update=update), settings.limits
        self.service: Service = app.state.service
        limits = replace(self.limits, connections=room_for(self.limits.connections))
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Connection, limits),  # pyright: ignore[reportArgumentType]
                backlog=BACKLOG,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,  # queries are private
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_HEADER_BYTES,
                timeout_keep_alive=math.ceil(self.limits.head_seconds),
                timeout_graceful_shutdown=max(1, int(_ABANDONED * self.limits.grace_seconds)),
            )
        )

    @property
    def connections(self) -> set[Connection]:
        """The open connections."""
        return cast(set[Connection], self.server_state.connections)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server on a signal; unlike that of uvicorn, it does not raise the signal once more at the end."""
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Closes connections that are too slow; whether the server has to stop: it was asked to, or a worker failed."""
        for connection in tuple(self.connections):
            connection.check()
        return await super().on_tick(counter) or self.service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests end within the grace period, then cuts them off."""
        loop, grace = asyncio.get_running_loop(), self.limits.grace_seconds
        loop.call_later(_ANSWERED * grace, self.service.end)
        loop.call_later(_CUT * grace, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in tuple(self.connections):
            connection.drop()


def serve(
    library: Library,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    settings: ServeSettings | None = None,
    update: bool = True,
    without_token: bool = False,
    started: Callable[[str], object] | None = None,
) -> bool:
    """Serves a library until SIGINT or SIGTERM; open requests are answered first, then the index is closed.

    The end takes at most `ServeLimits.grace_seconds`.

    Args:
        library: an open library.
        host: address to listen at.
        port: 0 for any free port.
        settings: names, token and limits.
        update: encode new videos meanwhile.
        without_token: serve other machines without a token.
        started: called with the address to open on this machine once the server listens. It is ready once `GET /ready`
            says so.

    Returns:
        whether all threads ended. Otherwise one still works on a search or a preview that no client waits for, and the
        process should exit without waiting for it.

    Raises:
        ConfigError: other machines would be served without a token, or the address cannot be listened at.
        prvr.PrvrError: the first search, which the server makes itself, failed.

    Examples:
        >>> serve(library, port=8000)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    check_bind(host, settings.token, without_token)
    address = host.strip("[]")
    own = () if address in EVERYWHERE else (host,)
    settings = replace(settings, hosts=(*settings.hosts, *own))
    with _listen(address, port) as listening:
        server = Server(library, settings, update)
        if started is not None:
            name = EVERYWHERE.get(address, f"[{address}]" if ":" in address else address)
            started(f"http://{name}:{listening.getsockname()[1]}")
        try:
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
    except (OSError, OverflowError) as error:  # taken, not permitted, unknown, or not a valid port
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen at {address or 'all addresses'}, port {port} ({reason}). Pass an address of this machine "
            "with --host, and a free port with --port; 0 takes any free port."
        ) from error
