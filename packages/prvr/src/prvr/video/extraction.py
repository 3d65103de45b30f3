"""Extraction of features into a store: new and changed videos are encoded, and broken ones are reported."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32

from prvr.data.hashes import hash_file
from prvr.data.on_device import read_ahead
from prvr.errors import DataError, InputError
from prvr.video.decode import Limits, VideoError, VideoFile, check_rate, open_video
from prvr.video.encoders import FrameEncoder
from prvr.video.store import (
    StoreHeader,
    VideoEntry,
    entry_path,
    opened_for_writing,
    read_entry,
    read_features,
    readable_entries,
    write_entry,
)

Progress = Callable[[str, float, float], None]
"""Called with the id of a video, and how many of how many bytes of video files are done."""

_AHEAD = 2  # batches that are decoded while one is encoded
_LARGEST_BATCH = 4096
SUFFIXES = (
    ".3g2", ".3gp", ".asf", ".avi", ".f4v", ".flv", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg",
    ".mpg", ".mts", ".mxf", ".ogm", ".ogv", ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv",
)  # fmt: skip
"""Names of video files end so; files that are named one by one may end in anything."""


@dataclass(frozen=True)
class Named:
    """A file that is to be read.

    Args:
        id: its path below the folder that was given, with `/`; its name, if the file itself was given.
        path: absolute.
    """

    id: str
    path: Path

    @property
    def state(self) -> tuple[int, int]:
        """Size in bytes and time of the last change in ns, as they are now; zeros where there is no such file."""
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0
        return found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Args:
        id: the id of the video.
        path: the path of the file.
        status: what was done; "reused": the store had the features of the same content under another id.
        entry: what the store knows of it; None if it failed.
        reason, remedy: why it failed, and what to do; empty if it did not.
    """

    id: str
    path: Path
    status: Literal["extracted", "reused", "unchanged", "failed"]
    entry: VideoEntry | None = None
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class ExtractReport:
    """What became of every file that was named, in order."""

    folder: Path
    outcomes: tuple[Outcome, ...]

    @property
    def extracted(self) -> tuple[Outcome, ...]:
        """New ones, and changed ones again."""
        return tuple(one for one in self.outcomes if one.status == "extracted")

    @property
    def reused(self) -> tuple[Outcome, ...]:
        """Files that were moved, renamed or copied: the store knew their content, so that nothing was encoded."""
        return tuple(one for one in self.outcomes if one.status == "reused")

    @property
    def unchanged(self) -> tuple[Outcome, ...]:
        """Those that the store had."""
        return tuple(one for one in self.outcomes if one.status == "unchanged")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Those that cannot be read. What the store had of them from before is still there."""
        return tuple(one for one in self.outcomes if one.status == "failed")


def extract(
    videos: Iterable[Path | str | Named],
    encoder: FrameEncoder,
    out: Path | str,
    *,
    rate: float = 2.0,
    batch_size: int = 64,
    limits: Limits | None = None,
    thorough: bool = False,
    progress: Progress | None = None,
) -> ExtractReport:
    """Encodes videos into a store, each whole or not at all; run it again to go on, or to bring it up to date.

    A video is left as it is if its file has the size and the time of last change that the store knows, or else the
    same sha256. A file whose content the store knows under another id (moved, renamed, copied) is not encoded: its
    features are copied. Frames are decoded while others are encoded, and only a few batches of them are in memory.

    Args:
        videos: files, and folders that are searched for them; or what `gather` made of them.
        encoder: of [open_encoder][prvr.video.encoders.open_encoder].
        out: the store; made if it is not there.
        rate: frames per second.
        batch_size: frames that are encoded at once; no batch is of two videos.
        limits: what a file may ask for.
        thorough: compare the sha256 even where size and time agree.
        progress: called now and then.

    Raises:
        DataError: the store is of another encoder or rate, is being written by another process, or cannot be written;
            two files would have the same id.
        ValueError: the rate or the batch size is not positive, or beyond all sense.
        prvr.MissingExtraError: PyAV is not installed.

    Examples:
        >>> from prvr.video import VideoStore, extract, open_encoder
        >>> report = extract(["films"], open_encoder("toy"), "store")  # doctest: +SKIP
        >>> VideoStore("store").read("beach.mp4").shape  # doctest: +SKIP
        (41, 512)
    """
    check_rate(rate)
    if not 1 <= batch_size <= _LARGEST_BATCH:
        raise InputError(f"batch_size={batch_size}: expected a number of frames from 1 to {_LARGEST_BATCH}")
    header = StoreHeader(encoder.identity, rate, encoder.dim, encoder.joint_dim)
    named = gather(videos)
    with opened_for_writing(Path(out).expanduser(), header) as folder:
        job = _Job(folder, header, encoder, batch_size, limits or Limits())
        known = {one.id: job.known(one) for one in named}
        fresh = {one.id for one in named if not thorough and is_fresh(one, known[one.id])}
        sizes = {one.id: 0 if one.id in fresh else one.state[0] for one in named}
        if pending := [one for one in named if one.id not in fresh]:
            job.expect(pending)
        done, total = 0.0, float(sum(sizes.values()))
        outcomes: list[Outcome] = []
        for one in named:
            if one.id in fresh:
                outcomes.append(Outcome(one.id, one.path, "unchanged", known[one.id]))
                continue

            def report(share: float, one: Named = one, done: float = done) -> None:
                if progress is not None:
                    progress(one.id, done + share * sizes[one.id], total)

            report(0.0)
            try:
                outcomes.append(job.bring_up_to_date(one, known[one.id], report))
            except VideoError as error:
                outcomes.append(Outcome(one.id, one.path, "failed", None, error.reason, error.remedy))
            report(1.0)
            done += sizes[one.id]
    return ExtractReport(folder, tuple(outcomes))


def gather(videos: Iterable[Path | str | Named]) -> list[Named]:
    """The given files, missing ones included, and the video files below the given folders.

    Hidden files and folders are left out, and links to folders are not followed.

    Args:
        videos: files and folders; a file that has an id keeps it.

    Returns:
        each file once, in order of arguments, then of names.

    Raises:
        DataError: two files would have the same id, or a folder cannot be listed.
    """
    found: dict[str, Path] = {}
    for given in videos:
        if isinstance(given, Named):
            found[given.id] = given.path
            continue
        try:
            root = Path(given).expanduser().absolute()
        except RuntimeError as error:  # ~ and somebody who is not known here
            raise DataError(f"{given}: no such user ({error}). Write ./ in front of it if it is a file.") from error
        paths = _below(root) if root.is_dir() else [root]
        for path in paths:
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            if found.setdefault(name, path) != path:
                raise DataError(
                    f"{path} and {found[name]} would both be called {name!r}. Pass a folder that contains both, or "
                    "extract them into two stores."
                )
    return [Named(name, path) for name, path in found.items()]


def _below(root: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}). Check its rights.") from error

    paths: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [
            Path(folder, name) for name in names if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(paths)


def encode_video(
    video: VideoFile,
    encoder: FrameEncoder,
    rate: float,
    batch_size: int = 64,
    report: Callable[[float], None] | None = None,
) -> Float32[np.ndarray, "n f"]:
    """The features of an open video. A picture that is sampled more than once in a row is encoded once.

    Args:
        video: of [open_video][prvr.video.decode.open_video]; its frames have not been read.
        encoder: the encoder of frames.
        rate: frames per second.
        batch_size: frames that are encoded at once.
        report: called with the share that is done, from 0 to 1.

    Raises:
        VideoError: no frame can be decoded, or the encoder gives no numbers for it.
    """
    promised = video.info.duration or float("inf")
    rows: list[np.ndarray] = []
    counts: list[int] = []
    # Closed before the file is, whatever happens: the other thread reads it.
    with closing(read_ahead(_pictures(video, encoder, rate), _AHEAD * batch_size)) as prepared:
        while batch := list(islice(prepared, batch_size)):
            rows.append(encoder.encode(np.stack([one.pixels for one in batch])))
            counts += [one.count for one in batch]
            if report is not None:
                report(min(1.0, batch[-1].time / promised))
    if not all(np.isfinite(some).all() for some in rows):
        raise VideoError(video.path, "the encoder gives NaN or infinity for it", "Try another encoder, or the CPU.")
    return encoder.finish(np.repeat(np.concatenate(rows), counts, axis=0))


class _Picture(NamedTuple):
    """What an encoder takes, when it was sampled last, and how many times in a row."""

    pixels: np.ndarray
    time: float
    count: int


def _pictures(video: VideoFile, encoder: FrameEncoder, rate: float) -> Iterator[_Picture]:
    shown: np.ndarray | None = None
    picture: _Picture | None = None
    for time, pixels in video.sample(rate):
        if picture is not None and pixels is shown:
            picture = _Picture(picture.pixels, time, picture.count + 1)
            continue
        if picture is not None:
            yield picture
        shown, picture = pixels, _Picture(encoder.prepare(pixels), time, 1)
    if picture is not None:
        yield picture


@dataclass
class _Job:
    folder: Path
    header: StoreHeader
    encoder: FrameEncoder
    batch_size: int
    limits: Limits
    _contents: dict[str, str] = field(default_factory=dict)  # the id of a video, by the sha256 of its file
    _hashes: dict[Path, tuple[tuple[int, int], str]] = field(default_factory=dict)  # of files still to come
    _held: dict[str, tuple[VideoEntry, np.ndarray]] = field(default_factory=dict)  # replaced, but still needed

    def known(self, one: Named) -> VideoEntry | None:
        """What the store knows of a video; nothing where its file there is damaged: it is made again."""
        path = entry_path(self.folder, one.id)
        try:
            return read_entry(path, self.header) if path.exists() else None
        except DataError:
            return None

    def bring_up_to_date(self, one: Named, known: VideoEntry | None, report: Callable[[float], None]) -> Outcome:
        if known is not None and _is_another(Path(known.path), one.path):
            reason = f"{known.path} has its name {one.id!r} in the store, and is still there"
            raise VideoError(one.path, reason, "Pass a folder that contains both, or extract them into two stores.")
        with open_video(one.path, self.limits) as video:
            try:
                (size, changed), sha256 = one.state, self._hash(one)
            except OSError as error:
                reason = f"cannot be read ({error.strerror or error})"
                raise VideoError(one.path, reason, "Copy it again.") from error
            if known is not None and known.sha256 == sha256 and (same := self._read(one.id)) is not None:
                return Outcome(one.id, one.path, "unchanged", self._written(one, same, size, changed))
            if known is not None:
                self._hold(known)
            reused = self._reuse(one, sha256, size, changed)
            self._contents[sha256] = one.id
            if reused is not None:
                return Outcome(one.id, one.path, "reused", reused)
            features = encode_video(video, self.encoder, self.header.rate, self.batch_size, report)
            if one.state != (size, changed):
                raise VideoError(one.path, "it changed while it was read", "Run again when it is complete.")
            entry = VideoEntry(
                id=one.id,
                path=str(one.path),
                size=size,
                mtime_ns=changed,
                sha256=sha256,
                duration=video.duration or len(features) / self.header.rate,
                frames=len(features),
                width=video.info.width,
                height=video.info.height,
                codec=video.info.codec,
                warnings=tuple(video.warnings),
                start_time=video.info.start_time,
            )
        write_entry(self.folder, self.header, entry, features)
        return Outcome(one.id, one.path, "extracted", entry)

    def expect(self, pending: Iterable[Named]) -> None:
        """Notes which files have content that the store knows: files as large as one that it knows are hashed now."""
        found = list(readable_entries(self.folder, self.header))
        self._contents = {entry.sha256: entry.id for entry in found}
        sizes = {entry.size for entry in found}
        for one in pending:
            with suppress(OSError):  # reported when it is its turn
                if one.state[0] in sizes:
                    self._hashes[one.path] = (one.state, hash_file(one.path))

    def _hash(self, one: Named) -> str:
        state, sha256 = self._hashes.pop(one.path, (None, ""))
        return sha256 if state == one.state else hash_file(one.path)

    def _reuse(self, one: Named, sha256: str, size: int, changed: int) -> VideoEntry | None:
        """Copies the features of the same content under another id; None if the store has none."""
        found = self._held.pop(sha256, None)
        if found is None and sha256 in self._contents:
            found = self._read(self._contents[sha256])
        return self._written(one, found, size, changed) if found and found[0].sha256 == sha256 else None

    def _hold(self, known: VideoEntry) -> None:
        """Keeps features that are about to be replaced, if the file that they are of has only got another name."""
        wanted = any(sha256 == known.sha256 for _, sha256 in self._hashes.values())
        if wanted and (found := self._read(known.id)) is not None:
            self._held[known.sha256] = found

    def _read(self, video_id: str) -> tuple[VideoEntry, np.ndarray] | None:
        try:
            return read_features(entry_path(self.folder, video_id), self.header, check=True)
        except DataError:
            return None

    def _written(self, one: Named, found: tuple[VideoEntry, np.ndarray], size: int, changed: int) -> VideoEntry:
        """Writes features that are known under the id of this file, and where it is now."""
        entry, features = found
        now = replace(entry, id=one.id, path=str(one.path), size=size, mtime_ns=changed)
        if now != entry:
            write_entry(self.folder, self.header, now, features)
        return now


def _is_another(known: Path, path: Path) -> bool:
    """Whether the file that the store knows is still there, and is not the same file under another path."""
    return known != path and known.exists() and not (path.exists() and known.samefile(path))


def is_fresh(one: Named, known: VideoEntry | None) -> bool:
    """Whether a file has the path, the size and the time of last change that are known of a video."""
    return known is not None and (known.path, known.size, known.mtime_ns) == (str(one.path), *one.state)
