"""The application: page, search and media of one index, behind a guard."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from prvr.search import VideoIndex
from prvr.serve.catalogue import FileRefused
from prvr.serve.limits import Busy, ServeLimits, TokenBuckets
from prvr.serve.metrics import Metrics
from prvr.serve.routes import build_router
from prvr.serve.security import Guard, Sessions
from prvr.serve.service import Service

__all__ = ["ServeSettings", "create_app"]

logger = logging.getLogger(__name__)

_WEB = Path(__file__).parent / "web"


@dataclass(frozen=True)
class ServeSettings:
    """How an index is served.

    Args:
        hosts: names by which the server may be called, besides those of this machine for itself.
        token: that clients must send; None: none.
        session_seconds: that the cookie of a player is good for.
        limits: of what may be asked.
    """

    hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    session_seconds: int = 3600
    limits: ServeLimits = field(default_factory=ServeLimits)


def create_app(index: VideoIndex, settings: ServeSettings | None = None) -> FastAPI:
    """An ASGI application that serves an index, and closes it when it is shut down.

    Args:
        index: open.
        settings: default: for this machine alone, without a token.

    Example:
        >>> app = create_app(VideoIndex.open("index"))  # doctest: +SKIP
        >>> uvicorn.run(app)  # doctest: +SKIP
    """
    from prvr import __version__

    settings = settings or ServeSettings()
    limits, metrics = settings.limits, Metrics()
    service = Service(index, limits)
    sessions = Sessions(settings.token, settings.session_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="prvr",
        version=__version__,
        summary="Search videos by a sentence.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(build_router(service, sessions, metrics, __version__))

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
        metrics=metrics,
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
        # without the value that was sent: it may be of any size, and of letters that cannot be sent back
        told = [{"loc": list(one["loc"]), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        return JSONResponse({"detail": told}, 422)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s: %s", request.method, request.url.path, type(error).__name__)
        return JSONResponse({"detail": "internal error; the log of the server says more"}, 500)
