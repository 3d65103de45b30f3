"""Who may ask: names by which the server may be called, its token, and cookies for players."""

import hashlib
import hmac
import ipaddress
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prvr.config import ConfigError
from prvr.reading import read_text

_SHORTEST = 16  # characters of a token
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535
EVERYWHERE = {"0.0.0.0": "localhost", "": "localhost", "::": "[::1]"}
"""Addresses that stand for all network interfaces, which cannot be opened, and the host to open instead."""


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
