"""Captions of users' own videos: a table read line by line, splits of the videos, and ids that a corpus can hold."""

import csv
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from prvr.errors import DataError, InputError
from prvr.reading import LARGE, parse_json, read_bytes, short

_T = TypeVar("_T")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "video": ("video", "video_id", "vid", "file", "filename", "path"),
    "text": ("text", "caption", "sentence", "query", "description"),
    "start": ("start", "start_time", "begin", "from"),
    "end": ("end", "end_time", "stop", "to"),
    "duration": ("duration", "video_duration"),
    "id": ("id", "query_id"),
    "split": ("split",),
}
"""The names that each column may have, in any case."""
SPLITS = ("train", "val", "test")

MEND = "Correct these lines; nothing was written."
_MOST = 20
_DELIMITERS = ",;\t"
_CLOCK = re.compile(r"(?:(?:(\d{1,4}):)?(\d{1,5}):(?=\d{1,2}(?:\.|$)))?(\d{1,12}(?:\.\d*)?|\.\d+)")


@dataclass(frozen=True, slots=True)
class UserCaption:
    """One row of the table.

    Args:
        line: the number of its first line, from 1.
        video: as it is written there.
        text: in one line.
        start, end: the start and the end of the moment that it describes, in seconds; None if the table does not say.
        duration: the length of its video in seconds; None if the table does not say.
        id: its own name in the table; empty if the table does not say.
        split: train, val or test; empty if the table does not say.
    """

    line: int
    video: str
    text: str
    start: float | None = None
    end: float | None = None
    id: str = ""
    split: str = ""
    duration: float | None = None

    @property
    def content(self) -> tuple[object, ...]:
        """What makes it another caption than the others of a table."""
        return self.video, self.text, self.start, self.end, self.id


@dataclass
class Problems:
    """The problems of a file, by line; the error message names the first 20.

    Examples:
        >>> problems = Problems(Path("captions.csv"))
        >>> problems.add(3, "no text")
        >>> problems.refuse()
        Traceback (most recent call last):
        prvr.errors.DataError: captions.csv: 1 problem. Line 3: no text. Correct these lines; nothing was written.
    """

    path: Path
    lines: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, problem: object) -> None:
        """Adds a problem of a line; `problem` is a sentence."""
        self.lines.append((line, str(problem).rstrip(".")))

    @property
    def full(self) -> bool:
        """Whether further problems are only counted."""
        return len(self.lines) >= _MOST

    def refuse(self) -> None:
        """Raises if there is a problem.

        Raises:
            DataError: names each line.
        """
        if count := len(self.lines):
            lines = " ".join(f"Line {line}: {problem}." for line, problem in sorted(self.lines[:_MOST]))
            more = f" And {count - _MOST} more." if count > _MOST else ""
            raise DataError(f"{self.path}: {count} problem{'s' * (count > 1)}. {lines}{more} {MEND}")


def read_user_captions(path: Path | str) -> tuple[UserCaption, ...]:
    """Reads a table of captions.

    CSV (also with `;` or tabs) needs a header; JSON lines have an object a line. `video` and `text` are required,
    `start`, `end` and `duration`, the length of the video, are optional: seconds, or `m:ss` and `h:mm:ss`; so are `id`
    and `split` (train, val or test).
    Other columns are ignored, and `COLUMNS` has further names of each. A cell that looks like a formula is a caption
    like any other. Line breaks within a cell become spaces, empty lines are skipped, and repeated rows count once.

    Args:
        path: ends in `.jsonl` for JSON lines; anything else is CSV. UTF-8, with or without a mark at its start.

    Returns:
        in the order of the file, each different (video, text, start, end, id) once.

    Raises:
        DataError: names every line that cannot be used, up to 20 of them.
    """
    problems = Problems(Path(path).expanduser())
    captions = read_table(problems)
    problems.refuse()
    return captions


