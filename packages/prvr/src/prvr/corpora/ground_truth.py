"""Ground truth that is added to an existing corpus: moments of its captions, and dense labels of its queries."""

import csv
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any

from prvr.corpora.annotations import Conversion, lengths, read_json, read_lines, read_text
from prvr.data.atomic import write_file
from prvr.data.corpus import Corpus, open_texts
from prvr.data.layout import Caption, Moment, moment_row, read_captions
from prvr.errors import DataError
from prvr.reading import parse_json, short

_AMBIGUOUS, _UNMATCHED, _UNKNOWN = "several moments", "other sentence", "video in no file"
"""Why a caption has no moment. Of the first two kinds the length of the video is written, of the last one nothing."""
_FORMATS = (
    "vid_name, desc, ts and duration (TVR), vid, query, relevant_windows and duration (lighthouse), duration, "
    "timestamps and sentences of a video (ActivityNet Captions), VIDEO START END##SENTENCE (Charades-STA), or id and "
    "length (CSV)"
)


def convert_moments(folder: Path | str, files: Sequence[Path | str]) -> Conversion:
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
    corpus, target, captions = _open(folder, "moments")
    moments, durations = _annotations([Path(file).expanduser() for file in files])
    rows: dict[str, dict[str, Any]] = {}
    problems = {kind: defaultdict[str, list[str]](list) for kind in (_AMBIGUOUS, _UNMATCHED, _UNKNOWN)}
    for split, caption in ((split, caption) for split, lines in captions.items() for caption in lines):
        video = _video_key(caption.video_id)
        matches = moments.get((video, _text_key(caption.text)), set())
        if video not in durations:
            problems[_UNKNOWN][split].append(caption.id)
            continue
        start, end = next(iter(matches)) if len(matches) == 1 else (nan, nan)
        if len(matches) != 1:
            problems[_AMBIGUOUS if matches else _UNMATCHED][split].append(caption.id)
        row = moment_row(split, caption, Moment(start, end, durations[video]))
        if rows.setdefault(caption.id, row)["ts"] != row["ts"]:  # splits may share captions: published ones do
            raise DataError(f"caption {short(caption.id)} is in two splits, with different sentences. Rename one.")
    if all(row["ts"] is None for row in rows.values()):
        total = sum(map(len, captions.values()))
        raise DataError(f"{corpus.folder}: none of its {total} captions has a moment in {_names(files)}.")
    _write_lines(target, rows.values())
    totals = lengths(captions)
    counts = {kind: {split: len(by_split[split]) for split in totals} for kind, by_split in problems.items()}
    timed = {split: total - sum(numbers[split] for numbers in counts.values()) for split, total in totals.items()}
    ids = {kind: [name for names in by_split.values() for name in names] for kind, by_split in problems.items()}
    notes = [
        f"{kind}: {', '.join(names[:3])}" + f" and {len(names) - 3:,} more" * (len(names) > 3)
        for kind, names in ids.items()
        if names
    ]
    return Conversion(target, {"captions": totals, "with a moment": timed, **counts}, notes)


def convert_labels(folder: Path | str, files: Sequence[Path | str]) -> Conversion:
    """Writes dense labels, all right videos of each query, into `TextData/COLLECTION_dense_labels.jsonl`.

    Args:
        folder: `ROOT/COLLECTION`.
        files: JSON lines, or a JSON array, of objects with `query_id`, a caption id of the corpus, and `gt_video_ids`,
            videos of the same split. A query with an empty list counts as one without a label.

    Raises:
        DataError: the corpus has no captions, or such labels already; a file is missing or of another form; it names
            queries or videos that are not there, or a query twice.

    Examples:
        >>> convert_labels("data/tvr", ["tvr_test_dense.json"])  # doctest: +SKIP
    """
    _, target, splits = _open(folder, "dense_labels")
    labels, repeated = dict[str, tuple[str, ...]](), list[str]()
    for query, videos in (label for file in files for label in _labels(Path(file).expanduser())):
        repeated += [query] * (query in labels)
        labels[query] = videos
    labels = {query: videos for query, videos in labels.items() if videos}
    unknown, misplaced, labelled = set(labels), set[str](), defaultdict[str, list[Caption]](list)
    for split, captions in splits.items():
        gallery = {caption.video_id for caption in captions}
        unknown -= {caption.id for caption in captions}
        for caption in captions:
            if caption.id in labels:
                misplaced.update(set(labels[caption.id]) - gallery)
                labelled[split].append(caption)
    problems = {
        "query ids that are in no split": sorted(unknown),
        "video ids that are not in the split of their query": sorted(misplaced),
        "repeated query ids": repeated,
    }
    messages = [f"{kind}: {len(ids)}, among them {short(ids[:3], 200)}" for kind, ids in problems.items() if ids]
    if messages or not labels:
        raise DataError(f"{_names(files)}: {'; '.join(messages) or 'no label'}. Are these labels of {folder}?")
    _write_lines(target, ({"cap_id": query, "vids": sorted(set(videos))} for query, videos in labels.items()))
    right = {split: sum(len(set(labels[c.id])) for c in lines) for split, lines in labelled.items()}
    counts = {
        "queries": {split: len(splits[split]) for split in labelled},
        "labelled": lengths(labelled),
        "without their own video": {
            split: sum(c.video_id not in labels[c.id] for c in lines) for split, lines in labelled.items()
        },
        "right videos, on average": {split: round(right[split] / len(lines), 2) for split, lines in labelled.items()},
    }
    return Conversion(target, counts)


