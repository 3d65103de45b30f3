"""Readers of caption files, moments, relevance sets and tags."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_text, short


@dataclass(frozen=True, slots=True)
class Caption:
    """One query: its id, the video it was written for, and its words."""

    id: str
    video_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The part of a video that a caption speaks of, in seconds, and the length of the whole video.

    Start and end are NaN where only the length is known.
    """

    start: float
    end: float
    duration: float


def video_of(caption_id: str) -> str:
    """The video of a caption id ``VIDEOID#enc#K``: everything before the first ``#``.

    Example:
        >>> video_of("s01e02#enc#4")
        's01e02'
    """
    return caption_id.split("#", 1)[0]


def read_captions(path: Path) -> tuple[Caption, ...]:
    """Captions of one split, in file order; a line is ``CAPTIONID TEXT``, split at the first space.

    Raises:
        DataError: no file, no caption, a caption without text, an id that stands there twice, or no UTF-8.
    """
    captions: dict[str, Caption] = {}
    for number, line in _lines(path):
        caption_id, _, text = line.partition(" ")
        if not video_of(caption_id):
            raise DataError(f"{path}, line {number}: no video id before the first '#' in {line[:60]!r}.")
        if not text.strip():
            raise DataError(
                f"{path}, line {number}: caption {short(caption_id)} has no text. Write it or remove the line."
            )
        if caption_id in captions:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} stands there twice.")
        captions[caption_id] = Caption(caption_id, video_of(caption_id), text)
    if not captions:
        raise DataError(f"{path}: holds no caption. A split needs at least one line 'VIDEOID#enc#K TEXT'.")
    return tuple(captions.values())


def read_moments(path: Path) -> dict[str, Moment]:
    """Moments by caption id from ``COL_moments.jsonl`` (cap_id, duration, ts = [start, end]); swapped ends are turned.

    ``ts`` may be null: then only the length of the video is known.

    Raises:
        DataError: a line that is no such record, or a caption id that stands there twice.
    """
    moments: dict[str, Moment] = {}
    for number, row in _records(path):
        try:
            caption_id, duration = str(row["cap_id"]), float(row["duration"])
            start, end = (nan, nan) if row["ts"] is None else sorted(float(t) for t in row["ts"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path}, line {number}: expected cap_id, duration and ts = [start, end] in seconds, got {short(row)}."
            ) from error
        if caption_id in moments:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} stands there twice.")
        moments[caption_id] = Moment(start, end, duration)
    return moments


def read_relevance(path: Path) -> dict[str, frozenset[str]]:
    """Videos that match each caption, from ``COL_relevance.jsonl`` (cap_id, vids).

    Raises:
        DataError: a line that is no such record, or a caption id that stands there twice.
    """
    relevance: dict[str, frozenset[str]] = {}
    for number, row in _records(path):
        caption_id, videos = row.get("cap_id"), row.get("vids")
        if not isinstance(caption_id, str) or not isinstance(videos, list):
            raise DataError(f"{path}, line {number}: expected cap_id and vids = [video id, ...], got {short(row)}.")
        if caption_id in relevance:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} stands there twice.")
        relevance[caption_id] = frozenset(map(str, videos))
    return relevance


def read_tags(path: Path) -> dict[str, frozenset[str]]:
    """Tags of each caption, from ``COL_tags.jsonl`` (cap_id, tags).

    Raises:
        DataError: a line that is no such record, or a caption id that stands there twice.
    """
    tags: dict[str, frozenset[str]] = {}
    for number, row in _records(path):
        caption_id, names = row.get("cap_id"), row.get("tags")
        if (
            not isinstance(caption_id, str)
            or not isinstance(names, list)
            or not all(isinstance(name, str) and name.strip() for name in names)
        ):
            raise DataError(f"{path}, line {number}: expected cap_id and tags = [text, ...], got {short(row)}.")
        if caption_id in tags:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} stands there twice.")
        tags[caption_id] = frozenset(names)
    return tags


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the data root and the name of the collection.")
    # not splitlines: a caption may hold U+2028, U+0085 and the like
    for number, line in enumerate(read_text(path, LARGE).split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, line


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        row = parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}.")
        yield number, row
