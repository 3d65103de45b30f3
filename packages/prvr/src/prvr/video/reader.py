"""Reads a store of video features."""

from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from prvr.data.features import FeatureReader
from prvr.errors import DataError
from prvr.video.encoders import Identity
from prvr.video.store import FOLDER, HEADER, SUFFIX, VideoEntry, entry_path, read_entry, read_features, read_header


class VideoStore(FeatureReader):
    """An open store of `prvr extract`. No file stays open: it may be shared between processes.

    Attributes:
        entries: by id, what is known of each video.
        encoder: that made the features.
        rate: frames per second.
        joint_dim: how many of the first columns can be compared with sentences of the same model.

    Args:
        folder: the store.

    Raises:
        DataError: no store, or one with a damaged file; names it.

    Example:
        >>> store = VideoStore("store")  # doctest: +SKIP
        >>> store.read(store.video_ids[0]).shape, store.duration(store.video_ids[0])  # doctest: +SKIP
        ((41, 512), 20.5)
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        self.header = read_header(self.folder)
        self.files = (self.folder / HEADER,)
        self.dim, self.joint_dim, self.rate = self.header.dim, self.header.joint_dim, self.header.rate
        self.encoder: Identity = self.header.encoder
        found = (read_entry(path, self.header) for path in _files(self.folder))
        self.entries: dict[str, VideoEntry] = {entry.id: entry for entry in sorted(found, key=lambda entry: entry.id)}
        self.video_ids = tuple(self.entries)

    def duration(self, video_id: str) -> float:
        """Of a video, in seconds.

        Raises:
            KeyError: there is no such video.
        """
        return self.entries[video_id].duration

    def find(self, name: str) -> str:
        """The id that a name stands for: the id itself, its end, or either without the suffix; if only one fits.

        Args:
            name: for example `day 1/beach.mp4`, `beach.mp4` or `beach`.

        Raises:
            DataError: none fits, or more than one.
        """
        if name in self.entries:
            return name
        fits = self._named.get(name, [])
        if len(fits) == 1:
            return fits[0]
        close = fits or get_close_matches(name, self._named, n=3)
        what = f"{len(fits)} videos fit" if fits else "no video fits"
        some = f", among them {', '.join(map(repr, close[:3]))}" if fits else f"; close: {', '.join(map(repr, close))}"
        raise DataError(
            f"{self.folder}: {what} {name!r}{some if close else ''}. Write the id as it stands in the store "
            f"({len(self.video_ids)} videos)."
        )

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        """Every name that stands for a video, and all videos that it stands for."""
        found: dict[str, list[str]] = {}
        for video in self.video_ids:
            for name in _names(video):
                found.setdefault(name, []).append(video)
        return found

    def verify(self) -> None:
        """Reads everything and compares the hashes.

        Raises:
            DataError: names every damaged file.
        """
        said: list[str] = []
        for video in self.video_ids:
            try:
                read_features(entry_path(self.folder, video), self.header, check=True)
            except DataError as error:
                said.append(str(error))
        if said:
            raise DataError(f"{self.folder}: {len(said)} of {len(self.video_ids)} videos are damaged. {' '.join(said)}")

    def __contains__(self, video_id: object) -> bool:
        return video_id in self.entries

    def _rows(self, video_id: str) -> np.ndarray:
        return read_features(entry_path(self.folder, video_id), self.header)[1]

    def close(self) -> None:
        """Nothing is open."""


def _files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob(f"*{SUFFIX}"))


def _names(video: str) -> set[str]:
    path = PurePosixPath(video)
    ends = {PurePosixPath(*path.parts[i:]) for i in range(len(path.parts))}
    return {str(end) for end in ends} | {str(end.with_suffix("")) for end in ends}
