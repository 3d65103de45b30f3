"""The manifest of an index: one file, replaced as a whole, that says what the index is and names its segments."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from prvr.data.atomic import replace_file
from prvr.errors import DataError, InputError
from prvr.reading import parse_record, read_json
from prvr.search.model import RowSet, SearchModel
from prvr.video import FeatureSpec

MANIFEST, SEGMENTS, BANK_SCORES = "index.json", "segments", "bank_scores"
_FORMAT = 1  # raise it when files change: an index of another format is made again


class StaleIndex(DataError):
    """An index that is missing, damaged, or made for another model, and has to be made again."""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment and which of its videos were removed since it was written.

    Args:
        name: of its folder; never given twice.
        videos, windows, frames: their numbers, those of removed videos included.
        bytes: size of its files.
        removed: numbers of the removed videos, in ascending order.
    """

    name: str
    videos: int
    windows: int
    frames: int
    bytes: int
    removed: tuple[int, ...] = ()

    @property
    def live(self) -> int:
        """Number of videos that were not removed."""
        return self.videos - len(self.removed)


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Args:
        key: tells the model, the features and the windows that the index was made for.
        index_id: random, fixed when the index is made.
        window, stride: lengths in seconds; None: videos are not cut.
        rate: rows of features per second.
        dim: width of the vectors.
        clips: number of clips of each window.
        clip_weight, frame_weight: the weights of the two parts of the score.
        stored: rows that are kept beside what the score needs, see `SearchModel.stored`.
        bank: number of unrelated sentences whose scores are kept for every window, see `prvr.search.confidence`.
        next_key: the key of the next window.
        segments: the segments in the order in which they were written.
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
    stored: Mapping[str, RowSet] = field(default_factory=dict)
    bank: int = 0
    next_key: int = 0
    segments: tuple[SegmentRecord, ...] = ()

    @staticmethod
    def new(
        model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None, bank: int
    ) -> "Manifest":
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
            stored=dict(model.stored),
            bank=bank,
        )

    @property
    def row_sets(self) -> dict[str, RowSet]:
        """All sets of rows of a segment, by name."""
        bank = {BANK_SCORES: RowSet(self.bank, lengths=True)} if self.bank else {}
        return {"clips": RowSet(self.dim), "frames": RowSet(self.dim), **self.stored, **bank}

    def without(self, removed: Mapping[str, set[int]]) -> "Manifest":
        """The manifest with more removed videos, given by their numbers in each segment.

        Segments of which every video is removed are left out.
        """
        records = [
            replace(one, removed=tuple(sorted({*one.removed, *removed.get(one.name, ())}))) for one in self.segments
        ]
        return replace(self, segments=tuple(one for one in records if one.live))

    def write(self, folder: Path) -> None:
        """Replaces the manifest in a folder, in one step."""
        replace_file(folder / MANIFEST, lambda file: file.write(json.dumps(asdict(self)).encode()))

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """Reads the manifest of an index.

        Raises:
            StaleIndex: there is none, or it is damaged.
        """
        path = folder / MANIFEST
        try:
            return parse_record(Manifest, read_json(path), str(path), file_names=True)
        except (OSError, ValueError) as error:
            raise StaleIndex(f"{path}: cannot be used ({error})") from error


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
