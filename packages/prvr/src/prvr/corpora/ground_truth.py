"""Ground truth that is added to an existing corpus: moments of its captions, and dense labels of its queries."""

import csv
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from prvr.corpora.annotations import Conversion, lengths, numbered_lines, read_json, read_text
from prvr.corpora.caption_corpus import source_videos
from prvr.data.atomic import write_file
from prvr.data.corpus import Corpus, open_texts
from prvr.data.layout import Caption, MomentTimes, moment_row, read_captions, read_own_ids
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

    A caption has the moment that an annotation file gives for the same sentence of the same video. Only letters
    and digits are compared, without case; `v_` before the id of a video is ignored.

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
        row = moment_row(split, caption, MomentTimes(start, end, durations[video]))
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
        files: JSON lines, or a JSON array, of objects with `query_id`, a caption id, and `gt_video_ids`, videos of
            the same split, by their ids in the corpus or in the table it comes from; optionally `levels`, the relevance
            of each from 0 (none) to 30. A query without a relevant video counts as one without a label.

    Raises:
        DataError: the corpus has no captions, or such labels already; a file is missing or of another form; it names
            queries or videos that are not there, or a query twice.

    Examples:
        >>> convert_labels("data/tvr", ["tvr_test_dense.json"])  # doctest: +SKIP
    """
    corpus, target, splits = _open(folder, "dense_labels")
    own = corpus.text_file("own_ids")
    captions_of = defaultdict[str, list[str]](list)
    for caption_id, own_id in (read_own_ids(own) if own.is_file() else {}).items():
        captions_of[own_id].append(caption_id)
    ids = {video: name for name, video, _ in source_videos(corpus)}
    labels, repeated = dict[str, dict[str, int]](), list[str]()
    for query, videos in (label for file in files for label in _labels(Path(file).expanduser())):
        for name in captions_of.get(query, [query]):
            repeated += [query] * (name in labels)
            labels[name] = {ids.get(video, video): level for video, level in videos.items()}
    labels = {query: videos for query, videos in labels.items() if videos}
    unknown = set(labels)
    misplaced = set[str]()
    labelled = defaultdict[str, list[Caption]](list)
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
    rows = [(query, dict(sorted(videos.items()))) for query, videos in labels.items()]
    _write_lines(
        target,
        (
            {"cap_id": query, "vids": [*videos]} | ({"levels": [*videos.values()]} if {*videos.values()} != {1} else {})
            for query, videos in rows
        ),
    )
    right = {split: sum(len(labels[c.id]) for c in lines) for split, lines in labelled.items()}
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
    write_file(target, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _names(files: Sequence[Path | str]) -> str:
    return ", ".join(map(str, files))


def _labels(path: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Query and right videos of each record of a file, with their levels."""
    if read_text(path).lstrip().startswith("["):
        rows: Iterable[tuple[str, Any]] = ((f"record {n}", row) for n, row in enumerate(read_json(path, list), 1))
    else:
        rows = _json_lines(path)
    for where, row in rows:
        match row:
            case {"query_id": str(query), "gt_video_ids": list(videos)} if all(isinstance(v, str) for v in videos):
                levels = row.get("levels", [1] * len(videos))
                if not isinstance(levels, list) or len(levels) != len(videos) or not {*levels} <= {*range(31)}:
                    raise DataError(
                        f"{path}, {where}: got levels {short(levels)}, expected one from 0 to 30 per video."
                    )
                yield query, {video: int(level) for video, level in zip(videos, levels, strict=True) if level}
            case _:
                raise DataError(
                    f"{path}, {where}: got {short(row)}, expected an object with query_id, a caption id, and "
                    "gt_video_ids, a list of video ids."
                )


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in numbered_lines(path):
        yield f"line {number}", parse_json(line, f"{path}, line {number}")


class _Annotation(NamedTuple):
    """A sentence of an annotation file and its moments; the text is None in a list of lengths."""

    video: str
    text: str | None
    times: list[Sequence[Any]]
    duration: Any


def _annotations(
    files: Sequence[Path],
) -> tuple[dict[tuple[str, str], set[tuple[float, ...]]], dict[str, float]]:
    """The different moments of each sentence of a video, and the length of each video."""
    moments = defaultdict[tuple[str, str], set[tuple[float, ...]]](set)
    durations = dict[str, float]()
    for path, where, row in ((file, *entry) for file in files for entry in _rows(file)):
        try:
            for video, text, times, duration in _parse(row):
                key = _video_key(video)
                if text is not None:
                    moments[key, _text_key(text)].update(tuple(sorted(map(float, pair))) for pair in times)
                if duration is not None:
                    durations[key] = max(float(duration), durations.get(key, 0.0))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}, {where}: got {short(row)}, expected {_FORMATS}.") from error
    without = sorted({video for video, _ in moments} - set(durations))
    if without:
        raise DataError(
            f"{len(without)} videos have moments and no length, among them {without[:3]}. Name the files that hold "
            "their lengths too: Charades_v1_train.csv and Charades_v1_test.csv for Charades-STA."
        )
    return moments, durations


def _rows(path: Path) -> Iterable[tuple[str, Any]]:
    """The rows of a file, and where each stands; the format follows from the content."""
    text = read_text(path).lstrip()
    if path.suffix.lower() == ".csv":
        return ((f"row {number}", row) for number, row in enumerate(csv.DictReader(StringIO(text, newline="")), 2))
    if not text.startswith("{"):
        return ((f"line {number}", line) for number, line in numbered_lines(path))
    try:
        videos = parse_json(text, str(path))
    except DataError:  # an object a line
        return _json_lines(path)
    if not all(isinstance(row, dict) for row in videos.values()):  # a single line
        return _json_lines(path)
    return ((f"video {short(video)}", (video, row)) for video, row in videos.items())


def _parse(row: Any) -> list[_Annotation]:
    """The sentences in a row of any of the formats."""
    match row:
        case str():
            places, text = row.split("##", 1)
            video, start, end = places.split()
            return [_Annotation(video, text, [(start, end)], None)]
        case {"id": str(video), "length": str(duration)}:
            return [_Annotation(video, None, [], duration)]
        case {"vid_name": str(video), "desc": str(text), "ts": times, "duration": duration}:
            return [_Annotation(video, text, [times], duration)]
        case {"vid": str(video), "query": str(text), "relevant_windows": list(windows), "duration": duration}:
            return [_Annotation(video, text, windows, duration)]
        case (str(video), {"sentences": list(texts), "timestamps": list(windows), "duration": duration}):
            return [_Annotation(video, str(text), [w], duration) for text, w in zip(texts, windows, strict=True)]
    raise ValueError("another format")


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
