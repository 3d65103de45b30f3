"""What an evaluation found, and its two files: `evaluation.json` for people, `evaluation_ranks.npz` for comparisons."""

import hashlib
import io
import json
import zipfile
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Real

from prvr.data.atomic import write_file
from prvr.data.hashes import digest
from prvr.data.packed import Labels
from prvr.errors import DataError
from prvr.evaluation.metrics import RECALLS, RetrievalMetrics, Ties
from prvr.evaluation.significance import Interval
from prvr.reading import LARGE, parse_record, read_bytes, read_object

FORMAT = 3
"""3: the file holds its own hash. Files of format 2 have none, and are read as well."""
_ARRAYS = ("ranks", "query_ids", "query_to_video", "video_ranks", "video_ids")


@dataclass(frozen=True)
class GroupMetrics:
    """Metrics of the queries whose moment-to-video ratio lies in (low, high]."""

    low: float
    high: float
    metrics: RetrievalMetrics


@dataclass(frozen=True)
class TagMetrics:
    """Metrics of the queries that carry a tag."""

    tag: str
    metrics: RetrievalMetrics


@dataclass(frozen=True)
class EvaluationReport:
    """All that is reported of a model on a split, and the ranks behind it.

    Args:
        split: collection and split.
        ties: how ties count in the ranks.
        seed: the seed of whatever the model samples, and of the bootstrap.
        chance: expected text-to-video SumR when every order of the gallery is equally likely.
        text_to_video: ranks of videos for a query; the numbers papers print.
        video_to_text: best rank of a video's own queries among all queries.
        text_to_text: best rank of a caption's siblings among all other captions; None where no caption has one.
        intervals: bootstrap interval per recall and for SumR, text-to-video; empty when none was asked for.
        groups: text-to-video by moment-to-video ratio; only groups that have queries, empty where no moment is known.
        tags: text-to-video by tag, sorted; a query counts under each of its tags, empty where no query has one.
        query_ids, video_ids: the queries and the gallery.
        query_to_video: `(q,)` the video each query was written for.
        ranks: `(q,)` text-to-video rank of each query.
        video_ranks: `(v,)` video-to-text rank of each video.
        video_to_sets: rank of a video's own set of queries among those of all videos, a set counting as its best query:
            video to text as papers on MSVD count it; None where it was not asked for.
        stages: a line for each stage that re-scored the first one: what, and in which directions.
        labels: which labels say what is right: those that the captions were written with, or dense ones.
        changed: keys of the first stage's configuration that were not as in training, with the values used.
    """

    split: str
    ties: Ties
    seed: int
    chance: float
    text_to_video: RetrievalMetrics
    video_to_text: RetrievalMetrics
    text_to_text: RetrievalMetrics | None
    intervals: dict[str, Interval]
    groups: tuple[GroupMetrics, ...]
    tags: tuple[TagMetrics, ...]
    query_ids: tuple[str, ...] = field(repr=False)
    video_ids: tuple[str, ...] = field(repr=False)
    query_to_video: Int[np.ndarray, " q"] = field(repr=False, compare=False)
    ranks: Real[np.ndarray, " q"] = field(repr=False, compare=False)
    video_ranks: Real[np.ndarray, " v"] = field(repr=False, compare=False)
    video_to_sets: RetrievalMetrics | None = None
    stages: tuple[str, ...] = ()
    labels: Labels = "original"
    changed: dict[str, Any] = field(default_factory=dict)

    @property
    def above_chance(self) -> bool:
        """Whether text-to-video SumR, with its interval if it has one, is above chance, however ties are counted."""
        interval = self.intervals.get("sumr")
        low = self.text_to_video.sumr if interval is None else interval.low
        kindness = 0.0 if self.ties == "worst" else 100 * len(RECALLS) * self.text_to_video.tied  # at most
        return low - kindness > self.chance

    def to_dict(self) -> dict[str, Any]:
        """Everything but the ranks and names, as JSON can hold it."""
        values = asdict(_Stored(**{one.name: getattr(self, one.name) for one in fields(_Stored)}))
        return {
            "format": FORMAT,
            "split": self.split,
            "videos": len(self.video_ids),
            "queries": len(self.query_ids),
            "chance_sumr": values.pop("chance"),
            **values,
        }

    def to_json(self, path: Path | str) -> None:
        """Writes `path` and, beside it, `<stem>_ranks.npz`; each appears whole or not at all.

        The JSON names the hash of the ranks it belongs to, so that a pair torn by a crash is noticed when it is read,
        and its own: numbers that were damaged or edited are not believed.
        """
        path = Path(path)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{name: np.array(getattr(self, name)) for name in _ARRAYS})
        ranks_file = _ranks_file(path)
        write_file(ranks_file, lambda file: file.write(buffer.getvalue()))
        values = self.to_dict()
        values["ranks"] = {"file": ranks_file.name, "sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
        values["sha256"] = digest(values)
        text = json.dumps(values, indent=2, allow_nan=False) + "\n"
        write_file(path, lambda file: file.write(text.encode()))

    @classmethod
    def from_json(cls, path: Path | str) -> "EvaluationReport":
        """Reads what `to_json` wrote.

        Raises:
            DataError: a file is missing, damaged, of another format, or the two do not belong together.
        """
        path = Path(path)
        missing = f"{path}: no such file. Evaluate first: it writes this file and its ranks."
        values = read_object(path, _AGAIN, missing)
        if (found := values.get("format")) not in (2, FORMAT):
            raise DataError(f"{path}: evaluation of format {found!r}, this version reads {FORMAT}. {_AGAIN}")
        if (found == FORMAT or "sha256" in values) and values.get("sha256") != digest(values):
            raise DataError(f"{path}: does not match its own hash: it was damaged or edited. {_AGAIN}")
        ranks = parse_record(_Ranks, values.get("ranks"), f"{path}: ranks")
        stored = parse_record(_Stored, values | {"chance": values.get("chance_sumr")}, str(path))
        return cls(**vars(stored), **_read_ranks(path, ranks.sha256))


@dataclass(frozen=True)
class _Ranks:
    sha256: str


_Stored = make_dataclass(
    "_Stored",
    [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))  # pyright: ignore[reportArgumentType, reportCallIssue]
        for one in fields(EvaluationReport)
        if one.name not in _ARRAYS
    ],
    frozen=True,
)
"""What the JSON of an evaluation holds: every field but the arrays. Older files lack those that have a default."""

_AGAIN = "Evaluate again to write it anew."


def _ranks_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}_ranks.npz")


def _read_ranks(path: Path, sha256: str) -> dict[str, Any]:
    """The arrays of a report, ids as tuples."""
    file = _ranks_file(path)
    if not file.is_file():
        raise DataError(f"{file}: no such file, but {path.name} stands there. Copy both, or evaluate again.")
    content = read_bytes(file, LARGE)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{file}: does not belong to {path.name}, or is damaged. Copy both again, or evaluate again.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in _ARRAYS}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read ({error!r}). {_AGAIN}") from error
    queries, videos = len(found["query_ids"]), len(found["video_ids"])
    wrong = [name for name in ("ranks", "query_ids", "query_to_video") if found[name].shape != (queries,)]
    wrong += [name for name in ("video_ids", "video_ranks") if found[name].ndim != 1]
    owners = found["query_to_video"]
    if (
        wrong
        or len(found["video_ranks"]) > videos
        or owners.dtype.kind != "i"
        or (queries and not 0 <= owners.min() <= owners.max() < videos)
    ):
        raise DataError(f"{file}: its arrays do not belong together. {_AGAIN}")
    return found | {name: tuple(found[name].tolist()) for name in ("query_ids", "video_ids")}
