"""Bounds on connections: how many may be open, and how long a client may keep the server waiting.

uvicorn has a limit of connections and a time for unused ones, but no deadline for a head, a body or a client that takes
nothing: clients that say nothing would take the places of others.
"""

import asyncio
import math
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from prvr_search.serve.middleware import OVERLOADED
from prvr_search.serve.settings import ServeLimits

BACKLOG = 128
"""Connections that are accepted at once, before others are closed for them."""
_SPARE_FILES = 64  # for searches, pictures and previews
_OPEN_FILES = 256  # of a process whose open files cannot be counted: the library, and what Python holds
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
    others = BACKLOG + _SPARE_FILES
    try:
        others += len(list(Path("/dev/fd").iterdir()))
    except OSError:  # a container without /dev/fd or /proc
        others += _OPEN_FILES
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
        waits = {other: other.waits() for other in among if other is not self}

        def precedence(other: Connection) -> tuple[bool, float]:
            what, seconds = waits[other]
            return what == "head", min(seconds, math.inf if what == "head" else time.monotonic() - other._received)

        least = {"head": 0.0, "body": 0.0, "taking": _PATIENCE}
        slow = [other for other, (what, seconds) in waits.items() if seconds >= least.get(what, math.inf)]
        if slow:
            max(slow, key=precedence).drop()
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
