"""The routes of the API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import FileResponse, PlainTextResponse

import prvr_search
from prvr.errors import InputError
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.serve import schema
from prvr_search.serve.catalogue import describe
from prvr_search.serve.media import PREVIEW_TYPES, PreviewKind, encode_preview, encode_thumbnail
from prvr_search.serve.middleware import COOKIE
from prvr_search.serve.security import Sessions
from prvr_search.serve.service import Service
from prvr_search.serve.workers import Busy

_DEFAULT_PREVIEW = 30.0  # seconds
_ROUNDING = 0.001  # seconds by which a preview may be too long: times in addresses are rounded
_CHUNK = 256 * 1024  # bytes of a file that are read at once: with the 64 KiB of Starlette a download is slower
_IMMUTABLE = {"Cache-Control": "private, max-age=86400, immutable"}  # the key changes with the content


def _described(errors: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes answers that say what is wrong."""
    return {status: {"model": schema.ErrorResponse, "description": reason} for status, reason in errors.items()}


_ERRORS = {
    400: "invalid request",
    401: "token required",
    403: "the request comes from another site, or the file is not served",
    413: "the request is too large",
    503: "the server is busy; retry after the time in Retry-After",
}
_MEDIA_ERRORS = {
    404: "no such video",
    409: "the file changed after it was indexed",
    410: "file not found",
    415: "the file cannot be read, or has no picture",
    501: "this server cannot make this kind of preview",
}
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
    router = APIRouter(responses=_described(_ERRORS))
    for part in (_server_routes(service, sessions, version), _search_routes(service), _media_routes(service)):
        router.include_router(part)
    return router


def _server_routes(service: Service, sessions: Sessions, version: str) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/health")
    async def health() -> schema.StatusResponse:
        """Liveness: whether the server answers."""
        return schema.StatusResponse()

    @router.get("/ready")
    async def ready() -> schema.ReadyResponse:
        """Readiness: whether the server can search now, and how many of the videos."""
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; see the server log")
        done, total = service.source.progress
        return schema.ReadyResponse(done=done, total=total)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/api/info")
    async def info() -> schema.InfoResponse:
        """The index, its model, and the limits of the server."""
        return service.info(version)

    @router.post("/api/session")
    async def session(request: Request, response: Response) -> schema.SessionResponse:
        """Exchange the token for a cookie, for players."""
        secure = request.url.scheme == "https"
        cookie = sessions.new_cookie()
        response.set_cookie(COOKIE, cookie, sessions.seconds, httponly=True, samesite="strict", secure=secure)
        return schema.SessionResponse(seconds=sessions.seconds)

    return router


def _search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["search"])

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
        return await service.search(queries, k, moments, where and _filter(where))

    @router.get("/search", responses=_described({404: "no such video"}))
    async def search(options: Annotated[schema.SearchParameters, Query()]) -> schema.SearchResponse:
        """Videos and moments for a query."""
        like = options.like and schema.LikeRequest(key=options.like, start=options.start, end=options.end)
        request = schema.QueryRequest(
            texts=options.q, without=options.without, like=like or None, subtitles=options.subtitles
        )
        query = _query(service, request)
        return (await answers([query], options, options))[0]

    body = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    picture = {"responses": _described({415: "not a readable picture"}), "openapi_extra": {"requestBody": body}}

    @router.post("/search/picture", **picture)
    async def search_picture(
        request: Request, options: Annotated[schema.PictureParameters, Query()]
    ) -> schema.SearchResponse:
        """Videos and moments for a picture; the body is its file (JPEG, PNG, WebP, GIF, BMP), which is not kept."""
        query = prvr_search.Query(
            options.q, options.without, await service.picture(request.body), subtitles=options.subtitles
        )
        return (await answers([query], options, options))[0]

    @router.post("/search", responses=_described({404: "no such video"}))
    async def search_many(batch: schema.BatchRequest) -> schema.BatchResponse:
        """Videos and moments for several queries."""
        requests = [schema.QueryRequest(texts=[each]) if isinstance(each, str) else each for each in batch.queries]
        queries = [_query(service, request) for request in requests]
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
        return schema.VideosResponse(total=len(videos), videos=list(map(describe, videos[offset : offset + limit])))

    return router


def _query(service: Service, request: schema.QueryRequest) -> prvr_search.Query:
    """A query of the API; videos are named by their keys.

    Raises:
        HTTPException: it asks for nothing, or for a video that is not there.
    """
    like = request.like
    video = None if like is None else service.catalogue.get(like.key).id
    try:
        passage = like and (video, like.start, like.end)
        return prvr_search.Query(request.texts, request.without, like=passage, subtitles=request.subtitles)
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _filter(request: BaseModel) -> prvr_search.SearchFilter | None:
    """A filter of the API; None where it lets every video pass.

    Raises:
        HTTPException: no video can pass.
    """
    try:
        where = prvr_search.SearchFilter(**{name: getattr(request, name) for name in CONDITIONS})
    except InputError as error:
        raise HTTPException(400, str(error)) from error
    return None if where == prvr_search.SearchFilter() else where


def _media_routes(service: Service) -> APIRouter:
    responses = _described(_MEDIA_ERRORS)
    router = APIRouter(prefix="/api/videos/{key}", tags=["media"], responses=responses)

    def media(*types: str) -> dict[str, Any]:
        """How OpenAPI describes a route that answers with one of these media types."""
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in types}
        return {"response_class": Response, "responses": {200: {"content": content}}}

    @router.get("/thumbnail", **media("image/jpeg"))
    async def thumbnail(
        key: Key, t: Seconds = 0.0, width: Annotated[int, Query(ge=16, le=1280, description="pixels")] = 320
    ) -> Response:
        """A picture of a video at a time."""
        picture = await service.media(service.catalogue.get(key), encode_thumbnail, round(t, 2), width)
        return Response(picture, 200, _IMMUTABLE, "image/jpeg")

    @router.head("/file", include_in_schema=False)
    @router.get("/file", **media("*/*"))
    async def file(key: Key) -> Response:
        """The file of a video, or a range of it (Range)."""
        video = service.catalogue.get(key)
        headers = {"ETag": f'"{key}"', "Cache-Control": "private, no-cache"}
        response = FileResponse(await service.path(video), headers=headers, media_type=describe(video).type)
        response.chunk_size = _CHUNK
        return response

    @router.get("/lines")
    async def lines(key: Key) -> list[schema.LineResponse]:
        """The lines of the subtitles of a video, in order of time."""
        return [*map(schema.LineResponse.model_validate, await service.lines(service.catalogue.get(key)))]

    @router.get("/preview", **media(*PREVIEW_TYPES.values()))
    async def preview(key: Key, start: Seconds = 0.0, end: End = None, kind: PreviewKind = "mp4") -> Response:
        """A part of a video, encoded for browsers."""
        longest = service.limits.preview_seconds
        end = start + min(_DEFAULT_PREVIEW, longest) if end is None else end
        if not start < end <= start + longest + _ROUNDING:
            raise HTTPException(400, f"expected start < end, at most {longest:g} s apart")
        video = service.catalogue.get(key)
        end = min(end, max(video.duration, start + 0.1))
        preview = await service.media(video, encode_preview, start, end, kind)
        return Response(preview, 200, _IMMUTABLE, PREVIEW_TYPES[kind])

    return router
