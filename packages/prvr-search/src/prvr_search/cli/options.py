"""The options that several commands on videos share."""

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from prvr.cli.options import parsed_by

VIDEOS = Group("Search your own videos", sort_key=0)
"""The first section of `prvr --help`."""


def seconds(text: str) -> float:
    """A time or a duration: seconds, M:SS or H:MM:SS, with or without a fraction.

    Raises:
        ValueError: the text is something else.

    Examples:
        >>> seconds("90"), seconds("12:30"), seconds("1:02:03.5")
        (90.0, 750.0, 3723.5)
    """
    if not re.fullmatch(r"\s*(\d{1,6}|(\d{1,4}:)?\d{1,4}:[0-5]\d)(\.\d{1,9})?\s*", text, re.ASCII):
        raise ValueError(f"expected seconds, or a time like 12:30 or 1:02:03.5, got {text!r}")
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expected a date like 2026-03-01 or 2026-03-01T18:30, got {text!r}") from error


Seconds = Annotated[float, parsed_by(seconds, "SECONDS")]
Date = Annotated[datetime, parsed_by(_date, "DATE")]
File = Annotated[str | None, Parameter(metavar="FILE")]
Name = Annotated[str | None, Parameter(metavar="NAME")]
Place = Annotated[Path | None, Parameter(metavar="FOLDER")]
Sentence = Annotated[str, Parameter(metavar="SENTENCE", show_default=False)]
