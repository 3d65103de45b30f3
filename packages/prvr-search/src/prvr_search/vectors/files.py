"""The vectors of videos by a model, which encodes them window by window, and the files that they are kept in.

Each file holds those of some videos as safetensors, about a megabyte, and proves itself.

Each video is known by the hash of its features, so vectors of other features are never taken for its own. All of them
can be computed again: what does not prove itself is deleted.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from prvr.data.hashes import digest
from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError, InputError
from prvr_search.store.features import Features, nameless
from prvr_search.store.proof import HEAD, Stamp, read_proven, stamp_of, write_cached, write_proven
from prvr_search.vectors.model import RowSet, SearchModel, Spans, scored_kinds, unit

logger = logging.getLogger(__name__)

SUFFIX, CATALOGUE = ".vectors", "catalogue"
"""Files of vectors end in the one; the other is the file of the stamps with which they were compared."""
# Of a file: the hashes of its videos, by its folder, so that it is that of no other model; the windows of each.
_VIDEOS, _WINDOWS = ".videos of ", ".windows"
_FULL = 2**20  # bytes of vectors after which a file is complete
_MOST = 8  # files of less than half of that; more are joined
_FORMAT = 8  # raise it when files change: those of another format are not read
Windows = tuple[Spans, Float64[np.ndarray, "w 2"]]
"""Of each window the first row and the one after its last, and the start and the end in seconds."""
Arrays = Mapping[str, np.ndarray]
"""The vectors of some videos, one after the other: `times` `(w, 2)`, the start and end of each window in seconds;
`steps` `(w)`, see `WindowVectors`; for each set of rows `NAME` `(n, d)`, the rows of one window after those of another,
`NAME.counts` `(w)`, how many are of each window, and where the set keeps lengths, `NAME.lengths` `(n)`."""


class VectorsChanged(DataError):
    """A file of vectors was changed or deleted since it was opened."""


class VectorFile(NamedTuple):
    """A file of vectors.

    Args:
        path: the file.
        stamp: its state when it was compared with its hash.
        videos: the hashes of the features of its videos, in order.
        windows: how many windows each has.
    """

    path: Path
    stamp: Stamp
    videos: Sequence[str]
    windows: Sequence[int]

    @property
    def starts(self) -> Int64[np.ndarray, " _"]:
        """The first window of each video, and the number of all windows."""
        return np.append(0, np.cumsum(self.windows))

    def read(self) -> Arrays:
        """The vectors of all its videos.

        Raises:
            VectorsChanged: it is not the file that was compared.
        """
        with suppress(OSError, SafetensorError):
            if stamp_of(self.path.lstat()) == self.stamp:  # opening a pipe would wait
                with self.path.open("rb") as file:
                    file.seek(HEAD)
                    arrays = load(file.read())
                if stamp_of(self.path.lstat()) == self.stamp:
                    return arrays
        raise VectorsChanged(f"{self.path}: was changed while it was open; its vectors are made again.")

    def of(self, place: int) -> Arrays:
        """The vectors of one of its videos; errors as of `read`."""
        return windows_of(self.read(), *self.starts[place : place + 2].tolist())


def places_of(files: Iterable[VectorFile]) -> dict[str, tuple[VectorFile, int]]:
    """The file of each video and its number in it, by the hash of its features; of several files the last."""
    return {video: (file, place) for file in files for place, video in enumerate(file.videos)}


def windows_of(arrays: Arrays, first: int, stop: int) -> Arrays:
    """The vectors of some windows."""
    parts = {}
    for name, array in arrays.items():
        counts = arrays.get(f"{name.removesuffix('.lengths')}.counts", np.ones(stop, int))
        parts[name] = array[counts[:first].sum() : counts[:stop].sum()]
    return parts


def _concatenated(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write_vectors(folder: Path, vectors: Iterable[tuple[str, Arrays]]) -> set[Path]:
    """Writes vectors, each with the hash of the features of its video; gives the files, which are named by these.

    Raises:
        OSError: they cannot be written.
    """
    written, videos, size = set[Path](), dict[str, Arrays](), 0

    def write() -> None:
        arrays = _concatenated([*videos.values()])
        arrays[_VIDEOS + folder.name] = np.frombuffer(bytes.fromhex("".join(videos)), np.uint8).reshape(-1, 32)
        arrays[_WINDOWS] = np.array([len(each["steps"]) for each in videos.values()])
        path = folder / f"{digest({folder.name: [*videos]})}{SUFFIX}"
        write_proven(path, [save(arrays)], durable=False)
        written.add(path)

    for video, arrays in vectors:
        videos[video] = arrays
        size += sum(array.nbytes for array in arrays.values())
        if size > _FULL:
            write()
            videos, size = {}, 0
    if videos:
        write()
    return written


def open_vectors(folder: Path) -> Sequence[VectorFile]:
    """All files of vectors of a model, small ones last, old ones first; those that do not prove themselves are deleted.

    A file whose stamp is that with which it was compared with its hash is not read.
    """
    known = {}
    with suppress(OSError, ValueError):
        known = json.loads(bytes(read_proven(folder / CATALOGUE)[0]))
    files = dict[str, VectorFile]()
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            stamp, *about = known.get(path.name, [None])
            if stamp != [*(now := stamp_of(path.lstat()))]:
                arrays = load(bytes(read_proven(path)[0]))
                about[:] = [bytes(video).hex() for video in arrays[_VIDEOS + folder.name]], arrays[_WINDOWS].tolist()
            files[path.name] = VectorFile(path, now, *about)
        except FileNotFoundError:  # another process has just joined it with others
            continue
        except (OSError, ValueError, SafetensorError, KeyError) as error:
            logger.warning("%s: made again (%s)", path, error)
            if not folder.is_symlink():  # who knows what lies there
                with suppress(OSError):
                    path.unlink()
    noted = {name: [[*file.stamp], *file[2:]] for name, file in files.items()}
    if noted != known:
        write_cached(folder / CATALOGUE, [json.dumps(noted).encode()])
    return sorted(files.values(), key=lambda file: (2 * file.stamp[1] < _FULL, file.stamp[2], file.path.name))


def join_vectors(folder: Path, files: Sequence[VectorFile]) -> Sequence[VectorFile]:
    """Joins files that are far from full where there are many; gives the files that there are now.

    Raises:
        OSError: they cannot be written.
    """
    small = [file for file in files if 2 * file.stamp[1] < _FULL]
    if len(small) <= _MOST:
        return files
    with suppress(VectorsChanged):  # another process joins them
        places = sorted(places_of(small).items())
        written = write_vectors(folder, ((video, file.of(place)) for video, (file, place) in places))
        for path in {file.path for file in small} - written:
            path.unlink(missing_ok=True)
    return open_vectors(folder)


def delete_vectors(place: Path, digests: Collection[str]) -> None:
    """Deletes the files that hold vectors of some videos, for any model; those of others in them are made again.

    Args:
        place: the folder of the folders of the models.
        digests: the hashes of the features of the videos.
    """
    for file in (file for folder in place.glob("*/") for file in open_vectors(folder)):
        if not {*digests}.isdisjoint(file.videos):
            with suppress(OSError):
                file.path.unlink()


def embed(
    model: SearchModel,
    cut: Callable[[int, float], Windows],
    entry: VideoEntry,
    features: Features,
) -> Arrays:
    """Encodes the windows of a video and packs their vectors.

    Args:
        model: the model of the index.
        cut: gives the windows of a number of rows and a duration, see `cut_windows`.
        entry: what is known of the video.
        features: `(n, f)` the features of the video.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows, times = cut(len(features), entry.duration)
    spans, encoded = model.encode_video(features, windows)
    if spans is not windows:  # the model has divided the video itself
        edges = np.append(spans[:, 0] * (entry.duration / len(features)), entry.duration)
        times = np.stack([edges[:-1], edges[1:]], 1)
    sets = {name: RowSet(model.dim) for name in scored_kinds(model)} | {**model.stored}
    parts = list[Arrays]()
    for vectors in encoded:
        part = {"steps": np.array([vectors.steps], np.int32)}
        rows = {"clips": vectors.clips, "frames": vectors.frames, **vectors.stored}
        for name, kind in sets.items():
            raw = rows[name]
            if not np.isfinite(raw).all():
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            part |= {name: unit(raw).astype("<f2"), f"{name}.counts": np.array([len(raw)], np.int32)}
            if kind.lengths:
                part[f"{name}.lengths"] = np.linalg.norm(raw, axis=1).astype(np.float32)
        parts.append(part)
    return {"times": times, **_concatenated(parts)}


