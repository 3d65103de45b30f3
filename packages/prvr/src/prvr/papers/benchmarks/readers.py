"""Readers of the annotation files of MSR-VTT, MSVD, LSMDC, DiDeMo and ActivityNet Captions, as CLIP4Clip uses them, and
of YouCook2 and UCA, whose sentences have moments in long videos.

A new benchmark is a reader here and its line at the end.
"""

import csv
import pickle
import pickletools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from prvr.corpora.annotations import numbered_lines, read_json, read_text
from prvr.data.layout import MomentTimes
from prvr.errors import DataError
from prvr.papers.benchmarks.definition import (
    BENCHMARKS,
    AnnotatedSentence,
    AnnotatedSplit,
    Benchmark,
    find_file,
    read_list,
)
from prvr.reading import SMALL, read_bytes, short

_LSMDC_COLUMNS = ("clip id", "start aligned", "end aligned", "start extracted", "end extracted", "sentence")


def read_msrvtt(folder: Path, train: str = "MSRVTT_train.9k.csv") -> Iterator[AnnotatedSplit]:
    """Reads MSR-VTT, the 1k-A split: `MSRVTT_data.json`, the training list and `MSRVTT_JSFUSION_test.csv`.

    Training videos have all their captions (20), test videos the one in the CSV file; their other captions in the JSON
    file are not used.

    Raises:
        DataError: a file is missing or of another form.
    """
    path = find_file(folder, "MSRVTT_data.json")
    with _content(path, dict, "'sentences', each with video_id and caption") as content:
        sentences = [AnnotatedSentence(entry["video_id"], entry["caption"]) for entry in content["sentences"]]
    yield AnnotatedSplit("train", sentences, [row["video_id"] for row in _rows(find_file(folder, train), "video_id")])
    rows = _rows(find_file(folder, "MSRVTT_JSFUSION_test.csv"), "video_id", "sentence")
    yield AnnotatedSplit("test", [AnnotatedSentence(row["video_id"], row["sentence"]) for row in rows])


@contextmanager
def _content(path: Path, kind: type, form: str) -> Iterator[Any]:
    """The content of a JSON file or a pickle; says what it has to look like where it cannot be used."""
    content = _read_pickle(path) if path.suffix.lower() == ".pkl" else read_json(path, kind)
    try:
        yield content
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected {form} ({error!r}).") from error


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


