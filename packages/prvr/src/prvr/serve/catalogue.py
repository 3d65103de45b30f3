"""The files behind an index: only those, only inside their folders, only as they were indexed."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from prvr.reading import printable
from prvr.video import VideoEntry

__all__ = ["Catalogue", "FileRefused", "media_type", "open_checked", "root_of", "video_key"]

_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same boxes; browsers play it under this name
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
}
_PLAYED = {
    "video/mp4": ("h264", "av1", "libdav1d", "vp9"),
    "video/webm": ("vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9"),
}
_CHUNK = 1 << 20


class FileRefused(Exception):
    """A file that is not given out.

    Args:
        status: of HTTP.
        reason: for the client; names no folder.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Listed:
    """A video as clients see it.

    Args:
        key: in addresses: letters and digits, another one when the file is another.
        name: the id, with control characters as escapes.
        video: of the index.
    """

    key: str
    name: str
    video: VideoEntry

    @property
    def type(self) -> str:
        """The media type that its name stands for."""
        return media_type(self.video.path)

    @property
    def plays(self) -> bool:
        """Whether browsers usually play the file as it is."""
        return self.video.codec in _PLAYED.get(self.type, ())


class Catalogue:
    """The videos of an index by key: one state of it, which is replaced as a whole when the index has changed."""

    def __init__(self, videos: Iterable[VideoEntry]) -> None:
        self._state: tuple[Mapping[str, Listed], Mapping[str, str]] = ({}, {})
        self._same: dict[tuple[str, int, int, int], bool] = {}
        self.replace(videos)

    def replace(self, videos: Iterable[VideoEntry]) -> None:
        """Takes another state."""
        listed = [Listed(video_key(video), printable(video.id), video) for video in videos]
        self._state = {one.key: one for one in listed}, {one.video.id: one.key for one in listed}

    def __len__(self) -> int:
        return len(self._state[0])

    def get(self, key: str) -> Listed | None:
        """The video of a key."""
        return self._state[0].get(key)

    def of(self, video_id: str) -> Listed | None:
        """The video of an id."""
        listed, keys = self._state
        return listed.get(keys.get(video_id, ""))

    def page(self, offset: int, limit: int) -> list[Listed]:
        """Some of them, in the order of the index."""
        return list(self._state[0].values())[offset : offset + limit]

    def open(self, listed: Listed) -> BinaryIO:
        """The file of a video, checked: see `open_checked`; then that its content is what was indexed.

        A file of the same size and time of last change is the same; of others the contents are compared by sha256,
        once for each such state.

        Raises:
            FileRefused: with the reason.
        """
        file = open_checked(listed.video)
        try:
            about = os.fstat(file.fileno())
            told = (listed.key, about.st_ino, about.st_size, about.st_mtime_ns)
            if told not in self._same:
                self._same[told] = _unchanged(listed.video, file, about)
            if not self._same[told]:
                raise FileRefused(
                    409, "the file has changed since it was indexed: run prvr extract and prvr index update"
                )
        except BaseException:
            file.close()
            raise
        return file

    def path(self, listed: Listed) -> Path:
        """Where the file of a video is, checked like `open`."""
        self.open(listed).close()
        return Path(listed.video.path).resolve()


def video_key(video: VideoEntry) -> str:
    """Tells a video and its content in addresses."""
    told = video.id.encode("utf-8", "surrogateescape") + b"\0" + video.sha256.encode()
    return hashlib.sha256(told).hexdigest()[:24]


def media_type(path: str) -> str:
    """The media type that the name of a file stands for.

    Example:
        >>> media_type("films/Beach.MP4"), media_type("page.html")
        ('video/mp4', 'application/octet-stream')
    """
    return _TYPES.get(Path(path).suffix.lower(), "application/octet-stream")


def root_of(video: VideoEntry) -> Path:
    """The folder that a video was extracted from: its id is its place below."""
    path, parts = Path(video.path), PurePosixPath(video.id).parts
    return path.parents[len(parts) - 1] if path.parts[-len(parts) :] == parts else path.parent


def open_checked(video: VideoEntry) -> BinaryIO:
    """Opens the file of a video if it is a regular one that lies below the folder that it was extracted from.

    Links are followed first, then the place where they end is compared, then that place is opened without following
    another one.

    Raises:
        FileRefused: it is gone, lies elsewhere, is no regular file, or cannot be read.
    """
    try:
        place = Path(video.path).resolve(strict=True)
        inside = place.is_relative_to(root_of(video).resolve(strict=True))
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names that no file has
        raise FileRefused(410, "the file is no longer there: run prvr index update") from error
    if not inside:
        raise FileRefused(403, "the file is a link that leads out of its folder")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(place, flags)
    except FileNotFoundError as error:
        raise FileRefused(410, "the file is no longer there: run prvr index update") from error
    except OSError as error:
        raise FileRefused(403, "the file cannot be read") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FileRefused(403, "it is no regular file")
    return os.fdopen(number, "rb")


def _unchanged(video: VideoEntry, file: BinaryIO, about: os.stat_result) -> bool:
    if about.st_size != video.size:
        return False
    if about.st_mtime_ns == video.mtime_ns:
        return True
    hashed = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        hashed.update(chunk)
    file.seek(0)
    return hashed.hexdigest() == video.sha256
