"""Bounds on connections: how many may be open, and how long a client may keep the server waiting."""

import asyncio
import math
import socket
import time
from typing import Any, cast

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from prvr.serve.middleware import OVERLOADED, SECURITY_HEADERS, Metrics
from prvr.serve.settings import ServeLimits

_UNSENT_BYTES = 128 * 1024  # that the system buffers, so that the server sees what a client takes
_SLOWEST_CHECK, _FASTEST_CHECK = 1.0, 0.05  # seconds between two checks of a connection


class Connection(H11Protocol):
    """A connection that the server closes if its client is too slow.

    A client may take `head_seconds` for the head of a request, `body_seconds` for its body, and `stalled_seconds` in
    which it takes nothing of an answer. How long an answer takes as a whole does not matter.

    Args:
        limits: how many connections may be open, and how long a client may keep the server waiting.
        metrics: counts what is not HTTP.
        options: arguments of uvicorn's protocol.
    """

    def __init__(self, limits: ServeLimits, metrics: Metrics, **options: Any) -> None:
        super().__init__(**options)
        self._limits, self._metrics = limits, metrics
        # What the server waits for: "head" or "body" from the client, "answer" from the application, or "taking", the
        # client to take the answer; and since when, without any progress since.
        self._waits_for, self._since, self._progress = "head", time.monotonic(), tuple[object, ...]()
        self._begun, self._resumed = False, 0
        self._check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bounds what the system holds of responses, and starts the check for slow clients."""
        super().connection_made(cast(asyncio.Transport, transport))
        opened = transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if len(self.connections) > self._limits.connections:
            self.app_state = self.app_state | {OVERLOADED: True}
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the check for slow clients."""
        if self._check is not None:
            self._check.cancel()
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
        said = {"detail": "this is not a request of HTTP/1.1 that the server understands"}
        answer = JSONResponse(said, headers=headers)
        lines = [b"HTTP/1.1 400 Bad Request", *map(b": ".join, answer.raw_headers), b"", bytes(answer.body)]
        self.transport.write(b"\r\n".join(lines))
        self._metrics.count("other", 400, 0.0)
        self.transport.close()

    def _watch(self) -> None:
        self._notice_progress()
        limits = self._limits
        most = {"head": limits.head_seconds, "body": limits.body_seconds, "taking": limits.stalled_seconds}
        if time.monotonic() - self._since > most.get(self._waits_for, math.inf):
            if self.transport.get_write_buffer_size():  # an answer that is not taken is thrown away
                self.transport.abort()
            else:
                self.transport.close()
        pause = min(_SLOWEST_CHECK, max(_FASTEST_CHECK, min(most.values()) / 4))
        self._check = self.loop.call_later(pause, self._watch)

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
        if (waits_for, progress) != (self._waits_for, self._progress):
            self._waits_for, self._progress, self._since = waits_for, progress, time.monotonic()
