"""Who may ask: names by which the server may be called, its token, cookies for players, and what refuses the rest."""

import hmac
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prvr_search.serve.settings import ServeSettings, host_name

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
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PUBLIC = ("/", "/health", "/ready", "/openapi.json")  # these reveal nothing about the videos
_STATIC = "/static/"
PICTURE = "/api/search/picture"
"""The address to which pictures are sent."""


@dataclass(frozen=True)
class Sessions:
    """Signed cookies that stand for the token for a while, because players cannot send it in a header.

    Args:
        token: the token that clients must send; None: no token is needed.
        seconds: lifetime of a cookie.
        secret: signs the cookies; by default a new one for every start of the server.
    """

    token: str | None = field(repr=False)
    seconds: int = 3600
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def accepts_header(self, header: str | None) -> bool:
        """Whether an Authorization header holds the token, compared in constant time."""
        scheme, _, token = (header or "").partition(" ")
        return self.token is None or (_are_equal(token.strip(), self.token) and scheme.lower() == "bearer")

    def new_cookie(self) -> str:
        """The value of a new cookie: the time at which it expires, signed."""
        expires = str(math.ceil(time.time()) + self.seconds)
        return f"{expires}.{self._sign(expires)}"

    def accepts_cookie(self, cookie: str | None) -> bool:
        """Whether a cookie was signed by this server and has not expired."""
        expires, _, signature = (cookie or "").partition(".")
        return _are_equal(signature, self._sign(expires)) and time.time() < int(expires)

    def _sign(self, text: str) -> str:
        return hmac.new(self.secret, text.encode("utf-8", "replace"), "sha256").hexdigest()


def _are_equal(text: str, expected: str) -> bool:
    """Whether two texts are equal, compared in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), expected.encode())


class SecurityMiddleware:
    """ASGI middleware that refuses requests before they are routed, and counts all of them.

    Args:
        app: the application.
        settings: the settings of the server.
        sessions: the token and its cookies.
        registry: of the metrics of the server. Routes are templates such as `/api/videos/{key}/file`, so that their
            number is bounded.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, sessions: Sessions, registry: CollectorRegistry) -> None:
        self.app, self.settings, self.sessions = app, settings, sessions
        self.active = Gauge("prvr_requests_active", "Requests being answered.", registry=registry)
        self.requests = Counter("prvr_requests", "Completed requests.", ["route", "status"], registry=registry)
        self.seconds = Histogram("prvr_request_seconds", "Time to the answer's start.", ["route"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        root = scope["root_path"] = scope.get("root_path") or self.settings.root_path
        if not f"{scope['path']}/".startswith(f"{root}/"):  # a proxy has cut it off
            scope["path"] = root + scope["path"]
        path = scope["path"].removeprefix(root) or "/"  # before routing, which adds to the root path
        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                is_page = path == "/" or path.startswith(_STATIC)
                headers.setdefault("Cache-Control", "no-cache" if is_page else "no-store")
                self.requests.labels(_route(scope, path), status).inc()
                self.seconds.labels(_route(scope, path)).observe(time.perf_counter() - began)
            await send(message)

        with self.active.track_inprogress():
            try:
                app = self._refusal(scope, path) or self.app
                await app(scope, self._bounded(path, receive), answer)
            except Exception:  # a bug: handled here, so that this answer too has its headers and is counted
                logger.exception("%s %s", scope["method"], _route(scope, path))
                if not status:
                    await _error(500, "internal server error; see the server log")(scope, receive, answer)

    def _refusal(self, scope: Scope, path: str) -> JSONResponse | None:
        """The answer to a request that is refused; None if it is not."""
        headers = Headers(scope=scope)
        if scope.get("state", {}).get(OVERLOADED):
            return _error(503, "too many connections are open", {"Retry-After": "2", "Connection": "close"})
        if len(headers.getlist("host")) != 1 or host_name(headers["host"]) not in (
            *_LOOPBACK,
            *self.settings.hosts,
        ):
            # DNS rebinding: another site may let its own name point to this machine, and then calls it by that name
            return _error(400, "unknown host name; start the server with --allow-host NAME")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and path != "/":
            return _error(403, "cross-origin requests are not allowed")
        is_public = path in _PUBLIC or path.startswith(_STATIC)
        is_player = path.startswith("/api/videos/") and scope["method"] in ("GET", "HEAD")
        if not (
            is_public
            or self.sessions.accepts_header(headers.get("authorization"))
            or (is_player and self.sessions.accepts_cookie(HTTPConnection(scope).cookies.get(COOKIE)))
        ):
            return _error(401, "token required", {"WWW-Authenticate": "Bearer"})
        return None

    def _bounded(self, path: str, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """Bounds the body of a request, whether or not its length is announced."""
        received, limits = 0, self.settings.limits
        most = limits.picture_bytes if path == PICTURE else limits.body_bytes

        async def read() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, f"at most {most} bytes")
            return message

        return read


def _route(scope: Scope, of: str) -> str:
    """The template of the address, never the address itself: there are too many of them."""
    return getattr(scope.get("route"), "path", "/static" if of.startswith(_STATIC) else "other")


def _error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)