def cut_windows(rows: int, duration: float, rate: float, window: float | None, stride: float | None) -> Windows:
    """The overlapping windows of a video; one, if it is not longer than a window. The last one ends where it does.

    Args:
        rows: number of rows of features, at least one; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        duration: the duration of the video, in seconds.
        rate: rows per second.
        window: the length of a window in seconds; None: the video is one window.
        stride: seconds from the start of one window to that of the next, at most `window`.

    Returns:
        See `Windows`.

    Examples:
        >>> spans, times = cut_windows(250, 250.4, 1.0, 120.0, 60.0)
        >>> spans.tolist()
        [[0, 120], [60, 180], [120, 240], [130, 250]]
        >>> times.tolist()
        [[0.0, 120.0], [60.0, 180.0], [120.0, 240.0], [130.0, 250.4]]
    """
    size = rows if window is None else max(1, round(window * rate))
    step = rows if stride is None else max(1, round(stride * rate))
    firsts = np.array([*range(0, rows - size, step), max(0, rows - size)], np.int64)
    spans = np.stack([firsts, np.minimum(firsts + size, rows)], 1)
    times = spans / rate
    times[-1, 1] = duration
    return spans, times


def index_key(model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None) -> str:
    """A hash of all that the vectors of an index depend on.

    Raises:
        ValueError: there would be gaps between windows, or their length is not positive.
    """
    if (window, stride) != (None, None) and not 0 < (stride or 0) <= (window or 0):
        raise InputError(f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both")
    values = nameless({"model": asdict(model.identity), "features": asdict(features)})
    return digest(values | {"format": _FORMAT, "window": window, "stride": stride})
