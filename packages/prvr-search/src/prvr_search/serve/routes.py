"""The routes of the API."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

import prvr_search
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.serve import schema
from prvr_search.serve.files import PREVIEW_TYPES, PreviewKind, encode_preview, encode_thumbnail, send_file
from prvr_search.serve.middleware import COOKIE
from prvr_search.serve.security import Sessions
from prvr_search.serve.service import Busy, Service

_DEFAULT_PREVIEW = 30.0  # seconds
_ROUNDING = 0.001  # seconds by which a preview may be too long: times in addresses are rounded
_IMMUTABLE = {"Cache-Control": "private, max-age=86400, immutable"}  # the key changes with the content


def _described(**errors: str) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes answers that say what is wrong; statuses follow an underscore."""
    return {int(name[1:]): {"model": schema.ErrorResponse, "description": why} for name, why in errors.items()}


_ERRORS = _described(
    _400="invalid request",
    _401="token required",
    _403="the request comes from another site, or the file is not served",
    _404="no such video",
    _413="the request is too large",
    _503="the server is busy; retry after the time in Retry-After",
)
_MEDIA_ERRORS = _described(
    _409="the file changed after it was encoded",
    _410="file not found",
    _415="the file cannot be read, or has no picture",
    _501="this server cannot make this kind of preview",
)
_BINARY = {"schema": {"type": "string", "format": "binary"}}
Key = Annotated[str, Path(pattern=schema.KEY, description="`video.key` of a hit")]
Seconds = Annotated[float, Query(ge=0, le=schema.LATEST, allow_inf_nan=False, description="seconds from the start")]
End = Annotated[
    float | None,
    Query(ge=0, le=schema.LATEST, allow_inf_nan=False, description="default: 30 s after the start, or the longest"),
]


def build_router(service: Service, sessions: Sessions, version: str) -> APIRouter:
    """All routes but the page.

    Args:
        service: what answers the requests.
        sessions: what makes the cookies.
        version: the version of the program.
    """
    router = APIRouter(responses=_ERRORS)
    for part in (_server_routes(service, sessions, version), _search_routes(service), _media_routes(service)):
        router.include_router(part)
    return router


def _server_routes(service: Service, sessions: Sessions, version: str) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: whether the server answers."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> dict[str, str | int]:
        """Readiness: whether the server can search now, and how many of the videos."""
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; see the server log")
        done, total = service.progress
        return {"status": "ready", "done": done, "total": total}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/api/info")
    async def info() -> schema.InfoResponse:
        """The index, its model, and the limits of the server."""
        return service.info(version)

    @router.post("/api/session")
    async def session(request: Request, response: Response) -> dict[str, int]:
        """Exchange the token for a cookie, for players; gives its lifetime."""
        secure = request.url.scheme == "https"
        cookie = sessions.new_cookie()
        response.set_cookie(COOKIE, cookie, sessions.seconds, httponly=True, samesite="strict", secure=secure)
        return {"seconds": sessions.seconds}

    return router


