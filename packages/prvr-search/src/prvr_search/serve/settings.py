"""The configuration of a server: its names, its token, and bounds on what clients may ask."""

from dataclasses import dataclass, field, fields
from typing import Any

from prvr.errors import InputError
from prvr_search.films import Limits
from prvr_search.serve.security import read_host

_YEAR = 365 * 24 * 3600  # seconds


def _limit(default: int | float, least: int | float, most: int | float) -> Any:
    """A field of `ServeLimits` with its range, both ends included."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True)
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
        preview_pixels: maximum length of the longer side of a preview.
        cache_bytes: memory for pictures and previews; 0: none are kept.
        video: what a file may demand before it is decoded.

    Raises:
        InputError: a limit is not a number, or out of range; the message names the range.
    """

    query_characters: int = _limit(500, 1, 1000)  # in an address: twelve bytes each, and a head has 16 KiB
    results: int = _limit(100, 1, 10**6)
    moments: int = _limit(10, 1, 10**6)
    batch: int = _limit(32, 1, 10**6)
    body_bytes: int = _limit(128 * 1024, 1, 2**31)
    picture_bytes: int = _limit(16 * 1024 * 1024, 1, 2**31)
    pictures: int = _limit(8, 1, 10**6)
    connections: int = _limit(256, 1, 10**5)
    client_connections: int = _limit(64, 0, 10**5)
    head_seconds: float = _limit(10.0, 0.1, 86400)
    body_seconds: float = _limit(30.0, 0.1, 86400)
    stalled_seconds: float = _limit(120.0, 0.1, 86400)
    grace_seconds: float = _limit(15.0, 0.1, 86400)
    search_seconds: float = _limit(30.0, 0.001, 86400)
    search_waiting: int = _limit(64, 1, 10**6)
    media_threads: int = _limit(2, 1, 256)
    media_waiting: int = _limit(64, 1, 10**6)
    media_seconds: float = _limit(30.0, 0.001, 86400)
    preview_seconds: float = _limit(60.0, 0.1, 3600)
    preview_pixels: int = _limit(640, 16, 8192)
    cache_bytes: int = _limit(64 * 1024 * 1024, 0, 2**50)
    video: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for limit in fields(self):
            if "range" not in limit.metadata:
                continue
            value, (least, most) = getattr(self, limit.name), limit.metadata["range"]
            whole = isinstance(limit.default, int)
            number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not number or not least <= value <= most:
                kind = "a whole number" if whole else "a number"
                raise InputError(f"ServeLimits: {limit.name}={value!r}; expected {kind} from {least:,} to {most:,}")


@dataclass(frozen=True)
class ServeSettings:
    """The configuration of a server.

    Args:
        hosts: names by which clients may call the server, besides `localhost` and its addresses.
        token: the token that clients must send; None: no token is needed.
        session_seconds: lifetime of the cookie that players send in place of the token.
        limits: bounds on what clients may ask.

    Raises:
        ConfigError: a name in `hosts` is not valid.
        InputError: the lifetime of the cookie is less than a second or more than a year.
    """

    hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    session_seconds: int = 3600
    limits: ServeLimits = field(default_factory=ServeLimits)

    def __post_init__(self) -> None:
        for host in self.hosts:
            read_host(host)
        seconds = self.session_seconds
        if not isinstance(seconds, int) or not 1 <= seconds <= _YEAR:
            raise InputError(f"session_seconds={seconds!r}: expected a whole number from 1 to {_YEAR:,}")
