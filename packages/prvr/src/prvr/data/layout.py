"""The public on-disk layout: readers of captions, moments, relevance sets and tags, and a writer of whole corpora."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, TypeVar

import h5py
import numpy as np

from prvr.data.atomic import new_folder
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_text, short

_T = TypeVar("_T")
_UNUSABLE = re.compile(r"[/\x00-\x20\x7f\ud800-\udfff]")  # in ids
_SURROGATE = re.compile(r"[\ud800-\udfff]")
Formats = Sequence[Literal["bigfile", "hdf5"]]


@dataclass(frozen=True, slots=True)
class Caption:
    """One query: its id, the video it was written for, and its words."""

    id: str
    video_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The part of a video that a caption speaks of, in seconds, and the length of the whole video.

    Start and end are NaN where only the length is known.
    """

    start: float
    end: float
    duration: float


def video_of(caption_id: str) -> str:
    """The video of a caption id ``VIDEOID#enc#K``: everything before the first ``#``.

    Examples:
        >>> video_of("s01e02#enc#4")
        's01e02'
    """
    return caption_id.split("#", 1)[0]


def read_captions(path: Path) -> tuple[Caption, ...]:
    """Captions of one split, in file order; a line is ``CAPTIONID TEXT``, split at the first space.

    Raises:
        DataError: no file, no caption, a caption without text, an id that is repeated, or no UTF-8.
    """
    captions: dict[str, Caption] = {}
    for number, line in _lines(path):
        caption_id, _, text = line.partition(" ")
        if not video_of(caption_id):
            raise DataError(f"{path}, line {number}: no video id before the first '#' in {line[:60]!r}.")
        if not text.strip():
            raise DataError(
                f"{path}, line {number}: caption {short(caption_id)} has no text. Write it or remove the line."
            )
        if caption_id in captions:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} is repeated.")
        captions[caption_id] = Caption(caption_id, video_of(caption_id), text)
    if not captions:
        raise DataError(f"{path}: holds no caption. A split needs at least one line 'VIDEOID#enc#K TEXT'.")
    return tuple(captions.values())


def read_moments(path: Path) -> dict[str, Moment]:
    """Moments by caption id from ``COL_moments.jsonl`` (cap_id, duration, ts = [start, end]).

    Where start and end are swapped, they are put in order. ``ts`` may be null: then only the length of the video is
    known.

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """

    def moment(row: dict[str, Any]) -> tuple[str, Moment]:
        start, end = (nan, nan) if row["ts"] is None else sorted(float(t) for t in row["ts"])
        return str(row["cap_id"]), Moment(start, end, float(row["duration"]))

    return _by_caption(path, moment, "cap_id, duration and ts = [start, end] in seconds")


def moment_row(split: str, caption: Caption, moment: Moment) -> dict[str, object]:
    """A line of ``COL_moments.jsonl``, as `read_moments` reads it."""
    times = None if isnan(moment.start) else [moment.start, moment.end]
    return {
        "split": split,
        "cap_id": caption.id,
        "vid": caption.video_id,
        "duration": moment.duration,
        "ts": times,
        "kind": "v",
    }


def read_relevance(path: Path) -> dict[str, frozenset[str]]:
    """Videos that match each caption, from ``COL_relevance.jsonl`` (cap_id, vids).

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """

    def videos(row: dict[str, Any]) -> tuple[str, frozenset[str]]:
        if not isinstance(row["cap_id"], str) or not isinstance(row["vids"], list):
            raise TypeError
        return row["cap_id"], frozenset(map(str, row["vids"]))

    return _by_caption(path, videos, "cap_id and vids = [video id, ...]")


def read_tags(path: Path) -> dict[str, frozenset[str]]:
    """Tags of each caption, from ``COL_tags.jsonl`` (cap_id, tags).

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """

    def tags(row: dict[str, Any]) -> tuple[str, frozenset[str]]:
        names = row["tags"]
        if not isinstance(row["cap_id"], str) or not isinstance(names, list) or not all(name.strip() for name in names):
            raise TypeError
        return row["cap_id"], frozenset(names)

    return _by_caption(path, tags, "cap_id and tags = [text, ...]")


