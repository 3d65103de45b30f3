"""The video files below a folder."""

import os
import re
import stat
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from prvr.encoders.entries import SUFFIXES
from prvr.errors import DataError
from prvr_search.films.info import VideoPath
from prvr_search.films.subtitles import FORMATS, named_video

EXCLUDED = (".*", "$RECYCLE.BIN", "#recycle", "@eaDir", "System Volume Information", "lost+found")
"""Patterns of names that are never searched: hidden files, trash, and folders of the system."""


@dataclass(frozen=True)
class Listing:
    """The video files below a folder.

    Args:
        videos: in order of their ids.
        unlisted: folders that cannot be listed and files that cannot be examined, with the reason.
        others: the number of other files.
        subtitles: the subtitle files beside each video and the language of each, by the id of the video.
    """

    videos: tuple[VideoPath, ...]
    unlisted: Mapping[Path, str] = field(default_factory=dict)
    others: int = 0
    subtitles: Mapping[str, Sequence[tuple[VideoPath, str]]] = field(default_factory=dict)


def list_videos(folder: Path, exclude: Iterable[str] = ()) -> Listing:
    """The video files below a folder, those behind links to other folders included.

    Every folder is searched once, however many links lead to it, and under its own name where it has one.

    Args:
        folder: absolute.
        exclude: patterns of a shell, beside `EXCLUDED`, of names or of paths below the folder.

    Raises:
        DataError: the folder is missing, or cannot be listed.
    """
    left_out = re.compile("|".join(map(translate, (*EXCLUDED, *exclude)))).match
    try:
        visited = {_identity(parent) for parent in folder.parents}  # a link to these is a circle
        next(folder.iterdir(), None)
    except OSError as error:
        raise DataError(f"{folder}: {(error.strerror or str(error)).lower()}. Expected a folder of videos.") from error
    videos: list[VideoPath] = []
    texts: list[VideoPath] = []
    unlisted: dict[Path, str] = {}
    others, volumes = 0, dict[int, str]()
    cut = len(prefix_of(folder))
    pending = deque([folder])  # folders on the right, which come first, links on the left
    while pending:
        place = pending.pop()
        try:
            identity = _identity(place)
            if identity in visited:
                continue
            visited.add(identity)
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            unlisted[place] = error.strerror or str(error)
            continue
        for entry in entries:
            name = entry.path[cut:].replace(os.sep, "/")
            if left_out(entry.name) or left_out(name):
                continue
            suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 (a tenth of the time of `Path.suffix`)
            try:
                if entry.is_dir():
                    (pending.appendleft if entry.is_symlink() else pending.append)(Path(entry.path))
                elif suffix not in SUFFIXES and suffix not in FORMATS:
                    others += 1
                elif stat.S_ISREG((status := entry.stat()).st_mode):
                    if abs(status.st_mtime_ns) >= 2**63:  # in a year that few systems know
                        raise OSError("last changed before 1678 or after 2261; touch it")
                    if status.st_dev not in volumes:
                        volumes[status.st_dev] = volume_of(Path(entry.path))
                    file = VideoPath(
                        name, entry.path, status.st_size, status.st_mtime_ns, volumes[status.st_dev], status.st_ino,
                        status.st_ctime_ns,
                    )  # fmt: skip
                    (videos if suffix in SUFFIXES else texts).append(file)
            except OSError as error:
                unlisted[Path(entry.path)] = error.strerror or str(error)
    stems, subtitles = defaultdict[str, list[str]](list), defaultdict[str, list[tuple[VideoPath, str]]](list)
    for video in videos:
        stems[os.path.splitext(video.id)[0]].append(video.id)  # noqa: PTH122
    for file in texts:
        stem, language = named_video(file.id, stems)
        for video in stems.get(stem, ()):
            subtitles[video].append((file, language))
        others += stem not in stems
    return Listing(tuple(sorted(videos, key=lambda video: video.id)), unlisted, others, subtitles)


def prefix_of(folder: Path) -> str:
    """How the paths of all files below a folder begin.

    Examples:
        >>> prefix_of(Path("/films")), prefix_of(Path("/"))
        ('/films/', '/')
    """
    return str(folder).rstrip(os.sep) + os.sep


def volume_of(path: Path | int) -> str:
    """An identifier of the file system that holds a path, or its nearest parent that exists, or an open file.

    It stays the same when a disk is unplugged and plugged in again, where the file system has one of its own.
    """
    while True:
        try:
            number = os.statvfs(path).f_fsid if hasattr(os, "statvfs") else 0
            return f"{number or os.stat(path).st_dev:x}"  # noqa: PTH116 (an open file has no path)
        except OSError:
            if isinstance(path, int) or path == path.parent:
                return ""
            path = path.parent


def below(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path is one of some folders, or lies below one."""
    return any(map(path.is_relative_to, folders))


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
