"""The application: the page and the API, behind the middleware that refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect

from prvr.errors import InputError
from prvr.reading import printable
from prvr_search import Library
from prvr_search.films import VideoError
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.serve.middleware import SecurityMiddleware
from prvr_search.serve.routes import build_router
from prvr_search.serve.security import Sessions
from prvr_search.serve.service import Service
from prvr_search.serve.settings import ServeSettings

CLOSING = 0.1
"""Share of the grace period that is left for the threads, once all connections are closed."""
_PROBLEMS, _LETTERS, _DEPTH = 5, 60, 8  # of an invalid request: problems shown, letters of a name, names of a location
_WEB = Path(__file__).parent / "web"
_INPUTS = {
    "patterns": 'maxlength="300"',
    "time": 'type="date" min="1970-01-02" max="9998-12-31"',
    "seconds": 'type="number" min="0" step="any" inputmode="decimal"',
}


def create_app(library: Library, settings: ServeSettings | None = None, *, update: bool = True) -> FastAPI:
    """Builds an ASGI application that serves a library.

    Args:
        library: an open library, which is closed after the application.
        settings: by default the server answers to this machine alone, without a token.
        update: encode new videos meanwhile.

    Raises:
        DataError: as `Library.prepare`; without `update`, no video is encoded yet.

    Examples:
        >>> app = create_app(Library("videos"))  # doctest: +SKIP
        >>> uvicorn.run(app)  # doctest: +SKIP
    """
    from prvr import __version__

    settings = settings or ServeSettings()
    service = Service(library, settings, update)
    sessions = Sessions(settings.token, settings.session_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(service.follow())
        yield
        following.cancel()
        service.end()
        service.close(settings.limits.grace_seconds * CLOSING)

    app = FastAPI(
        title="prvr",
        version=__version__,
        summary="Search videos by a sentence.",
        docs_url=None,  # these pages load scripts from other sites
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(build_router(service, sessions, __version__))
    inputs = "\n        ".join(
        f'<label>{each.label} <input name="{each.name}" {_INPUTS[each.kind]} placeholder="{each.example}"></label>'
        for each in CONDITIONS.values()  # the script reads from their types how values are sent
    )
    content = (_WEB / "index.html").read_text(encoding="utf-8").replace("<!-- filters -->", inputs)

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(content, headers={"Cache-Control": "no-cache"})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        """The first problems, without the values that were sent: these, and names in them, may be of any size."""
        problems = [
            {
                "loc": [printable(str(name))[:_LETTERS] for name in each["loc"][:_DEPTH]],
                "msg": printable(str(each["msg"]))[: 4 * _LETTERS],
                "type": str(each["type"])[:_LETTERS],
            }
            for each in error.errors()[:_PROBLEMS]
        ]
        if (more := len(error.errors()) - _PROBLEMS) > 0:
            problems.append({"loc": [], "msg": f"and {more:,} more problems", "type": "more"})
        return JSONResponse({"detail": problems}, 422)

    @app.exception_handler(InputError)
    async def wrong(_: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    @app.exception_handler(VideoError)
    async def unreadable(_: Request, error: VideoError) -> JSONResponse:
        return JSONResponse({"detail": f"cannot be shown: {error.reason}"}, 415)  # without its path

    @app.exception_handler(ClientDisconnect)
    async def incomplete(_: Request, __: ClientDisconnect) -> JSONResponse:
        return JSONResponse({"detail": "the upload is incomplete"}, 400)

    app.mount("/static", StaticFiles(directory=_WEB), name="static")
    app.add_middleware(
        SecurityMiddleware,  # pyright: ignore[reportArgumentType]
        settings=settings,
        sessions=sessions,
        registry=service.registry,
    )
    return app
