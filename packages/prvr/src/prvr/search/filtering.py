"""Which videos a search is about: filters by folder, name, date of the file and duration."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate

import numpy as np
from jaxtyping import Int64

from prvr.errors import InputError
from prvr.video import VideoEntry


@dataclass(frozen=True)
class SearchFilter:
    """Restricts a search to some of the videos of an index; a video passes if it meets every condition that is given.

    Patterns are those of a shell: `*` stands for any characters, `/` among them, `?` for one, `[ab]` for one of some.
    Upper and lower case do not differ.

    Args:
        folders: folders, as they begin the id of a video, or patterns of ids; one of them has to fit.
        names: patterns of file names, the last part of the id; one of them has to fit.
        after: the file was last changed at this time or later. A time without a zone is local.
        before: the file was last changed earlier than this.
        longer: the video lasts at least so many seconds.
        shorter: the video lasts at most so many seconds.

    Raises:
        ValueError: a pattern is empty, a duration is no number from 0, or no video can meet both of two conditions.

    Examples:
        >>> SearchFilter(folders=("holiday",), names=("*.mp4",), longer=60.0).longer
        60.0
        >>> with VideoIndex.open("index") as index:  # doctest: +SKIP
        ...     index.search_many(["a dog"], where=SearchFilter(folders=("holiday",)))
    """

    folders: Sequence[str] = ()
    names: Sequence[str] = ()
    after: datetime | None = None
    before: datetime | None = None
    longer: float | None = None
    shorter: float | None = None

    def __post_init__(self) -> None:
        if not all([*self.folders, *self.names]):
            raise InputError("SearchFilter: an empty pattern. Expected a folder, or a pattern such as *.mp4.")
        for name in ("longer", "shorter"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InputError(f"SearchFilter: {name}={value}; expected a number of seconds from 0")
        if self.longer is not None and self.shorter is not None and self.longer > self.shorter:
            raise InputError(f"SearchFilter: longer={self.longer} and shorter={self.shorter}: no video is both")
        for name in ("after", "before"):
            try:
                _ = getattr(self, name) and getattr(self, name).timestamp()
            except (ValueError, OverflowError, OSError) as error:  # the years at both ends of the calendar
                raise InputError(f"SearchFilter: {name}={getattr(self, name)}; expected a year from 1970 on") from error
        if self.after and self.before and self.after.timestamp() >= self.before.timestamp():
            raise InputError(f"SearchFilter: after={self.after} and before={self.before}: no file is of such a time")

    def numbers(self, videos: Sequence[VideoEntry]) -> Int64[np.ndarray, " n"]:
        """The positions of the videos that pass, ascending."""
        folders = [folder.casefold().removeprefix("./").rstrip("/") for folder in self.folders]
        inside = [re.compile(f"{translate(one)}|{translate(one + '/*')}") for one in folders]
        anywhere = not folders or not {"", "."}.isdisjoint(folders)
        named = [re.compile(translate(name.casefold())) for name in self.names]
        after, before = (None if one is None else one.timestamp() * 1e9 for one in (self.after, self.before))

        def passes(video: VideoEntry) -> bool:
            video_id = video.id.casefold()
            return (
                (after is None or video.mtime_ns >= after)
                and (before is None or video.mtime_ns < before)
                and (self.longer is None or video.duration >= self.longer)
                and (self.shorter is None or video.duration <= self.shorter)
                and (not named or any(one.match(video_id.rpartition("/")[2]) for one in named))
                and (
                    anywhere
                    or any(video_id.startswith(f"{one}/") for one in folders)
                    or any(one.match(video_id) for one in inside)
                )
            )

        return np.array([number for number, video in enumerate(videos) if passes(video)], np.int64)
