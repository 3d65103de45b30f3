"""The configuration of a server: its names, its token, and bounds on what clients may ask."""

from dataclasses import field
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked

from prvr_search.films import Limits
from prvr_search.serve.security import read_host, read_root

_YEAR = 365 * 24 * 3600  # seconds


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
