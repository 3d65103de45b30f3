"""Features of videos on disk: a header that all share, and one file per video that appears whole or not at all."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from prvr.data.atomic import LOCK, clear_half_written, owned, replace_file
from prvr.data.features import FeatureReader
from prvr.data.hashes import digest, read_signed, signed
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record
from prvr.video.encoders import Identity

FORMAT = 1
HEADER, FOLDER, SUFFIX = "store.json", "videos", ".safetensors"
TENSOR, META = "frames", "prvr"
_WIDEST = 2**32
_MEND = "Delete the store and extract again."


@dataclass(frozen=True)
class StoreHeader:
    """What all videos of a store have in common.

    Args:
        encoder: that made the features.
        rate: frames per second.
        dim: width of the features.
        joint_dim: how many of the first columns can be compared with sentences.
    """

    encoder: Identity
    rate: float
    dim: int
    joint_dim: int


@dataclass(frozen=True)
class VideoEntry:
    """What is known of a video besides its features, from the store to an index, its hits and their JSON.

    A field that is added needs a default, for older files lack it; unknown keys of newer files are ignored.

    Args:
        id: its name in the store.
        path: where the file was, absolute.
        size: the size of the file in bytes.
        mtime_ns: when the file was last changed, in ns since 1970.
        sha256: of the file.
        duration: in seconds.
        frames: number of rows; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        width, height: width and height of the picture, in pixels, before it is turned upright.
        codec: for example `h264`.
        warnings: what was wrong with the file.
        start_time: the time stamp of time 0 in the file, in seconds (see [VideoInfo][prvr.video.VideoInfo]).
    """

    id: str
    path: str
    size: int
    mtime_ns: int
    sha256: str
    duration: float
    frames: int
    width: int
    height: int
    codec: str
    warnings: tuple[str, ...] = ()
    start_time: float = 0.0


def entry_path(folder: Path, video_id: str) -> Path:
    """Where the features of a video lie: a name of its letters that any file system takes, and a hash that tells it.

    Examples:
        >>> entry_path(Path("store"), "Été/la mer.mp4").as_posix()
        'store/videos/t-la-mer-mp4-45c7caa00a869cd6.safetensors'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", video_id.lower())[-40:].strip("-")
    told = hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / FOLDER / f"{slug}-{told}{SUFFIX}"


def write_header(folder: Path, header: StoreHeader) -> None:
    """Writes the header of a new store."""
    text = signed({"format": FORMAT, "about": asdict(header)}) + "\n"
    replace_file(folder / HEADER, lambda file: file.write(text.encode()))


def read_header(folder: Path) -> StoreHeader:
    """The header of a store.

    Raises:
        DataError: there is none, it is damaged, or of another format.
    """
    path = folder / HEADER
    missing = f"{folder}: no store of video features, it has no {HEADER}. Make one: prvr extract."
    body = read_signed(path, range(FORMAT, FORMAT + 1), _MEND, missing)
    try:
        found = parse_record(StoreHeader, body.get("about"), str(path), file_names=True)
        check_header(found)
    except ValueError as error:
        raise DataError(f"{path}: cannot be used ({error}). {_MEND}") from error
    return found


def check_header(header: StoreHeader) -> None:
    """Refuses what no store says of itself.

    Raises:
        ValueError: what is wrong.
    """
    if not 0 < header.rate < math.inf or not 0 <= header.joint_dim <= header.dim < _WIDEST or not header.dim:
        raise ValueError(f"rate={header.rate}, dim={header.dim}, joint_dim={header.joint_dim}")


def check_entry(entry: VideoEntry, rate: float) -> None:
    """Refuses what is known of no video.

    Args:
        entry: the entry of the video.
        rate: rows per second.

    Raises:
        ValueError: what is wrong.
    """
    if not entry.id or min(entry.frames, entry.width, entry.height) < 1 or entry.size < 0:
        raise ValueError(
            f"id={entry.id!r}, frames={entry.frames}, width={entry.width}, height={entry.height}, size={entry.size}"
        )
    # The middle of the time of each row is before the end, but for a single row (prvr.video.timestamps.resample).
    if not 0 < entry.duration < math.inf or (entry.frames > 1 and entry.frames - 1 >= entry.duration * rate):
        raise ValueError(f"{entry.frames} rows at {rate:g} per second, duration {entry.duration:g} seconds")


