"""The addresses of the server."""

import logging
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from prvr.data import DataError
from prvr.serve.catalogue import Listed
from prvr.serve.limits import Busy
from prvr.serve.media import PREVIEW_TYPES, ROUNDED
from prvr.serve.ranges import file_response
from prvr.serve.schema import (
    BatchAnswer,
    BatchQuestion,
    Failure,
    Health,
    InfoAnswer,
    Readiness,
    SearchAnswer,
    SessionAnswer,
    VideosAnswer,
)
from prvr.serve.security import COOKIE, Sessions
from prvr.serve.service import QueryRefused, Service, describe

__all__ = ["build_router"]

logger = logging.getLogger(__name__)

_LONGEST = 7 * 24 * 3600.0  # seconds: no time in a video is later
_USUAL_PREVIEW = 30.0  # seconds
_KEPT = {"Cache-Control": "private, max-age=86400, immutable"}  # a key tells the content
_GUARDED = {
    status: {"model": Failure, "description": why}
    for status, why in (
        (400, "the request makes no sense"),
        (401, "a token is needed"),
        (403, "not from here, or not this file"),
        (413, "the request is too large"),
        (429, "too many requests; Retry-After says when to ask again"),
        (503, "too much is waiting; Retry-After says when to ask again"),
    )
}
_FILES = _GUARDED | {
    status: {"model": Failure, "description": why}
    for status, why in (
        (404, "no such video"),
        (409, "the file has changed since it was indexed"),
        (410, "the file is no longer there"),
        (415, "no picture can be made of it"),
        (501, "this server cannot make such a preview"),
    )
}
Key = Annotated[str, Path(pattern="^[0-9a-f]{24}$", description="`video.key` of a hit")]
Seconds = Annotated[float, Query(ge=0, le=_LONGEST, allow_inf_nan=False, description="seconds from the start")]

End = Annotated[
    float | None,
    Query(ge=0, le=_LONGEST, allow_inf_nan=False, description="30 s after the start, or the most of this server"),
]


def build_router(service: Service, sessions: Sessions, version: str) -> APIRouter:
    """All addresses but the page."""
    router = APIRouter(responses=_GUARDED)  # pyright: ignore[reportArgumentType]
    _add_about(router, service, sessions, version)
    _add_search(router, service)
    _add_media(router, service)
    return router


