"""The requests and responses of the API, as the OpenAPI schema describes them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from prvr_search.ranking.filters import CONDITIONS


class ErrorResponse(BaseModel):
    """Why a request was not answered."""

    detail: str


class MomentResponse(BaseModel):
    """A part of a video."""

    model_config = ConfigDict(from_attributes=True)
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    score: float


class VideoResponse(BaseModel):
    """A video of the index."""

    key: str = Field(description="identifies the video in addresses; changes with the content of the file")
    name: str = Field(description="path relative to the folder of videos")
    duration: float = Field(description="seconds")
    start_time: float = Field(description="time stamp of the start of the file, in seconds")
    width: int
    height: int
    codec: str
    type: str = Field(description="media type of the file")


class LineResponse(BaseModel):
    """A line of subtitles."""

    model_config = ConfigDict(from_attributes=True)
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    text: str
    language: str = Field(description="as the file or the track states it; empty if it does not")


class HitResponse(BaseModel):
    """A video that was found, and the moments in it."""

    rank: int = Field(ge=1)
    score: float = Field(description="score of the video for the query; higher is better")
    start: float = Field(description="start of the best moment, in seconds")
    end: float = Field(description="end of the best moment, in seconds")
    moments: list[MomentResponse] = Field(description="disjoint, best first")
    relevance: list[float] = Field(description="highest score in each of equal parts of the video, in temporal order")
    video: VideoResponse
    copies: list[VideoResponse] = Field(description="other videos with the same content, which are not listed as hits")
    alike: list[VideoResponse] = Field(
        description="other videos that score alike at the same moment, probably the same video in another encoding, "
        "which are not listed as hits"
    )
    lines: list[LineResponse] = Field(description="lines of subtitles that match the query, best first")


class SearchResponse(BaseModel):
    """The results of a query, best first."""

    query: str = Field(description="the query, in words")
    videos: int = Field(description="number of videos that were searched")
    backend: str
    hits: list[HitResponse]


Sentence = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Words = Annotated[str, StringConstraints(max_length=1000)]
_SUBTITLES = "words of the subtitles; without a sentence, only lines of subtitles are searched"
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=300)]
KEY = "^[0-9a-f]{24}$"
"""The pattern of the key of a video."""
PARTS = 16
"""The most sentences of a query, and patterns of a filter."""
LATEST = 7 * 24 * 3600.0
"""The latest time in a video that may be asked for, in seconds."""


class LikeRequest(BaseModel):
    """A moment of a video of the index."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(pattern=KEY, description="`video.key` of a hit")
    start: float = Field(ge=0, le=LATEST, description="seconds")
    end: float | None = Field(default=None, ge=0, le=LATEST, description="seconds; default: the moment `start` alone")


class QueryRequest(BaseModel):
    """A query that is more than one sentence."""

    model_config = ConfigDict(extra="forbid")
    texts: list[Sentence] = Field(default=[], max_length=PARTS, description="sentences that must all match")
    without: list[Sentence] = Field(default=[], max_length=PARTS, description="exclude matches for these sentences")
    like: LikeRequest | None = None
    subtitles: Words = Field(default="", description=_SUBTITLES)


Patterns = Annotated[list[Pattern], Field(max_length=PARTS)]
Time = datetime | None
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


def _conditions(*, by_name: bool) -> type[BaseModel]:
    """A model with a field for every condition of a search, with its name in addresses or that of `SearchFilter`."""
    kinds: dict[str, Any] = {"patterns": (Patterns, []), "time": (Time, None), "seconds": (Duration, None)}
    columns: dict[str, Any] = {}
    for name, condition in CONDITIONS.items():
        kind, default = kinds[condition.kind]
        alias = condition.name if by_name else None
        columns[name] = (kind, Field(default=default, alias=alias, description=condition.help))
    return create_model("Conditions", **columns)


class FilterRequest(_conditions(by_name=False)):
    """Which videos are searched; they have to meet every condition that is given."""

    model_config = ConfigDict(extra="forbid")


class ResultLimits(BaseModel):
    """How much of the results of a search is returned; `/api/info` has the server's maximum."""

    k: int | None = Field(default=None, ge=1, description="videos per query; default: 10, or the server's maximum")
    moments: int | None = Field(default=None, ge=1, description="per video; default: 3, or the server's maximum")


class PictureParameters(ResultLimits, _conditions(by_name=True)):
    """What addresses of a search take."""

    q: list[Sentence] = Field(default=[], max_length=PARTS, description="a sentence; several must all match")
    without: list[Sentence] = Field(default=[], max_length=PARTS, description="exclude matches for this sentence")
    subtitles: Words = Field(default="", description=_SUBTITLES)


class SearchParameters(PictureParameters):
    """What the address of a search takes that sends no picture."""

    like: str | None = Field(default=None, pattern=KEY, description="`video.key` of a hit; search for similar moments")
    start: float = Field(default=0.0, ge=0, le=LATEST, description="with `like`: its start in seconds")
    end: float | None = Field(default=None, ge=0, le=LATEST, description="with `like`: its end in seconds")


class BatchRequest(ResultLimits):
    """Several queries at once."""

    model_config = ConfigDict(extra="forbid")
    queries: list[Sentence | QueryRequest] = Field(min_length=1)
    where: FilterRequest | None = Field(default=None, description="default: search all videos")


class BatchResponse(BaseModel):
    """The results of each query, in order."""

    results: list[SearchResponse]


class VideosResponse(BaseModel):
    """A page of the videos of the index, and how many there are."""

    total: int
    videos: list[VideoResponse]


class ProgressResponse(BaseModel):
    """How many of the videos can be searched; the others are being added."""

    done: int
    total: int
    error: str | None = Field(description="why the other videos cannot be added now; null if nothing is wrong")


class InfoResponse(BaseModel):
    """The index, its model, and the limits of the server."""

    videos: int
    progress: ProgressResponse
    hours: float
    model: str
    pictures: bool = Field(description="whether this index can be searched by a picture")
    zero_shot: bool = Field(description="whether the encoder alone ranks the videos, without a trained model")
    encoder: str
    previews: list[Literal["mp4", "webm"]] = Field(description="kinds of preview that this server can make")
    query_characters: int = Field(description="maximum length of a sentence")
    picture_bytes: int = Field(description="maximum size of an uploaded picture")
    results: int = Field(description="maximum number of videos in a response")
    preview_seconds: float = Field(description="maximum length of a preview")
    version: str


class SessionResponse(BaseModel):
    """A cookie was set."""

    seconds: int = Field(description="lifetime of the cookie")


class StatusResponse(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class ReadyResponse(BaseModel):
    """The server can search, so many of the videos for now."""

    status: Literal["ready"] = "ready"
    done: int = Field(description="videos that can be searched")
    total: int = Field(description="videos in all")
