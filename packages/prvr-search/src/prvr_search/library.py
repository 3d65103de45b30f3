"""A folder of videos that is searched as it stands; what was computed of a video is kept, whatever becomes of it."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from prvr.data.atomic import user_cache
from prvr.data.on_device import choose_device
from prvr.encoders import (
    ENCODERS,
    FeatureSpec,
    Identity,
    TextFeaturizer,
    VideoEncoder,
    VideoEntry,
    VideoFeatures,
    open_encoder,
    open_featurizer,
)
from prvr.encoders.own import is_own
from prvr.errors import DataError, InputError
from prvr_search.films import Film, Listing, list_videos
from prvr_search.films.info import check_rate
from prvr_search.films.listing import below
from prvr_search.films.toy_videos import default_encoder, foreign_video
from prvr_search.ranking.filters import SearchFilter
from prvr_search.ranking.index import VideoIndex
from prvr_search.ranking.lines import checked_queries, line_hits, matching_lines, searched_videos
from prvr_search.ranking.query import Query
from prvr_search.ranking.results import SearchResult
from prvr_search.ranking.snapshot import Videos
from prvr_search.recognisers import open_recogniser
from prvr_search.store.encoding import Progress, Unreadable, Update
from prvr_search.store.features import encoder_key
from prvr_search.store.proof import stamp_at
from prvr_search.store.store import LibraryUnwritable, Store, feature_files
from prvr_search.store.upkeep import prune
from prvr_search.vectors.files import delete_vectors
from prvr_search.vectors.joint import JointModel, open_model
from prvr_search.vectors.model import TAUGHT, UNTRAINED, ZERO_SHOT, SearchModel
from prvr_search.vectors.taught import Taught, read_taught, taught_file, write_taught

if TYPE_CHECKING:
    from prvr_search.vectors.teaching import Comparison

logger = logging.getLogger(__name__)


_RATE = 2.0  # frames per second
_WINDOW = 120.0  # seconds; frames of zero-shot are the same in every window, which need not overlap


class NothingEncoded(DataError):
    """None of the videos of a folder can be searched yet."""


class Library:
    """A folder of videos that can be searched by sentences.

    Videos are told apart by their content: one that was renamed, moved, copied or is on a disk that was away is never
    encoded twice, whatever folder it is searched in. What is computed lies in one place for all folders of the user,
    see `prvr_search.store.proof.library_home`. It is a context manager, and can be used by several threads.

    Args:
        folder: the folder of videos; it is searched with all folders below it.
        encoder: an encoder as `prvr.encoders.open_encoder` takes it; default: the one last used for the folder, else
            the CLIP or SigLIP on this computer that was last used.
        model: a trained retriever, see `prvr_search.open_model`; `zero-shot`: the encoder alone, by frames and
            means of frames; `training-free`: the encoder alone, by moments; `taught`: zero-shot with what `teach` made
            for the folder; default: the last one if it was shown to be better, else zero-shot.
        device: torch device of encoder and model; `auto` is a GPU where there is one.
        download: let the encoder be downloaded if it is not on this computer.
        backend: the search backend, see `VideoIndex`.
        exclude: patterns of the names or paths of files and folders that are left out.
        home: where the library lies; default: `prvr_search.store.proof.library_home()`.
        rate: frames or clips per second; default: that of the encoder's last use for the folder, or its own: 2 frames.

    Attributes:
        report: what the last `update` has done; None before.
        listed: the videos as they were listed last; None before.
        remembers: whether its encoder is that of the folder from now on.

    Examples:
        >>> from prvr_search import Library
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
        model: Path | str | None = None,
        device: Any = "auto",
        download: bool = False,
        backend: str = "auto",
        exclude: Iterable[str] = (),
        home: Path | str | None = None,
        rate: float | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.store = Store(None if home is None else Path(home))
        self.report: Update | None = None
        self.listed: Listing | None = None
        self.remembers = True
        self._encoder_name = encoder and encoder.strip()
        self._model = model and str(model)
        self._is_encoder_alone = self._model in (None, TAUGHT, *UNTRAINED)
        if model is not None and not self._is_encoder_alone:
            from prvr.models.pretrained import shipped_model  # here, since the encoder alone needs no retriever

            if shipped_model(model) is None:
                self._model = str(Path(model).expanduser().resolve())
        self._device = choose_device(device)
        if rate is not None:
            check_rate(rate)
        self._rate = rate
        self._download, self._backend, self._exclude = download, backend, tuple(exclude)
        self._encoder: VideoEncoder | None = None
        self._spec: FeatureSpec | None = None
        self._index: VideoIndex | None = None
        self._state: object = None  # of which the index is
        self._taught_state: object = None  # of which the model is
        self._lock = threading.RLock()

    def search(
        self,
        query: str | Query,
        k: int = 10,
        *,
        moments: int = 3,
        where: SearchFilter | None = None,
        update: bool = True,
    ) -> SearchResult:
        """The k best videos for a query, see `VideoIndex.search_many`.

        A query about lines of subtitles alone needs neither encoder nor model: all videos are searched, encoded or not.

        Args:
            query, k, moments, where: as for `VideoIndex.search_many`.
            update: bring the library up to date before; otherwise what was encoded so far is searched.

        Raises:
            ValueError, DataError: as `update` and `VideoIndex.search_many`.
        """
        (checked,) = checked_queries([query], k, moments)
        if update:
            self.update(lines_only=not checked.shows)
        else:
            self.listed = self._listing()
        if checked.shows:
            return self.index.search(query, k, moments=moments, where=where)
        videos = Videos([*self._entries(self.listed or self._listing()).values()])  # no model is needed
        lines = matching_lines(videos, self.store.lines, checked, searched_videos(videos, where))
        return SearchResult(str(checked), line_hits(videos, lines, moments)[:k], len(videos.entries), "exact")

    def update(
        self, progress: Progress | None = None, *, shard: tuple[int, int] = (1, 1), lines_only: bool = False
    ) -> Update:
        """Encodes the videos that are new; run it again to go on after an interruption.

        Every video can be searched as soon as it is encoded, also by other processes.

        Args:
            progress: called now and then, if there is anything to do.
            shard: `(i, n)`: only the i-th of n parts of the videos, so that n computers can share the work.
            lines_only: read only the subtitles of new videos, beside them and inside them, and encode nothing.

        Raises:
            prvr.encoders.DownloadNeeded: the encoder is not on this computer, and `download` is False.
            DataError: there is no video and never was one, or the encoder cannot be used.
        """
        listing, part, parts = self.list_videos(), *shard
        videos = listing.videos
        if not 1 <= part <= parts:
            raise InputError(f"shard={part}/{parts}: expected a number from 1 to {parts}")
        own = tuple(x for x in videos if crc32(x.id.encode("utf-8", "surrogateescape")) % parts == part - 1)
        listing = replace(listing, videos=own)
        with self.store.in_use():
            spec = self._choose_spec(listing) if videos and not lines_only else None
            self.report = Update(self.store, self.folder, listing, spec, cache(self._open_encoder), progress)
            return self.report.run()

    def recognise(self, name: str, progress: Progress | None = None, *, download: bool = False) -> Update:
        """Recognises what is said or written in the videos that were not yet; later searches find its lines.

        Run it again to go on after an interruption: what was recognised is kept with the content of the video, also
        that nothing was.

        Args:
            name, download: see [open_recogniser][prvr_search.recognisers.open_recogniser].
            progress: see `update`.

        Raises:
            prvr.encoders.DownloadNeeded: the model is not on this computer, and `download` is False.
            DataError: there is no video and never was one, or no such recogniser.
        """
        listing = self.list_videos()
        recogniser = open_recogniser(name, self._device, download=download)
        spec = FeatureSpec(recogniser.identity, 1.0, dim=0, joint_dim=0)
        with self.store.in_use():
            return Update(self.store, self.folder, listing, spec, lambda: recogniser, progress).run()

    def list_videos(self) -> Listing:
        """The videos of the folder as they are now; none if it is offline.

        Raises:
            DataError: there is no video and never was one.
        """
        self.listed = self._listing()
        if not self.listed.videos and not self.store.folders.places(self.folder):
            others = self.listed.others
            content = f"It holds {others:,} other files." if others else "It is empty."
            raise DataError(f"{self.folder}: no videos found. {content} Expected files such as .mp4, .mkv or .webm.")
        return self.listed

    def prepare(self) -> None:
        """Chooses the encoder, which is opened if it has to be; nothing is encoded.

        Raises:
            prvr.encoders.DownloadNeeded, DataError: as `update`.
        """
        if (listing := self.list_videos()).videos:
            self._choose_spec(listing)

    def features(self) -> VideoFeatures:
        """The features of the videos that are encoded and seen now; of all that were seen, if the folder is offline.

        Raises:
            NothingEncoded: there are none.
        """
        return self._features(self._listing())

    @property
    def index(self) -> VideoIndex:
        """The vectors of the videos that are encoded, as they were listed last, made where they are missing or damaged.

        Raises:
            NothingEncoded: no video is encoded yet.
            DataError: the model cannot be used.
        """
        return self._current()

    def encoded(self) -> VideoIndex:
        """As `index`, but of the videos that were listed last, and empty if none of them is encoded yet."""
        return self._current(may_be_empty=True)

    def _features(self, listing: Listing, may_be_empty: bool = False) -> VideoFeatures:
        spec = self.spec
        entries = self._entries(listing, spec)
        if spec is None or not (entries or may_be_empty):
            raise NothingEncoded(f"{self.folder}: no video is encoded yet{_why(self.report)}")
        return VideoFeatures(spec, entries, partial(self.store.rows_of, encoder_key(spec)), self.folder)

    def _entries(self, listing: Listing, spec: FeatureSpec | None = None) -> dict[str, VideoEntry]:
        """The records of the videos of the folder, or of what was seen last of one that is away, by id.

        They are those of videos that are encoded, or of all that are known; their lines can be found from now on.
        """
        store = self.store
        videos = store.folders.known(self.folder, listing.videos) or store.folders.last_seen(self.folder)
        store.lines.follow(self.folder, listing, videos, store.with_lines(), store.lines_of)
        films = store.known() if spec is None else store.films(encoder_key(spec))
        entries = (films[video.sha256].at(video) for video in sorted(videos) if video.sha256 in films)
        return {entry.id: entry for entry in entries if spec is None or entry.frames}

    def _current(self, may_be_empty: bool = False) -> VideoIndex:
        listing = self.listed or self._listing()
        with self._lock:
            state, spec = (self.store.version, listing), self.spec
            # Changes with what `teach` made, if searches may use it.
            taught = spec and self._model in (None, TAUGHT) and stamp_at(self._taught_file(spec))
            if self._taught_state != taught:
                self.close()
                self._taught_state = taught
            if self._index is not None and self._state == state:
                return self._index
            with self.store.in_use():
                features = self._features(listing, may_be_empty)
                if self._index is None:
                    self._index = VideoIndex(
                        user_cache() / "search",
                        self._search_model(features.spec),
                        features.spec,
                        window=_WINDOW,
                        stride=_WINDOW / (1 if self._is_encoder_alone else 2),
                        backend=self._backend,
                        subtitles=self.store.lines,
                    )
                self._index.update(features)
            self._state = state
            return self._index

    @property
    def spec(self) -> FeatureSpec | None:
        """What its features are, as far as it can be told without opening an encoder; None before the first update."""
        if self._spec is not None:
            return self._spec
        last = self.store.folders.encoder(self.folder)
        if last is None and self._encoder_name is None:
            return None
        name = self._encoder_name or (last.encoder.name if last else "")
        names = {name, str(Path(name).expanduser().resolve())}
        rate = self._rate or (last.rate if last and last.encoder.name in names else _RATE)
        specs = [*filter(None, [last]), *self.store.specs().values()]
        return next((spec for spec in specs if spec.dim and spec.encoder.name in names and spec.rate == rate), None)

    def close(self) -> None:
        """Closes the index. The library is complete at any time, closed or not."""
        with self._lock:
            if self._index is not None:
                self._index.close()
            self._index = None

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self) -> "LibraryState":
        """What is known of the folder, without encoding or changing anything."""
        with self.store.in_use():
            listing, spec, folders = self._listing(), self.spec, self.store.folders
            key = encoder_key(spec)
            films, videos = self.store.films(key), folders.known(self.folder, listing.videos)
            here = [(video, films[video.sha256]) for video in videos if video.sha256 in films]
            shas = {video.sha256 for video in videos}
            return LibraryState(
                spec=spec,
                videos=len(videos),
                films=[film for _, film in here if film.frames],
                missing=len({place.sha256 for place in folders.places(self.folder).values()} - shas),
                other_features={
                    other: count
                    for name, other in self.store.specs().items()
                    if name != key and (count := len(shas & self.store.films(name).keys()))
                },
                unreadable=[Unreadable(video.id, film.reason, film.remedy) for video, film in here if film.reason],
                others=listing.others,
            )

    def teach(self, captions: Path | str, progress: Progress = lambda done, total, what: None) -> "Comparison":
        """Fits a correction of the encoder to captions of some of the videos that are encoded, and keeps it.

        Later searches without `model` use it if it was shown to be better than the encoder alone, also those of
        libraries that are open.

        Args:
            captions: a table that `prvr.corpora.read_user_captions` reads.
            progress: called now and then with how much is done, how much there is in all, and of what.

        Returns:
            Both, compared on the same captions.

        Raises:
            DataError: lines that cannot be used; captions of one or two videos; the library cannot be written.
        """
        from prvr_search.vectors.teaching import teach  # here, since a search needs no statistics

        features = self.features()
        joint = JointModel(features.spec, self._text(features.spec), self._device)
        taught, comparison = teach(captions, features, joint, _WINDOW, progress)
        with self.store.in_use(), self.store.writable():
            write_taught(self._taught_file(features.spec), taught)
        return comparison

    def taught(self) -> Taught | None:
        """What `teach` made for the folder and its encoder; None if there is nothing.

        Raises:
            DataError: the file is damaged, or was made for something else.
        """
        return (spec := self.spec) and read_taught(self._taught_file(spec), spec)

    def forget(self) -> bool:
        """Deletes what `teach` made; False if there is nothing.

        Raises:
            DataError: the library cannot be written.
        """
        if (spec := self.spec) is None:
            return False
        with self.store.in_use(), self.store.writable(), suppress(FileNotFoundError):
            self._taught_file(spec).unlink()
            return True
        return False

    def _taught_file(self, spec: FeatureSpec) -> Path:
        return taught_file(self.store.folders.file(self.folder), spec)

    def _text(self, spec: FeatureSpec) -> TextFeaturizer:
        return open_featurizer(self._encoder_name or spec.encoder, self._device, download=self._download)

    def verify(self) -> tuple[str, ...]:
        """The problems of the features of the folder's videos, whose files are read and compared with their hashes.

        What is damaged is encoded again at the next update.
        """
        with self.store.in_use():
            shas = {place.sha256 for place in self.store.folders.places(self.folder).values()}
            problems = list[str]()
            for key, sha256, _ in [*feature_files(self.store.home)]:
                if sha256 in shas:
                    try:
                        self.store.read(key, sha256)
                    except DataError as error:
                        problems.append(str(error))
            return tuple(problems)

    def prune(self) -> tuple[int, int]:
        """Deletes what is kept of videos that were below the folder, are gone, and were seen nowhere else.

        Those that were renamed, or moved within the folder or to another that was searched, are not gone. What is on a
        disk that is not there, or may be in what cannot be read, is kept.

        Returns:
            How many videos were deleted, and how many are kept because it is not known whether they are gone.

        Raises:
            DataError: the folder is offline, or another process uses the library.
        """
        listing = self._listing(exclude=())  # what is left out of a search is not gone
        if not listing.videos:
            raise DataError(f"{self.folder}: offline, or moved; nothing was deleted. Search it at its new place first.")
        videos = [*listing.videos]
        for record in self.store.folders.all():
            if not below(record.path, [self.folder]):
                with suppress(DataError):
                    videos += list_videos(record.path).videos
        films, deleted, remaining = prune(self.store, self.folder, videos, [*listing.unlisted])
        delete_vectors(user_cache() / "search", {film.digest for film in films})
        return deleted, remaining

    def _listing(self, exclude: Sequence[str] | None = None) -> Listing:
        """The videos of the folder; none if it is missing but was there before."""
        try:
            return list_videos(self.folder, self._exclude if exclude is None else exclude)
        except DataError:
            if self.folder.exists() or not self.store.folders.places(self.folder):
                raise
            return Listing(())

    def _choose_spec(self, listing: Listing) -> FeatureSpec:
        """The specification of the features: that of the encoder as it is now, if it may have changed under its name.

        It is chosen once: while the library is open, neither it nor the index follows what other processes choose.
        """
        spec, last, is_first = self.spec, self.store.folders.encoder(self.folder), self._spec is None
        name = self._encoder_name or (spec and spec.encoder.name)
        if spec is None or (is_first and (name in ENCODERS or (self._encoder_name and is_own(self._encoder_name)))):
            # last: at another rate
            encoder = self._opened(name or (last.encoder if last else default_encoder(listing.videos)))
            rate = last.rate if last and last.encoder.name == encoder.identity.name else None
            spec = FeatureSpec.of(encoder, self._rate or rate)
        self._spec = spec
        try:  # before the first video is encoded, so that another process finds what is
            is_new = last != spec and ((self.remembers and is_first) or last is None)
            if is_new and foreign_video(spec.encoder, listing.videos) is None:
                with self.store.folders.changing(self.folder) as folder:
                    folder.encoder = spec
        except LibraryUnwritable as error:
            logger.debug("%s", error)
        return spec

    def _opened(self, encoder: str | Identity) -> VideoEncoder:
        """An encoder that is opened once."""
        if self._encoder is None:
            tried = {spec.encoder for spec in self.store.specs().values()}
            self._encoder = open_encoder(encoder, self._device, download=self._download, tried=tried)
        return self._encoder

    def _open_encoder(self) -> VideoEncoder:
        """The encoder of the features; opened when a video has to be encoded."""
        assert self._spec is not None
        encoder = self._opened(self._encoder_name or self._spec.encoder)
        if FeatureSpec.of(encoder, self._spec.rate) != self._spec:
            raise DataError(
                f"{encoder.identity}: is not the encoder of this folder's features, {self._spec.encoder}. Pass "
                f"--encoder {encoder.identity.name} to encode the videos with it."
            )
        foreign = self.listed and foreign_video(encoder.identity, self.listed.videos)
        if foreign:
            message = (
                f"{foreign} is not a video of the toy corpus, and the encoder toy supports no others. "
                "Pass another encoder with --encoder NAME."
            )
            if self._encoder_name is None:
                raise DataError(message)
            logger.warning("%s The results have no meaning.", message)
        return encoder

    def _search_model(self, spec: FeatureSpec) -> SearchModel:
        """The model; without a name, what `teach` made if it was shown to be better, else the encoder alone."""
        if self._model in (None, TAUGHT):
            taught = None
            try:
                taught = self.taught()
            except DataError as error:
                if self._model:
                    raise
                logger.warning("%s Until then, the encoder alone ranks the videos.", error)
            if self._model and taught is None:
                raise DataError(
                    f"{self.folder}: nothing was taught with {spec.encoder.name}. Run prvr teach FOLDER CAPTIONS.csv, "
                    "or search without --model."
                )
            if taught is not None and (self._model or taught.better):
                return JointModel(spec, self._text(spec), self._device, taught)
        is_of_text = self._is_encoder_alone or is_own(self._encoder_name or "")  # a run knows what read its captions
        return open_model(self._model or ZERO_SHOT, spec, self._device, self._text(spec) if is_of_text else None)


