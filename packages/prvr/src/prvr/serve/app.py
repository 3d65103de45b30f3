"""The application: page, search and media of one index, behind a guard."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from prvr.errors import InputError
from prvr.reading import printable
from prvr.search import VideoIndex
from prvr.serve.catalogue import FileRefused
from prvr.serve.limits import Busy, ServeLimits, TokenBuckets
from prvr.serve.routes import build_router
from prvr.serve.security import Guard, Sessions, read_host
from prvr.serve.service import Service

__all__ = ["CLOSING", "ServeSettings", "build_app", "create_app"]

CLOSING = 0.1
"""Part of the time for the end that is left for threads, once all connections are closed."""
_TOLD, _LETTERS, _DEEP = 5, 60, 8  # problems of a request that are told, letters of a name, names of a place
_YEAR = 365 * 24 * 3600  # seconds
_WEB = Path(__file__).parent / "web"


@dataclass(frozen=True)
class ServeSettings:
    """How an index is served.

    Args:
        hosts: names by which the server may be called, besides those of this machine for itself.
        token: that clients must send; None: none.
        session_seconds: that the cookie of a player is good for.
        limits: of what may be asked.

    Raises:
        ConfigError: one of the names is none.
        InputError: the cookie would be good for less than a second, or for more than a year.
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


def create_app(index: VideoIndex, settings: ServeSettings | None = None) -> FastAPI:
    """An ASGI application that serves an index, and closes it when it is shut down.

    Args:
        index: open.
        settings: default: for this machine alone, without a token.

    Example:
        >>> app = create_app(VideoIndex.open("index"))  # doctest: +SKIP
        >>> uvicorn.run(app)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    return build_app(Service(index, settings.limits), settings)


def build_app(service: Service, settings: ServeSettings) -> FastAPI:
    """The application of a service, which it closes when it is shut down."""
    from prvr import __version__

    limits = settings.limits
    sessions = Sessions(settings.token, settings.session_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.prepare()
        yield
        service.close(limits.grace_seconds * CLOSING)

    app = FastAPI(
        title="prvr",
        version=__version__,
        summary="Search videos by a sentence.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(build_router(service, sessions, __version__))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_WEB / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=_WEB), name="static")
    _explain_errors(app)
    app.add_middleware(
        Guard,  # pyright: ignore[reportArgumentType]
        hosts=settings.hosts,
        sessions=sessions,
        buckets=TokenBuckets(limits.rate, limits.burst),
        body_bytes=limits.body_bytes,
        metrics=service.metrics,
    )
    return app


def _explain_errors(app: FastAPI) -> None:
    """One form for all errors, without what was sent and without how we got there."""

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"detail": error.reason}, 503, {"Retry-After": str(error.retry_after)})

    @app.exception_handler(FileRefused)
    async def refused(_: Request, error: FileRefused) -> JSONResponse:
        return JSONResponse({"detail": error.reason}, error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        told = [_problem(one) for one in found[:_TOLD]]
        if len(found) > _TOLD:
            told.append({"loc": [], "msg": f"and {len(found) - _TOLD:,} more problems", "type": "more"})
        return JSONResponse({"detail": told}, 422)


def _problem(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is wrong with a request, without the value that was sent: it may be of any size, as may names in it."""
    place = [one if isinstance(one, int) else printable(str(one))[:_LETTERS] for one in found["loc"][:_DEEP]]
    return {"loc": place, "msg": printable(str(found["msg"]))[: 4 * _LETTERS], "type": str(found["type"])[:_LETTERS]}
