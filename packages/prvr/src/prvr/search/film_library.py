"""A folder of videos that is searched as it stands: what was extracted and indexed is kept, and follows the folder."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from prvr.data.atomic import LOCK, MARK, owned, publish, replace_file, temporary_folder, user_cache
from prvr.data.hashes import HASHES
from prvr.errors import DataError
from prvr.models.pretrained import shipped_model
from prvr.reading import parse_record, read_json
from prvr.search.index import VideoIndex
from prvr.search.manifest import MANIFEST
from prvr.search.model import ZERO_SHOT
from prvr.search.opening import open_model
from prvr.search.query import Query, SearchFilter
from prvr.search.results import SearchResult
from prvr.video import (
    FrameEncoder,
    Named,
    TextFeaturizer,
    VideoEntry,
    VideoStore,
    extract,
    forget_videos,
    gather,
    open_encoder,
    open_featurizer,
)
from prvr.video.encoders import ALIASES, TOY, choose_encoder
from prvr.video.encoders.toy import is_toy_video, refuse_foreign
from prvr.video.extraction import is_fresh
from prvr.video.own import is_own
from prvr.video.store import HEADER, read_header

Progress = Callable[[float, float, str], None]
"""Called with how much is done, how much there is in all, and the id of the video that is being worked on."""

_ABOUT, _UNREADABLE, _STORE, _INDEX = "library.json", "unreadable.json", "store", "index"
_EMBEDDING = 0.02  # of the bar: vectors from features take far less time than features from videos


class LibraryBusy(DataError):
    """Another process is bringing the library up to date."""


@dataclass(frozen=True)
class Unreadable:
    """A video from which no picture can be read; it is tried again when it has changed.

    Args:
        id: its path below the folder.
        size: the size of the file in bytes.
        mtime_ns: when the file was last changed, in ns since 1970.
        reason, remedy: why it cannot be read, and what to do.
    """

    id: str
    size: int
    mtime_ns: int
    reason: str
    remedy: str


@dataclass(frozen=True)
class LibraryReport:
    """What bringing a library up to date has done, by the ids of videos.

    Args:
        encoded: videos that are new, or whose content has changed.
        reused: videos that were renamed, moved or copied; nothing was encoded.
        forgotten: videos that are gone.
        unreadable: videos from which no picture can be read, those of earlier times included.
        away: the folder is absent or holds no video any more, for example because its disk is not plugged in. Nothing
            was changed then.
    """

    encoded: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    away: bool = False


def library_folder(folder: Path | str) -> Path:
    """Where the library of a folder of videos is kept: in the user's cache, so that videos may lie on a read-only disk.

    Args:
        folder: a folder of videos; its absolute path counts, and it need not exist.

    Examples:
        >>> library_folder("/films").parent == user_cache() / "libraries"
        True
    """
    place = Path(folder).expanduser().resolve()
    return user_cache() / "libraries" / _key(place.name, str(place))


class Library:
    """A folder of videos that can be searched: videos are extracted and indexed where needed, and forgotten when gone.

    Videos are told apart by their content: one that was renamed, moved or copied is never encoded twice. Everything is
    kept in one folder, see `library_folder`, one store and index for each encoder. It is a context manager.

    Args:
        folder: the folder of videos; it is searched with all folders below it.
        encoder: an encoder as `prvr.video.open_encoder` takes it; default: the last one used, else `choose_encoder`.
        model: what makes the vectors: `zero-shot`, the encoder alone, or whatever `prvr.search.open_model` takes.
        device: torch device of encoder and model.
        download: let the encoder be downloaded if it is not on this computer.
        backend: what finds candidates, see `VideoIndex.open`.
        state: where the library is kept; default: `library_folder`.

    Attributes:
        state: where the library is kept.
        report: what the last `update` has done; None before.

    Examples:
        >>> from prvr import Library
        >>> with Library("films") as library:  # doctest: +SKIP
        ...     hit = library.search("a person opens the fridge").hits[0]
        >>> hit.video.path, hit.start, hit.end  # doctest: +SKIP
        ('/home/ada/films/kitchen.mp4', 12.0, 17.5)
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        encoder: str | None = None,
        model: Path | str = ZERO_SHOT,
        device: Any = "cpu",
        download: bool = False,
        backend: str = "auto",
        state: Path | str | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.state = library_folder(folder) if state is None else Path(state).expanduser()
        self.report: LibraryReport | None = None
        self._encoder = None if encoder is None else ALIASES.get(encoder, encoder)
        self._model, self._device, self._download = str(model), device, download
        if self._model != ZERO_SHOT and shipped_model(model) is None:
            self._model = str(Path(model).expanduser().resolve())
        self._backend = backend
        self._opened: FrameEncoder | None = None
        self._place: Path | None = None
        self._shown: VideoIndex | None = None

    @property
    def place(self) -> Path | None:
        """Where store and index of the encoder are kept; None before the first `update`."""
        if self._place is not None:
            return self._place
        about = _read_about(self.state)
        if self._encoder is not None:
            wanted = self._encoder
            folders = sorted(self.state.glob(f"*/{_STORE}/{HEADER}"))
            if about is not None:  # the one used last first: an encoder that has changed has more than one
                folders.sort(key=lambda path: path.parent.parent.name != about.current)
            for store in (path.parent for path in folders):
                if read_header(store).encoder.name in (wanted, str(Path(wanted).expanduser().resolve())):
                    return store.parent
            return None
        place = self.state / about.current if about else None
        return place if place and (place / _STORE / HEADER).is_file() else None

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The videos from which no picture could be read at the last `update`."""
        return () if self.place is None else tuple(_read_unreadable(self.place))

    @property
    def index(self) -> VideoIndex:
        """The index of the videos as the last `update` left it.

        Raises:
            DataError: there was none yet.
        """
        if self._shown is None:
            place = self.place
            if place is None:
                raise DataError(f"{self.folder}: nothing is indexed yet. Update the library first.")
            self._shown = self._open_index(place)
        return self._shown

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
        min_confidence: float = 0.0,
    ) -> SearchResult:
        """The k best videos for a query, see `VideoIndex.search`; the first search of this object updates before.

        Raises:
            ValueError, DataError: as `update` and `VideoIndex.search_many`.
        """
        if self.report is None:
            self.update()
        return self.index.search(query, k, moments=moments, where=where, min_confidence=min_confidence)

    def update(self, progress: Progress | None = None) -> LibraryReport:
        """Brings store and index up to date with the folder; run it again to go on after an interruption.

        Args:
            progress: called now and then, if there is anything to do.

        Raises:
            LibraryBusy: another process is doing it.
            prvr.video.DownloadNeeded: the encoder is not on this computer, and `download` is False.
            DataError: there is no video and never was one, or the state cannot be written.
        """
        films = gather([self.folder]) if self.folder.is_dir() else []
        if not films and self.place is None:
            what = (
                "no videos found"
                if self.folder.is_dir()
                else "not a directory"
                if self.folder.exists()
                else "not found"
            )
            raise DataError(
                f"{self.folder}: {what}. Expected a folder with video files (.mp4, .mkv, .webm, ...), or an index of "
                "prvr index add."
            )
        if not films:
            self.report = LibraryReport(away=True)
            return self.report
        if not self.state.exists():
            self._adopt(films)
        try:
            self.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.state}: cannot be created ({error.strerror}). Set XDG_CACHE_HOME.") from error
        busy = f"{self.folder}: another process is updating its library. Wait until it has finished."
        with owned(self.state, busy, LibraryBusy):
            self.report = self._update(films, progress)
        return self.report

    def close(self) -> None:
        """Closes the index. The library is complete at any time, closed or not."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def __enter__(self) -> "Library":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _update(self, films: Sequence[Named], progress: Progress | None) -> LibraryReport:
        about = _read_about(self.state)
        by_name = self._encoder is not None or bool(self.place and about and about.by_name)
        place = self._place = self._choose_place(films)
        by_id, listed, known = {film.id: film for film in films}, _read_unreadable(place), self._known(place)
        failed = {one.id: one for one in listed if one.id in by_id and (one.size, one.mtime_ns) == by_id[one.id].state}
        pending = [film for film in films if film.id not in failed and not is_fresh(film, known.get(film.id))]
        total = (1 + _EMBEDDING) * max(1, sum(film.state[0] for film in pending))

        def extracting(film: str, done: float, _: float) -> None:
            if progress is not None:
                progress(done, total, film)

        def embedding(film: str, done: int, count: int) -> None:
            extracting(film, total * (1 - _EMBEDDING * (1 - done / count)), total)

        encoder = self._open_encoder(place, pending, by_name) if pending else None
        if encoder is not None and self._place_of(encoder) != place:  # a newer one lies in the hub's cache, say
            return self._update(films, progress)
        _write(self.state / _ABOUT, asdict(_About(str(self.folder), place.name, by_name)))
        encoded, reused, forgotten = tuple[str, ...](), tuple[str, ...](), tuple[str, ...]()
        if encoder is not None:
            report = extract(pending, encoder, place / _STORE, progress=extracting)
            encoded, reused = (tuple(one.id for one in some) for some in (report.extracted, report.reused))
            failed |= {
                one.id: Unreadable(one.id, *by_id[one.id].state, one.reason, one.remedy) for one in report.failed
            }
        if pending or len(failed) != len(listed):
            _write(place / _UNREADABLE, [asdict(one) for one in failed.values()])
        if pending or not known or known.keys() - by_id.keys():
            gone = forget_videos(place / _STORE, by_id.keys())
            store = VideoStore(place / _STORE)
            moved = {store.entries[film].sha256 for film in reused}
            forgotten = tuple(film for film in gone if film not in known or known[film].sha256 not in moved)
            self.index.update(store, embedding)
        return LibraryReport(encoded, reused, forgotten, tuple(failed.values()))

    def _adopt(self, films: Sequence[Named]) -> None:
        """Starts from the library of a folder that is gone and held these videos: it was moved, or its disk was."""
        sizes = {(film.id, film.state[0]) for film in films}
        for about in sorted(self.state.parent.glob(f"*/{_ABOUT}")):
            with suppress(DataError, OSError):  # a damaged one, or one that is just being changed
                found = _read_about(about.parent)
                other = Library(found.folder if found else "", state=about.parent)
                if other.folder.exists() or other.place is None:
                    continue
                known = {(video.id, video.size) for video in other._known(other.place).values()}
                if len(known & sizes) <= len(known) / 2:
                    continue
                with temporary_folder(self.state) as made:
                    without = shutil.ignore_patterns(LOCK, "backends", MARK)
                    shutil.copytree(about.parent, made, dirs_exist_ok=True, ignore=without, copy_function=_link)
                    publish(made, self.state, lambda _: True)
                return

    def _choose_place(self, films: Sequence[Named]) -> Path:
        """The folder of the encoder as it is now: one that has changed under its name starts anew."""
        place = self.place
        name = self._encoder or (TOY if place and read_header(place / _STORE).encoder.name == TOY else None)
        changes = name is not None and (name == TOY or is_own(name))  # with a release of prvr, or with its code
        if self._opened is None:
            if place is not None and not changes:
                return place
            name = name or choose_encoder({is_toy_video(film.path) for film in films} - {None} == {True})
            self._opened = open_encoder(name, self._device, download=self._download)
        return self._place_of(self._opened)

    def _place_of(self, encoder: FrameEncoder) -> Path:
        """The folder of an encoder: that of the same identity, or a new one."""
        identity = encoder.identity
        for header in self.state.glob(f"*/{_STORE}/{HEADER}"):
            if read_header(header.parent).encoder == identity:
                return header.parent.parent
        return self.state / _key(identity.name, identity.weights + identity.preprocessing)

    def _open_encoder(self, place: Path, films: Sequence[Named], by_name: bool) -> FrameEncoder:
        """The encoder of a place; the one of drawn videos is refused if any of these videos was not drawn by prvr."""
        if self._opened is None:
            name = self._encoder or read_header(place / _STORE).encoder
            self._opened = open_encoder(name, self._device, download=self._download)
        refuse_foreign(self._opened.identity, [film.path for film in films], by_name)
        return self._opened

    def _text(self) -> TextFeaturizer | None:
        """The text side of an encoder that was named; otherwise the index knows it."""
        if self._encoder is None:
            return None
        return open_featurizer(self._encoder, self._device, download=self._download)

    def _open_index(self, place: Path) -> VideoIndex:
        """The index of the model; made if there is none."""
        folder, text = self._index_folder(place), self._text()
        if not (folder / MANIFEST).exists():
            header = read_header(place / _STORE)
            VideoIndex.create(folder, open_model(self._model, header, self._device, text), header)
        return VideoIndex.open(folder, device=self._device, text=text, backend=self._backend)

    def _index_folder(self, place: Path) -> Path:
        if self._model == ZERO_SHOT:
            return place / _INDEX
        shipped = shipped_model(self._model)
        what = self._model if shipped is None else (shipped / HASHES).read_text(encoding="utf-8")
        return place / f"{_INDEX}-{_key(Path(self._model).name, what)}"

    def _known(self, place: Path) -> dict[str, VideoEntry]:
        """What the index knows of each video."""
        folder = self._index_folder(place)
        if not (folder / MANIFEST).exists():
            return {}
        with VideoIndex.open(folder) as index:
            return {video: index.video(video) for video in index.video_ids}