def read_table(problems: Problems) -> tuple[UserCaption, ...]:
    """The rows of a table as `read_user_captions` gives them; what is wrong with them is added to the problems.

    A row with a problem is returned too, without the value that cannot be read (an empty text, no time), so that later
    checks can report all problems of a file in one message. Refuse the problems before using any row.

    Raises:
        DataError: the file cannot be read as a table, or holds no row.
    """
    path = problems.path
    rows = _json_rows if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows
    captions: dict[tuple[object, ...], UserCaption] = {}
    for line, row in rows(path, problems):
        caption = _caption(line, row, problems)
        captions.setdefault(caption.content, caption)
    if not captions and not problems.lines:
        raise DataError(f"{path}: no captions. Expected a line per sentence: video, text, and start, end if known.")
    return tuple(captions.values())


@dataclass(frozen=True)
class SplitShares:
    """Shares of the videos that go to each split.

    Args:
        test, val: shares of the different videos; the rest is for training.
        seed: chooses other videos.
    """

    test: float = 0.2
    val: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.test < 1 or not 0 < self.val < 1 or not self.test + self.val < 1:
            raise InputError(
                f"test={self.test:g}, val={self.val:g}: expected shares above 0 that leave something to train on"
            )


def split_videos(contents: Mapping[str, str], shares: SplitShares | None = None) -> dict[str, str]:
    """Assigns each video to a split, by its content alone, so that copies of a video stay together.

    The different contents are sorted by a hash; the first of them (`test`, rounded, at least one) are the split "test",
    the next ones "val". The same videos give the same splits, whatever their names and their order.

    Args:
        contents: the sha256 of the file of each video.
        shares: default: [SplitShares][prvr.corpora.SplitShares]().

    Returns:
        "train", "val" or "test" by video.

    Raises:
        DataError: fewer than 4 different videos, or shares that leave fewer than 2 to train on.

    Examples:
        >>> splits = split_videos({name: name for name in "abcdefghij"})
        >>> [sum(split == name for split in splits.values()) for name in SPLITS]
        [7, 1, 2]
    """
    shares = shares or SplitShares()

    def place(content: str) -> bytes:
        return hashlib.sha256(f"{shares.seed}:{content}".encode()).digest()

    order = sorted(set(contents.values()), key=place)
    tests, vals = (max(1, round(share * len(order))) for share in (shares.test, shares.val))
    if len(order) - tests - vals < 2:
        copies = f" ({len(contents) - len(order)} more are copies)" if len(contents) > len(order) else ""
        raise DataError(
            f"{len(order)} different videos with captions{copies}, of which {tests} would be for test and {vals} for "
            "val: too few are left to train on, which takes at least 2. Caption more videos, or choose smaller shares."
        )
    split_of = dict.fromkeys(order, "train") | dict.fromkeys(order[: tests + vals], "val")
    split_of |= dict.fromkeys(order[:tests], "test")
    return {video: split_of[content] for video, content in contents.items()}


def plain_ids(videos: Iterable[str]) -> dict[str, str]:
    """Ids that the files of a corpus can hold: without spaces, `/` and `#`, and not too long.

    Other ids are changed: their unusual characters become `-`, and a hash of the whole id is added.

    Examples:
        >>> plain_ids(["beach.mp4", "day 1/beach.mp4"])
        {'beach.mp4': 'beach.mp4', 'day 1/beach.mp4': 'day-1-beach.mp4-b3da85cb'}
    """
    ids: dict[str, str] = {}
    for video in videos:
        plain = re.sub(r"[^\w.+-]+", "-", video.encode("utf-8", "replace").decode())[-80:].strip("-")
        digest = hashlib.sha256(video.encode("utf-8", "surrogateescape")).hexdigest()
        is_plain = plain == video and plain.strip(".")  # no corpus holds an id "." or ".."
        ids[video] = plain if is_plain else f"{plain}-{digest[:8]}"
    if len(set(ids.values())) < len(ids):  # a name equals the new name of another
        return {video: f"video-{number}" for number, video in enumerate(ids)}
    return ids


