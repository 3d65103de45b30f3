"""When a film was filmed: by its container, else by its name, else by the time of its file."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

DateSource = Literal["container", "name", "file"]
_KEYS = ("com.apple.quicktime.creationdate", "creation_time", "date")  # the first one has the zone of the camera
_DATE = re.compile(
    r"(?<!\d)((?:19|20)\d\d)([-._]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"
    r"(?:(?: at )?[-_ T.]?([01]\d|2[0-3])[-._:h]?([0-5]\d)[-._:m]?([0-5]\d)(?:[-._]?\d{3})?)?(?!\d)"
)
_UNSET = (1904, 1970)  # years in which clocks begin to count that were not set
_DAY = 24 * 3600  # seconds: the future begins later than any zone


def container_date(metadata: Iterable[Mapping[str, str]]) -> str:
    """The date that a container states, ISO 8601, with a zone if it states one; empty if it states none.

    Args:
        metadata: of the container, then of its streams, with keys in lower case.

    Examples:
        >>> container_date([{"creation_time": "1904-01-01T00:00:00Z"}, {"date": "2019-07-12T16:30:00+0200"}])
        '2019-07-12T16:30:00+02:00'
    """
    stated = [*metadata]
    for text in (tags[key] for key in _KEYS for tags in stated if key in tags):
        with suppress(ValueError):
            if _is_plausible(date := datetime.fromisoformat(text.strip())):
                return date.isoformat()
    return ""


def film_date(stated: str, name: str, mtime_ns: int) -> tuple[str, DateSource]:
    """When a film was filmed; a date without a zone is local.

    Dates in years of clocks that were not set (1904, 1970), before 1900 or in the future do not count.

    Args:
        stated: the date of its container, as of `container_date`.
        name: its path; the file name counts.
        mtime_ns: when the file was last changed, in ns since 1970.

    Returns:
        ISO 8601 with the zone, that of the container where it says one, else that of this computer; and what says so.

    Examples:
        >>> date, source = film_date("", "day 1/VID-20190712-WA0003.mp4", 0)
        >>> date[:19], source
        ('2019-07-12T00:00:00', 'name')
    """
    with suppress(ValueError):
        if stated and _is_plausible(date := datetime.fromisoformat(stated)):
            return _local(date).isoformat(), "container"
    for match in _DATE.finditer(name.rpartition("/")[2]):
        year, _, month, day, *clock = match.groups("0")
        with suppress(ValueError):  # February 30
            if _is_plausible(
                date := datetime.fromisoformat("{}-{}-{} {:0>2}:{:0>2}:{:0>2}".format(year, month, day, *clock))
            ):
                return _local(date).isoformat(), "name"
    date = datetime.fromtimestamp(mtime_ns // 10**9, UTC)
    return _local(date).astimezone().isoformat(), "file"


def _local(date: datetime) -> datetime:
    """A date with its zone, or else that of this computer."""
    return date if date.tzinfo else date.astimezone()


def _is_plausible(date: datetime) -> bool:
    try:
        of_world = _local(date).astimezone(UTC)
    except (OverflowError, OSError):  # years at both ends of the calendar; Windows has no local time before 1970
        return False
    years = {date.year, of_world.year}
    return min(years) >= 1900 and years.isdisjoint(_UNSET) and of_world.timestamp() <= time.time() + _DAY
