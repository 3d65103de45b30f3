"""Lines of subtitles and recognisers that match a query, and the hits of videos."""

from collections.abc import Mapping, Sequence

import numpy as np

from prvr.errors import InputError
from prvr_search.films import SubtitleLine
from prvr_search.ranking.filters import SearchFilter
from prvr_search.ranking.query import Passage, Query
from prvr_search.ranking.results import SearchHit, WindowTimeline, merged_moments, relevance_curve
from prvr_search.ranking.snapshot import Numbers, Videos
from prvr_search.store.lines import Lines

Match = tuple[float, SubtitleLine]
"""A line of subtitles and its score."""


def checked_queries(queries: Sequence[str | Query], k: int, moments: int) -> list[Query]:
    """The queries of a search.

    Raises:
        ValueError: as `VideoIndex.search_many`.
    """
    if k < 1 or moments < 1:
        raise InputError(f"k={k}, moments={moments}: expected positive numbers")
    return [Query(query) if isinstance(query, str) else query for query in queries]


def searched_videos(videos: Videos, where: SearchFilter | None = None, passage: Passage | None = None) -> Numbers:
    """The numbers of the videos that pass a filter; of copies only the first, and not the one that is asked for."""
    numbers = np.array(where.numbers(videos.entries), np.int64) if where else np.arange(len(videos.entries))
    originals = videos.originals[numbers]
    if passage is not None:
        is_other = originals != videos.originals[videos.numbers[passage.video]]
        numbers, originals = numbers[is_other], originals[is_other]
    return numbers[np.sort(np.unique(originals, return_index=True)[1])]


def matching_lines(videos: Videos, subtitles: Lines | None, query: Query, searched: Numbers) -> dict[int, list[Match]]:
    """The lines that match a query, best first, by the number of their video.

    Args:
        videos: what is searched.
        subtitles: the lines of the library.
        query: its words are those that are said, or its sentence; none where something is to follow.
        searched: the numbers of the videos that are searched, of which none are copies.
    """
    words = query.subtitles or query.sentence
    if subtitles is None or words is None or query.then or not (subtitled := subtitles.videos()):
        return {}
    numbers = searched.tolist()
    owners = {sha256: n for n in numbers if (sha256 := videos.entries[n].sha256) in subtitled}
    matches = subtitles.find(words, owners)
    if query.subtitles and not matches:
        matches = subtitles.find(words, owners, any_word=True)
    lines: dict[int, list[Match]] = {}
    for sha256, score, line in matches:
        if line.start < (videos.entries[owners[sha256]].duration or np.inf):
            lines.setdefault(owners[sha256], []).append((score, line))
    return lines


def line_hits(videos: Videos, lines: Mapping[int, Sequence[Match]], moments: int) -> tuple[SearchHit, ...]:
    """The hits of the videos whose lines match, best first; their curves are 0 where no line matches."""
    hits = []
    for number, matches in lines.items():
        duration = videos.entries[number].duration or max(line.end for _, line in matches)
        windows = [WindowTimeline(0.0, duration, 0.0, np.zeros(1, np.float32))]
        for score, line in matches:
            windows.append(WindowTimeline(line.start, min(line.end, duration), score, np.array([score], np.float32)))
        hits.append(hit_of(videos, number, matches[0][0], windows, moments, matches))
    return tuple(hits)


def hit_of(
    videos: Videos,
    number: int,
    score: float,
    windows: Sequence[WindowTimeline],
    moments: int,
    lines: Sequence[Match] = (),
    usual: float = np.inf,
) -> SearchHit:
    """The hit of a video that was found.

    Args:
        videos: what was searched.
        number, score, windows: the video, its score and its windows.
        moments: the most moments.
        lines: the lines that match, best first.
        usual: as of `prvr_search.ranking.results.merged_moments`.
    """
    video = videos.entries[number]
    spans = merged_moments(windows, moments, usual)
    curve = relevance_curve(windows, video.duration or windows[0].end)
    same = np.flatnonzero(videos.originals == videos.originals[number]).tolist()
    copies = tuple(videos.entries[copy] for copy in same if copy != number)
    matches = tuple(line for _, line in lines[:moments])
    return SearchHit(video, score, spans, curve, copies, lines=matches)
