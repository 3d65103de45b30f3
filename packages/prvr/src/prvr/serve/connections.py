"""Bounds on connections: how many may be open, and how long a client may keep the server waiting."""

import asyncio
import math
import socket
import time
from collections.abc import Collection
from typing import Any, cast

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from prvr.serve.middleware import OVERLOADED, SECURITY_HEADERS, Metrics
from prvr.serve.settings import ServeLimits

_UNSENT_BYTES = 128 * 1024  # that the system buffers, so that the server sees what a client takes
_PATIENCE = 5.0  # seconds before a client that sends a body or takes an answer may be closed for another one
_SLOWEST_CHECK, _FASTEST_CHECK = 1.0, 0.05  # seconds between two checks of a connection


class ConnectionPool:
    """The open connections of a server.

    Where there are too many, the one that has kept the server waiting for longest is closed for the newest; where none
    keeps it waiting, the newest is answered with 503.

    Args:
        limits: how many connections may be open, and how long each may keep the server waiting.
        metrics: counts what is not HTTP.
    """

    def __init__(self, limits: ServeLimits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._open: set[Connection] = set()
        seconds = min(limits.head_seconds, limits.body_seconds, limits.stalled_seconds)
        self.check_seconds = min(_SLOWEST_CHECK, max(_FASTEST_CHECK, seconds / 4))

    def admit(self, new: "Connection") -> bool:
        """Adds a connection; returns whether there is room for it."""
        self._open.add(new)
        of_client = [one for one in self._open if one.address == new.address]
        most = self.limits.client_connections or self.limits.connections
        return _has_room(new, of_client, most) and _has_room(new, self._open, self.limits.connections)

    def forget(self, one: "Connection") -> None:
        """Removes a connection that is closed."""
        self._open.discard(one)

    def cut(self) -> None:
        """Closes all connections at once, whatever is being sent."""
        for one in tuple(self._open):
            one.transport.abort()


def _has_room(new: "Connection", among: Collection["Connection"], most: int) -> bool:
    if len(among) <= most:
        return True
    waiting = [one for one in among if one is not new and one.may_be_closed]
    if not waiting:
        return False
    min(waiting, key=lambda one: (one.has_request, one.since)).drop()
    return True


class Connection(H11Protocol):
    """A connection that the server closes if its client is too slow.

    A client may take `head_seconds` for the head of a request, `body_seconds` for its body, and `stalled_seconds` in
    which it takes nothing of an answer. How long an answer takes as a whole does not matter.

    Args:
        pool: all connections of the server.
        options: arguments of uvicorn's protocol.

    Attributes:
        waits_for: what the server waits for: "head", "body" (both from the client), "answer" (from the application), or
            "taking" (the client to take the answer).
        since: when it began to wait for that, without any progress since; monotonic seconds.
    """

    def __init__(self, pool: ConnectionPool, **options: Any) -> None:
        super().__init__(**options)
        self._pool, self._begun, self._resumed = pool, False, 0
        self._progress: tuple[object, ...] = ()
        self._check: asyncio.TimerHandle | None = None
        self.waits_for, self.since = "head", time.monotonic()

    @property
    def address(self) -> str:
        """The address of the client, without its port."""
        return self.client[0] if self.client else ""

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived and its answer is not complete."""
        return self.waits_for != "head"

    @property
    def may_be_closed(self) -> bool:
        """Whether the client keeps the server waiting, so that the connection may be closed for another one."""
        patient = time.monotonic() - self.since > _PATIENCE
        return self.waits_for == "head" or (self.waits_for != "answer" and patient)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bounds what the system holds of responses, and starts the check for slow clients."""
        super().connection_made(cast(asyncio.Transport, transport))
        opened = transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._notice_progress()
        if not self._pool.admit(self):
            self.app_state = self.app_state | {OVERLOADED: True}
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the place of the connection."""
        if self._check is not None:
            self._check.cancel()
        self._pool.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Notes when a request begins."""
        before = self.cycle
        self._begun = True
        super().data_received(data)
        if self.cycle is not before:
            self._begun = False
        self._notice_progress()

    def resume_writing(self) -> None:
        """Notes that the client takes what is sent."""
        self._resumed += 1
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is no HTTP, and gives up those before it."""
        if self.cycle is not None and not self.cycle.response_complete:  # earlier requests are not answered any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is being sent: there is no other
            self.transport.close()
            return
        headers = SECURITY_HEADERS | {"Cache-Control": "no-store", "Connection": "close"}
        said = {"detail": "bad request: not valid HTTP/1.1"}
        answer = JSONResponse(said, headers=headers)
        lines = [b"HTTP/1.1 400 Bad Request", *map(b": ".join, answer.raw_headers), b"", bytes(answer.body)]
        self.transport.write(b"\r\n".join(lines))
        self._pool.metrics.count("other", 400, 0.0)
        self.transport.close()

    def drop(self) -> None:
        """Closes the connection; an answer that is not taken is thrown away."""
        self._pool.forget(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _watch(self) -> None:
        self._notice_progress()
        limits = self._pool.limits
        most = {"head": limits.head_seconds, "body": limits.body_seconds, "taking": limits.stalled_seconds}
        if time.monotonic() - self.since > most.get(self.waits_for, math.inf):
            self.drop()
        self._check = self.loop.call_later(self._pool.check_seconds, self._watch)

    def _notice_progress(self) -> None:
        """Starts the clock anew if the server waits for something else than before, or if the client made progress."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            waits_for, progress = "taking", (unsent, self._resumed)
        elif self.conn.their_state is h11.SEND_BODY:
            waits_for, progress = "body", (self.cycle,)
        elif self.cycle is not None and not self.cycle.response_complete:
            waits_for, progress = "answer", (self.cycle,)
        else:
            waits_for, progress = "head", (self.cycle, self._begun)
        if (waits_for, progress) != (self.waits_for, self._progress):
            self.waits_for, self._progress, self.since = waits_for, progress, time.monotonic()
