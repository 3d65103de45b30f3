"""The public on-disk layout: readers of captions, moments, relevance sets and tags, and a writer of whole corpora."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any, TypeVar

import h5py
import numpy as np
from pydantic import Field

from prvr.data.atomic import new_folder
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, parse_record, read_text, short

_UNUSABLE = re.compile(r"[/\x00-\x20\x7f\ud800-\udfff]")  # in ids
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Caption:
    """One query: its id, the video it was written for, and its words."""

    id: str
    video_id: str
    text: str


@dataclass(frozen=True, slots=True)
class MomentTimes:
    """The part of a video that a caption speaks of, in seconds, and the length of the whole video.

    Start and end are NaN where only the length is known. `more` holds start and end of its further parts.
    """

    start: float
    end: float
    duration: float
    more: tuple[tuple[float, float], ...] = ()


def video_of(caption_id: str) -> str:
    """The video of a caption id ``VIDEOID#enc#K``; of another id, what stands before its first ``#``.

    Examples:
        >>> video_of("s01e02#enc#4"), video_of("take #2#enc#0"), video_of("s01e02#4")
        ('s01e02', 'take #2', 's01e02')
    """
    video, marker, _ = caption_id.rpartition("#enc#")
    return video if marker else caption_id.split("#", 1)[0]


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


def read_moments(path: Path) -> dict[str, MomentTimes]:
    """Moments by caption id from ``COL_moments.jsonl`` (cap_id, duration, ts = [start, end]).

    Swapped starts and ends are put in order. ``ts`` may be null: then only the length of the video is known. ``more``
    lists further moments of the same caption, where it has some.

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """
    return {
        row.cap_id: MomentTimes(min(ts), max(ts), row.duration, tuple((min(times), max(times)) for times in row.more))
        for row in _records(path, _MomentRecord)
        for ts in [row.ts or (nan, nan)]
    }


def moment_row(split: str, caption: Caption, moment: MomentTimes) -> dict[str, object]:
    """A line of ``COL_moments.jsonl``, as `read_moments` reads it."""
    row: dict[str, object] = {"split": split, "cap_id": caption.id, "vid": caption.video_id}
    row |= {"duration": moment.duration, "ts": None if isnan(moment.start) else [moment.start, moment.end], "kind": "v"}
    return row | ({"more": moment.more} if moment.more else {})


def read_relevance(path: Path) -> dict[str, dict[str, int]]:
    """Videos that match each caption, and how well, from ``COL_relevance.jsonl`` (cap_id, vids, optionally levels).

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """
    relevance = {}
    for row in _records(path, _RelevanceRecord):
        levels = (1,) * len(row.vids) if row.levels is None else row.levels
        if len(levels) != len(row.vids):
            raise DataError(
                f"{path}: {row.cap_id}: {len(row.vids)} vids and {len(levels)} levels. Expected one for each."
            )
        relevance[row.cap_id] = dict(zip(row.vids, levels, strict=True))
    return relevance


def read_tags(path: Path) -> dict[str, frozenset[str]]:
    """Tags of each caption, from ``COL_tags.jsonl`` (cap_id, tags).

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """
    return {row.cap_id: frozenset(row.tags) for row in _records(path, _TagsRecord)}


def read_own_ids(path: Path) -> dict[str, str]:
    """The id that each caption has in the table it comes from, from ``COL_own_ids.jsonl`` (cap_id, id).

    Raises:
        DataError: a line is no such record, or a caption id is repeated.
    """
    return {row.cap_id: row.id for row in _records(path, _IdRecord)}


@dataclass(frozen=True, slots=True)
class _MomentRecord:
    cap_id: str
    duration: float
    ts: tuple[float, float] | None
    more: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _IdRecord:
    cap_id: str
    id: str


@dataclass(frozen=True, slots=True)
class _RelevanceRecord:
    cap_id: str
    vids: tuple[str, ...]
    levels: tuple[Annotated[int, Field(ge=1, le=30)], ...] | None = None


@dataclass(frozen=True, slots=True)
class _TagsRecord:
    cap_id: str
    tags: tuple[Annotated[str, Field(pattern=r"\S")], ...]


_Record = TypeVar("_Record", _MomentRecord, _IdRecord, _RelevanceRecord, _TagsRecord)


def _records(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    seen = set[str]()
    for number, line in _lines(path):
        source = f"{path}, line {number}"
        record = parse_record(kind, parse_json(line, source), source)
        if record.cap_id in seen:
            raise DataError(f"{source}: caption id {short(record.cap_id)} is repeated.")
        seen.add(record.cap_id)
        yield record


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
        moments: by caption id; None: no such file is written. The same holds for the other three.
        relevance: by caption id, all videos that match it.
        tags: by caption id, the kinds of query that it belongs to.
        own_ids: by caption id, the id that it has in the table it comes from.
    """

    captions: Mapping[str, Sequence[Caption]]
    moments: Mapping[str, MomentTimes] | None = None
    relevance: Mapping[str, Iterable[str]] | None = None
    tags: Mapping[str, Iterable[str]] | None = None
    own_ids: Mapping[str, str] | None = None


