"""What a library knows of the folders that were searched: the encoder of each, and where each video was seen.

This cannot be computed from anything else, so it lies in a file of its own for each folder.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from prvr.data.atomic import PATIENCE, locked
from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record
from prvr_search.films import VideoPath
from prvr_search.films.listing import prefix_of
from prvr_search.store.features import check_spec, is_sha256
from prvr_search.store.proof import FOLDERS, Stamp, put_aside, read_proven, stamp_of, write_proven

logger = logging.getLogger(__name__)
State = tuple[str, int, int]
"""See `VideoPath.state`."""


@dataclass(frozen=True)
class _Content:
    """The content of a file, as JSON: of each place the fields of `VideoPath`, but for the path below the folder."""

    folder: str
    encoder: FeatureSpec | None
    places: tuple[tuple[str, int, int, str, int, int, str], ...]


@dataclass
class Folder:
    """What is known of a folder.

    Args:
        path: the folder, absolute.
        encoder: the features that it was last searched with; None before.
        places: the videos that were seen, each with its sha256, the latest last.
    """

    path: Path
    encoder: FeatureSpec | None
    places: dict[State, VideoPath]


class Folders:
    """The folders of a library. Several processes may read and write.

    Args:
        home: gives the folder of the library.
        writable: explains why it cannot be written; None: another's library, in which nothing is changed.

    What changes something raises what `writable` makes of an `OSError`.
    """

    def __init__(self, home: Callable[[], Path], writable: Callable[[], AbstractContextManager[None]] | None) -> None:
        self._home, self._writable = home, writable
        self._read: dict[Path, tuple[Stamp, Folder]] = {}

    def all(self) -> list[Folder]:
        """What is known of each folder; a damaged file is put aside with a warning, and what was read before stays."""
        folders, place = list[Folder](), self._home() / FOLDERS
        read = {path for path in self._read if path.parent == place}
        for path in sorted(read.union(place.glob("[0-9a-f]" * 64 + ".json"))):
            try:
                folders += filter(None, [self._one(path)])
            except OSError as error:
                logger.warning("%s: cannot be read now (%s)", path, error)
        return folders

    @contextmanager
    def changing(self, path: Path) -> Iterator[Folder]:
        """What is known of a folder, to be changed inside the `with` statement, while no other process does."""
        file = self.file(path)
        with ExitStack() as stack:
            stack.enter_context((self._writable or nullcontext)())
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # a file system without locks
                stack.enter_context(locked(file.parent / ".lock", PATIENCE))
            yield (folder := self._one(file) or Folder(path, None, {}))
            cut = len(prefix_of(path))
            places = [(video.file[cut:], *video[2:]) for video in folder.places.values()]
            # Earlier versions read `named`.
            about = {"folder": str(path), "encoder": folder.encoder, "places": places, "named": False}
            write_proven(file, [json.dumps(about, default=vars).encode()])
            self._read[file] = stamp_of(file.stat()), folder

    def file(self, path: Path) -> Path:
        """The file of a folder."""
        return self._home() / FOLDERS / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"

    def places(self, folder: Path) -> Mapping[State, VideoPath]:
        """Where videos were seen below a folder, now or earlier, with the sha256 of each; the latest last."""
        prefix = prefix_of(folder)
        return {
            state: video if record.path == folder else video._replace(id=video.file[len(prefix) :].replace(os.sep, "/"))
            for record in sorted(self.all(), key=lambda record: record.path == folder)
            for state, video in record.places.items()
            if video.file.startswith(prefix)
        }

    def known(self, folder: Path, videos: Iterable[VideoPath]) -> tuple[VideoPath, ...]:
        """Videos below a folder; those that were seen in the same state as they were seen, with their sha256."""
        places = self.places(folder)
        return tuple(places.get(video.state, video) for video in videos)

    def last_seen(self, folder: Path) -> tuple[VideoPath, ...]:
        """The videos that were seen below a folder, each path as it was seen last."""
        return tuple({video.file: video for video in self.places(folder).values()}.values())

    def stamp(self, video: VideoEntry) -> tuple[str, int, int, int, int] | None:
        """Volume and stamp of the file of a video as it was found before it was hashed; None if that is not known."""
        state = video.path, video.size, video.mtime_ns
        for place in (record.places[state] for record in self.all() if state in record.places):
            if place.sha256 == video.sha256:
                return place.volume, place.inode, place.size, place.mtime_ns, place.changed_ns
        return None

    def encoder(self, folder: Path) -> FeatureSpec | None:
        """The features that a folder, or one above it, was last searched with."""
        encoders = {record.path: record.encoder for record in self.all()}
        return next(filter(None, map(encoders.get, (folder, *folder.parents))), None)

    def see(self, folder: Path, videos: Iterable[VideoPath]) -> None:
        """Notes where videos are now, each with its sha256."""
        with self.changing(folder) as record:
            for video in videos:
                record.places.pop(video.state, None)  # so that it is the last
                record.places[video.state] = video
        for damaged in self.file(folder).parent.glob(f"{self.file(folder).stem}*.damaged"):
            with suppress(OSError):  # a folder stood in its place
                damaged.unlink()  # all that is there is known again

    def add(self, other: Folder) -> None:
        """Adds what another library knows of a folder and this one does not."""
        with self.changing(other.path) as record:
            record.places = other.places | record.places
            record.encoder = record.encoder or other.encoder

    def forget(self, states: Sequence[State]) -> None:
        """Forgets places, in all folders."""
        for record in self.all():
            if not record.places.keys().isdisjoint(states):
                with self.changing(record.path) as changed:
                    for state in states:
                        changed.places.pop(state, None)

    def _one(self, path: Path) -> Folder | None:
        """What a file holds, or held when it was read last; None where there was none, or a damaged one.

        Raises:
            OSError: it cannot be read now.
        """
        stamp, folder = self._read.get(path, (None, None))
        try:
            if (now := stamp_of(path.stat())) != stamp:
                folder = self._parsed(path)
                self._read[path] = now, folder
        except FileNotFoundError:  # another process has put it aside, perhaps
            pass
        except DataError as error:
            logger.warning("%s Videos that are seen again are recognised by their content.", error)
            if self._writable is not None:
                put_aside(path)
        return folder

    def _parsed(self, file: Path) -> Folder:
        """The content of a file; places that lead out of the folder are left out.

        Raises:
            OSError: it cannot be read now.
            DataError: it is damaged, or not as prvr writes it.
        """
        text = bytes(read_proven(file)[0]).decode("utf-8", "replace")
        try:
            about = parse_record(_Content, parse_json(text, str(file)), str(file), file_names=True)
            folder = Folder(Path(about.folder), about.encoder, {})
            check_spec(about.encoder)
            if not folder.path.is_absolute() or self.file(folder.path) != file:
                raise ValueError("of another folder")
        except ValueError as error:
            raise DataError(f"{file}: not as prvr writes it ({error}).") from error
        prefix = prefix_of(folder.path)
        for place in about.places:
            path = prefix + place[0]
            video = VideoPath(place[0].replace(os.sep, "/"), path, *place[1:])
            if is_sha256(video.sha256) and os.path.normpath(path) == path and "\0" not in path:
                folder.places[video.state] = video
        return folder