def _add_about(router: APIRouter, service: Service, sessions: Sessions, version: str) -> None:
    async def health() -> Health:
        return Health()

    async def ready() -> Readiness:
        if not service.ready:
            raise Busy("the index is being prepared, or cannot be read; the log of the server says more")
        return Readiness()

    async def measured() -> PlainTextResponse:
        return PlainTextResponse(service.measured(), media_type="text/plain; version=0.0.4")

    async def info() -> InfoAnswer:
        return service.info(version)

    async def session(request: Request, response: Response) -> SessionAnswer:
        response.set_cookie(
            COOKIE,
            sessions.cookie(),
            max_age=sessions.seconds,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return SessionAnswer(seconds=sessions.seconds)

    router.add_api_route("/health", health, summary="Whether the server answers", tags=["about"])
    router.add_api_route("/ready", ready, summary="Whether a search would be answered now", tags=["about"])
    router.add_api_route(
        "/metrics", measured, summary="Counters for Prometheus", tags=["about"], response_class=PlainTextResponse
    )
    router.add_api_route("/api/info", info, summary="What is searched, with what", tags=["about"])
    router.add_api_route(
        "/api/session", session, methods=["POST"], summary="A cookie for players, for the token", tags=["about"]
    )


def _add_search(router: APIRouter, service: Service) -> None:
    limits = service.limits
    usual_k, usual_moments = min(10, limits.results), min(3, limits.moments)

    async def search(
        q: Annotated[str, Query(min_length=1, max_length=limits.query_characters, description="what is to be seen")],
        k: Annotated[int, Query(ge=1, le=limits.results, description="videos")] = usual_k,
        moments: Annotated[int, Query(ge=1, le=limits.moments, description="of a video, at most")] = usual_moments,
    ) -> SearchAnswer:
        return (await _found(service, [q], k, moments))[0]

    async def search_many(question: BatchQuestion) -> BatchAnswer:
        k, moments = question.k or usual_k, question.moments or usual_moments
        for name, value, most in (
            ("queries", len(question.queries), limits.batch),
            ("characters of a query", max(map(len, question.queries)), limits.query_characters),
            ("k", k, limits.results),
            ("moments", moments, limits.moments),
        ):
            if value > most:
                raise HTTPException(400, f"{name}: {value}, at most {most}")
        return BatchAnswer(results=await _found(service, question.queries, k, moments))

    async def videos(
        offset: Annotated[int, Query(ge=0, le=10**12)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> VideosAnswer:
        return VideosAnswer(
            total=len(service.catalogue), videos=[describe(one) for one in service.catalogue.page(offset, limit)]
        )

    router.add_api_route("/api/search", search, summary="Videos and moments for a query", tags=["search"])
    router.add_api_route(
        "/api/search", search_many, methods=["POST"], summary="The same for several queries", tags=["search"]
    )
    router.add_api_route("/api/videos", videos, summary="The videos of the index", tags=["search"])


def _add_media(router: APIRouter, service: Service) -> None:
    async def thumbnail(
        key: Key, t: Seconds = 0.0, width: Annotated[int, Query(ge=16, le=1280, description="pixels")] = 320
    ) -> Response:
        return Response(await service.thumbnail(_listed(service, key), t, width), 200, _KEPT, "image/jpeg")

    async def file(request: Request, key: Key) -> Response:
        listed = _listed(service, key)
        opened = await service.file(listed)
        return file_response(
            opened,
            os.fstat(opened.fileno()).st_size,
            listed.type,
            f'"{listed.key}"',
            request.headers.get("range"),
            request.headers.get("if-range"),
            head=request.method == "HEAD",
        )

    async def preview(
        key: Key, start: Seconds = 0.0, end: End = None, kind: Literal["mp4", "webm"] = "mp4"
    ) -> Response:
        if end is None:
            end = start + min(_USUAL_PREVIEW, service.limits.preview_seconds)
        if not start < end <= start + service.limits.preview_seconds + ROUNDED:
            raise HTTPException(400, f"expected start < end, at most {service.limits.preview_seconds:g} s apart")
        made = await service.preview(_listed(service, key), start, end, kind)
        return Response(made, 200, _KEPT, PREVIEW_TYPES[kind])

    def add(name: str, endpoint: Any, methods: Sequence[str], summary: str, kinds: Sequence[str]) -> None:
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
        responses: dict[int | str, dict[str, Any]] = {**_FILES, 200: {"content": content, "description": summary}}
        if name == "file":
            responses |= {206: {"content": content, "description": "a part"}, 416: {"description": "no such part"}}
        router.add_api_route(
            f"/api/videos/{{key}}/{name}",
            endpoint,
            methods=list(methods),
            summary=summary,
            tags=["media"],
            response_class=Response,
            responses=responses,
        )

    add("thumbnail", thumbnail, ["GET"], "A picture of a video at a time", ["image/jpeg"])
    add("file", file, ["GET"], "The file of a video, or a part of it (Range)", ["*/*"])
    router.add_api_route("/api/videos/{key}/file", file, methods=["HEAD"], include_in_schema=False)
    add("preview", preview, ["GET"], "A part of a video, encoded anew, without sound", list(PREVIEW_TYPES.values()))


async def _found(service: Service, queries: Sequence[str], k: int, moments: int) -> list[SearchAnswer]:
    try:
        return await service.search(queries, k, moments)
    except DataError as error:  # of the index: nothing that the client could mend
        logger.error("%s", error)
        raise HTTPException(503, "the index cannot be read; the log of the server says more") from error
    except QueryRefused as error:
        raise HTTPException(400, str(error)) from error


def _listed(service: Service, key: str) -> Listed:
    found = service.catalogue.get(key)
    if found is None:
        raise HTTPException(404, "no such video")
    return found
