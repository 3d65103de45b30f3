"""The moments of a corpus' captions, from the annotation files of public benchmarks."""

import csv
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any

from prvr.corpora.annotations import read_json, read_lines, read_text
from prvr.data.atomic import write_file
from prvr.data.corpus import open_texts
from prvr.data.layout import Moment, moment_row, read_captions
from prvr.errors import DataError
from prvr.reading import parse_json, short

_FORMS = (
    "vid_name, desc, ts and duration (TVR), vid, query, relevant_windows and duration (lighthouse), duration, "
    "timestamps and sentences of a video (ActivityNet Captions), VIDEO START END##SENTENCE (Charades-STA), or id and "
    "length (CSV)"
)


@dataclass(frozen=True)
class Annotated:
    """A sentence of an annotation file and where its moment is; the text and the times are None in a list of lengths.

    Args:
        video: as the file names it.
        duration: of the video in seconds; None where the file does not say it.
    """

    video: str
    text: str | None
    times: tuple[tuple[float, float], ...]
    duration: float | None


@dataclass(frozen=True)
class MomentsReport:
    """What was found for the captions of a corpus, as numbers of captions in each split.

    Args:
        file: the file that was written.
        captions: all captions.
        ambiguous: captions whose video has the same sentence with several moments: only the length of the video is
            written.
        unmatched: captions whose video is annotated, but not with this sentence: the same.
        unknown: captions whose video is in no file: nothing is written.
    """

    file: Path
    captions: Mapping[str, int]
    ambiguous: Mapping[str, tuple[str, ...]]
    unmatched: Mapping[str, tuple[str, ...]]
    unknown: Mapping[str, tuple[str, ...]]


def convert_moments(folder: Path | str, files: Sequence[Path | str]) -> MomentsReport:
    """Writes the moments of a corpus' captions into `TextData/COLLECTION_moments.jsonl`.

    A caption has the moment that an annotation file gives for the same sentence of the same video. Letters and digits
    count, and neither case, punctuation nor white space; `v_` before the id of a video does not count either.

    Args:
        folder: `ROOT/COLLECTION`.
        files: the public annotation files of TVR, ActivityNet Captions or Charades-STA, of any splits. The text of
            Charades-STA has no lengths of videos: the CSV files of Charades go with it.

    Raises:
        DataError: the corpus has no captions, or moments already; a file is missing or of another form; no caption has
            a moment, or a video no length.

    Examples:
        >>> convert_moments("data/tvr", ["tvr_train_release.jsonl", "tvr_val_release.jsonl"])  # doctest: +SKIP
    """
    corpus = open_texts(folder)
    target = corpus.text_file("moments")
    if target.exists():
        raise DataError(f"{target}: exists already. Move it away to make it anew.")
    moments, durations = _annotations([Path(file).expanduser() for file in files])
    rows: dict[str, dict[str, Any]] = {}
    captions = {split: read_captions(corpus.caption_file(split)) for split in corpus.splits}
    problems = {what: defaultdict[str, list[str]](list) for what in ("ambiguous", "unmatched", "unknown")}
    for split, caption in ((split, caption) for split, some in captions.items() for caption in some):
        video = _video(caption.video_id)
        found = moments.get((video, _words(caption.text)), set())
        if video not in durations:
            problems["unknown"][split].append(caption.id)
            continue
        start, end = next(iter(found)) if len(found) == 1 else (nan, nan)
        if len(found) != 1:
            problems["ambiguous" if found else "unmatched"][split].append(caption.id)
        row = moment_row(split, caption, Moment(start, end, durations[video]))
        if rows.setdefault(caption.id, row)["ts"] != row["ts"]:  # splits may share captions: published ones do
            raise DataError(
                f"caption {short(caption.id)} is in two splits, with different sentences. Rename one of them."
            )
    if all(row["ts"] is None for row in rows.values()):
        total = sum(map(len, captions.values()))
        raise DataError(
            f"{corpus.folder}: none of its {total} captions has a moment in these files. Do they belong together?"
        )
    lines = "".join(f"{json.dumps(row)}\n" for row in rows.values())
    write_file(target, lambda file: file.write(lines.encode()))
    found = {what: {split: tuple(ids) for split, ids in some.items()} for what, some in problems.items()}
    return MomentsReport(target, {split: len(some) for split, some in captions.items()}, **found)


