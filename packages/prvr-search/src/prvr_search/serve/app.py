"""The application: the page, the API and the form of validation errors, behind the middleware that refuses."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from prvr.reading import printable
from prvr_search import Library
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
    service = Service(library, settings.limits, update)
    sessions = Sessions(settings.token, settings.session_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.prepare()
        following = asyncio.create_task(service.follow())
        yield
        following.cancel()
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
    content = (_WEB / "index.html").read_text(encoding="utf-8").replace("<!-- filters -->", _filter_inputs())

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(content, headers={"Cache-Control": "no-cache"})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _problems(error.errors())}, 422)

    app.mount("/static", StaticFiles(directory=_WEB), name="static")
    app.add_middleware(
        SecurityMiddleware,  # pyright: ignore[reportArgumentType]
        settings=settings,
        sessions=sessions,
        metrics=service.metrics,
    )
    return app


def _filter_inputs() -> str:
    """The inputs of the page for the conditions of a search; the script reads from their types how values are sent."""
    kinds = {
        "patterns": 'maxlength="300"',
        "time": 'type="date" min="1970-01-02" max="9998-12-31"',
        "seconds": 'type="number" min="0" step="any" inputmode="decimal"',
    }
    inputs = (
        f'<label>{each.label} <input name="{each.name}" {kinds[each.kind]} placeholder="{each.example}"></label>'
        for each in CONDITIONS.values()
    )
    return "\n        ".join(inputs)


def _problems(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first problems of an invalid request."""
    problems = [_problem(error) for error in errors[:_PROBLEMS]]
    if len(errors) > _PROBLEMS:
        problems.append({"loc": [], "msg": f"and {len(errors) - _PROBLEMS:,} more problems", "type": "more"})
    return problems


def _problem(error: Mapping[str, Any]) -> dict[str, Any]:
    """What is wrong with a request, without the value that was sent: values and names in it may be of any size."""
    location = [part if isinstance(part, int) else printable(str(part))[:_LETTERS] for part in error["loc"][:_DEPTH]]
    return {"loc": location, "msg": printable(str(error["msg"]))[: 4 * _LETTERS], "type": str(error["type"])[:_LETTERS]}
