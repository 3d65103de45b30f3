"""Vectors of videos in files: one file for each video and model, and one that packs many of them for quick opening.

A file is named by its content, written whole and never changed: `SHA256.safetensors` by the hash of the video, and
`packs/HASH.safetensors` by the hash of its list of videos. All of them can be computed again.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from safetensors import SafetensorError, safe_open

from prvr.data.atomic import ABANDONED_AFTER, clear_half_written, replace_file
from prvr.encoders import VideoEntry
from prvr_search.vectors.model import RowSet, SearchModel

logger = logging.getLogger(__name__)

PACKS = "packs"
PACK_FROM = 64
"""So many videos are packed; of fewer, each file is opened."""
_MOST_PACKS = 8  # of a model; those that were used last are kept
_TYPES = {np.dtype("<f8"): "F64", np.dtype("<i8"): "I64", np.dtype("<f4"): "F32", np.dtype("<f2"): "F16"}
_END = b"complete"
_PACK = re.compile(r"[0-9a-f]{64}\.safetensors")


class Content(NamedTuple):
    """What the vectors of a video depend on beside the model: its hash, and its length as it was decoded."""

    sha256: str
    frames: int
    duration: float

    @staticmethod
    def of(entry: VideoEntry) -> "Content":
        """That of a video."""
        return Content(entry.sha256, entry.frames, entry.duration)


@dataclass(frozen=True, eq=False)
class VideoVectors:
    """The vectors of some videos, one video after the other: the content of a file.

    Args:
        videos: the videos, and how many windows each has; they lie together, in order of time.
        arrays: `times` `(w, 2)`, the start and the end of each window in seconds; `steps` `(w)`, see `WindowVectors`;
            for each set of rows `NAME` `(n, d)`, the rows of one window after those of another, `NAME.counts` `(w)`,
            how many are of each window, and where the set keeps lengths, `NAME.lengths` `(n)`.
        name: the hash of the list of videos, if it is a pack.
        replaced: names of packs that were deleted when this one was written.
    """

    videos: Mapping[Content, int]
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    name: str = ""
    replaced: tuple[str, ...] = ()

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.arrays["steps"])


def row_sets(model: SearchModel) -> dict[str, RowSet]:
    """The sets of rows that are stored for a model, by name."""
    return {"clips": RowSet(model.dim), "frames": RowSet(model.dim), **model.stored}


def read_vectors(path: Path, sets: Mapping[str, RowSet]) -> VideoVectors | None:
    """The content of a file, which is mapped; None where there is none, or, with a warning, a damaged one.

    Args:
        path: the file.
        sets: the sets of rows that it has to hold.
    """
    if not path.is_file():  # opening a pipe would wait
        return None
    vectors, problem = None, None
    try:
        with path.open("rb") as file:
            try:
                vectors = _mapped(path, sets)
            except (OSError, SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:
                problem = error
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return read_vectors(path, sets)  # another process replaced it between the header and the arrays
    except FileNotFoundError:  # another process deleted it
        return None
    except OSError as error:
        problem = error
    if problem is not None:
        logger.warning("rebuilding %s: %s", path, problem)
    return vectors


def _mapped(path: Path, sets: Mapping[str, RowSet]) -> VideoVectors:
    with safe_open(path, "pt") as file:
        about = file.metadata()
        videos = {Content(sha, frames, end): windows for sha, frames, end, windows in json.loads(about["videos"])}
        arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118, not a mapping
    if arrays.pop("end").tobytes() != _END:
        raise ValueError("its end was not written")
    if not _fit(videos, arrays, sets) or (not about["name"] and about["sum"] != _sum(arrays)):
        raise ValueError("its arrays do not fit each other, or have changed")
    return VideoVectors(videos, arrays, about["name"], tuple(json.loads(about["replaced"])))


def _fit(videos: Mapping[Content, int], arrays: Mapping[str, np.ndarray], sets: Mapping[str, RowSet]) -> bool:
    total = sum(videos.values())
    if arrays["times"].shape != (total, 2) or arrays["steps"].shape != (total,) or min(videos.values(), default=0) < 0:
        return False
    for name, kind in sets.items():
        rows, counts = arrays[name], arrays[f"{name}.counts"]
        lengths = arrays[f"{name}.lengths"] if kind.lengths else rows[:, 0]
        if counts.shape != (total,) or counts.min(initial=0) < 0 or len(lengths) != len(rows):
            return False
        if rows.dtype != np.float16 or rows.shape != (counts.sum(), kind.dim):
            return False
    return True


def _sum(arrays: Mapping[str, np.ndarray]) -> str:
    total = 0
    for name in sorted(arrays):
        total = crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data, total)
    return str(total)


def write_vectors(path: Path, parts: Sequence[Mapping[str, np.ndarray]], about: VideoVectors) -> None:
    """Writes arrays, those of one part after those of another, as a file of safetensors; none is contents in memory.

    It does not wait for the disk: there may be thousands of files, or gigabytes. What a power failure leaves of a file
    is known by its size, or by a last tensor of fixed bytes; the file of a video also has a checksum.

    Args:
        path: the file.
        parts: the arrays by name, the same names in each.
        about: what else the file says.
    """
    names = sorted(parts[0], key=lambda name: (-parts[0][name].itemsize, name))  # all are aligned
    videos = [[*video, windows] for video, windows in about.videos.items()]
    values = {"videos": json.dumps(videos), "name": about.name, "replaced": json.dumps(about.replaced)}
    if not about.name:
        values["sum"] = _sum(parts[0])
    header: dict[str, Any] = {"__metadata__": values}
    end = 0
    for name in names:
        first, size = parts[0][name], sum(part[name].nbytes for part in parts)
        shape = [sum(len(part[name]) for part in parts), *first.shape[1:]]
        header[name] = {"dtype": _TYPES[first.dtype], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header["end"] = {"dtype": "U8", "shape": [len(_END)], "data_offsets": [end, end + len(_END)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BufferedRandom) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for part in parts:
                file.write(np.ascontiguousarray(part[name]).reshape(-1).view(np.uint8).data)
        file.write(_END)

    replace_file(path, write, durable=False)


def video_file(folder: Path, video: Content) -> Path:
    """The file of a video."""
    return folder / f"{video.sha256}.safetensors"


def open_pack(folder: Path, videos: Collection[Content], sets: Mapping[str, RowSet]) -> VideoVectors | None:
    """The pack of some videos, or that which holds most of them; None where there is none."""
    exact = _pack_file(folder, pack_name(videos))
    if (pack := read_vectors(exact, sets)) is None:
        packs = {path: pack for path in _packs(folder) if (pack := read_vectors(path, sets))}
        exact, pack = max(packs.items(), key=lambda item: _shared(item[1], videos), default=(exact, None))
    if pack is None or not _shared(pack, videos):
        return None
    with suppress(OSError):
        os.utime(exact)
    return pack


def write_pack(folder: Path, parts: Iterable[VideoVectors], videos: Collection[Content]) -> Path:
    """Packs some videos; packs of nothing else, and those that were not used for long, are deleted.

    Args:
        folder: the folder of the model.
        parts: what holds the videos, and others perhaps.
        videos: the videos.

    Returns:
        The file.
    """
    path = _pack_file(folder, pack_name(videos))
    chosen: dict[Content, dict[str, np.ndarray]] = {}
    for part in parts:
        for video, arrays in _by_video(part):
            if video in videos:
                chosen.setdefault(video, arrays)
    windows = {video: len(chosen[video]["steps"]) for video in sorted(chosen)}  # the order of its name, and of copies
    path.parent.mkdir(exist_ok=True)
    others = [other for other in _packs(folder) if other != path]
    replaced: dict[str, None] = {}
    for number, other in enumerate(others, 1):
        with suppress(OSError, SafetensorError, ValueError, TypeError, KeyError), safe_open(other, "np") as file:
            about = file.metadata()
            contents = {Content(*video[:3]) for video in json.loads(about["videos"])}
            if number >= _MOST_PACKS or contents <= windows.keys():
                replaced |= dict.fromkeys([other.stem, *json.loads(about["replaced"])])
    write_vectors(path, [chosen[video] for video in windows], VideoVectors(windows, {}, path.stem, tuple(replaced)))
    for other in others:
        if other.stem in replaced:
            for file in path.parent.glob(f"{other.stem}.*"):  # what a backend made of it, too
                with suppress(OSError):  # another process reads it
                    file.unlink()
    clear_half_written(folder, PACKS, older_than=ABANDONED_AFTER)  # newer files may be those of another process
    return path


def delete_vectors(place: Path, shas: Collection[str]) -> None:
    """Deletes what is kept of some videos for any model: their files, and all packs, which are written again.

    Args:
        place: the folder of the folders of the models.
        shas: the videos, by sha256.
    """
    files = [path for sha256 in shas for path in place.glob(f"*/{sha256}.safetensors")]
    files += [path for path in place.glob(f"*/{PACKS}/*.*") if shas and _PACK.fullmatch(f"{path.stem}.safetensors")]
    for path in files:
        with suppress(OSError):
            path.unlink()


def pack_name(videos: Iterable[Content]) -> str:
    """The hash of a list of videos, in any order."""
    return hashlib.sha256(json.dumps(sorted(videos)).encode()).hexdigest()


def _pack_file(folder: Path, name: str) -> Path:
    return folder / PACKS / f"{name}.safetensors"


def _packs(folder: Path) -> list[Path]:
    """The packs of a model, those that were used last first."""
    times = {}
    for path in (folder / PACKS).glob("*.safetensors"):
        if _PACK.fullmatch(path.name):
            with suppress(OSError):
                times[path] = path.stat().st_mtime
    return sorted(times, key=lambda path: -times[path])


def _shared(pack: VideoVectors, videos: Collection[Content]) -> int:
    return sum(video in pack.videos for video in videos)


def _by_video(part: VideoVectors) -> Iterable[tuple[Content, dict[str, np.ndarray]]]:
    """The arrays of each video of a part."""
    edges = np.cumsum([0, *part.videos.values()])
    counts = {name: part.arrays.get(f"{name.removesuffix('.lengths')}.counts") for name in part.arrays}
    ends = {name: edges if of is None else np.append(0, np.cumsum(of))[edges] for name, of in counts.items()}
    for number, video in enumerate(part.videos):
        yield video, {name: rows[slice(*ends[name][number : number + 2])] for name, rows in part.arrays.items()}
