"""What is known of videos besides their features, and the features of some videos as a reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float32

from prvr.data.features import FeatureReader
from prvr.encoders.interface import ClipEncoder, Identity, VideoEncoder, rows_identity
from prvr.errors import DataError

SUFFIXES = (
    ".264", ".265", ".3g2", ".3gp", ".asf", ".avi", ".dv", ".f4v", ".flv", ".h264", ".h265", ".hevc", ".ivf", ".m2ts",
    ".m2v", ".m4v", ".mjpeg", ".mjpg", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mts", ".mxf", ".ogm", ".ogv",
    ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m",
)  # fmt: skip
"""Names of video files end in one of these."""


@dataclass(frozen=True)
class FeatureSpec:
    """What features are: the encoder that made them, how many rows a second has, and their width.

    Args:
        encoder: the encoder.
        rate: rows per second.
        dim: width of the rows.
        joint_dim: how many of the first columns can be compared with sentences.
    """

    encoder: Identity
    rate: float
    dim: int
    joint_dim: int

    @staticmethod
    def of(encoder: VideoEncoder, rate: float | None = None) -> "FeatureSpec":
        """The features that an encoder makes; default: of two frames per second, or of clips as it says."""
        usual = 1 / encoder.window.stride if isinstance(encoder, ClipEncoder) else 2.0
        return FeatureSpec(rows_identity(encoder), rate or usual, encoder.dim, encoder.joint_dim)


@dataclass(frozen=True)
class VideoEntry:
    """What is known of a video besides its features: in the library, in results, and in their JSON.

    A new field needs a default, a field of `prvr_search.films.Film`, its place in `Film.at` and the next
    `FIELDS_VERSION`.

    Args:
        id: its path below the folder, with `/`.
        path: its absolute path.
        size: of the file, in bytes.
        mtime_ns: when the file was last changed, in ns since 1970.
        sha256: of the file.
        duration: in seconds.
        frames: number of rows; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        width, height: of the picture in pixels, before it is turned upright.
        codec: for example `h264`.
        warnings: what was wrong with the file.
        start_time: the time stamp of time 0 in the file, in seconds, see [Film][prvr_search.films.Film].
        features: the hash of the file of its features, which tells them from others of the same video; empty where they
            come from no library.
        filmed: when it was filmed, ISO 8601 with the zone; empty where the features come from no library.
        filmed_by: what says so: its `container`, its `name` or the time of its `file`.
    """

    id: str
    path: str
    size: int
    mtime_ns: int
    sha256: str
    duration: float
    frames: int
    width: int
    height: int
    codec: str
    warnings: tuple[str, ...] = ()
    start_time: float = 0.0
    features: str = ""
    filmed: str = ""
    filmed_by: str = ""


class VideoFeatures(FeatureReader):
    """The features of some videos.

    Args:
        spec: what the features are.
        entries: what is known of each video, by id.
        read: gives the `(n, dim)` features of an entry.
        source: where they come from, for messages.

    Examples:
        >>> from prvr.corpora.exported import read_export
        >>> features = read_export("features")  # doctest: +SKIP
        >>> features.read("beach.mp4").shape, features.duration("beach.mp4")  # doctest: +SKIP
        ((41, 512), 20.5)
    """

    def __init__(
        self,
        spec: FeatureSpec,
        entries: Mapping[str, VideoEntry],
        read: Callable[[VideoEntry], Float32[np.ndarray, "n f"]],
        source: Path | str = "features",
    ) -> None:
        self.spec, self.encoder = spec, spec.encoder
        self.rate, self.dim, self.joint_dim = spec.rate, spec.dim, spec.joint_dim
        self.entries = dict(sorted(entries.items()))
        self._read = read
        self.files = (Path(source) / "library",)
        self.video_ids = tuple(self.entries)

    def duration(self, video_id: str) -> float:
        """The duration of a video in seconds.

        Raises:
            KeyError: there is no such video.
        """
        return self.entries[video_id].duration

    def find(self, name: str) -> str:
        """The id of the video that a name stands for: the id, its last parts, or either without the suffix.

        Args:
            name: for example `day 1/beach.mp4`, `beach.mp4` or `beach`; only one video may fit.

        Raises:
            DataError: no video fits, or more than one.
        """
        fits = self.named(name)
        if len(fits) == 1:
            return fits[0]
        stem = name.rpartition(".")[0]
        if not fits and len(self.named(stem)) == 1:
            raise DataError(f"no video fits {name!r}, but {stem!r} does. Leave out the ending.")
        close = fits or get_close_matches(name, self._named, n=3)
        what = f"{len(fits)} videos fit" if fits else "no video fits"
        some = f", among them {', '.join(map(repr, close[:3]))}" if fits else f"; close: {', '.join(map(repr, close))}"
        raise DataError(f"{what} {name!r}{some if close else ''}. Pass its path below the folder.")

    def named(self, name: str) -> Sequence[str]:
        """The ids of all videos that a name may stand for, as `find` reads it; the id itself stands for no other."""
        return (name,) if name in self.entries else self._named.get(name, ())

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        """Every name that stands for a video, and all videos that it stands for."""
        names: dict[str, list[str]] = {}
        for video in self.video_ids:
            parts = PurePosixPath(video).parts
            ends = {PurePosixPath(*parts[i:]) for i in range(len(parts))}
            for name in {str(end) for end in ends} | {str(end.with_suffix("")) for end in ends}:
                names.setdefault(name, []).append(video)
        return names

    def __contains__(self, video_id: object) -> bool:
        return video_id in self.entries

    def _rows(self, video_id: str) -> np.ndarray:
        return self._read(self.entries[video_id])

    def close(self) -> None:
        """Does nothing: no file is open."""