def write_layout(
    folder: Path | str,
    texts: TextData,
    *,
    videos: Iterable[tuple[str, np.ndarray]],
    queries: Iterable[tuple[str, np.ndarray]],
    feature: str = "frames",
    about: Mapping[str, object] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> Path:
    """Writes a corpus, whole or not at all; videos and queries are streamed.

    Args:
        folder: ``ROOT/COLLECTION``, new or empty; its name is the name of the collection.
        texts: captions, and what is known of them.
        videos: (video id, (n f) features), each once; float32 or float64.
        queries: (caption id, (w e) features).
        feature: name of the folder of frame features.
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
        words = ((name, np.asarray(rows, np.float32)) for name, rows in queries)
        _write_matrices(folder / "TextData" / f"roberta_{target.name}_query_feat.hdf5", "caption", words)
        _write_matrices(frames / "feature.hdf5", "video", videos)
        (folder / "corpus.json").write_text(json.dumps(dict(about or {}), indent=1), encoding="utf-8", newline="\n")
        if extras is not None:
            extras(folder)
    return target


def _write_texts(folder: Path, collection: str, texts: TextData) -> None:
    captions = {caption.id: (split, caption) for split, lines in texts.captions.items() for caption in lines}
    _check_ids("caption", captions)
    for split, lines in texts.captions.items():
        for caption in lines:
            _check_caption(caption)
        _write_lines(folder / f"{collection}{split}.caption.txt", [f"{c.id} {c.text}" for c in lines])
    rows: dict[str, tuple[Mapping[str, Any] | None, Callable[[str, Any], dict[str, object]]]] = {
        "moments": (texts.moments, lambda name, moment: moment_row(*captions[name], moment)),
        "relevance": (texts.relevance, lambda name, videos: {"cap_id": name, "vids": sorted(videos)}),
        "tags": (texts.tags, lambda name, tags: {"cap_id": name, "tags": sorted(tags)}),
        "own_ids": (texts.own_ids, lambda name, own_id: {"cap_id": name, "id": own_id}),
    }
    for kind, (values, row) in rows.items():
        unknown = [name for name in values or () if name not in captions]
        if unknown:
            raise DataError(
                f"{kind}: {len(unknown)} caption ids are in no split, among them {unknown[:3]}. Remove them."
            )
        if values is not None:
            _write_lines(folder / f"{collection}_{kind}.jsonl", (json.dumps(row(*item)) for item in values.items()))


def _check_ids(kind: str, ids: Iterable[str]) -> None:
    """Refuses ids that the files of a corpus cannot hold: HDF5 takes `/` for a group, lists are split at spaces."""
    bad = [name for name in ids if name in ("", ".", "..") or _UNUSABLE.search(name)]
    if bad:
        raise DataError(
            f"{len(bad)} {kind} ids cannot be written, among them {short(bad[:3], 200)}. Expected ids without '/', "
            "white space, control characters and halves of surrogate pairs, other than '.' and '..'. Rename them."
        )


def _check_caption(caption: Caption) -> None:
    text = caption.text
    if video_of(caption.id) != caption.video_id or not text.strip() or "\n" in text or _SURROGATE.search(text):
        raise DataError(
            f"caption {short(caption.id)}, {short(text)}: expected an id 'VIDEO#enc#K' and one line of text, in UTF-8."
        )


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def _write_matrices(path: Path, kind: str, items: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes an HDF5 file with one matrix (rows x features) for each id."""
    width: int | None = None
    with h5py.File(path, "w") as file:
        for name, rows in items:
            _check_ids(kind, [name])
            if name in file:
                raise DataError(f"{kind} {short(name)} is repeated. Ids must be unique.")
            if rows.ndim != 2 or rows.shape[1] != (width or rows.shape[1]):
                raise DataError(f"{kind} {short(name)}: got shape {rows.shape}, expected (rows, {width or 'width'}).")
            width = rows.shape[1]
            file.create_dataset(name, data=rows)
