"""Bounds on connections: how many may be open, and how long a client may keep the server waiting."""

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
    others = len(list(Path("/dev/fd").iterdir())) + BACKLOG + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    if soft < connections + others:
        wanted = connections + others if hard == resource.RLIM_INFINITY else min(connections + others, hard)
        with suppress(ValueError, OSError):  # macOS allows fewer than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(1, min(connections, soft - others))


class Connection(H11Protocol):
    """A connection that the server closes if its client is too slow, or if another client needs its place.

    A client may take `head_seconds` for the head of a request, `body_seconds` for its body, and `stalled_seconds` in
    which it takes nothing of an answer. How long an answer takes as a whole does not matter. Where too many
    connections are open, the one that has kept the server waiting for longest is closed for the newest. Where none
    keeps it waiting, the newest is answered with 503.

    Args:
        limits: how many connections may be open, and how long each may keep the server waiting.
        options: arguments of uvicorn's protocol.

    Attributes:
        waits_for: what the server waits for: "head", "body" (both from the client), "answer" (from the application), or
            "taking" (the client to take the answer).
        since: when it began to wait for that; monotonic seconds. What a client takes of an answer starts it anew.
        received: when the client last sent something.
    """

    def __init__(self, limits: ServeLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits, self._resumed = limits, 0
        self._progress: tuple[object, ...] = ()
        self.waits_for = "head"
        self.since = time.monotonic()
        self.received = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bounds what the system holds of responses, and makes room for the connection."""
        super().connection_made(cast(asyncio.Transport, transport))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        everybody = cast("set[Connection]", self.connections)
        of_client = [other for other in everybody if other.address == self.address]
        most = self._limits.client_connections or self._limits.connections
        if not (self._has_room(of_client, most) and self._has_room(everybody, self._limits.connections)):
            self.app_state = self.app_state | {OVERLOADED: True}

    def _has_room(self, among: Collection["Connection"], most: int) -> bool:
        """Whether at most so many are open, once the one that has kept the server waiting for longest is closed."""
        if len(among) <= most:
            return True
        for other in among:
            other.notice_progress()
        waiting = [other for other in among if other is not self and other.may_be_closed]
        if waiting:
            min(waiting, key=Connection.precedence).drop()
        return bool(waiting)

    @property
    def address(self) -> str:
        """The address of the client, without its port."""
        return self.client[0] if self.client else ""

    @property
    def may_be_closed(self) -> bool:
        """Whether the client keeps the server waiting, so that the connection may be closed for another one."""
        stalled = self.waits_for == "taking" and time.monotonic() - self.since > _PATIENCE
        return self.waits_for in ("head", "body") or stalled

    def precedence(self) -> tuple[bool, float]:
        """Sorts connections by which is closed first: those without a request, then those that have been silent."""
        return (False, self.since) if self.waits_for == "head" else (True, max(self.since, self.received))

    def data_received(self, data: bytes) -> None:
        """Notes that the client sends something."""
        self.received = time.monotonic()
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

    def notice_progress(self) -> None:
        """Starts the clock anew if the server waits for something else than before, or if the client took something."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            waits_for = "taking"
        elif self.conn.their_state is h11.SEND_BODY:
            waits_for = "body"
        else:
            waits_for = "head" if self.cycle is None or self.cycle.response_complete else "answer"
        progress = (waits_for, self.cycle, unsent, self._resumed)
        if progress != self._progress:
            self.waits_for, self._progress, self.since = waits_for, progress, time.monotonic()

    def check(self) -> None:
        """Closes the connection if the client has kept the server waiting for too long."""
        self.notice_progress()
        limits = self._limits
        most = {"head": limits.head_seconds, "body": limits.body_seconds, "taking": limits.stalled_seconds}
        if time.monotonic() - self.since > most.get(self.waits_for, math.inf):
            self.drop()

    def drop(self) -> None:
        """Closes the connection at once, whatever is being sent."""
        self.connections.discard(self)
        self.transport.abort()
