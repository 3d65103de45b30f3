"""The application: the page and the API, behind the middleware that refuses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi import Query as Address
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from prvr import __version__
from prvr.errors import InputError, MissingExtraError
from prvr.reading import printable
from prvr_search import Library, Query, SearchFilter, SearchResult
from prvr_search.films import SubtitleLine, VideoError, clip_name
from prvr_search.films.thumbnails import thumbnail as small_picture
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.serve import schema
from prvr_search.serve.files import OpenFile, cut_clip, encode_preview
from prvr_search.serve.schema import Key, PreviewKind, Seconds
from prvr_search.serve.security import COOKIE, PICTURE, SecurityMiddleware, Sessions
from prvr_search.serve.service import Busy, Service
from prvr_search.serve.settings import ServeSettings

CLOSING = 0.1
"""Share of the grace period that is left for the threads, once all connections are closed."""
_PROBLEMS, _LETTERS, _DEPTH = 5, 60, 8  # of an invalid request: problems shown, letters of a name, names of a location
_WEB = Path(__file__).parent / "web"
_INPUTS = {
    "patterns": 'maxlength="300"',
    "time": 'type="date" min="1900-01-01" max="9998-12-31"',
    "seconds": 'type="number" min="0" step="any" inputmode="decimal"',
}
_DEFAULT_PREVIEW = 30.0  # seconds
_ROUNDING = 0.001  # seconds by which a preview may be too long: times in addresses are rounded
_IMMUTABLE = {"Cache-Control": "private, max-age=86400, immutable"}  # the key changes with the content
_ERRORS = {code: {"model": schema.ErrorResponse} for code in (400, 401, 403, 404, 409, 410, 413, 415, 501, 503)}
_BYTES = "application/octet-stream"
_EXPORTS = {"csv": "text/csv", "otio": _BYTES}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


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
        responses=_ERRORS,  # pyright: ignore[reportArgumentType]
    )
    app.state.service = service
    _add_routes(app, service, sessions)
    inputs = "\n        ".join(
        f'<label>{each.label} <input name="{each.name}" {_INPUTS[each.kind]} placeholder="{each.example}"></label>'
        for each in CONDITIONS.values()  # the script reads from their types how values are sent
    )
    content = (_WEB / "index.html").read_text(encoding="utf-8").replace("<!-- filters -->", inputs)

    @app.get("/", include_in_schema=False, response_class=HTMLResponse)
    async def page() -> str:
        return content

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

    for kind, status, tell in (
        (InputError, 400, str),
        (MissingExtraError, 501, str),
        (VideoError, 415, "cannot be shown: {0.reason}".format),  # without its path
        (ClientDisconnect, 400, lambda _: "the upload is incomplete"),
    ):
        app.add_exception_handler(
            kind, lambda _, error, status=status, tell=tell: JSONResponse({"detail": tell(error)}, status)
        )
    app.mount("/static", StaticFiles(directory=_WEB), name="static")
    app.add_middleware(
        SecurityMiddleware,  # pyright: ignore[reportArgumentType]
        settings=settings,
        sessions=sessions,
        registry=service.registry,
    )
    return app


def _media(*types: str) -> dict[str, Any]:
    """How OpenAPI describes a route that answers with one of these media types."""
    return {"response_class": Response, "responses": {200: {"content": dict.fromkeys(types, _BINARY)}}}


def _add_routes(app: FastAPI, service: Service, sessions: Sessions) -> None:
    """All routes but the page."""

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: whether the server answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str | int]:
        """Readiness: whether the server can search now, and how many of the videos."""
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; see the server log")
        return {"status": "ready", **service.progress}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/api/info", response_model=schema.InfoResponse)
    async def info() -> dict[str, Any]:
        """The index, its model, and the limits of the server."""
        return service.info

    @app.post("/api/session")
    async def session(request: Request, response: Response) -> dict[str, int]:
        """Exchange the token for a cookie, for players; gives its lifetime."""
        response.set_cookie(
            COOKIE,
            sessions.new_cookie(),
            sessions.seconds,
            path=request.scope.get("root_path") or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return {"seconds": sessions.seconds}

    def asked(request: schema.QueryRequest | schema.SearchParameters, image: Any = None) -> Query:
        like = request.like and (service.catalogue.get(request.like.key).id, request.like.start, request.like.end)
        parts = request.subtitles, request.then, request.within
        return Query(request.texts, request.without, image, like, *parts)

    async def answers(
        queries: Sequence[Query], request: schema.ResultLimits, where: BaseModel | None
    ) -> Sequence[SearchResult]:
        limits = service.limits
        k, moments = request.k or min(10, limits.results), request.moments or min(3, limits.moments)
        texts = [text for query in queries for text in (*query.texts, *query.without, query.subtitles, query.then)]
        for name, value, most in (
            ("queries", len(queries), limits.batch),
            ("characters of a sentence", max(map(len, texts)), limits.query_characters),
            ("k", k, limits.results),
            ("moments", moments, limits.moments),
        ):
            if value > most:
                raise HTTPException(400, f"{name}: {value}, at most {most}")
        conditions = {name: getattr(where, name) for name in CONDITIONS} if where else {}
        return await service.search(queries, k, moments, SearchFilter(**conditions))

    @app.get("/api/search", response_model=schema.SearchResponse)
    async def search(options: Annotated[schema.SearchParameters, Address()]) -> SearchResult:
        """Videos and moments for a query."""
        return (await answers([asked(options)], options, options))[0]

    body = {"requestBody": {"content": {"application/octet-stream": _BINARY}}}

    @app.post(PICTURE, openapi_extra=body, response_model=schema.SearchResponse)
    async def search_picture(request: Request, options: Annotated[schema.SearchParameters, Address()]) -> SearchResult:
        """Videos and moments for a picture; the body is its file (JPEG, PNG, WebP, GIF, BMP), which is not kept."""
        query = asked(options, await service.picture(request.body))
        return (await answers([query], options, options))[0]

    @app.post("/api/search", response_model=schema.BatchResponse)
    async def search_many(batch: schema.BatchRequest) -> dict[str, Sequence[SearchResult]]:
        """Videos and moments for several queries."""
        queries = [Query(each) if isinstance(each, str) else asked(each) for each in batch.queries]
        return {"results": await answers(queries, batch, batch.where)}

    @app.get("/api/videos", response_model=schema.VideosResponse)
    async def videos(
        offset: Annotated[int, Address(ge=0, le=10**12)] = 0,
        limit: Annotated[int, Address(ge=1, le=1000)] = 100,
        newest: Annotated[bool, Address(description="by when they were filmed")] = False,
        name: Annotated[str, Address(max_length=1000, description="a part of the name")] = "",
    ) -> dict[str, Any]:
        """The videos of the index, a page at a time."""
        videos = service.catalogue.listed(name, newest)
        return {"total": len(videos), "videos": videos[offset : offset + limit]}

    @app.get("/api/videos/{key}")
    async def video(key: Key) -> schema.Video:
        """A video of the index."""
        return service.catalogue.get(key)  # pyright: ignore[reportReturnType]

    @app.get("/api/videos/{key}/clip", **_media(_BYTES))
    async def clip(key: Key, start: Seconds, end: Seconds) -> Response:
        """A part of a video as a file: copied without loss if a key frame lies at most a second before, else encoded;
        copied from an earlier key frame if encoding takes too long.
        """
        longest = service.limits.clip_seconds
        if not start < end <= start + longest:
            raise HTTPException(400, f"expected start < end, at most {longest:g} s apart")
        name = clip_name(service.catalogue.get(key).id, start, end)
        made = await service.of_file(key, lambda file: cut_clip(file, service.limits, start, end, name))
        return OpenFile(made, filename=printable(name), media_type=_BYTES)

    @app.post("/api/export", **_media(*_EXPORTS.values()))
    async def export(request: schema.ExportRequest) -> Response:
        """Results as a file for a spreadsheet or an editor; paths are those below the folder of videos."""
        headers = {"Content-Disposition": f'attachment; filename="results.{request.kind}"'}
        return Response(await service.exported(request), 200, headers, _EXPORTS[request.kind])

    @app.get("/api/videos/{key}/thumbnail", **_media("image/jpeg"))
    async def thumbnail(
        key: Key, t: Seconds = 0.0, width: Annotated[int, Address(ge=16, le=1280, description="pixels")] = 320
    ) -> Response:
        """A picture of a video at a time."""
        content = await service.media(key, small_picture, round(t, 2), width, service.limits.video)
        return Response(content, 200, _IMMUTABLE, "image/jpeg")

    @app.head("/api/videos/{key}/file", include_in_schema=False)
    @app.get("/api/videos/{key}/file", **_media("*/*"))
    async def file(key: Key) -> Response:
        """The file of a video, or a range of it (Range)."""
        opened = await service.of_video(key, service.catalogue.opened)
        headers = {"ETag": f'"{key}"', "Cache-Control": "private, no-cache"}
        return OpenFile(opened, headers=headers, media_type=schema.media_type(service.catalogue.get(key)))

    @app.get("/api/videos/{key}/lines")
    async def lines(key: Key) -> Sequence[SubtitleLine]:
        """The lines of the subtitles of a video, and of what is said or written, in order of time."""
        return await service.of_video(key, lambda video: service.lines.of(video.sha256))

    @app.get("/api/videos/{key}/preview", **_media("video/mp4", "video/webm"))
    async def preview(
        key: Key, start: Seconds = 0.0, end: Seconds | None = None, kind: PreviewKind = "mp4"
    ) -> Response:
        """A part of a video, encoded for browsers."""
        longest = service.limits.preview_seconds
        end = start + min(_DEFAULT_PREVIEW, longest) if end is None else end
        if not start < end <= start + longest + _ROUNDING:
            raise HTTPException(400, f"expected start < end, at most {longest:g} s apart")
        end = min(end, max(service.catalogue.get(key).duration, start + 0.1))
        content = await service.media(key, encode_preview, service.limits, start, end, kind)
        return Response(content, 200, _IMMUTABLE, f"video/{kind}")
