"""The files of videos: only those of the library are served, only as they were encoded, and what is opened is sent."""

import hashlib
import io
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, get_args
from unicodedata import combining, normalize

from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Receive, Scope, Send

from prvr.encoders import VideoEntry
from prvr_search.films.clips import ENCODERS, Encoding, encode_part, write_part
from prvr_search.films.decode import open_video
from prvr_search.films.listing import volume_of
from prvr_search.ranking.filters import filmed
from prvr_search.serve.schema import PreviewKind, key_of
from prvr_search.serve.settings import ServeLimits
from prvr_search.store.proof import Stamp, stamp_of

_RANGE = re.compile(r"bytes=(\d{1,18}-\d{0,18}|-\d{1,18})")


def volume_and_stamp(file: BinaryIO) -> tuple[str, *Stamp]:
    """What tells that an open file is the one that was hashed; it stays the same when a disk is plugged in again."""
    return volume_of(file.fileno()), *stamp_of(os.fstat(file.fileno()))


class Catalogue:
    """The videos of an index by key.

    A file is taken for what was encoded if its stamp is that with which it was hashed. Otherwise, such as where a link
    leads elsewhere than it did, it is hashed anew, once for each state.

    Args:
        noted: the stamp with which a video was hashed; None if that is not known.
    """

    def __init__(self, noted: Callable[[VideoEntry], tuple[str, *Stamp] | None]) -> None:
        self._noted = noted
        self._videos = dict[str, VideoEntry]()
        self._hashes = dict[tuple[int, str, *Stamp], str]()
        self._hashing = threading.Lock()

    def replace(self, videos: Iterable[VideoEntry]) -> None:
        """Replaces all videos, after the index has changed."""
        self._videos = {key_of(video): video for video in videos}

    def __len__(self) -> int:
        return len(self._videos)

    def get(self, key: str) -> VideoEntry:
        """The video of a key.

        Raises:
            HTTPException: no video has this key.
        """
        if key not in self._videos:
            raise HTTPException(404, "no such video")
        return self._videos[key]

    def listed(self, name: str = "", newest: bool = False) -> list[VideoEntry]:
        """The videos whose name contains a text, in the order of the index, or those first that were filmed last.

        Upper and lower case, accents and ligatures do not differ: `strasse` is in `Straße`.
        """
        text = _plain(name)
        videos = [video for video in self._videos.values() if text in _plain(video.id)]
        return sorted(videos, key=lambda video: (filmed(video), video.mtime_ns), reverse=True) if newest else videos

    def opened(self, video: VideoEntry) -> BinaryIO:
        """The file of a video, open; whatever its path leads to later, this is what was checked.

        Raises:
            HTTPException: says why the file is not served.
        """
        try:
            file = open(video.path, "rb", buffering=0, opener=_open)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise HTTPException(410, "file not found; it was moved or deleted") from error
        except OSError as error:
            raise HTTPException(403, "not a regular file that can be read") from error
        try:
            self._expect_unchanged(video, file)
        except BaseException:
            file.close()
            raise
        return file

    def _expect_unchanged(self, video: VideoEntry, file: io.FileIO) -> None:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise HTTPException(403, "not a regular file that can be read")
        if status.st_size == video.size:
            stamp = volume_and_stamp(file)
            if stamp == self._noted(video):
                return
            with self._hashing:
                sha256 = self._hashes.get((status.st_dev, *stamp)) or hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            if volume_and_stamp(file) == stamp:
                self._hashes[status.st_dev, *stamp] = sha256
                if sha256 == video.sha256:
                    return
        raise HTTPException(409, "the file changed after it was encoded")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe does not wait for a writer


@lru_cache(2**16)
def _plain(text: str) -> str:
    """Letters without case and accents."""
    return "".join(letter for letter in normalize("NFKD", text.casefold()) if not combining(letter))


class OpenFile(FileResponse):
    """Sends an open file, or the range of it that is asked for, and closes it. Its path is not opened again.

    Args:
        file: the file, which is sent from its start.
        options: arguments of `FileResponse`, of which it needs the media type.
    """

    chunk_size = 256 * 1024  # bytes that are read at once: with 64 KiB a download is slower

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        self._file = file
        file.seek(0)
        super().__init__(self, stat_result=os.fstat(file.fileno()), **options)  # pyright: ignore[reportArgumentType]

    def __index__(self) -> int:
        """Another descriptor of the file: `open` takes it in place of a path when the file is sent, and closes it."""
        return os.dup(self._file.fileno())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers without the content where the client has it; and with all of it where several ranges are asked for,
        or what is no range.
        """
        headers = MutableHeaders(scope=scope)
        if not _RANGE.fullmatch(headers.get("range", "")):
            del headers["range"]
        is_known = self.headers["etag"] in headers.get("if-none-match", "")
        with self._file:
            without = {**scope, "extensions": {}}  # some servers would send a path by themselves
            await (NotModifiedResponse(self.headers) if is_known else super()).__call__(without, receive, send)


def preview_kinds() -> list[PreviewKind]:
    """The kinds of preview that the installed PyAV can encode."""
    import av

    return [kind for kind in get_args(PreviewKind) if ENCODERS[kind][0] in av.codecs_available]


def encode_preview(file: BinaryIO, limits: ServeLimits, start: float, end: float, kind: PreviewKind) -> bytes:
    """A part of an open video as a small file that browsers play: H.264 in MP4, or VP8 in WebM.

    Raises:
        VideoError: it cannot be decoded.
        HTTPException: it takes too long, or PyAV cannot encode this kind.
    """
    if kind not in preview_kinds():
        raise HTTPException(501, f"this server cannot make {kind} previews")
    encoding = Encoding(limits.preview_pixels, 30.0, 1, limits.media_seconds / 2, _in_time(limits.media_seconds))
    target = io.BytesIO()
    with open_video(file, limits.video) as video:
        encode_part(video, start, end, target, kind, encoding)
    return target.getvalue()


def cut_clip(file: BinaryIO, limits: ServeLimits, start: float, end: float, name: str) -> BinaryIO:
    """A part of an open video as a file of its own, see `write_clip`, in the container that its name says.

    Where re-encoding takes too long, it is copied from the key frame before, however far away that is.

    Raises:
        VideoError: it cannot be decoded, or is shorter.
        HTTPException: it takes too long.
    """
    made = tempfile.TemporaryFile()  # noqa: SIM115 (it is sent, then closed)
    for exact in (None, False):
        seconds = limits.media_seconds / 2
        encoding = Encoding(threads=1, patience=seconds / 2, before_picture=_in_time(seconds))
        try:
            with open_video(file, limits.video) as video:
                write_part(video, start, end, Path(name), made, exact, encoding)
            break
        except HTTPException:
            if exact is False:
                raise
    return made


def _in_time(seconds: float) -> Callable[[], None]:
    """Ends an encoding that takes longer."""
    until = time.monotonic() + seconds

    def expect_time() -> None:
        if time.monotonic() > until:
            raise HTTPException(503, "encoding this part of the video takes too long")

    return expect_time