def _search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["search"])

    def asked(request: schema.QueryRequest, image: Any = None) -> prvr_search.Query:
        like = request.like and (service.catalogue.get(request.like.key).id, request.like.start, request.like.end)
        return prvr_search.Query(request.texts, request.without, image, like, request.subtitles)

    async def answers(
        queries: Sequence[prvr_search.Query], request: schema.ResultLimits, where: BaseModel | None
    ) -> list[schema.SearchResponse]:
        limits = service.limits
        k = min(10, limits.results) if request.k is None else request.k
        moments = min(3, limits.moments) if request.moments is None else request.moments
        texts = [text for query in queries for text in (*query.texts, *query.without, query.subtitles)]
        for name, value, most in (
            ("queries", len(queries), limits.batch),
            ("characters of a sentence", max(map(len, texts), default=0), limits.query_characters),
            ("k", k, limits.results),
            ("moments", moments, limits.moments),
        ):
            if value > most:
                raise HTTPException(400, f"{name}: {value}, at most {most}")
        conditions = {name: getattr(where, name) for name in CONDITIONS} if where else {}
        passing = prvr_search.SearchFilter(**conditions)
        return await service.search(queries, k, moments, None if passing == prvr_search.SearchFilter() else passing)

    @router.get("/search")
    async def search(options: Annotated[schema.SearchParameters, Query()]) -> schema.SearchResponse:
        """Videos and moments for a query."""
        return (await answers([asked(options.query)], options, options))[0]

    @router.post(
        "/search/picture",
        responses=_described(_415="not a readable picture"),
        openapi_extra={"requestBody": {"content": {"application/octet-stream": _BINARY}}},
    )
    async def search_picture(
        request: Request, options: Annotated[schema.SearchParameters, Query()]
    ) -> schema.SearchResponse:
        """Videos and moments for a picture; the body is its file (JPEG, PNG, WebP, GIF, BMP), which is not kept."""
        query = asked(options.query, await service.picture(request.body))
        return (await answers([query], options, options))[0]

    @router.post("/search")
    async def search_many(batch: schema.BatchRequest) -> schema.BatchResponse:
        """Videos and moments for several queries."""
        queries = [prvr_search.Query(each) if isinstance(each, str) else asked(each) for each in batch.queries]
        return schema.BatchResponse(results=await answers(queries, batch, batch.where))

    @router.get("/videos")
    async def videos(
        offset: Annotated[int, Query(ge=0, le=10**12)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        newest: Annotated[bool, Query(description="by the time at which the file was last modified")] = False,
        name: Annotated[str, Query(max_length=1000, description="a part of the name")] = "",
    ) -> schema.VideosResponse:
        """The videos of the index, a page at a time."""
        videos = service.catalogue.listed(name, newest)
        page = {"total": len(videos), "videos": videos[offset : offset + limit]}
        return schema.VideosResponse.model_validate(page)

    return router


def _media_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/videos/{key}", tags=["media"], responses=_MEDIA_ERRORS)

    def media(*types: str) -> dict[str, Any]:
        """How OpenAPI describes a route that answers with one of these media types."""
        return {"response_class": Response, "responses": {200: {"content": dict.fromkeys(types, _BINARY)}}}

    @router.get("/thumbnail", **media("image/jpeg"))
    async def thumbnail(
        key: Key, t: Seconds = 0.0, width: Annotated[int, Query(ge=16, le=1280, description="pixels")] = 320
    ) -> Response:
        """A picture of a video at a time."""
        return Response(await service.media(key, encode_thumbnail, round(t, 2), width), 200, _IMMUTABLE, "image/jpeg")

    @router.head("/file", include_in_schema=False)
    @router.get("/file", **media("*/*"))
    async def file(request: Request, key: Key) -> Response:
        """The file of a video, or a range of it (Range)."""
        opened = await service.of_video(key, service.catalogue.opened)
        return send_file(request, service.catalogue.get(key), opened)

    @router.get("/lines")
    async def lines(key: Key) -> list[schema.LineResponse]:
        """The lines of the subtitles of a video, in order of time."""
        return [*map(schema.LineResponse.model_validate, await service.of_video(key, service.lines))]

    @router.get("/preview", **media(*PREVIEW_TYPES.values()))
    async def preview(key: Key, start: Seconds = 0.0, end: End = None, kind: PreviewKind = "mp4") -> Response:
        """A part of a video, encoded for browsers."""
        longest = service.limits.preview_seconds
        end = start + min(_DEFAULT_PREVIEW, longest) if end is None else end
        if not start < end <= start + longest + _ROUNDING:
            raise HTTPException(400, f"expected start < end, at most {longest:g} s apart")
        end = min(end, max(service.catalogue.get(key).duration, start + 0.1))
        content = await service.media(key, encode_preview, start, end, kind)
        return Response(content, 200, _IMMUTABLE, PREVIEW_TYPES[kind])

    return router