def _open(folder: Path | str, kind: str) -> tuple[Corpus, Path, dict[str, tuple[Caption, ...]]]:
    """A corpus, the file to be written into it, and its captions by split.

    Raises:
        DataError: there are no captions, or the file exists.
    """
    corpus = open_texts(folder)
    target = corpus.text_file(kind)
    if target.exists():
        raise DataError(f"{target}: already exists. Remove it to write it again.")
    return corpus, target, {split: read_captions(corpus.caption_file(split)) for split in corpus.splits}


def _write_lines(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    content = "".join(f"{json.dumps(row)}\n" for row in rows)
    write_file(target, lambda file: file.write(content.encode()))


def _names(files: Sequence[Path | str]) -> str:
    return ", ".join(map(str, files))


def _labels(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Query and right videos of each record of a file."""
    if read_text(path).lstrip().startswith("["):
        rows = ((f"record {number}", row) for number, row in enumerate(read_json(path, list), 1))
    else:
        rows = _json_lines(path)
    for where, row in rows:
        query, videos = (row.get(key) if isinstance(row, dict) else None for key in ("query_id", "gt_video_ids"))
        if not isinstance(query, str) or not isinstance(videos, list) or not all(isinstance(v, str) for v in videos):
            raise DataError(
                f"{path}, {where}: got {short(row)}, expected an object with query_id, a caption id, and gt_video_ids, "
                "a list of video ids."
            )
        yield query, tuple(videos)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(read_lines(path), 1):
        yield f"line {number}", parse_json(line, f"{path}, line {number}")


@dataclass(frozen=True)
class _Annotation:
    """A sentence of an annotation file and its moments; the text is None in a list of lengths."""

    video: str
    text: str | None
    times: tuple[tuple[float, float], ...]
    duration: float | None


def _annotations(
    files: Sequence[Path],
) -> tuple[dict[tuple[str, str], set[tuple[float, float]]], dict[str, float]]:
    """The different moments of each sentence of a video, and the length of each video."""
    moments, durations = defaultdict[tuple[str, str], set[tuple[float, float]]](set), dict[str, float]()
    for annotation in (annotation for file in files for annotation in _read_annotations(file)):
        video = _video_key(annotation.video)
        if annotation.text is not None:
            moments[video, _text_key(annotation.text)].update(annotation.times)
        if annotation.duration is not None:
            durations[video] = max(annotation.duration, durations.get(video, 0.0))
    without = sorted({video for video, _ in moments} - set(durations))
    if without:
        raise DataError(
            f"{len(without)} videos have moments and no length, among them {without[:3]}. Name the files that hold "
            "their lengths too: Charades_v1_train.csv and Charades_v1_test.csv for Charades-STA."
        )
    return moments, durations


def _read_annotations(path: Path) -> Iterator[_Annotation]:
    """The sentences of an annotation file with their moments; its format follows from its content."""
    for where, row, parse in _annotated_rows(path):
        try:
            annotations = parse(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, {where}: got {short(row)}, expected {_FORMATS}.") from error
        yield from annotations


def _annotated_rows(path: Path) -> Iterator[tuple[str, Any, Callable[[Any], list[_Annotation]]]]:
    """The rows of a file: where each stands, what it holds, and how it is read."""
    lines = read_lines(path)
    if path.suffix.lower() == ".csv":
        table = csv.DictReader(StringIO(read_text(path), newline=""))
        yield from ((f"row {number}", row, _length) for number, row in enumerate(table, 2))
    elif not lines or not lines[0].lstrip().startswith("{"):
        yield from ((f"line {number}", line, _sta_line) for number, line in enumerate(lines, 1))
    elif _is_record(lines[0]):
        yield from ((where, row, _record) for where, row in _json_lines(path))
    else:
        yield from ((f"video {short(entry[0])}", entry, _paragraph) for entry in read_json(path, dict).items())


def _is_record(line: str) -> bool:
    """Whether a line holds one record, and not the beginning or all of an object of all videos."""
    try:
        row = parse_json(line, "")
    except DataError:  # an object on several lines
        return False
    return not all(isinstance(value, dict) for value in row.values())


def _length(row: Mapping[str, str]) -> list[_Annotation]:
    return [_Annotation(row["id"], None, (), float(row["length"]))]


def _sta_line(line: str) -> list[_Annotation]:
    places, text = line.split("##", 1)
    video, start, end = places.split()
    return [_Annotation(video, text, (_times([start, end]),), None)]


def _record(row: Any) -> list[_Annotation]:
    tvr = "vid_name" in row
    times = [row["ts"]] if tvr else row["relevant_windows"]
    video, text = (row["vid_name"], row["desc"]) if tvr else (row["vid"], row["query"])
    return [_Annotation(_text(video), _text(text), tuple(map(_times, times)), float(row["duration"]))]


def _paragraph(entry: tuple[str, Any]) -> list[_Annotation]:
    video, row = entry
    pairs = zip(row["sentences"], row["timestamps"], strict=True)
    return [_Annotation(video, _text(text), (_times(times),), float(row["duration"])) for text, times in pairs]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _times(window: Sequence[Any]) -> tuple[float, float]:
    start, end = sorted(float(time) for time in window)
    return start, end


def _video_key(video: str) -> str:
    """A video's id as it is compared."""
    return video.removeprefix("v_")


def _text_key(text: str) -> str:
    """A sentence as it is compared: its letters and digits in lower case, with single spaces.

    Examples:
        >>> _text_key("  The man's on  STAGE.")
        'the man s on stage'
    """
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
