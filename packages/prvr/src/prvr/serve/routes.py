"""The routes of the API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import FileResponse

from prvr import search as searching
from prvr.errors import InputError
from prvr.serve.media import PREVIEW_TYPES, PreviewKind, encode_preview, encode_thumbnail, read_formats
from prvr.serve.middleware import COOKIE, PICTURE
from prvr.serve.schema import (
    KEY,
    LATEST,
    BatchRequest,
    BatchResponse,
    ErrorResponse,
    FilterRequest,
    FormatsResponse,
    InfoResponse,
    LikeRequest,
    PictureParameters,
    QueryRequest,
    ReadyResponse,
    ResultLimits,
    SearchParameters,
    SearchResponse,
    SessionResponse,
    StatusResponse,
    VideosResponse,
)
from prvr.serve.security import Sessions
from prvr.serve.service import Service
from prvr.serve.workers import Busy

_DEFAULT_PREVIEW = 30.0  # seconds
_ROUNDING = 0.001  # seconds by which a preview may be too long: times in addresses are rounded
_IMMUTABLE = {"Cache-Control": "private, max-age=86400, immutable"}  # the key changes with the content

Responses = dict[int | str, dict[str, Any]]
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
Key = Annotated[str, Path(pattern=KEY, description="`video.key` of a hit")]
Seconds = Annotated[float, Query(ge=0, le=LATEST, allow_inf_nan=False, description="seconds from the start")]
End = Annotated[
    float | None,
    Query(ge=0, le=LATEST, allow_inf_nan=False, description="default: 30 s after the start, or the server's maximum"),
]


def build_router(service: Service, sessions: Sessions, version: str) -> APIRouter:
    """All routes but the page.

    Args:
        service: what answers the requests.
        sessions: what makes the cookies.
        version: the version of the program.
    """
    router = APIRouter(responses=_described(_ERRORS))
    _add_server_routes(router, service, sessions, version)
    _add_search_routes(router, service)
    _add_media_routes(router, service)
    return router


def _described(errors: Mapping[int, str]) -> Responses:
    """How OpenAPI describes answers that say what is wrong."""
    return {status: {"model": ErrorResponse, "description": reason} for status, reason in errors.items()}


def _add_server_routes(router: APIRouter, service: Service, sessions: Sessions, version: str) -> None:
    @router.get("/health", summary="Liveness: whether the server answers", tags=["server"])
    async def health() -> StatusResponse:
        return StatusResponse()

    @router.get("/ready", summary="Readiness: whether the server can search now", tags=["server"])
    async def ready() -> ReadyResponse:
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; see the server log")
        done, total = service.source.progress
        return ReadyResponse(done=done, total=total)

    text: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @router.get("/metrics", summary="Metrics for Prometheus", tags=["server"], response_class=Response, responses=text)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/api/info", summary="The index, its model, and the limits of the server", tags=["server"])
    async def info() -> InfoResponse:
        return service.info(version)

    @router.post("/api/session", summary="Exchange the token for a cookie, for players", tags=["server"])
    async def session(request: Request, response: Response) -> SessionResponse:
        response.set_cookie(
            COOKIE,
            sessions.new_cookie(),
            max_age=sessions.seconds,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return SessionResponse(seconds=sessions.seconds)


def _add_search_routes(router: APIRouter, service: Service) -> None:
    async def answers(
        queries: Sequence[searching.Query], request: ResultLimits, where: FilterRequest | None
    ) -> list[SearchResponse]:
        limits = service.limits
        k = min(10, limits.results) if request.k is None else request.k
        moments = min(3, limits.moments) if request.moments is None else request.moments
        longest = max((len(text) for query in queries for text in (*query.texts, *query.without)), default=0)
        for name, value, most in (
            ("queries", len(queries), limits.batch),
            ("characters of a sentence", longest, limits.query_characters),
            ("k", k, limits.results),
            ("moments", moments, limits.moments),
        ):
            if value > most:
                raise HTTPException(400, f"{name}: {value}, at most {most}")
        return await service.search(queries, k, moments, where and _filter(where))

    unknown = _described({404: "no such video"})

    @router.get("/api/search", summary="Videos and moments for a query", tags=["search"], responses=unknown)
    async def search(options: Annotated[SearchParameters, Query()]) -> SearchResponse:
        like = options.like and LikeRequest(key=options.like, start=options.start, end=options.end)
        query = _query(service, QueryRequest(texts=options.q, without=options.without, like=like or None))
        return (await answers([query], options, options))[0]

    body = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

    @router.post(
        PICTURE,
        summary="Videos and moments for a picture",
        description="The body is the file of the picture (JPEG, PNG, WebP, GIF, BMP); it is not kept.",
        tags=["search"],
        openapi_extra={"requestBody": {"required": True} | body},
        responses=_described({415: "not a readable picture"}),
    )
    async def search_picture(request: Request, options: Annotated[PictureParameters, Query()]) -> SearchResponse:
        query = searching.Query(options.q, options.without, await service.picture(request.body))
        return (await answers([query], options, options))[0]

    @router.post("/api/search", summary="Videos and moments for several queries", tags=["search"], responses=unknown)
    async def search_many(batch: BatchRequest) -> BatchResponse:
        requests = [QueryRequest(texts=[query]) if isinstance(query, str) else query for query in batch.queries]
        queries = [_query(service, request) for request in requests]
        return BatchResponse(results=await answers(queries, batch, batch.where))

    @router.get("/api/videos", summary="The videos of the index", tags=["search"])
    async def videos(
        offset: Annotated[int, Query(ge=0, le=10**12)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        newest: Annotated[bool, Query(description="by the time at which the file was last modified")] = False,
    ) -> VideosResponse:
        page = service.catalogue.page(offset, limit, newest)
        return VideosResponse(total=len(service.catalogue), videos=[entry.public for entry in page])


def _query(service: Service, request: QueryRequest) -> searching.Query:
    """A query of the API; videos are named by their keys.

    Raises:
        HTTPException: it asks for nothing, or for a video that is not there.
    """
    like = request.like
    video = None if like is None else service.catalogue.get(like.key).video.id
    try:
        return searching.Query(request.texts, request.without, like=like and (video, like.start, like.end))
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _filter(request: FilterRequest) -> searching.SearchFilter | None:
    """A filter of the API; None where it lets every video pass.

    Raises:
        HTTPException: no video can pass.
    """
    conditions = request.model_dump(include=set(FilterRequest.model_fields), exclude_defaults=True)
    try:
        return searching.SearchFilter(**conditions) if conditions else None
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _add_media_routes(router: APIRouter, service: Service) -> None:
    def media(summary: str, *types: str) -> dict[str, Any]:
        """How OpenAPI describes a route that answers with one of these media types."""
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in types}
        responses = {**_described(_MEDIA_ERRORS), 200: {"content": content, "description": summary}}
        return {"summary": summary, "tags": ["media"], "response_class": Response, "responses": responses}

    @router.get("/api/videos/{key}/thumbnail", **media("A picture of a video at a time", "image/jpeg"))
    async def thumbnail(
        key: Key, t: Seconds = 0.0, width: Annotated[int, Query(ge=16, le=1280, description="pixels")] = 320
    ) -> Response:
        picture = await service.media(service.catalogue.get(key), encode_thumbnail, round(t, 2), width)
        return Response(picture, 200, _IMMUTABLE, "image/jpeg")

    file_route = media("The file of a video, or a range of it (Range)", "*/*")
    file_route["responses"] |= {206: {"description": "the range"}, 416: {"description": "no such range"}}

    @router.head("/api/videos/{key}/file", include_in_schema=False)
    @router.get("/api/videos/{key}/file", **file_route)
    async def file(key: Key) -> Response:
        entry = service.catalogue.get(key)
        headers = {"ETag": f'"{key}"', "Cache-Control": "private, no-cache"}
        return FileResponse(await service.path(entry), headers=headers, media_type=entry.public.type)

    @router.get(
        "/api/videos/{key}/formats",
        summary="The container and the codecs of a video",
        tags=["media"],
        responses=_described(_MEDIA_ERRORS),
    )
    async def formats(key: Key) -> FormatsResponse:
        return await service.media(service.catalogue.get(key), read_formats)

    @router.get(
        "/api/videos/{key}/preview", **media("A part of a video, encoded for browsers", *PREVIEW_TYPES.values())
    )
    async def preview(key: Key, start: Seconds = 0.0, end: End = None, kind: PreviewKind = "mp4") -> Response:
        longest = service.limits.preview_seconds
        if end is None:
            end = start + min(_DEFAULT_PREVIEW, longest)
        if not start < end <= start + longest + _ROUNDING:
            raise HTTPException(400, f"expected start < end, at most {longest:g} s apart")
        entry = service.catalogue.get(key)
        end = min(end, max(entry.video.duration, start + 0.1))
        return Response(
            await service.media(entry, encode_preview, start, end, kind), 200, _IMMUTABLE, PREVIEW_TYPES[kind]
        )