def read_lsmdc(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads LSMDC: `LSMDC16_annos_training.csv`, `LSMDC16_annos_val.csv`, `LSMDC16_challenge_1000_publictect.csv`.

    The files are called CSV, but their six columns are separated by tabs, without a header, and quotation marks have
    no meaning. A clip id on several lines is one video with several captions.

    Raises:
        DataError: a file is missing or of another form.
    """
    files = {
        "train": ("LSMDC16_annos_training.csv",),
        "val": ("LSMDC16_annos_val.csv",),
        # the public file is indeed called "publictect"
        "test": ("LSMDC16_challenge_1000_publictect.csv", "LSMDC16_challenge_1000_publictest.csv"),
    }
    for split, names in files.items():
        path, sentences = find_file(folder, *names), list[AnnotatedSentence]()
        for number, line in numbered_lines(path):
            fields = line.strip().split("\t")
            if len(fields) != len(_LSMDC_COLUMNS):
                raise DataError(
                    f"{path}, line {number}: {len(fields)} columns separated by tabs, expected "
                    f"{len(_LSMDC_COLUMNS)}: {', '.join(_LSMDC_COLUMNS)}."
                )
            sentences.append(AnnotatedSentence(fields[0].strip(), fields[-1]))
        yield AnnotatedSplit(split, sentences)


def read_didemo(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads DiDeMo: `train_data.json`, ..., and the lists `train_list.txt`, ..., for train, val and test.

    A file is an array of entries with `video` (a file name), `description` and the annotators' `times`, which are not
    used: the descriptions of a video are joined in file order.

    Raises:
        DataError: a file is missing or of another form.
    """
    for split in ("train", "val", "test"):
        with _content(find_file(folder, f"{split}_data.json"), list, "entries with video and description") as content:
            sentences = [AnnotatedSentence(entry["video"], entry["description"]) for entry in content]
        yield AnnotatedSplit(split, sentences, read_list(find_file(folder, f"{split}_list.txt")))


def read_activitynet(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads ActivityNet Captions: `train.json`, and `val_1.json` as the split "test", on which papers report.

    A file maps `v_ID` to `duration`, `timestamps` and `sentences`; all sentences of a video, joined, are its one query.
    An array `train_ids.json` or `val_ids.json` in the same folder lists the videos that take part, in order.

    Raises:
        DataError: a file is missing or of another form.
    """
    files = {"train": ("train.json", "train_ids.json"), "test": ("val_1.json", "val_ids.json")}
    for split, (captions, ids) in files.items():
        with _content(find_file(folder, captions), dict, "{v_ID: {sentences: [...]}}") as content:
            sentences = [
                AnnotatedSentence(video, text) for video, entry in content.items() for text in entry["sentences"]
            ]
        yield AnnotatedSplit(
            split, sentences, map(str, read_json(folder / ids, list) if (folder / ids).is_file() else content)
        )


def read_youcook2(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads YouCook2: `youcookii_annotations_trainval.json`; its validation videos as the split "test" (CaptAin).

    `database` maps a video to its `subset`, `duration` and `annotations`, each with `segment`, in seconds, and
    `sentence`. There are no sentences of the videos of its own test set.

    Raises:
        DataError: the file is missing or of another form.
    """
    splits: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    form = (
        "'database', of each video with subset (training or validation), duration and annotations, each with segment "
        "and sentence"
    )
    with _content(find_file(folder, "youcookii_annotations_trainval.json"), dict, form) as content:
        for video, entry in content["database"].items():
            splits[{"training": "train", "validation": "test"}[entry["subset"]]][video] = entry
        for split, videos in splits.items():
            sentences = [
                AnnotatedSentence(video, part["sentence"], _moment(part["segment"], entry["duration"]))
                for video, entry in videos.items()
                for part in entry["annotations"]
            ]
            yield AnnotatedSplit(split, sentences, videos)


def read_uca(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads UCA, sentences of UCF-Crime's surveillance videos: `UCFCrime_Train.json`, `_Val.json` and `_Test.json`.

    A file maps a video to `duration`, `timestamps` and `sentences`, in seconds.

    Raises:
        DataError: a file is missing or of another form.
    """
    for split in ("train", "val", "test"):
        form = "{VIDEO: {duration, timestamps: [[START, END], ...], sentences}}"
        with _content(find_file(folder, f"UCFCrime_{split}.json"), dict, form) as content:
            sentences = [
                AnnotatedSentence(video, text, _moment(times, entry["duration"]))
                for video, entry in content.items()
                for text, times in zip(entry["sentences"], entry["timestamps"], strict=True)
            ]
        yield AnnotatedSplit(split, sentences, content)


def _moment(times: Sequence[Any], duration: Any) -> MomentTimes:
    start, end = sorted(map(float, times))
    return MomentTimes(start, end, float(duration))


def read_msvd(folder: Path) -> Iterator[AnnotatedSplit]:
    """Reads MSVD: `raw-captions.pkl` and the lists `train_list.txt`, `val_list.txt` and `test_list.txt`.

    The captions are a dictionary from video to captions, each a list of words; `raw-captions.json` may hold the same.
    Of the pickle only lists, dictionaries and texts are read; one that asks for more is refused.

    Raises:
        DataError: a file is missing or of another form, or a listed video is not among the captions.
    """
    path = find_file(folder, "raw-captions.pkl", "raw-captions.json", "raw_captions.pkl", "raw_captions.json")
    with _content(path, dict, "{video: [[word, ...], ...]}") as content:
        sentences, letters = list[AnnotatedSentence](), 0
        for video, captions in content.items():
            lines = [_words(caption) for caption in captions]
            letters += sum(1 + sum(1 + len(word) for word in words) for words in lines)
            if letters > SMALL:  # lists that are shared may stand for more than memory holds
                raise TypeError(f"more than {SMALL} letters")
            sentences += [AnnotatedSentence(video, " ".join(words)) for words in lines]
    videos = set(map(str, content))
    for split in ("train", "val", "test"):
        ids = read_list(find_file(folder, f"{split}_list.txt"))
        if lost := [video for video in ids if video not in videos]:
            raise DataError(
                f"{path}: nothing about {len(lost)} videos of {split}_list.txt, among them {short(lost[:3])}."
            )
        yield AnnotatedSplit(split, sentences, ids)


def _words(caption: object) -> list[str]:
    if isinstance(caption, str):
        return [caption]
    if isinstance(caption, list) and all(isinstance(word, str) for word in caption):
        return caption
    raise TypeError(f"a caption is of type {type(caption).__name__}")


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, texts and numbers; without classes and functions, a pickle can call nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}; captions are plain lists and texts")


def _read_pickle(path: Path) -> Any:
    content = read_bytes(path)
    try:
        for operation, argument, _ in pickletools.genops(content):
            # Room is made for as many objects as the largest number, and the hash of tuples in tuples has no limit:
            # either would end the process.
            if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                raise ValueError("it numbers more objects than it holds")
            if "TUPLE" in operation.name:
                raise ValueError("it has tuples, as calls of functions have; captions are plain lists and texts")
        return _PlainUnpickler(BytesIO(content), encoding="utf-8").load()
    except Exception as error:  # a damaged pickle fails in many ways
        raise DataError(f"{path}: not a pickle of plain captions ({error}). Download it again.") from error


for name, title, benchmark in (
    ("msrvtt", "MSR-VTT 1k-A, 9k training videos", Benchmark(read_msrvtt, 32, "diffusionret-msrvtt")),
    (
        "msrvtt-7k",
        "MSR-VTT 1k-A, 7k training videos",
        Benchmark(partial(read_msrvtt, train="MSRVTT_train.7k.csv"), 32, "diffusionret-msrvtt"),
    ),
    ("lsmdc", "LSMDC", Benchmark(read_lsmdc, 32, "diffusionret-lsmdc")),
    ("didemo", "DiDeMo, paragraphs", Benchmark(read_didemo, 64, "diffusionret-didemo", paragraphs=True)),
    (
        "activitynet-paragraphs",
        "ActivityNet, paragraphs",
        Benchmark(read_activitynet, 64, "diffusionret-activitynet", paragraphs=True),
    ),
    ("msvd", "MSVD", Benchmark(read_msvd, 32, "diffusionret-msvd")),
    ("youcook2", "YouCook2, a query per sentence", Benchmark(read_youcook2, 30, "hybrid-clip", untrimmed=True)),
    (
        "uca",
        "UCA, surveillance videos, a query per sentence",
        Benchmark(read_uca, 30, "hybrid-clip", untrimmed=True),
    ),
):
    BENCHMARKS.register(name, benchmark, title)
