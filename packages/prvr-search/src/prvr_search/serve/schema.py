"""The requests and responses of the API, as the OpenAPI schema describes them."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model

from prvr.encoders import VideoEntry
from prvr.reading import printable
from prvr_search.ranking.filters import CONDITIONS

_MP4, _TYPES = "video/mp4", {".webm": "video/webm", ".mkv": "video/x-matroska", ".ogv": "video/ogg"}
_TYPES |= dict.fromkeys((".mp4", ".m4v", ".mov", ".3gp", ".3g2"), _MP4)  # one container; browsers play it so


def key_of(video: VideoEntry) -> str:
    """What identifies a video in addresses; it changes with the id and the content of the video."""
    identity = video.id.encode("utf-8", "surrogateescape") + b"\0" + video.sha256.encode()
    return hashlib.sha256(identity).hexdigest()[:24]


def media_type(video: VideoEntry) -> str:
    """The media type of the file of a video."""
    return _TYPES.get(Path(video.path).suffix.lower(), "application/octet-stream")


def _shown(video: VideoEntry) -> dict[str, Any]:
    """A video as clients see it, without its path."""
    return vars(video) | {"key": key_of(video), "name": printable(video.id), "type": media_type(video)}


class ErrorResponse(BaseModel):
    """Why a request was not answered."""

    detail: str


class Record(BaseModel):
    """What is read from a record of the search."""

    model_config = ConfigDict(from_attributes=True)


class MomentResponse(Record):
    """A part of a video."""

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


class LineResponse(Record):
    """A line of subtitles."""

    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    text: str
    language: str = Field(description="as the file or the track states it; empty if it does not")


Video = Annotated[VideoResponse, BeforeValidator(_shown)]


class HitResponse(Record):
    """A video that was found, and the moments in it."""

    rank: int = Field(default=0, description="from 1 on")
    score: float = Field(description="score of the video for the query; higher is better")
    start: float = Field(description="start of the best moment, in seconds")
    end: float = Field(description="end of the best moment, in seconds")
    moments: list[MomentResponse] = Field(description="disjoint, best first")
    relevance: list[float] = Field(description="highest score in each of equal parts of the video, in temporal order")
    video: Video
    copies: list[Video] = Field(description="other videos with the same content, which are not listed as hits")
    alike: list[Video] = Field(
        description="other videos that score alike at the same moment, probably the same video in another encoding, "
        "which are not listed as hits"
    )
    lines: list[LineResponse] = Field(description="lines of subtitles that match the query, best first")


class SearchResponse(Record):
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


class SearchParameters(ResultLimits, _conditions(by_name=True)):
    """What the address of a search takes."""

    q: list[Sentence] = Field(default=[], max_length=PARTS, description="a sentence; several must all match")
    without: list[Sentence] = Field(default=[], max_length=PARTS, description="exclude matches for this sentence")
    like: str | None = Field(default=None, pattern=KEY, description="`video.key` of a hit; search for similar moments")
    start: float = Field(default=0.0, ge=0, le=LATEST, description="with `like`: its start in seconds")
    end: float | None = Field(default=None, ge=0, le=LATEST, description="with `like`: its end in seconds")
    subtitles: Words = Field(default="", description=_SUBTITLES)

    @property
    def query(self) -> QueryRequest:
        """The query."""
        like = self.like and LikeRequest(key=self.like, start=self.start, end=self.end)
        return QueryRequest(texts=self.q, without=self.without, like=like or None, subtitles=self.subtitles)


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
    videos: list[Video]


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
