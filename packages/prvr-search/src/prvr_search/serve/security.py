"""Who may ask: names by which the server may be called, its token, cookies for players, and what refuses the rest."""

import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prvr.config import ConfigError
from prvr.reading import read_text

logger = logging.getLogger(__name__)

_SHORTEST = 16  # characters of a token
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535
_ROOT = re.compile(r"(?:/(?!\.)[A-Za-z0-9._~-]+)*/?")
EVERYWHERE = {"0.0.0.0": "localhost", "": "localhost", "::": "[::1]"}
"""Addresses that stand for all network interfaces, which cannot be opened, and the host to open instead."""
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


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    Examples:
        >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.4", "films.lan")]
        [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(header: str) -> str | None:
    """The name in a Host header, in lower case, without the port and a final dot; None if the header is not valid.

    IPv6 addresses have their canonical form, and those that wrap an IPv4 address are that address.

    Examples:
        >>> host_name("films.lan:8000"), host_name("[::1]:8000"), host_name("LOCALHOST."), host_name("127.0.0.1:99999")
        ('films.lan', '::1', 'localhost', None)
    """
    match = _HOST.fullmatch(header.lower())
    if match is None or int(match["port"] or 0) > _LAST_PORT:
        return None
    try:
        address = ipaddress.IPv6Address(match["six"]) if match["six"] else None
    except ValueError:
        return None
    return match["name"] if address is None else str(address.ipv4_mapped or address)


def read_host(name: str) -> str:
    """A name by which clients may call the server, normalised as by `host_name`; a bare IPv6 address is one as well.

    Raises:
        ConfigError: it is not a valid name.

    Examples:
        >>> read_host("Films.lan:8000"), read_host("fd00:0::7")
        ('films.lan', 'fd00::7')
    """
    bare = name.count(":") > 1 and not name.startswith("[")
    host = host_name(f"[{name.partition('%')[0]}]" if bare else name)
    if host is None:
        raise ConfigError(f"{name!r} is not a host name. Expected a name such as films.lan, or an address.")
    return host


def read_root(path: str) -> str:
    """The path below which the page is served, without a slash at its end; empty: that of the host.

    Raises:
        ConfigError: it is no path.

    Examples:
        >>> read_root("/videos/"), read_root("/")
        ('/videos', '')
    """
    if not _ROOT.fullmatch(path):
        raise ConfigError(f"{path!r} is not a path of an address. Expected one such as /videos.")
    return path.rstrip("/")


def read_token(file: Path | str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of a server: the content of a file, or else the variable PRVR_TOKEN; None if there is neither.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file cannot be read.
        ConfigError: the token is too short, or holds other than printable ASCII characters.
    """
    if file is None:
        token, where = environment.get("PRVR_TOKEN", "").strip(), "PRVR_TOKEN"
        if not token:
            return None
    else:
        token, where = read_text(Path(file).expanduser()).strip(), str(file)
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: a token of {len(token)} characters; expected at least {_SHORTEST}, letters and digits, no "
            f"blanks. Make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'."
        )
    return token


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
        if self.token is None:
            return True
        scheme, _, token = (header or "").partition(" ")
        return _are_equal(token.strip(), self.token) and scheme.lower() == "bearer"

    def new_cookie(self) -> str:
        """The value of a new cookie: the time at which it expires, signed."""
        expires = str(math.ceil(time.time()) + self.seconds)
        return f"{expires}.{self._sign(expires)}"

    def accepts_cookie(self, cookie: str | None) -> bool:
        """Whether a cookie was signed by this server and has not expired."""
        expires, _, signature = (cookie or "").partition(".")
        return _are_equal(signature, self._sign(expires)) and time.time() < int(expires)

    def _sign(self, text: str) -> str:
        return hmac.new(self.secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _are_equal(text: str, expected: str) -> bool:
    """Whether two texts are equal, compared in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), expected.encode())


class SecurityMiddleware:
    """ASGI middleware that refuses requests before they are routed, and counts all of them.

    Args:
        app: the application.
        hosts: names by which clients may call the server, besides those of this machine, as of `read_host`.
        most_bytes: how large the body of a request may be, by its address; "": of all others.
        sessions: the token and its cookies.
        registry: of the metrics of the server. Routes are templates such as `/api/videos/{key}/file`, so that their
            number is bounded.
        root_path: the path below which a proxy serves the application, as of `read_root`.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        most_bytes: Mapping[str, int],
        sessions: Sessions,
        registry: CollectorRegistry,
        root_path: str = "",
    ) -> None:
        self.root_path = root_path
        self.app, self.most_bytes, self.sessions = app, most_bytes, sessions
        self.hosts = frozenset((*_LOOPBACK, *hosts))
        self.active = Gauge("prvr_requests_active", "Requests being answered.", registry=registry)
        self.requests = Counter("prvr_requests", "Completed requests.", ["route", "status"], registry=registry)
        self.seconds = Histogram("prvr_request_seconds", "Time to the answer's start.", ["route"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        root = scope["root_path"] = scope.get("root_path") or self.root_path
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
        if len(headers.getlist("host")) != 1 or host_name(headers["host"]) not in self.hosts:
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
        received = 0
        most = self.most_bytes.get(path, self.most_bytes[""])

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
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "/static" if of.startswith(_STATIC) else "other"


def _error(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)
