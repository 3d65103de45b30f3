"""What a search finds, and what an index says of itself: plain records."""

from dataclasses import dataclass, field

__all__ = ["STRIP", "IndexInfo", "IndexReport", "IndexedVideo", "Moment", "SearchHit", "SearchResult"]

STRIP = 64
"""Equal parts that the time line of a video is cut into for `SearchHit.strip`."""


@dataclass(frozen=True)
class Moment:
    """A part of a video.

    Args:
        start, end: in seconds from the start of the video.
        score: of the window in which it was found.
    """

    start: float
    end: float
    score: float


@dataclass(frozen=True)
class SearchHit:
    """A video that was found.

    Args:
        video_id: its id in the index.
        score: of the retriever, of the best window of the video; higher is better.
        start, end: of the best moment, in seconds from the start of the video.
        duration: of the video, in seconds.
        path: of the file that its features were extracted from.
        moments: disjoint, best first; the first is (start, end).
        strip: the highest cosine of the query with what lies in each of `STRIP` equal parts of the video.
    """

    video_id: str
    score: float
    start: float
    end: float
    duration: float
    path: str
    moments: tuple[Moment, ...]
    strip: tuple[float, ...]


@dataclass(frozen=True)
class SearchResult:
    """What was found for a query.

    Args:
        query: the text.
        hits: best first; of equal scores, the one with the smaller id first.
        videos: how many the index holds.
        backend: that looked for candidates.
    """

    query: str
    hits: tuple[SearchHit, ...]
    videos: int
    backend: str


@dataclass(frozen=True)
class IndexedVideo:
    """What an index knows of a video.

    Args:
        id: its name.
        path: of the file that its features were extracted from.
        sha256: of that file.
        duration: in seconds.
        width, height: of the picture, in pixels, before it is turned upright.
        codec: for example `h264`.
        windows: how many it was cut into.
    """

    id: str
    path: str
    sha256: str
    duration: float
    width: int
    height: int
    codec: str
    windows: int


@dataclass(frozen=True)
class IndexReport:
    """What a change of an index did: ids of videos.

    Args:
        added: new ones.
        changed: embedded again, since their file has changed or moved.
        removed: taken out.
        unchanged: left as they were.
        stale: left as they were by `add`, though their file has changed or moved: `update` embeds them again.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class IndexInfo:
    """What is in an index.

    Args:
        videos, windows: that count.
        removed: videos whose vectors still lie on disk, until their segment is written anew.
        seconds: of video.
        clips, frames: vectors on disk.
        dim: width of a vector.
        dtype: of the vectors on disk.
        window, stride: in seconds; None: videos are not cut.
        bytes: of all segments.
        segments: how many.
        model: its name and kind.
        encoder: of frames, its name.
        rate: frames per second.
    """

    videos: int
    windows: int
    removed: int
    seconds: float
    clips: int
    frames: int
    dim: int
    dtype: str
    window: float | None
    stride: float | None
    bytes: int
    segments: int
    model: str
    encoder: str
    rate: float
    bytes_per_video: float = field(default=0.0)
