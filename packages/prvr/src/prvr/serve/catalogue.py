"""The video files of an index: only these are served, only from inside their folders, and only as they were indexed."""

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from starlette.exceptions import HTTPException

from prvr.reading import printable
from prvr.serve.schema import VideoResponse
from prvr.video import VideoEntry

_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same container; browsers play it under this name
    ".3gp": "video/mp4",
    ".3g2": "video/mp4",
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
}
_PLAYED = {
    "video/mp4": ("h264", "av1", "libdav1d", "vp9"),
    "video/webm": ("vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9"),
}


@dataclass(frozen=True)
class CatalogueEntry:
    """A video of the index, and what clients are told of it.

    Args:
        video: the record of the index.
        public: the same for clients, without its path. Its `key` changes with the id and the content of the video.
    """

    video: VideoEntry
    public: VideoResponse


class Catalogue:
    """The videos of an index by key.

    Args:
        videos: the videos in the order of the index.
    """

    def __init__(self, videos: Iterable[VideoEntry]) -> None:
        self._unchanged: dict[tuple[str, int, int, int], bool] = {}
        self.replace(videos)

    def replace(self, videos: Iterable[VideoEntry]) -> None:
        """Replaces all entries, after the index has changed."""
        entries = [CatalogueEntry(video, describe(video)) for video in videos]
        self._entries = {entry.public.key: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> CatalogueEntry:
        """The entry of a key.

        Raises:
            HTTPException: no video has this key.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise HTTPException(404, "no such video")
        return entry

    def page(self, offset: int, limit: int) -> list[CatalogueEntry]:
        """Some of the entries, in the order of the index."""
        return list(self._entries.values())[offset : offset + limit]

    def open(self, entry: CatalogueEntry) -> BinaryIO:
        """Opens the file of a video, and makes sure that it is the one that was indexed.

        A file of the same size and modification time is taken to be the same. Otherwise its sha256 is compared, once
        for each state of the file.

        Raises:
            HTTPException: says why the file is not served.
        """
        file = _open_inside(entry.video)
        try:
            status = os.fstat(file.fileno())
            state = (entry.public.key, status.st_ino, status.st_size, status.st_mtime_ns)
            if state not in self._unchanged:
                self._unchanged[state] = _is_unchanged(entry.video, file, status)
            if not self._unchanged[state]:
                raise HTTPException(
                    409, "the file changed after it was indexed; run prvr extract and prvr index update"
                )
        except BaseException:
            file.close()
            raise
        return file

    def path(self, entry: CatalogueEntry) -> Path:
        """Where the file of a video is, checked as by `open`."""
        self.open(entry).close()
        return Path(entry.video.path).resolve()


def describe(video: VideoEntry) -> VideoResponse:
    """A video as clients see it, without its path."""
    identity = video.id.encode("utf-8", "surrogateescape") + b"\0" + video.sha256.encode()
    media_type = _TYPES.get(Path(video.path).suffix.lower(), "application/octet-stream")
    return VideoResponse(
        key=hashlib.sha256(identity).hexdigest()[:24],
        name=printable(video.id),
        duration=video.duration,
        width=video.width,
        height=video.height,
        codec=video.codec,
        type=media_type,
        plays=video.codec in _PLAYED.get(media_type, ()),
    )


def _root(video: VideoEntry) -> Path:
    """The folder that a video was extracted from: its id is the path below this folder."""
    path, parts = Path(video.path), PurePosixPath(video.id).parts
    return path.parents[len(parts) - 1] if path.parts[-len(parts) :] == parts else path.parent


def _open_inside(video: VideoEntry) -> BufferedReader:
    """Opens the file of a video if it is a regular file below the folder that it was extracted from.

    Links are resolved first, the result is compared with the folder, and the result is opened without following
    another link.

    Raises:
        HTTPException: it is gone, lies elsewhere, is not a regular file, or cannot be read.
    """
    try:
        place = Path(video.path).resolve(strict=True)
        inside = place.is_relative_to(_root(video).resolve(strict=True))
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names that no file can have
        raise HTTPException(410, "file not found; run prvr index update") from error
    if not inside:
        raise HTTPException(403, "the file is a link that points outside its folder")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(place, flags)
    except FileNotFoundError as error:
        raise HTTPException(410, "file not found; run prvr index update") from error
    except OSError as error:
        raise HTTPException(403, "the file cannot be read") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HTTPException(403, "not a regular file")
    return os.fdopen(descriptor, "rb")


def _is_unchanged(video: VideoEntry, file: BufferedReader, status: os.stat_result) -> bool:
    if status.st_size != video.size:
        return False
    if status.st_mtime_ns == video.mtime_ns:
        return True
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return found == video.sha256
