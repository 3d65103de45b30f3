"""MSR-VTT, the 1k-A split: 1,000 test videos with one caption each, the other 9,000 (or 7,010) to train on."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from prvr.data.benchmarks.annotations import Annotations, captioned, find_file, read_json, read_text
from prvr.errors import DataError
from prvr.reading import short

__all__ = ["read_msrvtt", "read_msrvtt_7k"]


def read_msrvtt(folder: Path) -> Annotations:
    """Reads `MSRVTT_data.json`, `MSRVTT_train.9k.csv` and `MSRVTT_JSFUSION_test.csv`.

    Training videos have all their captions (20), test videos the one of the CSV file: their others, which the JSON file
    holds too, are not used.

    Raises:
        DataError: a file is missing or of another form.
    """
    return _read(folder, "MSRVTT_train.9k.csv")


def read_msrvtt_7k(folder: Path) -> Annotations:
    """As `read_msrvtt`, with the smaller training list `MSRVTT_train.7k.csv`."""
    return _read(folder, "MSRVTT_train.7k.csv")


def _read(folder: Path, train: str) -> Annotations:
    by_video: dict[str, list[str]] = defaultdict(list)
    path = find_file(folder, "MSRVTT_data.json")
    try:
        for entry in read_json(path, dict)["sentences"]:
            by_video[str(entry["video_id"])].append(str(entry["caption"]))
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: expected 'sentences', each with video_id and caption ({error!r}).") from error
    train_ids = [row["video_id"] for row in _rows(find_file(folder, train), "video_id")]
    test: dict[str, list[str]] = defaultdict(list)
    for row in _rows(find_file(folder, "MSRVTT_JSFUSION_test.csv"), "video_id", "sentence"):
        test[row["video_id"]].append(row["sentence"])
    return captioned(folder, {"train": (train_ids, by_video), "test": (test, test)})


def _rows(path: Path, *columns: str) -> Sequence[Mapping[str, str]]:
    reader = csv.DictReader(StringIO(read_text(path), newline=""))
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path}: not readable as CSV ({error}). Download it again.") from error
    if missing:
        raise DataError(f"{path}: no column {missing[0]!r} in its first line, which names {short(reader.fieldnames)}.")
    bad = next((number for number, row in enumerate(rows, 2) if any(not row[name] for name in columns)), None)
    if bad is not None:
        raise DataError(f"{path}: row {bad} has no {' or no '.join(columns)}. Truncated? Download it again.")
    return rows
