"""What stands before the application: it refuses, it counts, and it adds the headers that every answer has."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prvr_search.serve.security import Sessions, host_name, read_host
from prvr_search.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

COOKIE = "prvr_session"
OVERLOADED = "prvr_overloaded"
"""Marks, in the state of a request, that its connection is one too many."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PUBLIC = ("/", "/health", "/ready", "/openapi.json")  # these reveal nothing about the videos
_STATIC = "/static/"
PICTURE = "/api/search/picture"
"""The address that takes pictures, whose bodies are larger than others."""


class SecurityMiddleware:
    """ASGI middleware that refuses requests before they are routed, and counts all of them.

    Args:
        app: the application.
        settings: the names by which clients may call the server, and how large a body may be.
        sessions: the token and its cookies.
        registry: of the metrics of the server. Routes are templates such as `/api/videos/{key}/file`, so that their
            number is bounded.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, sessions: Sessions, registry: CollectorRegistry) -> None:
        self.app, self.sessions = app, sessions
        self.hosts = frozenset(map(read_host, (*_LOOPBACK, *settings.hosts)))
        self.limits = settings.limits
        self.active = Gauge("prvr_requests_active", "Requests being answered.", registry=registry)
        self.requests = Counter("prvr_requests", "Completed requests.", ["route", "status"], registry=registry)
        self.seconds = Histogram("prvr_request_seconds", "Time to the answer's start.", ["route"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith(_STATIC) else "no-store")
                self.requests.labels(_route(scope), status).inc()
                self.seconds.labels(_route(scope)).observe(time.perf_counter() - began)
            await send(message)

        with self.active.track_inprogress():
            try:
                app = self._refusal(scope) or self.app
                await app(scope, self._bounded(scope, receive), answer)
            except Exception:  # a bug: handled here, so that this answer too has its headers and is counted
                logger.exception("%s %s", scope["method"], _route(scope))
                if not status:
                    await _error(500, "internal server error; see the server log")(scope, receive, answer)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """The answer to a request that is refused; None if it is not."""
        headers, path = Headers(scope=scope), scope["path"]
        if scope.get("state", {}).get(OVERLOADED):
            return _error(503, "too many connections are open", {"Retry-After": "2", "Connection": "close"})
        if len(headers.getlist("host")) != 1 or host_name(headers["host"]) not in self.hosts:
            # DNS rebinding: another site may let its own name point to this machine, and then calls it by that name
            return _error(400, "unknown host name; start the server with --allow-host NAME")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and path != "/":
            return _error(403, "cross-origin requests are not allowed")
        if not self._authorised(scope, headers):
            return _error(401, "token required", {"WWW-Authenticate": "Bearer"})
        return None

    def _authorised(self, scope: Scope, headers: Headers) -> bool:
        path = scope["path"]
        if path in _PUBLIC or path.startswith(_STATIC) or self.sessions.accepts_header(headers.get("authorization")):
            return True
        cookie = HTTPConnection(scope).cookies.get(COOKIE)
        return (
            path.startswith("/api/videos/")
            and scope["method"] in ("GET", "HEAD")
            and self.sessions.accepts_cookie(cookie)
        )

    def _bounded(self, scope: Scope, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """Bounds the body of a request, whether or not its length is announced."""
        received = 0
        most = self.limits.picture_bytes if scope["path"] == PICTURE else self.limits.body_bytes

        async def read() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, f"at most {most} bytes")
            return message

        return read


def _route(scope: Scope) -> str:
    """The template of the address, never the address itself: there are too many of them."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "/static" if scope["path"].startswith(_STATIC) else "other"


def _error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)
