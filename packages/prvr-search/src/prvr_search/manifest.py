"""The manifest of an index: one file, replaced as a whole, that says what the index is and lists its videos."""

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from prvr.data.atomic import replace_file
from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError, InputError
from prvr.reading import LARGE, parse_json, parse_record, read_bytes
from prvr_search.model import RowSet, SearchModel

MANIFEST, ROWS, WINDOWS = "index.json", "rows", "windows"
_FORMAT = 4  # raise it when files change: an index of another format is made again


class StaleIndex(DataError):
    """An index that is missing, damaged, or made for another model, and has to be made again."""


@dataclass(frozen=True)
class IndexedVideo:
    """A video of an index.

    Args:
        entry: what is known of it.
        first: number of its first window.
        windows: how many windows it has; they lie together, in order of time.
    """

    entry: VideoEntry
    first: int
    windows: int


@dataclass(frozen=True)
class Manifest:
    """What an index is, and the videos that it holds.

    Args:
        key: tells the model, the features and the windows that the index was made for.
        index_id: random, fixed when the index is made.
        window, stride: lengths in seconds; None: videos are not cut.
        rate: rows of features per second.
        dim: width of the vectors.
        clips: number of clips of each window.
        clip_weight, frame_weight: the weights of the two parts of the score.
        frames_by_clip, frame_means: see `SearchModel`.
        stored: rows that are kept beside what the score needs, see `SearchModel.stored`.
        generation: random; names the folder of the files of rows, which only grow. They are written anew, as another
            generation, when more than a quarter of the windows are of videos that were removed.
        sizes: how many elements of each file count; a writer that was killed may have left more.
        videos: the videos, in the order in which their rows lie.
    """

    key: str
    index_id: str
    window: float | None
    stride: float | None
    rate: float
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float
    frames_by_clip: bool = False
    frame_means: bool = False
    stored: Mapping[str, RowSet] = field(default_factory=dict)
    generation: str = field(default_factory=lambda: secrets.token_hex(8))
    sizes: Mapping[str, int] = field(default_factory=dict)
    videos: tuple[IndexedVideo, ...] = ()

    @staticmethod
    def new(model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None) -> "Manifest":
        """The manifest of an empty index."""
        return Manifest(
            key=index_key(model, features, window, stride),
            index_id=secrets.token_hex(8),
            window=window,
            stride=stride,
            rate=features.rate,
            dim=model.dim,
            clips=model.clips,
            clip_weight=float(model.clip_weight),
            frame_weight=float(model.frame_weight),
            frames_by_clip=model.frames_by_clip,
            frame_means=model.frame_means,
            stored=dict(model.stored),
        )

    @property
    def row_sets(self) -> dict[str, RowSet]:
        """All sets of rows, by name."""
        return {"clips": RowSet(self.dim), "frames": RowSet(self.dim), **self.stored}

    @property
    def files(self) -> dict[str, np.dtype]:
        """The files of rows, by name, with the type of their elements.

        `windows` has the start and the end of each window in seconds, its `steps` (see `WindowVectors`), and how many
        rows of each set are its own. The file of a set has its rows, those of one window after those of another.
        """
        fields = [("start", "<f8"), ("end", "<f8"), ("steps", "<i8"), *((name, "<i8") for name in self.row_sets)]
        rows = {name: np.dtype(("<f2", (row_set.dim,))) for name, row_set in self.row_sets.items()}
        lengths = {f"{name}_lengths": np.dtype("<f4") for name, row_set in self.row_sets.items() if row_set.lengths}
        return {WINDOWS: np.dtype(fields), **rows, **lengths}

    @property
    def windows(self) -> int:
        """Number of windows, those of removed videos included."""
        return self.sizes.get(WINDOWS, 0)

    def without(self, video_ids: Collection[str]) -> "Manifest":
        """The manifest without some videos, whose rows stay where they are."""
        return replace(self, videos=tuple(video for video in self.videos if video.entry.id not in video_ids))

    def write(self, folder: Path) -> None:
        """Replaces the manifest in a folder, in one step."""
        about = {name: value for name, value in vars(self).items() if name not in ("stored", "videos")}
        stored = {name: vars(row_set) for name, row_set in self.stored.items()}
        videos = [vars(video) | {"entry": vars(video.entry)} for video in self.videos]  # asdict takes ten times as long
        text = json.dumps({**about, "stored": stored, "videos": videos})
        replace_file(folder / MANIFEST, lambda file: file.write(text.encode()))

    @staticmethod
    def parse(content: bytes, source: str) -> "Manifest":
        """The manifest in the content of a file.

        Raises:
            DataError: it is damaged.
        """
        return parse_record(Manifest, parse_json(content.decode("utf-8", "replace"), source), source, file_names=True)


def read_manifest(folder: Path) -> bytes:
    """The content of the manifest of an index.

    Raises:
        StaleIndex: there is none.
    """
    try:
        return read_bytes(folder / MANIFEST, LARGE)
    except (OSError, DataError) as error:
        raise StaleIndex(f"{folder / MANIFEST}: cannot be read ({error})") from error


def index_key(model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None) -> str:
    """A hash of all that the vectors of an index depend on.

    Raises:
        ValueError: there would be gaps between windows, or their length is not positive.
    """
    if (window is None) != (stride is None) or (window is not None and stride is not None and not 0 < stride <= window):
        raise InputError(f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both")
    values = {"model": asdict(model.identity), "features": asdict(features)}
    for identity in (
        values["model"],
        values["model"]["frames"],
        values["model"]["text"],
        values["features"]["encoder"],
    ):
        identity.pop("name")  # a model may lie in two places
    body = json.dumps([_FORMAT, values, window, stride], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()
