"""The routes of the API."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import StringConstraints
from starlette.responses import FileResponse

from prvr import search as searching
from prvr.errors import InputError
from prvr.serve.media import PREVIEW_TYPES, PreviewKind, encode_preview, encode_thumbnail, read_formats
from prvr.serve.middleware import COOKIE, PICTURE
from prvr.serve.schema import (
    LATEST,
    PARTS,
    BatchRequest,
    BatchResponse,
    ErrorResponse,
    FilterRequest,
    FormatsResponse,
    InfoResponse,
    LikeRequest,
    Pattern,
    QueryRequest,
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
Key = Annotated[str, Path(pattern="^[0-9a-f]{24}$", description="`video.key` of a hit")]
Seconds = Annotated[float, Query(ge=0, le=LATEST, allow_inf_nan=False, description="seconds from the start")]
End = Annotated[
    float | None,
    Query(ge=0, le=LATEST, allow_inf_nan=False, description="default: 30 s after the start, or the server's maximum"),
]


class _Asked(NamedTuple):
    """What all addresses of a search take."""

    texts: list[str]
    without: list[str]
    k: int
    moments: int
    where: searching.SearchFilter | None


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
        return StatusResponse(status="ok")

    @router.get("/ready", summary="Readiness: whether the server can search now", tags=["server"])
    async def ready() -> StatusResponse:
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; see the server log")
        return StatusResponse(status="ready")

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
    limits = service.limits
    default_k, default_moments = min(10, limits.results), min(3, limits.moments)
    sentence = StringConstraints(min_length=1, max_length=limits.query_characters)

    async def filtered(
        in_: Annotated[list[Pattern], Query(alias="in", max_length=PARTS, description="a folder of videos")] = [],  # noqa: B006
        name: Annotated[list[Pattern], Query(max_length=PARTS, description="a pattern of file names")] = [],  # noqa: B006
        after: Annotated[datetime | None, Query(description="files modified at this time or later")] = None,
        before: Annotated[datetime | None, Query(description="files modified before this time")] = None,
        longer: Annotated[
            float | None, Query(ge=0, allow_inf_nan=False, description="minimum duration in seconds")
        ] = None,
        shorter: Annotated[
            float | None, Query(ge=0, allow_inf_nan=False, description="maximum duration in seconds")
        ] = None,
    ) -> searching.SearchFilter | None:
        found = FilterRequest(folders=in_, names=name, after=after, before=before, longer=longer, shorter=shorter)
        return _filter(found)

    async def asked(
        where: Annotated[searching.SearchFilter | None, Depends(filtered)],
        q: Annotated[
            list[Annotated[str, sentence]],
            Query(max_length=PARTS, description="a sentence; several must all match"),
        ] = [],  # noqa: B006
        without: Annotated[
            list[Annotated[str, sentence]], Query(max_length=PARTS, description="exclude matches for this sentence")
        ] = [],  # noqa: B006
        k: Annotated[int, Query(ge=1, le=limits.results, description="number of videos")] = default_k,
        moments: Annotated[int, Query(ge=1, le=limits.moments, description="moments per video")] = default_moments,
    ) -> _Asked:
        return _Asked(q, without, k, moments, where)

    unknown = _described({404: "no such video"})

    @router.get("/api/search", summary="Videos and moments for a query", tags=["search"], responses=unknown)
    async def search(
        given: Annotated[_Asked, Depends(asked)],
        like: Annotated[
            str | None, Query(pattern="^[0-9a-f]{24}$", description="`video.key` of a hit; search for similar moments")
        ] = None,
        start: Annotated[float, Query(ge=0, le=LATEST, description="with `like`: its start in seconds")] = 0.0,
        end: Annotated[float | None, Query(ge=0, le=LATEST, description="with `like`: its end in seconds")] = None,
    ) -> SearchResponse:
        passage = None if like is None else LikeRequest(key=like, start=start, end=end)
        query = _query(service, QueryRequest(texts=given.texts, without=given.without, like=passage))
        return (await service.search([query], given.k, given.moments, given.where))[0]

    body = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}

    @router.post(
        PICTURE,
        summary="Videos and moments for a picture",
        description="The body is the file of the picture (JPEG, PNG, WebP, GIF, BMP); it is not kept.",
        tags=["search"],
        openapi_extra={"requestBody": {"required": True} | body},
        responses=_described({415: "not a readable picture"}),
    )
    async def search_picture(request: Request, given: Annotated[_Asked, Depends(asked)]) -> SearchResponse:
        query = searching.Query(given.texts, given.without, await service.picture(request.body))
        return (await service.search([query], given.k, given.moments, given.where))[0]

    @router.post("/api/search", summary="Videos and moments for several queries", tags=["search"], responses=unknown)
    async def search_many(batch: BatchRequest) -> BatchResponse:
        k, moments = batch.k or default_k, batch.moments or default_moments
        asked = [QueryRequest(texts=[one]) if isinstance(one, str) else one for one in batch.queries]
        for name, value, most in (
            ("queries", len(asked), limits.batch),
            (
                "characters of a sentence",
                max((len(one) for query in asked for one in (*query.texts, *query.without)), default=0),
                limits.query_characters,
            ),
            ("k", k, limits.results),
            ("moments", moments, limits.moments),
        ):
            if value > most:
                raise HTTPException(400, f"{name}: {value}, at most {most}")
        queries = [_query(service, one) for one in asked]
        where = None if batch.where is None else _filter(batch.where)
        return BatchResponse(results=await service.search(queries, k, moments, where))

    @router.get("/api/videos", summary="The videos of the index", tags=["search"])
    async def videos(
        offset: Annotated[int, Query(ge=0, le=10**12)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> VideosResponse:
        page = service.catalogue.page(offset, limit)
        return VideosResponse(total=len(service.catalogue), videos=[entry.public for entry in page])


def _query(service: Service, asked: QueryRequest) -> searching.Query:
    """A query of the API; videos are named by their keys.

    Raises:
        HTTPException: it asks for nothing, or for a video that is not there.
    """
    like = asked.like
    video = None if like is None else service.catalogue.get(like.key).video.id
    try:
        return searching.Query(asked.texts, asked.without, like=like and (video, like.start, like.end))
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _filter(asked: FilterRequest) -> searching.SearchFilter | None:
    """A filter of the API; None where it lets every video pass.

    Raises:
        HTTPException: no video can pass.
    """
    if asked == FilterRequest():
        return None
    try:
        return searching.SearchFilter(**vars(asked))
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
        "/api/videos/{key}/preview", **media("A part of a video, encoded without sound", *PREVIEW_TYPES.values())
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
