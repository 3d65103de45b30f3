"""What the server answers, as OpenAPI tells it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

__all__ = [
    "BatchAnswer",
    "BatchQuestion",
    "Failure",
    "Health",
    "HitAnswer",
    "InfoAnswer",
    "MomentAnswer",
    "Readiness",
    "SearchAnswer",
    "SessionAnswer",
    "VideoAnswer",
    "VideosAnswer",
]


class Failure(BaseModel):
    """Why a request was not answered."""

    detail: str


class MomentAnswer(BaseModel):
    """A part of a video."""

    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    score: float


class VideoAnswer(BaseModel):
    """A video of the index."""

    key: str = Field(description="in addresses; another one when the file is another")
    name: str = Field(description="its place below the folder that was extracted")
    duration: float = Field(description="seconds")
    width: int
    height: int
    codec: str
    type: str = Field(description="media type of the file")
    plays: bool = Field(description="whether browsers usually play the file itself; if not, ask for a preview")


class HitAnswer(BaseModel):
    """A video that was found, and where in it."""

    rank: int = Field(ge=1)
    score: float = Field(description="of the retriever; higher is better")
    start: float = Field(description="of the best moment, in seconds")
    end: float = Field(description="of the best moment, in seconds")
    moments: list[MomentAnswer] = Field(description="disjoint, best first")
    strip: list[float] = Field(description="cosine of the query with equal parts of the video, in order of time")
    video: VideoAnswer


class SearchAnswer(BaseModel):
    """What was found for a query, best first."""

    query: str
    videos: int = Field(description="how many were searched")
    backend: str
    hits: list[HitAnswer]


class BatchAnswer(BaseModel):
    """One answer per query, in order."""

    results: list[SearchAnswer]


class BatchQuestion(BaseModel):
    """Several queries at once."""

    model_config = ConfigDict(extra="forbid")
    queries: list[Annotated[str, StringConstraints(min_length=1)]] = Field(min_length=1)
    k: int | None = Field(default=None, ge=1, description="videos per query; 10, or the most of this server if less")
    moments: int | None = Field(default=None, ge=1, description="of a video, at most; 3, or the most of this server")


class VideosAnswer(BaseModel):
    """Some of the videos of the index."""

    total: int
    videos: list[VideoAnswer]


class InfoAnswer(BaseModel):
    """What is searched, with what."""

    videos: int
    windows: int
    hours: float
    model: str
    zero_shot: bool = Field(description="the encoder alone, nothing was trained")
    encoder: str
    previews: list[Literal["mp4", "webm"]] = Field(description="what this server can make")
    query_characters: int = Field(description="the most in a query")
    results: int = Field(description="the most in an answer")
    preview_seconds: float = Field(description="the longest preview")
    version: str


class SessionAnswer(BaseModel):
    """A cookie was set."""

    seconds: int = Field(description="that it is good for")


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """A search would be answered now."""

    status: Literal["ready"] = "ready"