def write_entry(folder: Path, header: StoreHeader, entry: VideoEntry, features: Float32[np.ndarray, "n f"]) -> None:
    """Writes the features of a video and what is known of it; what stood there stays until that is complete."""
    data = np.ascontiguousarray(features, "<f4")
    meta: dict[str, Any] = {"about": asdict(entry), "store": asdict(header), "features": _sha256(data)}
    meta["sha256"] = digest(meta)
    about = {"dtype": "F32", "shape": data.shape, "data_offsets": (0, data.nbytes)}
    head = json.dumps({"__metadata__": {META: json.dumps(meta, sort_keys=True)}, TENSOR: about}).encode()
    head += b" " * (-len(head) % 8)

    def write(file: BinaryIO) -> None:  # of safetensors; their own function holds the features three times more
        file.write(len(head).to_bytes(8, "little") + head)
        file.write(data.data)

    replace_file(entry_path(folder, entry.id), write)


def read_entry(path: Path, header: StoreHeader) -> VideoEntry:
    """What is known of a video, from the head of its file.

    Raises:
        DataError: the file is damaged, or of another store.
    """
    return _read_meta(path, header)[0]


def readable_entries(folder: Path, header: StoreHeader) -> Iterator[VideoEntry]:
    """What is known of each video of a store; damaged files are left out."""
    for path in (folder / FOLDER).glob(f"*{SUFFIX}"):
        with suppress(DataError):
            yield read_entry(path, header)


def forget_videos(folder: Path | str, keep: Collection[str]) -> tuple[str, ...]:
    """Deletes the features of all videos of a store but some.

    Only files that can be read as features of this store are deleted, never a link or a damaged file.

    Args:
        folder: the store.
        keep: ids of the videos that stay.

    Returns:
        the ids of the others, in order.

    Raises:
        DataError: there is no store, another process is writing it, or it cannot be written.
    """
    place = Path(folder).expanduser()
    header = read_header(place)
    with opened_for_writing(place, header):
        others = sorted(entry.id for entry in readable_entries(place, header) if entry.id not in keep)
        gone = tuple(video for video in others if not entry_path(place, video).is_symlink())
        for video in gone:
            entry_path(place, video).unlink(missing_ok=True)
    return gone


def read_features(path: Path, header: StoreHeader, check: bool = False) -> tuple[VideoEntry, np.ndarray]:
    """What is known of a video, and its features.

    Args:
        path: its file.
        header: the header of the store.
        check: whether to compute the hash of the features and compare.

    Raises:
        DataError: the file is damaged, or of another store.
    """
    entry, told = _read_meta(path, header)
    try:
        with safe_open(path, "np") as file:
            data = file.get_tensor(TENSOR)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    if check and _sha256(data) != told:
        raise _damaged(path, "its features do not match their hash")
    if check and not np.isfinite(data).all():
        raise _damaged(path, "NaN or infinity is among its features")
    return entry, data


def _read_meta(path: Path, header: StoreHeader) -> tuple[VideoEntry, str]:
    """What is known of a video, and the hash of its features."""
    if not path.is_file():  # opening a pipe would wait for somebody to write to it
        raise _damaged(path, "it is missing" if not path.exists() else "it is not a regular file")
    try:
        with safe_open(path, "np") as file:
            text = (file.metadata() or {}).get(META)
            rows = file.get_slice(TENSOR)
            shape, dtype = tuple(rows.get_shape()), rows.get_dtype()
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    try:
        meta = parse_json(text or "null", META)
        intact = isinstance(meta, dict) and meta.get("sha256") == digest(meta)
        if not intact:
            raise ValueError("its header does not match its hash")
        entry = parse_record(VideoEntry, meta.get("about"), "about", file_names=True)
        known = parse_record(StoreHeader, meta.get("store"), "store", file_names=True)
        told = parse_record(str, meta.get("features"), "features")
        if known != header:
            raise ValueError("it was made with another encoder or rate than its store")
        check_entry(entry, header.rate)
        place = entry_path(path.parent.parent, entry.id)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if place != path:
        raise _damaged(path, f"it is the file of {entry.id!r} under another name")
    if dtype != "F32" or shape != (entry.frames, header.dim):
        raise _damaged(path, f"{dtype} {shape}, expected F32 {(entry.frames, header.dim)}")
    return entry, told