@dataclass(frozen=True)
class _About:
    """What `library.json` holds.

    Args:
        folder: the folder of videos.
        current: name of the folder of the encoder that was used last.
        by_name: whether somebody has named this encoder, not `choose_encoder`.
    """

    folder: str
    current: str
    by_name: bool = False


def _key(name: str, what: str) -> str:
    """A name of letters that any file system takes, and a hash that tells it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[-40:].strip("-")
    return f"{slug or 'films'}-{hashlib.sha256(what.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def _link(source: str, target: str) -> None:
    """Gives a file a second name, or copies it where that cannot be done; files of a library are never changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _read_about(state: Path) -> _About | None:
    path = state / _ABOUT
    try:
        return parse_record(_About, read_json(path), str(path), file_names=True)
    except FileNotFoundError:
        return None


def _read_unreadable(place: Path) -> list[Unreadable]:
    path = place / _UNREADABLE
    try:
        return [parse_record(Unreadable, one, str(path), file_names=True) for one in read_json(path)]
    except FileNotFoundError:
        return []


def _write(path: Path, body: Any) -> None:
    """Writes a JSON file, unless it says this already."""
    text = (json.dumps(body, indent=1) + "\n").encode()
    if not path.is_file() or path.read_bytes() != text:
        replace_file(path, lambda file: file.write(text))
