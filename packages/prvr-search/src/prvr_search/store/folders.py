"""What a library knows of the folders that were searched: the encoder of each, and where each video was seen.

This cannot be computed from anything else, so it lies in a file of its own for each folder.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from prvr.data.atomic import PATIENCE, locked
from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record
from prvr_search.films.listing import VideoPath, below, prefix_of
from prvr_search.store.features import check_spec, is_sha256
from prvr_search.store.proof import Stamp, read_proven, stamp_of, write_proven

logger = logging.getLogger(__name__)
FOLDERS = "folders"
Place = tuple[str, int, int, str, int, int, str]
"""Where a video was seen: path below the folder, size, mtime_ns, volume, inode, changed_ns, and its sha256."""


@dataclass(frozen=True)
class _Content:
    """The content of a file, as JSON."""

    folder: str
    encoder: FeatureSpec | None
    named: bool
    places: tuple[Place, ...]


class State(NamedTuple):
    """What tells that a file is the one that was seen."""

    path: str
    size: int
    mtime_ns: int

    @staticmethod
    def of(video: VideoPath) -> "State":
        """That of a file."""
        return State(video.file, video.size, video.mtime_ns)


@dataclass
class Folder:
    """What is known of a folder.

    Args:
        path: the folder, absolute.
        encoder: the features that it was last searched with; None before.
        named: whether the user named the encoder.
        places: the videos that were seen, and the sha256 of each, the latest last.
    """

    path: Path
    encoder: FeatureSpec | None
    named: bool
    places: dict[State, tuple[VideoPath, str]]


class Folders:
    """The folders of a library. Several processes may read and write.

    Args:
        home: gives the folder of the library.
        mends: whether a damaged file is put aside.
    """

    def __init__(self, home: Callable[[], Path], *, mends: bool = True) -> None:
        self._home, self._mends = home, mends
        self._read: dict[Path, tuple[Stamp, Folder]] = {}

    def all(self) -> list[Folder]:
        """What is known of each folder; a damaged file is put aside, with a warning."""
        folders = []
        for path in sorted((self._home() / FOLDERS).glob("*.json")):
            try:
                folder = self._one(path)
            except FileNotFoundError:  # another process has just put it aside
                continue
            except OSError as error:
                logger.warning("%s: cannot be read now (%s)", path, error)
                continue
            folders += [] if folder is None else [folder]
        return folders

    def note(self, path: Path, change: Callable[[Folder], object]) -> None:
        """Changes what is known of a folder, while no other process does.

        Raises:
            OSError: it cannot be written.
        """
        file = self.file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with suppress(OSError):  # a file system without locks
                stack.enter_context(locked(file.parent / ".lock", PATIENCE))
            try:
                folder = self._one(file)
            except FileNotFoundError:
                folder = None
            folder = folder or Folder(path, None, False, {})
            change(folder)
            cut = len(prefix_of(path))
            places = [(video.file[cut:], *video[2:], sha256) for video, sha256 in folder.places.values()]
            encoder = folder.encoder and asdict(folder.encoder)
            about = {"folder": str(path), "encoder": encoder, "named": folder.named, "places": places}
            write_proven(file, [json.dumps(about).encode()])
            self._read[file] = stamp_of(file.stat()), folder

    def file(self, path: Path) -> Path:
        """The file of a folder."""
        return self._home() / FOLDERS / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"

    def places(self, folder: Path) -> Mapping[State, tuple[VideoPath, str]]:
        """Where videos were seen below a folder, now or earlier, and the sha256 of each; the latest last."""
        others = [record for record in self.all() if below(folder, [record.path]) or below(record.path, [folder])]
        others.sort(key=lambda record: record.path == folder)
        if [record.path for record in others] == [folder]:
            return others[0].places
        prefix, found = prefix_of(folder), dict[State, tuple[VideoPath, str]]()
        for record in others:
            for state, (video, sha256) in record.places.items():
                if state.path.startswith(prefix):
                    found[state] = video._replace(id=state.path[len(prefix) :].replace(os.sep, "/")), sha256
        return found

    def stamp(self, video: VideoEntry) -> tuple[str, int, int, int, int] | None:
        """Volume and stamp of the file of a video as it was found before it was hashed; None if that is not known."""
        state = State(video.path, video.size, video.mtime_ns)
        for record in self.all():
            place, sha256 = record.places.get(state, (None, ""))
            if place is not None and sha256 == video.sha256:
                return place.volume, place.inode, place.size, place.mtime_ns, place.changed_ns
        return None

    def see(self, folder: Path, videos: Iterable[tuple[VideoPath, str]]) -> None:
        """Notes where videos are now, each with its sha256.

        Raises:
            OSError: it cannot be written.
        """

        def change(record: Folder) -> None:
            for video, sha256 in videos:
                record.places.pop(State.of(video), None)  # so that it is the last
                record.places[State.of(video)] = video, sha256

        self.note(folder, change)
        with suppress(OSError):  # there is none, or a folder stood in its place
            self.file(folder).with_suffix(".damaged").unlink()  # all that is there is known again

    def add(self, other: Folder) -> None:
        """Adds what another library knows of a folder and this one does not.

        Raises:
            OSError: it cannot be written.
        """

        def change(record: Folder) -> None:
            record.places = other.places | record.places
            if record.encoder is None:
                record.encoder, record.named = other.encoder, other.named

        self.note(other.path, change)

    def forget(self, states: Sequence[State]) -> None:
        """Forgets places, in all folders.

        Raises:
            OSError: it cannot be written.
        """
        for record in self.all():
            if gone := record.places.keys() & set(states):
                self.note(record.path, lambda record, gone=gone: [record.places.pop(state, None) for state in gone])

    def _one(self, path: Path) -> Folder | None:
        stamp = stamp_of(path.stat())
        if path not in self._read or self._read[path][0] != stamp:
            try:
                self._read[path] = stamp, self._parsed(path)
            except DataError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, IsADirectoryError):
                    raise error.__cause__ from error
                logger.warning("%s Videos that are seen again are recognised by their content.", error)
                if self._mends:
                    path.replace(path.with_suffix(".damaged"))
                self._read.pop(path, None)
                return None
        return self._read[path][1]

    def _parsed(self, file: Path) -> Folder:
        """The content of a file.

        Raises:
            DataError: it is damaged, or not as prvr writes it.
        """
        text = bytes(read_proven(file)[0]).decode("utf-8", "replace")
        try:
            about = parse_record(_Content, parse_json(text, str(file)), str(file), file_names=True)
            path = Path(about.folder)
            if about.encoder is not None:
                check_spec(about.encoder)
            if not path.is_absolute() or self.file(path) != file:
                raise ValueError("of another folder")
        except ValueError as error:
            raise DataError(f"{file}: not as prvr writes it ({error}).") from error
        return Folder(path, about.encoder, about.named, dict(_places(path, about.places)))


def _places(folder: Path, places: Sequence[Place]) -> Iterator[tuple[State, tuple[VideoPath, str]]]:
    """The places of a folder; what leads out of it is left out."""
    prefix = prefix_of(folder)
    for name, size, mtime_ns, volume, inode, changed_ns, sha256 in places:
        path = prefix + name
        if is_sha256(sha256) and os.path.normpath(path) == path and "\0" not in name:
            video = VideoPath(name.replace(os.sep, "/"), path, size, mtime_ns, volume, inode, changed_ns)
            yield State(path, size, mtime_ns), (video, sha256)
