"""Connections: how many may be open, and how long a client may keep the server waiting."""

import asyncio
import json
import socket
import time
from collections.abc import Collection
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from prvr.serve.limits import ServeLimits
from prvr.serve.metrics import Metrics
from prvr.serve.security import REFUSED, SECURITY_HEADERS

__all__ = ["Connection", "Connections"]

_UNSENT = 128 * 1024  # bytes that the system keeps unsent, so that one sees what a client takes
_PATIENCE = 5.0  # seconds that a client which sends a body or takes an answer is not cut for the sake of another one
_SLOWEST_LOOK, _FASTEST_LOOK = 1.0, 0.05  # seconds between two looks at a connection


class Connections:
    """The open connections of a server.

    Where there are too many, the one that has kept the server waiting for longest is closed for the newest; where none
    keeps it waiting, the newest is answered with 503.

    Args:
        limits: how many, and how long each may wait.
        metrics: counts what is no HTTP.
    """

    def __init__(self, limits: ServeLimits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._open: set[Connection] = set()
        seconds = min(limits.head_seconds, limits.body_seconds, limits.stalled_seconds)
        self.look_seconds = min(_SLOWEST_LOOK, max(_FASTEST_LOOK, seconds / 4))

    def admit(self, new: "Connection") -> bool:
        """Admits a connection; returns whether there is room for it."""
        self._open.add(new)
        of_client = [one for one in self._open if one.address == new.address]
        most = self.limits.client_connections or self.limits.connections
        return _has_room(new, of_client, most) and _has_room(new, self._open, self.limits.connections)

    def forget(self, one: "Connection") -> None:
        """Removes a connection that is closed."""
        self._open.discard(one)

    def cut(self) -> None:
        """Ends all of them at once, whatever is on its way."""
        for one in tuple(self._open):
            one.transport.abort()


def _has_room(new: "Connection", among: Collection["Connection"], most: int) -> bool:
    if len(among) <= most:
        return True
    waiting = [one for one in among if one is not new and one.can_go]
    if not waiting:
        return False
    min(waiting, key=lambda one: (one.asks, one.since)).drop()
    return True


class Connection(H11Protocol):
    """A connection that the server closes if its client is too slow.

    A client may take `head_seconds` for the head of a request, `body_seconds` for its body, and `stalled_seconds` in
    which it takes nothing of an answer. How long an answer takes as a whole does not matter.

    Args:
        connections: all of the server.
        options: of uvicorn.

    Attributes:
        since: when it began to keep the server waiting as it does.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections, self._begun, self._resumed = connections, False, 0
        self._state: tuple[object, ...] = ()
        self._look: asyncio.TimerHandle | None = None
        self.since = time.monotonic()

    @property
    def address(self) -> str:
        """The address of the client, without its port."""
        return self.client[0] if self.client else ""

    @property
    def asks(self) -> bool:
        """Whether the head of a request is here and its answer is not done."""
        return self._state[:1] != ("head",)

    @property
    def can_go(self) -> bool:
        """Whether it keeps the server waiting, so that it may be closed for another one."""
        kind = self._state[:1]
        return kind == ("head",) or (kind != ("answer",) and time.monotonic() - self.since > _PATIENCE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        opened = transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._notice()
        if not self._connections.admit(self):
            self.app_state = self.app_state | {REFUSED: True}
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        self._connections.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self._begun = True
        super().data_received(data)
        if self.cycle is not before:
            self._begun = False
        self._notice()

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # what is asked before it is answered no more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is on its way: there is no other
            self.transport.close()
            return
        body = json.dumps({"detail": "this is no request of HTTP/1.1 that the server understands"}).encode()
        headers = SECURITY_HEADERS | {"Content-Type": "application/json", "Cache-Control": "no-store"}
        headers |= {"Content-Length": str(len(body)), "Connection": "close"}
        lines = ["HTTP/1.1 400 Bad Request", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.transport.write("\r\n".join(lines).encode("ascii") + body)
        self._connections.metrics.count("other", 400, 0.0)
        self.transport.close()

    def drop(self) -> None:
        """Closes it; an answer that is not taken is thrown away."""
        self._connections.forget(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _watch(self) -> None:
        self._notice()
        limits = self._connections.limits
        most = {"head": limits.head_seconds, "body": limits.body_seconds, "taking": limits.stalled_seconds}
        if time.monotonic() - self.since > most.get(str(self._state[0]), float("inf")):
            self.drop()
        self._look = self.loop.call_later(self._connections.look_seconds, self._watch)

    def _notice(self) -> None:
        """What the server waits for; another thing than before starts the clock anew."""
        unsent = self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not self.cycle.response_complete
        if unsent:
            state = ("taking", unsent, self._resumed)
        elif self.conn.their_state is h11.SEND_BODY:
            state = ("body", self.cycle)
        elif answering:
            state = ("answer", self.cycle)
        else:
            state = ("head", self.cycle, self._begun)
        if state != self._state:
            self._state, self.since = state, time.monotonic()
