"""Files of vectors: each holds those of some videos as safetensors, about a megabyte, and proves itself.

Each video is known by the hash of its features, so vectors of other features are never taken for its own. All of them
can be computed again: what does not prove itself is deleted.
"""

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from prvr.errors import DataError
from prvr_search.store.proof import HEAD, Stamp, read_proven, stamp_of, write_cached, write_proven

logger = logging.getLogger(__name__)

SUFFIX, CATALOGUE = ".vectors", "catalogue"
"""Files of vectors end in the one; the other is the file of the stamps with which they were compared."""
_VIDEOS, _WINDOWS = ".videos", ".windows"  # of a file: the hashes of its videos, and how many windows each has
_FULL = 2**20  # bytes of vectors after which a file is complete
_MOST = 8  # files of less than half of that; more are joined
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


def windows_of(arrays: Arrays, first: int, stop: int) -> Arrays:
    """The vectors of some windows."""
    parts = {}
    for name, array in arrays.items():
        counts = arrays.get(f"{name.removesuffix('.lengths')}.counts", np.ones(stop, int))
        parts[name] = array[counts[:first].sum() : counts[:stop].sum()]
    return parts


def write_vectors(folder: Path, vectors: Iterable[tuple[str, Arrays]]) -> set[Path]:
    """Writes vectors, each with the hash of the features of its video; gives the files, which are named by these.

    Raises:
        OSError: they cannot be written.
    """
    written, videos, size = set[Path](), dict[str, Arrays](), 0

    def write() -> None:
        names = next(iter(videos.values()))
        arrays = {name: np.concatenate([each[name] for each in videos.values()]) for name in names}
        arrays[_VIDEOS] = np.frombuffer(bytes.fromhex("".join(videos)), np.uint8).reshape(-1, 32)
        arrays[_WINDOWS] = np.array([len(each["steps"]) for each in videos.values()])
        path = folder / f"{hashlib.sha256(arrays[_VIDEOS].tobytes()).hexdigest()}{SUFFIX}"
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
    try:
        known = json.loads(bytes(read_proven(folder / CATALOGUE)[0]))
    except (DataError, OSError, ValueError):
        known = {}
    files = dict[str, VectorFile]()
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            stamp, *about = known.get(path.name, [None])
            if stamp != [*(now := stamp_of(path.lstat()))]:
                arrays = load(bytes(read_proven(path)[0]))
                about[:] = [bytes(video).hex() for video in arrays[_VIDEOS]], arrays[_WINDOWS].tolist()
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
    vectors = {video: (file, place) for file in small for place, video in enumerate(file.videos)}
    with suppress(VectorsChanged):  # another process joins them
        written = write_vectors(folder, ((video, file.of(place)) for video, (file, place) in sorted(vectors.items())))
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