def _by_caption(path: Path, parse: Callable[[dict[str, Any]], tuple[str, _T]], expected: str) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for number, line in _lines(path):
        row = parse_json(line, f"{path}, line {number}")
        try:
            caption_id, value = parse(row)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: expected {expected}, got {short(row)}.") from error
        if caption_id in found:
            raise DataError(f"{path}, line {number}: caption id {short(caption_id)} is repeated.")
        found[caption_id] = value
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the data root and the name of the collection.")
    # not splitlines: a caption may hold U+2028, U+0085 and the like
    for number, line in enumerate(read_text(path, LARGE).split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, line


@dataclass(frozen=True)
class TextData:
    """The text side of a corpus, as its folder `TextData` holds it.

    Args:
        captions: captions of each split, in file order.
        moments: by caption id; None: no such file is written. The same holds for the other two.
        relevance: by caption id, all videos that match it.
        tags: by caption id, the kinds of query that it belongs to.
    """

    captions: Mapping[str, Sequence[Caption]]
    moments: Mapping[str, Moment] | None = None
    relevance: Mapping[str, Iterable[str]] | None = None
    tags: Mapping[str, Iterable[str]] | None = None


def write_layout(
    folder: Path | str,
    texts: TextData,
    *,
    videos: Iterable[tuple[str, np.ndarray]],
    queries: Iterable[tuple[str, np.ndarray]],
    feature: str = "frames",
    formats: Formats = ("bigfile",),
    about: Mapping[str, object] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> Path:
    """Writes a corpus, whole or not at all; videos and queries are streamed.

    Args:
        folder: ``ROOT/COLLECTION``, new or empty; its name is the name of the collection.
        texts: captions, and what is known of them.
        videos: (video id, (n f) features), each once; float32, or float64 in HDF5 (BigFile is always float32).
        queries: (caption id, (w e) features).
        feature: name of the folder of frame features.
        formats: ``bigfile``, ``hdf5`` or both.
        about: the content of ``corpus.json``; read once videos and queries are written.
        extras: called with the folder before it is published, to put further files into it.

    Returns:
        the folder.

    Raises:
        DataError: the folder is not empty, ids repeat, are unknown or cannot be written, widths differ, or the disk is
            full.
    """
    target = Path(folder).expanduser()
    with new_folder(target) as folder:
        frames = folder / "FeatureData" / feature
        frames.mkdir(parents=True)
        (folder / "TextData").mkdir()
        _write_texts(folder / "TextData", target.name, texts)
        with h5py.File(folder / "TextData" / f"roberta_{target.name}_query_feat.hdf5", "w") as file:
            for caption_id, words in queries:
                _check_ids("caption", [caption_id])
                if caption_id in file:
                    raise DataError(f"caption {short(caption_id)} was given twice. Ids must be unique.")
                file.create_dataset(caption_id, data=np.asarray(words, np.float32))
        _write_videos(frames, videos, formats)
        (folder / "corpus.json").write_text(json.dumps(dict(about or {}), indent=1), encoding="utf-8", newline="\n")
        if extras is not None:
            extras(folder)
    return target


def _write_texts(folder: Path, collection: str, texts: TextData) -> None:
    known = {caption.id: caption for lines in texts.captions.values() for caption in lines}  # in order
    _check_ids("caption", known)
    for split, lines in texts.captions.items():
        for caption in lines:
            _check_caption(caption)
        _write_lines(folder / f"{collection}{split}.caption.txt", [f"{c.id} {c.text}" for c in lines])
    by_caption = {"moments": texts.moments, "relevance": texts.relevance, "tags": texts.tags}
    for what, given in by_caption.items():
        lost = [i for i in given or () if i not in known]
        if lost:
            raise DataError(f"{what}: {len(lost)} caption ids are in no split, among them {lost[:3]}. Take them out.")
    rows = {
        "moments": [
            moment_row(split, caption, texts.moments[caption.id])
            for split, lines in texts.captions.items()
            for caption in lines
            if texts.moments is not None and caption.id in texts.moments
        ],
        "relevance": [{"cap_id": i, "vids": sorted(vids)} for i, vids in (texts.relevance or {}).items()],
        "tags": [{"cap_id": i, "tags": sorted(names)} for i, names in (texts.tags or {}).items()],
    }
    for what, given in by_caption.items():
        if given is not None:
            _write_lines(folder / f"{collection}_{what}.jsonl", map(json.dumps, rows[what]))


def _check_ids(what: str, ids: Iterable[str]) -> None:
    """Refuses ids that the files of a corpus cannot hold: HDF5 takes `/` for a group, lists are split at spaces."""
    bad = [name for name in ids if name in ("", ".", "..") or _UNUSABLE.search(name)]
    if bad:
        raise DataError(
            f"{len(bad)} {what} ids cannot be written, among them {short(bad[:3], 200)}. Expected ids without '/', "
            "white space, control characters and halves of surrogate pairs, other than '.' and '..'. Rename them."
        )


def _check_caption(caption: Caption) -> None:
    text = caption.text
    if video_of(caption.id) != caption.video_id or not text.strip() or "\n" in text:
        raise DataError(
            f"caption {short(caption.id)}, {short(text)}: expected an id 'VIDEO#enc#K' and one line of text."
        )
    if _SURROGATE.search(text):
        raise DataError(f"caption {short(caption.id)}: {short(text)} is no text that UTF-8 can hold. Mend it.")


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def _write_videos(folder: Path, videos: Iterable[tuple[str, np.ndarray]], formats: Formats) -> None:
    frames: dict[str, list[str]] = {}
    rows, dim = 0, None
    with ExitStack() as files:
        hdf5 = files.enter_context(h5py.File(folder / "feature.hdf5", "w")) if "hdf5" in formats else None
        binary = files.enter_context((folder / "feature.bin").open("wb")) if "bigfile" in formats else None
        for video_id, x in videos:
            _check_ids("video", [video_id])
            if video_id in frames:
                raise DataError(f"video {short(video_id)} was given twice. Ids must be unique.")
            if x.ndim != 2 or (dim is not None and x.shape[1] != dim):
                raise DataError(f"video {short(video_id)} {x.shape}: expected (frames, {dim or 'f'}).")
            dim, rows = x.shape[1], rows + len(x)
            frames[video_id] = [f"{video_id}_{i}" for i in range(len(x))]
            if hdf5 is not None:
                hdf5.create_dataset(video_id, data=x)
            if binary is not None:
                binary.write(np.ascontiguousarray(x, "<f4").tobytes())
    if binary is not None:
        names = " ".join(name for group in frames.values() for name in group)
        # ISO-8859-1 by convention; a name that it cannot hold is written as UTF-8, which the reader tries first
        (folder / "id.txt").write_bytes(names.encode("utf-8"))
        (folder / "shape.txt").write_text(f"{rows} {dim or 0}\n", encoding="ascii", newline="\n")
        (folder / "video2frames.txt").write_text(repr(frames), encoding="utf-8", newline="\n")
