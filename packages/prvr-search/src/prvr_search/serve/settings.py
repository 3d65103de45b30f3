"""The configuration of a server: its names, its token, and bounds on what clients may ask."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked

from prvr.config import ConfigError
from prvr.reading import read_text
from prvr_search.films import Limits

_SHORTEST = 16  # characters of a token
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535
_ROOT = re.compile(r"(?:/(?!\.)[A-Za-z0-9._~-]+)*/?")
EVERYWHERE = {"0.0.0.0": "localhost", "": "localhost", "::": "[::1]"}
"""Addresses that stand for all network interfaces, which cannot be opened, and the host to open instead."""
_YEAR = 365 * 24 * 3600  # seconds


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
    if not re.fullmatch(f"[!-~]{{{_SHORTEST},}}", token):
        raise ConfigError(
            f"{where}: a token of {len(token)} characters; expected at least {_SHORTEST}, letters and digits, no "
            f"blanks. Make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'."
        )
    return token


def check_bind(host: str, token: str | None, without_token: bool) -> None:
    """Refuses to listen to other machines without a token.

    Args:
        host: address to listen at.
        token: the token that clients must send.
        without_token: whether to serve other machines without a token all the same.

    Raises:
        ConfigError: other machines could watch every indexed video.
    """
    if not is_loopback(host) and token is None and not without_token:
        raise ConfigError(
            f"--host {host}: other machines could watch every indexed video. Set a token (--token-file FILE, or "
            "PRVR_TOKEN), keep to --host 127.0.0.1, or pass --without-token behind a proxy that requires one."
        )


@checked(frozen=True)
class ServeLimits:
    """Bounds on what clients may ask of a server. The page reads from `/api/info` those that concern it.

    Args:
        query_characters: maximum length of a query, up to 1,000.
        results: maximum number of videos in one answer.
        moments: maximum number of moments per video in an answer.
        batch: maximum number of queries in one request.
        body_bytes: maximum size of a request body, but for pictures.
        picture_bytes: maximum size of an uploaded picture.
        pictures: pictures that may be received and decoded at the same time.
        connections: maximum number of open connections, fewer where the system lets fewer files be open. For another
            one, the one that has kept the server waiting for longest is closed.
        client_connections: maximum number of connections from one address; 0: no limit of its own. A reverse proxy is
            one address.
        head_seconds: time for the head of a request, and how long an unused connection is kept open.
        body_seconds: time for the body of a request.
        stalled_seconds: how long a client may take nothing of an answer. A paused player does so, and asks again later.
        grace_seconds: time from SIGTERM or Ctrl-C until the process ends, whatever clients do.
        search_seconds: timeout of a search.
        search_waiting: searches that may wait; others are told to come back.
        media_threads: pictures and previews that are made at the same time.
        media_waiting: pictures and previews that may wait.
        media_seconds: timeout of a picture or a preview.
        preview_seconds: maximum length of a preview.
        clip_seconds: maximum length of a clip.
        preview_pixels: maximum length of the longer side of a preview.
        cache_bytes: memory for pictures and previews; 0: none are kept.
        video: what a file may demand before it is decoded.

    Raises:
        pydantic.ValidationError: a limit is not a number, or out of range; the message names the range.
    """

    query_characters: Annotated[int, Field(ge=1, le=1000)] = 500  # twelve bytes each in an address, a head has 16 KiB
    results: PositiveInt = 100
    moments: PositiveInt = 10
    batch: PositiveInt = 32
    body_bytes: PositiveInt = 128 * 1024
    picture_bytes: PositiveInt = 16 * 1024 * 1024
    pictures: PositiveInt = 8
    connections: PositiveInt = 256
    client_connections: NonNegativeInt = 64
    head_seconds: PositiveFloat = 10.0
    body_seconds: PositiveFloat = 30.0
    stalled_seconds: PositiveFloat = 120.0
    grace_seconds: PositiveFloat = 15.0
    search_seconds: PositiveFloat = 30.0
    search_waiting: PositiveInt = 64
    media_threads: PositiveInt = 2
    media_waiting: PositiveInt = 64
    media_seconds: PositiveFloat = 30.0
    preview_seconds: PositiveFloat = 60.0
    clip_seconds: PositiveFloat = 600.0
    preview_pixels: Annotated[int, Field(ge=16)] = 640
    cache_bytes: NonNegativeInt = 64 * 1024 * 1024
    video: Limits = field(default_factory=Limits)


@checked(frozen=True)
class ServeSettings:
    """The configuration of a server.

    Args:
        hosts: names by which clients may call the server, besides `localhost` and its addresses.
        token: the token that clients must send; None: no token is needed.
        session_seconds: lifetime of the cookie that players send in place of the token.
        root_path: the path below which a proxy serves the page, such as `/videos`; the proxy may cut it off.
        rescan_seconds: the least time between two looks at the folder, which lie nine times as far apart as the last
            one took.
        limits: bounds on what clients may ask.

    Raises:
        pydantic.ValidationError: a name in `hosts` or the root path is not valid, the lifetime of the cookie is below
            a second or more than a year, or there is no time between two looks.
    """

    hosts: tuple[Annotated[str, AfterValidator(read_host)], ...] = ()
    token: str | None = field(default=None, repr=False)
    session_seconds: Annotated[int, Field(ge=1, le=_YEAR)] = 3600
    root_path: Annotated[str, AfterValidator(read_root)] = ""
    rescan_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    limits: ServeLimits = field(default_factory=ServeLimits)
