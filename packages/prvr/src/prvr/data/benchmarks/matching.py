"""Which entry of a feature store is which video of a benchmark."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from prvr.errors import DataError

__all__ = ["match_videos"]

# Not whatever follows the last dot: the ids of LSMDC hold times, 00.00.32.161.
SUFFIXES = frozenset((".3gp", ".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"))


def match_videos(wanted: Iterable[str], available: Iterable[str]) -> Mapping[str, str]:
    """For each video, the entry that has its features; videos without one are not in the answer.

    An entry fits by its id, else by its file name without folders, without the suffix of a video file, and without the
    `v_` that ActivityNet puts before ids.

    Raises:
        DataError: several entries fit a video, or one fits several.

    Example:
        >>> match_videos(["v_a1", "b.avi", "c"], ["films/a1.mp4", "b.avi.mp4"])
        {'v_a1': 'films/a1.mp4', 'b.avi': 'b.avi.mp4'}
    """
    entries: dict[str, list[str]] = defaultdict(list)
    exact = set()
    for entry in available:
        exact.add(entry)
        entries[_key(entry)].append(entry)
    found: dict[str, str] = {}
    taken: dict[str, str] = {}
    for video in wanted:
        fits = [video] if video in exact else entries.get(_key(video), [])
        if len(fits) > 1:
            raise DataError(f"video {video!r}: {len(fits)} entries of the features fit, {fits[:3]}. Leave one of them.")
        if fits:
            other = taken.setdefault(fits[0], video)
            if other != video:
                raise DataError(f"features {fits[0]!r} fit two videos, {other!r} and {video!r}. Rename them.")
            found[video] = fits[0]
    return found


def _key(name: str) -> str:
    path = PurePosixPath(name)
    while path.suffix.lower() in SUFFIXES and path.stem:
        path = path.with_suffix("")
    return path.name.removeprefix("v_")
