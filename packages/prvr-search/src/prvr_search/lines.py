"""Lines of subtitles that match a query, and the search in them alone, which needs no model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from prvr.encoders import VideoEntry
from prvr.errors import InputError
from prvr_search.filters import SearchFilter
from prvr_search.query import Query
from prvr_search.ranking import Ranked
from prvr_search.results import SearchHit, SearchResult, WindowTimeline, merged_moments, relevance_curve
from prvr_search.snapshot import Snapshot, first_copies
from prvr_search.video import SubtitleLine
from prvr_search.video.lines import Lines

Match = tuple[float, SubtitleLine]
"""A line of subtitles and its score."""


@dataclass(frozen=True)
class KnownVideos:
    """Videos of which nothing but their records is known, as `Snapshot` has them.

    Args:
        entries: the records by id, in order of ids.
    """

    entries: Mapping[str, VideoEntry]

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(self.entries)

    @cached_property
    def originals(self) -> Int64[np.ndarray, " v"]:
        """For each the number of the first one with the same content."""
        return first_copies(entry.sha256 for entry in self.entries.values())

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video."""
        return self.entries[video_id]


Videos = KnownVideos | Snapshot


def checked_queries(queries: Sequence[str | Query], k: int, moments: int) -> list[Query]:
    """The queries of a search.

    Raises:
        ValueError: as `VideoIndex.search_many`.
    """
    if k < 1 or moments < 1:
        raise InputError(f"k={k}, moments={moments}: expected positive numbers")
    return [Query.of(query) for query in queries]


def search_lines(
    videos: Videos, subtitles: Lines, query: Query, k: int, moments: int, where: SearchFilter | None = None
) -> SearchResult:
    """The k best videos for what is said, by their lines alone.

    Args:
        videos: what is searched.
        subtitles: the lines of the library.
        query: one that says nothing of what is to be seen.
        k, moments, where: as of `VideoIndex.search_many`.
    """
    lines = matching_lines(videos, subtitles, query, where, subtitles.videos())
    hits = tuple(line_hit(videos, number, matches, moments) for number, matches in lines.items())
    return SearchResult(str(query), hits[:k], len(videos.video_ids), "exact")


def searched_videos(videos: Videos, where: SearchFilter | None) -> Int64[np.ndarray, " n"]:
    """The numbers of the videos that pass a filter; of copies only the first."""
    numbers = np.arange(len(videos.video_ids))
    if where is not None:
        numbers = np.array(where.numbers([videos.video(video_id) for video_id in videos.video_ids]), np.int64)
    return numbers[np.sort(np.unique(videos.originals[numbers], return_index=True)[1])]


def matching_lines(
    videos: Videos, subtitles: Lines, query: Query, where: SearchFilter | None, subtitled: Collection[str]
) -> dict[int, list[Match]]:
    """The lines that match a query, best first, by the number of their video; not of a video that is asked for.

    Args:
        videos: what is searched.
        subtitles: the lines of the library.
        query: its words are those that are said, or its sentence.
        where: which videos are searched.
        subtitled: the sha256 of the videos that have lines.
    """
    words = query.subtitles or query.sentence
    if words is None or not subtitled:
        return {}
    numbers, ids = searched_videos(videos, where), videos.video_ids
    if query.passage is not None:
        numbers = numbers[videos.originals[numbers] != videos.originals[ids.index(query.passage.video)]]
    shas = {videos.video(ids[number]).sha256: number for number in numbers.tolist()}
    owners = {sha256: number for sha256, number in shas.items() if sha256 in subtitled}
    matches = subtitles.find(words, owners)
    if query.subtitles and not matches:
        matches = subtitles.find(words, owners, any_word=True)
    lines: dict[int, list[Match]] = {}
    for sha256, score, line in matches:
        if line.start < (videos.video(ids[owners[sha256]]).duration or np.inf):
            lines.setdefault(owners[sha256], []).append((score, line))
    return lines


def line_hit(videos: Videos, number: int, lines: Sequence[Match], moments: int) -> SearchHit:
    """The hit of a video that lines alone have found; its curve is 0 where no line matches."""
    duration = videos.video(videos.video_ids[number]).duration or max(line.end for _, line in lines)
    windows = [WindowTimeline(0.0, duration, 0.0, np.zeros(1, np.float32))]
    for score, line in lines:
        windows.append(WindowTimeline(line.start, min(line.end, duration), score, np.array([score], np.float32)))
    return hit_of(videos, Ranked(number, lines[0][0], windows), moments, lines)


def hit_of(
    videos: Videos,
    ranked: Ranked,
    moments: int,
    lines: Sequence[Match] = (),
    usual: float = np.inf,
) -> SearchHit:
    """The hit of a video that was found.

    Args:
        videos: what was searched.
        ranked: the video, its score and its windows.
        moments: the most moments.
        lines: the lines that match, best first.
        usual: as of `prvr_search.results.merged_moments`.
    """
    video = videos.video(videos.video_ids[ranked.video])
    spans = merged_moments(ranked.windows, moments, usual)
    curve = relevance_curve(ranked.windows, video.duration or ranked.windows[0].end)
    same = np.flatnonzero(videos.originals == videos.originals[ranked.video]).tolist()
    copies = tuple(videos.video(videos.video_ids[number]) for number in same if number != ranked.video)
    matches = tuple(line for _, line in lines[:moments])
    return SearchHit(video, ranked.score, spans[0].start, spans[0].end, spans, curve, copies, lines=matches)