def _annotations(
    files: Sequence[Path],
) -> tuple[dict[tuple[str, str], set[tuple[float, float]]], dict[str, float]]:
    """The different moments of each sentence of a video, and the length of each video."""
    moments, durations = defaultdict[tuple[str, str], set[tuple[float, float]]](set), dict[str, float]()
    for file in files:
        for one in read_annotated(file):
            video = _video(one.video)
            if one.text is not None:
                moments[video, _words(one.text)].update(one.times)
            if one.duration is not None:
                durations[video] = max(one.duration, durations.get(video, 0.0))
    without = sorted({video for video, _ in moments} - set(durations))
    if without:
        raise DataError(
            f"{len(without)} videos have moments and no length, among them {without[:3]}. Name the files that hold "
            "their lengths too: Charades_v1_train.csv and Charades_v1_test.csv for Charades-STA."
        )
    return moments, durations


def read_annotated(path: Path) -> Iterator[Annotated]:
    """The sentences of an annotation file with their moments; its form follows from its content.

    Raises:
        DataError: no such file, or a line of another form.
    """
    for what, row, parse in _rows(path):
        try:
            found = parse(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, {what}: got {short(row)}, expected {_FORMS}.") from error
        yield from found


def _rows(path: Path) -> Iterator[tuple[str, Any, Callable[[Any], list[Annotated]]]]:
    """The rows of a file: where each stands, what it holds, and how it is read."""
    lines = [(f"line {number}", line) for number, line in enumerate(read_lines(path), 1)]
    if path.suffix.lower() == ".csv":
        table = csv.DictReader(StringIO(read_text(path), newline=""))
        yield from ((f"row {number}", row, _length) for number, row in enumerate(table, 2))
    elif not lines or not lines[0][1].lstrip().startswith("{"):
        yield from ((where, line, _sta_line) for where, line in lines)
    elif _is_record(lines[0][1]):
        yield from ((where, parse_json(line, f"{path}, {where}"), _record) for where, line in lines)
    else:
        yield from ((f"video {short(one[0])}", one, _paragraph) for one in read_json(path, dict).items())


def _is_record(line: str) -> bool:
    """Whether a line holds one record, and not the beginning or all of an object of all videos."""
    try:
        row = parse_json(line, "")
    except DataError:  # an object on several lines
        return False
    return not all(isinstance(value, dict) for value in row.values())


def _length(row: Mapping[str, str]) -> list[Annotated]:
    return [Annotated(row["id"], None, (), float(row["length"]))]


def _sta_line(line: str) -> list[Annotated]:
    places, text = line.split("##", 1)
    video, start, end = places.split()
    return [Annotated(video, text, (_times([start, end]),), None)]


def _record(row: Any) -> list[Annotated]:
    tvr = "vid_name" in row
    times = [row["ts"]] if tvr else row["relevant_windows"]
    video, text = (row["vid_name"], row["desc"]) if tvr else (row["vid"], row["query"])
    return [Annotated(_text(video), _text(text), tuple(map(_times, times)), float(row["duration"]))]


def _paragraph(one: tuple[str, Any]) -> list[Annotated]:
    video, row = one
    pairs = zip(row["sentences"], row["timestamps"], strict=True)
    return [Annotated(video, _text(text), (_times(times),), float(row["duration"])) for text, times in pairs]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _times(window: Sequence[Any]) -> tuple[float, float]:
    start, end = sorted(float(time) for time in window)
    return start, end


def _video(video: str) -> str:
    """A video's id as it is compared."""
    return video.removeprefix("v_")


def _words(text: str) -> str:
    """A sentence as it is compared: its letters and digits in lower case, with single spaces.

    Examples:
        >>> _words("  The man's on  STAGE.")
        'the man s on stage'
    """
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
