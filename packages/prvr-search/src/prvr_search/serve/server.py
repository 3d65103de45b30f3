"""The process that serves a library: its connections, and its end.

uvicorn has a limit of connections and a time for unused ones, but no deadline for a head, a body or a client that takes
nothing: clients that say nothing would take the places of others.
"""

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from prvr.config import ConfigError
from prvr_search import Library
from prvr_search.serve.app import CLOSING, create_app
from prvr_search.serve.security import OVERLOADED
from prvr_search.serve.service import Service
from prvr_search.serve.settings import EVERYWHERE, ServeLimits, ServeSettings, check_bind

_HEADER_BYTES = 16 * 1024
# Shares of the grace period after which waiting clients get 503, connections are cut, and requests are abandoned.
_ANSWERED, _CUT, _ABANDONED = 0.5, 0.65, 0.8
BACKLOG = 128
"""Connections that are accepted at once, before others are closed for them."""
_SPARE_FILES = 64  # for searches, pictures and previews
_UNSENT_BYTES = 128 * 1024  # that the system buffers, so that the server sees what a client takes
_PATIENCE = 5.0  # seconds before a client that takes nothing of an answer may be closed for another one


def room_for(connections: int) -> int:
    """The maximum number of open connections for which the limit of open files leaves room.

    Raises the soft limit, which is 256 on macOS, as far as needed and allowed.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    is_open = os.open(os.devnull, os.O_RDONLY)  # the lowest free number: as many are open, if none was closed
    os.close(is_open)
    others = is_open + BACKLOG + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited, wanted = resource.RLIM_INFINITY, connections + others
    if soft != unlimited and soft < wanted:
        with suppress(ValueError, OSError):  # macOS allows fewer than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == unlimited else min(wanted, hard), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if soft == unlimited else max(1, min(connections, soft - others))


class Connection(H11Protocol):
    """A connection that the server closes if its client is too slow, or if another client needs its place.

    A client may take `head_seconds` for the head of a request, `body_seconds` for its body, and `stalled_seconds` in
    which it takes nothing of an answer. How long an answer takes as a whole does not matter. Where too many
    connections are open, the one that has kept the server waiting for longest is closed for the newest. Where none
    keeps it waiting, the newest is answered with 503.

    Args:
        limits: how many connections may be open, and how long each may keep the server waiting.
        options: arguments of uvicorn's protocol.
    """

    def __init__(self, limits: ServeLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits, self._resumed = limits, 0
        self._progress: tuple[object, ...] = ()
        self._since = self._received = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bounds what the system holds of responses, and makes room for the connection."""
        super().connection_made(cast(asyncio.Transport, transport))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        limits, everybody = self._limits, cast("set[Connection]", self.connections)
        of_client = [other for other in everybody if other.client and self.client and other.client[0] == self.client[0]]
        most = limits.client_connections or limits.connections
        if not (self._has_room(of_client, most) and self._has_room(everybody, limits.connections)):
            self.app_state = self.app_state | {OVERLOADED: True}

    def _has_room(self, among: Collection["Connection"], most: int) -> bool:
        """Whether at most so many are open, once the one that has kept the server waiting for longest is closed.

        Those without a request go first, then those that have been silent.
        """
        if len(among) <= most:
            return True
        now, least = time.monotonic(), {"head": 0.0, "body": 0.0, "taking": _PATIENCE}
        slow = [
            (what == "head", seconds if what == "head" else min(seconds, now - other._received), other)
            for other in among
            for what, seconds in [other.waits()]
            if other is not self and seconds >= least.get(what, math.inf)
        ]
        if slow:
            max(slow, key=itemgetter(0, 1))[2].drop()
        return bool(slow)

    def data_received(self, data: bytes) -> None:
        """Notes that the client sends something."""
        self._received = time.monotonic()
        super().data_received(data)

    def resume_writing(self) -> None:
        """Notes that the client takes what is sent."""
        self._resumed += 1
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP; if an earlier request is still being answered, closes the connection instead."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.drop()
        else:
            super().send_400_response(msg)

    def waits(self) -> tuple[str, float]:
        """What the server waits for, and since how many seconds.

        It is the "head" or the "body" of a request, the "answer" of the application, or the client "taking" it; what a
        client takes starts the time anew.
        """
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            what = "taking"
        elif self.conn.their_state is h11.SEND_BODY:
            what = "body"
        else:
            what = "head" if self.cycle is None or self.cycle.response_complete else "answer"
        progress = (what, self.cycle, unsent, self._resumed)
        if progress != self._progress:
            self._progress, self._since = progress, time.monotonic()
        return what, time.monotonic() - self._since

    def check(self) -> None:
        """Closes the connection if the client has kept the server waiting for too long."""
        what, seconds = self.waits()
        limits = self._limits
        most = {"head": limits.head_seconds, "body": limits.body_seconds, "taking": limits.stalled_seconds}
        if seconds > most.get(what, math.inf):
            self.drop()

    def drop(self) -> None:
        """Closes the connection at once, whatever is being sent."""
        self.connections.discard(self)
        self.transport.abort()


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
        loop.call_later(_CUT * grace, lambda: [connection.drop() for connection in tuple(self.connections)])
        await super().shutdown(sockets)


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