class VideoStore(FeatureReader):
    """An open store of `prvr extract`. No file stays open, so processes may share it.

    Attributes:
        entries: what is known of each video, by id.
        encoder: that made the features.
        rate: frames per second.
        joint_dim: how many of the first columns can be compared with sentences of the same model.

    Args:
        folder: the store.

    Raises:
        DataError: the folder is no store, or one of its files is damaged; names it.

    Examples:
        >>> store = VideoStore("store")  # doctest: +SKIP
        >>> store.read(store.video_ids[0]).shape, store.duration(store.video_ids[0])  # doctest: +SKIP
        ((41, 512), 20.5)
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        self.header = read_header(self.folder)
        self.files = (self.folder / HEADER,)
        self.dim, self.joint_dim, self.rate = self.header.dim, self.header.joint_dim, self.header.rate
        self.encoder: Identity = self.header.encoder
        found = (read_entry(path, self.header) for path in (self.folder / FOLDER).glob(f"*{SUFFIX}"))
        self.entries: dict[str, VideoEntry] = {entry.id: entry for entry in sorted(found, key=lambda entry: entry.id)}
        self.video_ids = tuple(self.entries)

    def duration(self, video_id: str) -> float:
        """The duration of a video in seconds.

        Raises:
            KeyError: there is no such video.
        """
        return self.entries[video_id].duration

    def find(self, name: str) -> str:
        """The id of the video that a name stands for: the id, its last parts, or either without the suffix.

        Args:
            name: for example `day 1/beach.mp4`, `beach.mp4` or `beach`; only one video may fit.

        Raises:
            DataError: no video fits, or more than one.
        """
        fits = self.named(name)
        if len(fits) == 1:
            return fits[0]
        close = fits or get_close_matches(name, self._named, n=3)
        what = f"{len(fits)} videos fit" if fits else "no video fits"
        some = f", among them {', '.join(map(repr, close[:3]))}" if fits else f"; close: {', '.join(map(repr, close))}"
        raise DataError(
            f"{self.folder}: {what} {name!r}{some if close else ''}. Pass the id as it is in the store "
            f"({len(self.video_ids)} videos)."
        )

    def named(self, name: str) -> Sequence[str]:
        """The ids of all videos that a name may stand for, as `find` reads it; the id itself stands for no other."""
        return (name,) if name in self.entries else self._named.get(name, ())

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        """Every name that stands for a video, and all videos that it stands for."""
        found: dict[str, list[str]] = {}
        for video in self.video_ids:
            parts = PurePosixPath(video).parts
            ends = {PurePosixPath(*parts[i:]) for i in range(len(parts))}
            for name in {str(end) for end in ends} | {str(end.with_suffix("")) for end in ends}:
                found.setdefault(name, []).append(video)
        return found

    def verify(self) -> None:
        """Reads every file and compares the hashes.

        Raises:
            DataError: names every damaged file.
        """
        damaged: list[str] = []
        for video in self.video_ids:
            try:
                read_features(entry_path(self.folder, video), self.header, check=True)
            except DataError as error:
                damaged.append(str(error))
        if damaged:
            count = f"{len(damaged)} of {len(self.video_ids)} videos are damaged"
            raise DataError(f"{self.folder}: {count}. {' '.join(damaged)}")

    def __contains__(self, video_id: object) -> bool:
        return video_id in self.entries

    def _rows(self, video_id: str) -> np.ndarray:
        return read_features(entry_path(self.folder, video_id), self.header)[1]

    def close(self) -> None:
        """Does nothing: no file is open."""


@contextmanager
def opened_for_writing(folder: Path, header: StoreHeader) -> Iterator[Path]:
    """Makes a store, or opens one with the same header, and owns it; unfinished files of a killed process are removed.

    Raises:
        DataError: the store is of another encoder or rate, another process is writing it, the folder holds something
            else, or it cannot be written.
    """
    busy = f"{folder}: another process is writing this store. Wait until it has finished, or choose another store."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with owned(folder, busy):
            clear_half_written(folder, FOLDER)
            if (folder / HEADER).exists():
                _check_same(folder, header)
            else:
                _check_empty(folder)
                write_header(folder, header)
            (folder / FOLDER).mkdir(exist_ok=True)
            yield folder
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}). The finished videos are intact. Free disk space, fix "
            "its permissions or choose another folder, then run the command again."
        ) from error


def _check_same(folder: Path, header: StoreHeader) -> None:
    found = read_header(folder)
    if found != header:
        raise DataError(
            f"{folder}: was made with {found.encoder} at {found.rate:g} frames per second; expected {header.encoder} "
            f"at {header.rate:g}. Extract with the same settings, or choose another store."
        )


def _check_empty(folder: Path) -> None:
    others = [path.name for path in folder.iterdir() if path.name not in (LOCK, FOLDER)]
    if others or ((folder / FOLDER).exists() and any((folder / FOLDER).iterdir())):
        raise DataError(f"{folder}: contains other files ({(others or [FOLDER])[0]}). Choose a new or empty folder.")


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path}: damaged: {why}. Delete this file and run prvr extract again.")


def _sha256(data: np.ndarray) -> str:
    return hashlib.sha256(data.data).hexdigest()
