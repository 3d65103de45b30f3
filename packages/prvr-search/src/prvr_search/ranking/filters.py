"""The filter of a search: a record from which the query, the command line, the API and the page follow.

It imports nothing but the errors: the command line reads it before it imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_type_hints

from prvr.errors import InputError

_IN_FOLDER = "videos in this subfolder, or whose name matches this pattern, such as 'holiday*'"
_NAMED = "file names that match this pattern, such as '*.mkv'"


@dataclass(frozen=True)
class Condition:
    """What a field of `SearchFilter` is: its annotation, from which its option, its parameter and its input follow.

    Args:
        name: of the option (`--in`), and of the parameter of an address (`?in=`).
        kind: patterns, of which one has to match; a time; or a duration in seconds.
        passes: whether a video passes, from a value and its `prvr.encoders.VideoEntry`.
        label: of the input on the page, which takes minutes for a duration.
        help: the line of the command line and of the API.
        example: the text in the empty input of the page.
    """

    name: str
    kind: Literal["patterns", "time", "seconds"]
    passes: Callable[[Any, Any], bool]
    label: str
    help: str
    example: str = ""


def _fits(text: str, patterns: Sequence[str]) -> bool:
    """Whether a text matches one of the patterns."""
    return any(fnmatchcase(text.casefold(), pattern.casefold()) for pattern in patterns)


def _is_below(folders: Sequence[str], video: Any) -> bool:
    """Whether a video is in one of the folders, or its id matches one of the patterns."""
    for folder in folders:
        folder = folder.removeprefix("./").rstrip("/")
        is_inside = video.id.casefold().startswith(f"{folder.casefold()}/")
        if folder in ("", ".") or is_inside or _fits(video.id, (folder, f"{folder}/*")):
            return True
    return False


def filmed(video: Any, zone: Any = UTC) -> float:
    """When the video of a `prvr.encoders.VideoEntry` was filmed, in seconds since 1970; before then negative.

    Args:
        video: the video.
        zone: the time zone of the time to compare with; None: local times are compared, that of the place where it was
            filmed with that of this computer.
    """
    if not video.filmed:
        return video.mtime_ns / 1e9
    return datetime.fromisoformat(video.filmed if zone else video.filmed[:19]).timestamp()


@dataclass(frozen=True)
class SearchFilter:
    """Restricts a search to some of the videos of an index; a video passes if it meets every condition that is given.

    A filter without a condition is false, and restricts nothing.

    Patterns are those of a shell: `*` stands for any characters, `/` among them, `?` for one, `[ab]` for one of some.
    Upper and lower case do not differ.

    Args:
        folders: folders, as they begin the id of a video, or patterns of ids; one of them has to match.
        names: patterns of file names, the last part of the id; one of them has to match.
        after: the video was filmed at this time or later, see `prvr_search.films.info`; without a zone, by the
            clock at the place.
        before: the video was filmed earlier than this.
        longer: minimum duration in seconds.
        shorter: maximum duration in seconds.

    Raises:
        InputError: a pattern is empty, a duration is no number from 0, or no video can meet both of two conditions.

    Examples:
        >>> SearchFilter(folders=("holiday",), names=("*.mp4",), longer=60.0).longer
        60.0
        >>> with Library("films") as library:  # doctest: +SKIP
        ...     library.search("a dog", where=SearchFilter(folders=("holiday",)))
    """

    folders: Annotated[
        Sequence[str],
        Condition("in", "patterns", _is_below, "Folder", _IN_FOLDER, "holiday/day 1"),
    ] = ()
    names: Annotated[
        Sequence[str],
        Condition(
            "name", "patterns", lambda names, x: _fits(x.id.rpartition("/")[2], names), "File name", _NAMED, "*.mp4"
        ),
    ] = ()
    after: Annotated[
        datetime | None,
        Condition(
            "after",
            "time",
            lambda time, video: filmed(video, time.tzinfo) >= time.timestamp(),
            "Filmed after",
            "videos filmed on this date or later",
        ),
    ] = None
    before: Annotated[
        datetime | None,
        Condition(
            "before",
            "time",
            lambda time, video: filmed(video, time.tzinfo) < time.timestamp(),
            "Filmed before",
            "videos filmed before this date",
        ),
    ] = None
    longer: Annotated[
        float | None,
        Condition(
            "longer",
            "seconds",
            lambda seconds, video: video.duration >= seconds,
            "At least (minutes)",
            "videos of at least this duration",
        ),
    ] = None
    shorter: Annotated[
        float | None,
        Condition(
            "shorter",
            "seconds",
            lambda seconds, video: video.duration <= seconds,
            "At most (minutes)",
            "videos of at most this duration",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, condition in CONDITIONS.items():
            value = getattr(self, name)
            if condition.kind == "patterns":
                object.__setattr__(self, name, tuple(value))
                if not all(value):
                    raise InputError(f"SearchFilter: {name} has an empty pattern; expected one such as *.mp4")
            elif value is None:
                continue
            elif condition.kind == "time":
                try:
                    value.timestamp()
                except (ValueError, OverflowError, OSError) as error:  # the years at both ends of the calendar
                    raise InputError(f"SearchFilter: {name}={value}; expected a year from 1970 on") from error
            elif not value >= 0:
                raise InputError(f"SearchFilter: {name}={value}; expected a number of seconds from 0")

        no_duration = self.longer is not None and self.shorter is not None and self.longer > self.shorter
        if no_duration or (self.after and self.before and self.after.timestamp() >= self.before.timestamp()):
            raise InputError(
                f"longer={self.longer}, shorter={self.shorter}, after={self.after}, before={self.before}: no video can "
                "be both longer and shorter, or filmed both after and before"
            )

    def __bool__(self) -> bool:
        return self != SearchFilter()

    def numbers(self, videos: Sequence[Any]) -> list[int]:
        """The positions of the videos that pass, ascending, from their `prvr.encoders.VideoEntry`."""
        values = [(condition.passes, getattr(self, name)) for name, condition in CONDITIONS.items()]
        conditions = [(passes, value) for passes, value in values if value not in ((), None)]
        return [n for n, video in enumerate(videos) if all(passes(value, video) for passes, value in conditions)]


CONDITIONS: Mapping[str, Condition] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SearchFilter, include_extras=True).items()
}
"""The conditions of a filter by the names of its fields."""
