"""The requests and responses of the API, as the OpenAPI schema describes them."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, create_model

from prvr.encoders import VideoEntry
from prvr.reading import printable
from prvr_search.films import SubtitleLine
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.ranking.results import Moment

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


class Record(BaseModel):
    """What the API takes or gives; the documentation of its fields is that of the schema."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=True)


class ErrorResponse(Record):
    """Why a request was not answered."""

    detail: str


class VideoResponse(Record):
    """A video of the index."""

    key: str
    """identifies the video in addresses; changes with the content of the file"""
    name: str
    """path relative to the folder of videos"""
    duration: float
    """seconds"""
    start_time: float
    """time stamp of the start of the file, in seconds"""
    width: int
    height: int
    codec: str
    type: str
    """media type of the file"""
    filmed: str
    """when it was filmed, ISO 8601 with the zone"""
    filmed_by: Literal["", "container", "name", "file"]
    """what says when it was filmed: its container, its name or the time of its file"""
    warnings: list[str]
    """what was wrong with the file"""


Video = Annotated[VideoResponse, BeforeValidator(_shown)]


class HitResponse(Record):
    """A video that was found, and the moments in it."""

    rank: int = 0
    """from 1 on"""
    score: float
    """score of the video for the query; higher is better"""
    start: float
    """start of the best matching line or, without lines, of the best moment, in seconds"""
    end: float
    """end of the same line or moment, in seconds"""
    moments: list[Moment]
    """disjoint, best first"""
    relevance: list[float | None]
    """highest score in each of equal parts of the video, in temporal order; null where there is none"""
    video: Video
    copies: list[Video]
    """other videos with the same content, which are not listed as hits"""
    alike: list[Video]
    """other videos that score alike at the same moment, probably the same video in another encoding, which are not
    listed as hits"""
    lines: list[SubtitleLine]
    """lines of subtitles, or of what is said or written, that match the query, best first"""


class SearchResponse(Record):
    """The results of a query, best first."""

    query: str
    """the query, in words"""
    videos: int
    """number of videos that were searched"""
    backend: str
    hits: list[HitResponse]

    def model_post_init(self, _: Any) -> None:
        """Numbers the hits."""
        for rank, hit in enumerate(self.hits, 1):
            hit.rank = rank


Key = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]
"""The key of a video."""
PARTS = 16
"""The most sentences of a query, and patterns of a filter."""
Seconds = Annotated[float, Field(ge=0, le=7 * 24 * 3600.0, allow_inf_nan=False)]
"""A time in a video."""
ExportKind = Literal["csv", "otio"]
PreviewKind = Literal["mp4", "webm"]
Words = Annotated[str, Field(max_length=1000)]
Sentence = Annotated[Words, Field(min_length=1)]
Sentences = Annotated[list[Sentence], Field(max_length=PARTS)]


class LikeRequest(Record, extra="forbid"):
    """A moment of a video of the index, in seconds."""

    key: Key
    """`video.key` of a hit"""
    start: Seconds
    end: Seconds | None = None
    """default: the moment `start` alone"""


class QueryParts(Record):
    """What is the same in the address and in the body of a search."""

    without: Sentences = []
    """exclude matches for these sentences"""
    subtitles: Words = ""
    """words of the subtitles; without a sentence, only lines of subtitles are searched"""
    then: Words = ""
    """a sentence about what follows"""
    within: Annotated[Seconds, Field(gt=0)] = 30.0
    """with `then`: maximum number of seconds between the starts of the two"""


class QueryRequest(QueryParts, extra="forbid"):
    """A query that is more than one sentence."""

    texts: Sentences = []
    """sentences that must all match"""
    like: LikeRequest | None = None


Pattern = Annotated[str, Field(min_length=1, max_length=300)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
_KINDS: dict[str, Any] = {
    "patterns": (Annotated[list[Pattern], Field(max_length=PARTS)], []),
    "time": (datetime | None, None),
    "seconds": (Duration, None),
}


def _conditions(*, by_name: bool) -> type[BaseModel]:
    """A model with a field for every condition of a search, with its name in addresses or that of `SearchFilter`."""
    columns: dict[str, Any] = {}
    for name, condition in CONDITIONS.items():
        kind, default = _KINDS[condition.kind]
        alias = condition.name if by_name else None
        columns[name] = (kind, Field(default=default, alias=alias, description=condition.help))
    return create_model("Conditions", **columns)


class FilterRequest(_conditions(by_name=False), extra="forbid"):
    """Which videos are searched; they have to meet every condition that is given."""


class ResultLimits(Record):
    """How much of the results of a search is returned; `/api/info` has the server's maximum."""

    k: PositiveInt | None = None
    """videos per query; default: 10, or the server's maximum"""
    moments: PositiveInt | None = None
    """per video; default: 3, or the server's maximum"""


class SearchParameters(ResultLimits, QueryParts, _conditions(by_name=True)):
    """What the address of a search takes."""

    texts: Annotated[Sentences, Field(alias="q")] = []
    """a sentence; several must all match"""
    key: Annotated[Key | None, Field(alias="like")] = None
    """`video.key` of a hit; search for similar moments"""
    start: Seconds = 0.0
    """with `like`: its start in seconds"""
    end: Seconds | None = None
    """with `like`: its end in seconds"""

    @property
    def like(self) -> LikeRequest | None:
        """The moment."""
        return LikeRequest(key=self.key, start=self.start, end=self.end) if self.key else None


class BatchRequest(ResultLimits, extra="forbid"):
    """Several queries at once."""

    queries: Annotated[list[Sentence | QueryRequest], Field(min_length=1)]
    where: FilterRequest | None = None
    """default: search all videos"""


class BatchResponse(Record):
    """The results of each query, in order."""

    results: list[SearchResponse]


class ExportedHit(Record, extra="forbid"):
    """A hit that is exported."""

    key: Key
    """`video.key` of the hit"""
    start: Seconds
    end: Seconds
    score: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    lines: list[SubtitleLine] = []
    """the lines that match, best first"""


class ExportRequest(Record, extra="forbid"):
    """Results that become a file, in this order."""

    kind: ExportKind
    query: Words = ""
    hits: Annotated[list[ExportedHit], Field(max_length=1000)]


class VideosResponse(Record):
    """A page of the videos of the index, and how many there are."""

    total: int
    videos: list[Video]


class ProgressResponse(Record):
    """How many of the videos can be searched; the others are being added."""

    done: int
    total: int
    error: str | None
    """why the other videos cannot be added now; null if nothing is wrong"""


class InfoResponse(Record):
    """The index, its model, and the limits of the server."""

    videos: int
    progress: ProgressResponse
    hours: float
    model: str
    pictures: bool
    """whether this index can be searched by a picture"""
    zero_shot: bool
    """whether the encoder alone ranks the videos, without a trained model"""
    encoder: str
    previews: list[PreviewKind]
    """kinds of preview that this server can make"""
    exports: list[ExportKind]
    """kinds of file that this server can make of results"""
    query_characters: int
    """maximum length of a sentence"""
    picture_bytes: int
    """maximum size of an uploaded picture"""
    results: int
    """maximum number of videos in a response"""
    preview_seconds: float
    """maximum length of a preview"""
    version: str