def _read(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Name a .csv or .jsonl file of captions.")
    try:
        content = read_bytes(path, LARGE)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: not UTF-8 ({error.reason}). Save it as UTF-8.") from error


def _csv_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    text = _read(path)
    header = text.lstrip().partition("\n")[0]
    reader = csv.reader(StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=header.count), strict=True)
    columns: dict[str, int] = {}
    line = 1
    try:
        for cells in reader:
            if not any(map(str.strip, cells)):
                pass
            elif not columns:
                columns = _columns(cells)
            elif len(cells) <= max(columns["video"], columns["text"]):
                problems.add(line, f"{len(cells)} cells, the header names more")
            else:
                yield line, {name: cells[place] for name, place in columns.items() if place < len(cells)}
            line = reader.line_num + 1
    except csv.Error as error:
        problems.add(line, f"not readable as CSV ({error}); a quote that is not closed?")
    except DataError as error:
        raise DataError(f"{path}: header: {error}. Name its columns.") from error


def _json_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(_read(path).split("\n"), 1):
        if not content.strip():
            continue
        try:
            row = parse_json(content, "its content")
            if not isinstance(row, dict):
                raise DataError(f"expected an object, got {short(row, 40)}")
            names = list(row)
            columns = _columns(names)
        except DataError as error:
            problems.add(line, error)
        else:
            yield line, {key: row[names[place]] for key, place in columns.items()}


def _columns(names: Sequence[str]) -> dict[str, int]:
    """The place of each column among the names of a header."""
    columns: dict[str, int] = {}
    aliases = "; ".join(f"{key}: {', '.join(COLUMNS[key])}" for key in ("video", "text"))
    for place, name in enumerate(names):
        key = next((key for key, aliases in COLUMNS.items() if name.strip().lower() in aliases), None)
        if key in columns:
            raise DataError(f"two columns could be the {key}: rename one of them ({aliases})")
        if key is not None:
            columns[key] = place
    missing = [key for key in ("video", "text") if key not in columns]
    if missing:
        raise DataError(f"no {' and no '.join(missing)} among {short(names[:8])} ({aliases})")
    return columns


def _caption(line: int, row: Mapping[str, Any], problems: Problems) -> UserCaption:
    def read(name: str, parse: Callable[[Any], _T], default: _T) -> _T:
        try:
            return parse(row.get(name))
        except ValueError as error:
            problems.add(line, f"{name}: {error}")
            return default

    count = len(problems.lines)
    video = read("video", _words, "")
    text = " ".join(read("text", _words, "").split())
    start, end = read("start", _seconds, None), read("end", _seconds, None)
    if len(problems.lines) == count and (start is None) != (end is None):
        problems.add(line, "start without end, or end without start")
    elif start is not None and end is not None and start >= end:
        problems.add(line, f"start {start:g} is not before end {end:g}")
    times = (start, end) if len(problems.lines) == count else (None, None)
    names = {"id": read("id", _name, ""), "split": read("split", _split, "")}
    return UserCaption(line, video, text, *times, **names, duration=read("duration", _seconds, None))


def _words(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected words, got {value!r:.40}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in " ".join(value.split())):
        raise ValueError(f"control characters in {value[:40]!r}")
    return value.strip()


def _name(value: Any) -> str:
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return "" if value is None else str(value).strip()
    raise ValueError(f"expected a name, got {value!r:.40}")


def _split(value: Any) -> str:
    if value in (None, "", *SPLITS):
        return value or ""
    raise ValueError(f"expected {', '.join(SPLITS)}, got {value!r:.40}")


def _seconds(value: Any) -> float | None:
    return None if value is None or (isinstance(value, str) and not value.strip()) else seconds(value)


def seconds(value: Any) -> float:
    """A time in seconds, which may be written as `m:ss` or `h:mm:ss`, with or without a fraction.

    Raises:
        ValueError: it is something else.

    Examples:
        >>> seconds(90), seconds("12:30"), seconds("1:02:03.5")
        (90.0, 750.0, 3723.5)
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    if isinstance(value, str) and (clock := _CLOCK.fullmatch(value.strip())):
        return 3600.0 * int(clock[1] or 0) + 60.0 * int(clock[2] or 0) + float(clock[3])
    raise ValueError(f"expected seconds from 0, such as 83.5 or 1:23.5, got {value!r:.40}")
