"""Features of videos on disk: a header that all share, and one file per video that appears whole or not at all."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from prvr.data.files import replace_file
from prvr.data.hashes import digest, read_signed
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record
from prvr.video.encoders import Identity

FORMAT = 1
HEADER, FOLDER, SUFFIX = "store.json", "videos", ".safetensors"
TENSOR, META = "frames", "prvr"


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
    """What a store knows of a video besides its features.

    Args:
        id: its name in the store.
        path: where the file was, absolute.
        size: of the file in bytes.
        mtime_ns: when the file was last changed, in ns since 1970.
        sha256: of the file.
        duration: in seconds.
        frames: number of rows; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        width, height: of the picture, in pixels, before it is turned upright.
        codec: for example `h264`.
        warnings: what was wrong with the file.
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


def entry_path(folder: Path, video_id: str) -> Path:
    """Where the features of a video lie: a name of its letters that any file system takes, and a hash that tells it.

    Example:
        >>> entry_path(Path("store"), "Été/la mer.mp4").as_posix()
        'store/videos/t-la-mer-mp4-45c7caa00a869cd6.safetensors'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", video_id.lower())[-40:].strip("-")
    told = hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / FOLDER / f"{slug}-{told}{SUFFIX}"


def write_header(folder: Path, header: StoreHeader) -> None:
    """Writes the header of a new store."""
    body: dict[str, Any] = {"format": FORMAT, "about": asdict(header)}
    body["sha256"] = digest(body)
    replace_file(folder / HEADER, lambda file: file.write((json.dumps(body, indent=1) + "\n").encode()))


def read_header(folder: Path) -> StoreHeader:
    """The header of a store.

    Raises:
        DataError: there is none, it is damaged, or of another format.
    """
    path = folder / HEADER
    try:
        body = read_signed(path, range(FORMAT, FORMAT + 1), _MEND)
    except FileNotFoundError:
        raise DataError(f"{folder}: no store of video features, it has no {HEADER}. Make one: prvr extract.") from None
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
        entry: of the video.
        rate: rows per second.

    Raises:
        ValueError: what is wrong.
    """
    if not entry.id or min(entry.frames, entry.width, entry.height) < 1 or entry.size < 0:
        raise ValueError(
            f"id={entry.id!r}, frames={entry.frames}, width={entry.width}, height={entry.height}, size={entry.size}"
        )
    # The middle of the time of each row is before the end, but for a single row (prvr.video.sampling.hold).
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


def read_features(path: Path, header: StoreHeader, check: bool = False) -> tuple[VideoEntry, np.ndarray]:
    """What is known of a video, and its features.

    Args:
        path: its file.
        header: of the store.
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
        raise _damaged(path, "it is missing" if not path.exists() else "it is a folder, a pipe or a device")
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
            raise ValueError("what it says of itself does not match its hash")
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


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path}: damaged: {why}. Delete this file and run prvr extract again.")


def _sha256(data: np.ndarray) -> str:
    return hashlib.sha256(data.data).hexdigest()


_WIDEST = 2**32
_MEND = "Delete the store and extract again."
