"""Who may ask, and what every answer says to the browser."""

import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prvr.config import ConfigError
from prvr.serve.limits import TokenBuckets
from prvr.serve.metrics import Metrics

__all__ = [
    "COOKIE",
    "REFUSED",
    "SECURITY_HEADERS",
    "Guard",
    "Sessions",
    "host_name",
    "is_loopback",
    "read_host",
    "read_token",
]

logger = logging.getLogger(__name__)

COOKIE = "prvr_session"
REFUSED = "prvr_refused"
"""In the state of a request: its connection is one too many."""
_SHORTEST = 16  # characters of a token
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OPEN = ("/", "/health", "/ready", "/openapi.json")  # neither says anything of the videos
_STATIC = "/static/"
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


_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.4", "films.lan")]
        [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(header: str) -> str | None:
    """The name in a Host header: in lower case, without the port and the dot that may end it; None if it is no name.

    Example:
        >>> host_name("films.lan:8000"), host_name("[::1]:8000"), host_name("LOCALHOST."), host_name("127.0.0.1:99999")
        ('films.lan', '::1', 'localhost', None)
    """
    found = _HOST.fullmatch(header.lower())
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return None
    return _address(found["six"]) if found["six"] else found["name"]


def read_host(name: str) -> str:
    """A name by which a server may be called, as `host_name` gives it: of a Host header, or a bare IPv6 address.

    Raises:
        ConfigError: it is no such name.

    Example:
        >>> read_host("Films.lan:8000"), read_host("fd00:0::7")
        ('films.lan', 'fd00::7')
    """
    known = (_address(name.partition("%")[0]) if name.count(":") > 1 else None) or host_name(name)
    if known is None:
        raise ConfigError(f"{name!r}: no name of a server. Expected a name such as films.lan, or an address.")
    return known


def _address(text: str) -> str | None:
    """An IPv6 address in its one form; that of an IPv4 address, where it only wraps one."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return None if address.scope_id else str(address.ipv4_mapped or address)


def read_token(file: Path | str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of a server: the first line of a file, or PRVR_TOKEN.

    Raises:
        ConfigError: the file cannot be read, or the token is short or not of plain letters.
    """
    if file is not None:
        try:
            token, where = Path(file).expanduser().read_text(encoding="utf-8").strip(), str(file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--token-file {file}: cannot be read ({error}). Name a file that holds a token."
            ) from error
    else:
        token, where = environment.get("PRVR_TOKEN", "").strip(), "PRVR_TOKEN"
        if not token:
            return None
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: a token of {len(token)} characters; expected at least {_SHORTEST}, letters and digits, no "
            f"blanks. Make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'."
        )
    return token


@dataclass(frozen=True)
class Sessions:
    """Cookies that stand for the token for a while: players cannot send it in a header.

    Args:
        token: that is asked for; None: nobody is asked.
        seconds: that a cookie is good for.
        secret: signs cookies; a new one for every start of the server.
    """

    token: str | None = field(repr=False)
    seconds: int = 3600
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def knows(self, header: str | None) -> bool:
        """Whether an Authorization header holds the token; compared in a time that does not tell how much agrees."""
        if self.token is None:
            return True
        scheme, _, given = (header or "").partition(" ")
        same = hmac.compare_digest(_hash(given.strip()), _hash(self.token))
        return scheme.lower() == "bearer" and same

    def cookie(self) -> str:
        """A new one: when it ends, signed."""
        ends = str(math.ceil(time.time()) + self.seconds)
        return f"{ends}.{self._sign(ends)}"

    def accepts(self, cookie: str | None) -> bool:
        """Whether a cookie is one of ours and has not ended."""
        ends, _, signature = (cookie or "").partition(".")
        if not hmac.compare_digest(_hash(signature), _hash(self._sign(ends))):
            return False
        return time.time() < int(ends)

    def _sign(self, ends: str) -> str:
        return hmac.new(self.secret, ends.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Guard:
    """Stands before the application: what it refuses is never routed; what it lets through is counted.

    Args:
        app: the application.
        hosts: names by which the server may be called.
        sessions: who is let in.
        buckets: how often.
        body_bytes: of a request.
        metrics: counts.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        sessions: Sessions,
        buckets: TokenBuckets,
        body_bytes: int,
        metrics: Metrics,
    ) -> None:
        self.app, self.sessions, self.buckets = app, sessions, buckets
        self.body_bytes, self.metrics = body_bytes, metrics
        self.hosts = frozenset(map(read_host, (*_LOOPBACK, *hosts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses, or passes on."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # no web sockets here: the server closes it
        began, answered = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith(_STATIC) else "no-store")
                self.metrics.count(_route(scope), answered, time.perf_counter() - began)
            await send(message)

        self.metrics.active += 1
        try:
            app = self._refuse(scope) or self.app
            await app(scope, self._bounded(receive), answer)
        except Exception:  # a fault of the program: here, so that this answer too has its headers and is counted
            logger.exception("%s %s", scope["method"], _route(scope))
            if not answered:
                await _no(500, "internal error; the log of the server says more")(scope, receive, answer)
        finally:
            self.metrics.active -= 1

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if scope.get("state", {}).get(REFUSED):
            return _no(503, "too many connections are open", {"Retry-After": "2", "Connection": "close"})
        if len(headers.getlist("host")) != 1 or host_name(headers["host"]) not in self.hosts:
            # a page elsewhere may let its own name point here (DNS rebinding): then this is its name
            return _no(400, "this server is not called by this name; start it with --allow-host NAME")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and scope["path"] != "/":
            return _no(403, "pages of other servers may not ask this one")
        client = (scope.get("client") or ("?",))[0]
        if not _of_page(scope["path"]) and (wait := self.buckets.wait(client)) > 0:
            return _no(429, "too many requests", {"Retry-After": str(math.ceil(wait))})
        if not self._may(scope, headers):
            return _no(401, "a token is needed", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.body_bytes:
            return _no(413, f"at most {self.body_bytes} bytes")
        return None

    def _may(self, scope: Scope, headers: Headers) -> bool:
        path = scope["path"]
        if path in _OPEN or path.startswith(_STATIC) or self.sessions.knows(headers.get("authorization")):
            return True
        return (
            path.startswith("/api/videos/")
            and scope["method"] in ("GET", "HEAD")
            and self.sessions.accepts(_cookie(headers))
        )

    def _bounded(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """Also of a body whose length is not said before."""
        got = 0

        async def read() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self.body_bytes:
                raise HTTPException(413, f"at most {self.body_bytes} bytes")
            return message

        return read


def _cookie(headers: Headers) -> str | None:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def _of_page(path: str) -> bool:
    return path == "/" or path.startswith(_STATIC)


def _route(scope: Scope) -> str:
    """The template of the address, never the address: there are too many of them."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "/static" if scope["path"].startswith(_STATIC) else "other"


def _no(status: int, why: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": why}, status, headers)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
