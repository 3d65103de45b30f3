"""The videos of a library: only these are served, and only as they were encoded."""

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from unicodedata import combining, normalize

from starlette.exceptions import HTTPException

from prvr.encoders import VideoEntry
from prvr.reading import printable
from prvr_search.serve.schema import VideoResponse

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
        self._videos = {key_of(video): video for video in videos}

    def __len__(self) -> int:
        return len(self._videos)

    def get(self, key: str) -> VideoEntry:
        """The video of a key.

        Raises:
            HTTPException: no video has this key.
        """
        video = self._videos.get(key)
        if video is None:
            raise HTTPException(404, "no such video")
        return video

    def listed(self, name: str = "", newest: bool = False) -> list[VideoEntry]:
        """The videos whose name contains a text, in the order of the index, or by when their files were modified.

        Upper and lower case, accents and ligatures do not differ: `strasse` is in `Straße`.
        """
        text = _plain(name)
        videos = [video for video in self._videos.values() if text in _plain(video.id)]
        return sorted(videos, key=lambda video: -video.mtime_ns) if newest else videos

    def path(self, video: VideoEntry) -> Path:
        """The file of a video, with links resolved, if it is the one that was indexed.

        A file of the same size and modification time is taken to be the same. Otherwise its sha256 is compared, once
        for each state of the file.

        Raises:
            HTTPException: says why the file is not served.
        """
        try:
            path = Path(video.path).resolve(strict=True)
            status = path.stat()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names that no file can have
            raise HTTPException(410, "file not found; it was moved or deleted") from error
        if not path.is_file() or not os.access(path, os.R_OK):
            raise HTTPException(403, "not a regular file that can be read")
        state = (video.sha256, status.st_ino, status.st_size, status.st_mtime_ns)
        if state not in self._unchanged:
            self._unchanged[state] = _is_unchanged(video, path, status)
        if not self._unchanged[state]:
            raise HTTPException(409, "the file changed after it was encoded")
        return path


@lru_cache(2**16)
def _plain(text: str) -> str:
    """Letters without case and accents."""
    return "".join(letter for letter in normalize("NFKD", text.casefold()) if not combining(letter))


def key_of(video: VideoEntry) -> str:
    """What identifies a video in addresses; it changes with the id and the content of the video."""
    identity = video.id.encode("utf-8", "surrogateescape") + b"\0" + video.sha256.encode()
    return hashlib.sha256(identity).hexdigest()[:24]


def describe(video: VideoEntry) -> VideoResponse:
    """A video as clients see it, without its path."""
    return VideoResponse(
        key=key_of(video),
        name=printable(video.id),
        duration=video.duration,
        start_time=video.start_time,
        width=video.width,
        height=video.height,
        codec=video.codec,
        type=_TYPES.get(Path(video.path).suffix.lower(), "application/octet-stream"),
    )


def _is_unchanged(video: VideoEntry, path: Path, status: os.stat_result) -> bool:
    if status.st_size != video.size or status.st_mtime_ns == video.mtime_ns:
        return status.st_size == video.size
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == video.sha256