@dataclass(frozen=True)
class LibraryState:
    """What is known of a folder of videos.

    Args:
        spec: what its features are; None if nothing is encoded yet.
        videos: the number of videos that are seen now.
        films: what is kept of those that can be searched.
        missing: the number of videos that were seen earlier and are not there now.
        other_features: how many of the videos have features of another encoder, or were recognised.
        unreadable: the videos that cannot be encoded.
        others: the number of other files.
    """

    spec: FeatureSpec | None
    videos: int
    films: Sequence[Film]
    missing: int
    other_features: Mapping[FeatureSpec, int]
    unreadable: Sequence[Unreadable]
    others: int


def features_of(folder: Path) -> VideoFeatures:
    """The features of a folder of videos that was searched.

    Raises:
        DataError: as `Library.features`.
    """
    return Library(folder).features()


def _why(report: Update | None) -> str:
    """Why no video is encoded, as the end of a sentence."""
    if report is None:
        return ". Update the library first: prvr search does, without --no-update."
    if report.problem:
        return f". {report.problem}"
    if report.waiting:
        return ": another process is encoding them. Wait for the first one to be finished."
    if report.unreadable:
        first = report.unreadable[0]
        return f": none of {len(report.unreadable)} can be read. {first.id}: {first.reason}. {first.remedy}"
    return "."
