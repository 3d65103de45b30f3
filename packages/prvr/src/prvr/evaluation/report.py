"""The report of an evaluation, and its two files: `evaluation.json` and, for comparisons, `evaluation_ranks.npz`."""

import hashlib
import io
import zipfile
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int, Real

from prvr.data.atomic import write_file
from prvr.data.hashes import read_signed, signed
from prvr.data.packed import Labels
from prvr.errors import DataError
from prvr.evaluation.metrics import RECALLS, RetrievalMetrics, Ties
from prvr.evaluation.significance import Interval
from prvr.reading import LARGE, parse_record, read_bytes

FORMAT = 3
_ARRAYS = ("ranks", "query_ids", "query_to_video", "video_ranks", "video_ids")


@dataclass(frozen=True)
class BlockUse:
    """What a block of attention does on the first batch of an evaluation, means over its positions and heads.

    Args:
        block: its name in the model, and its number in its stack.
        deviation: of the logits over keys, before the window. Near 0 the block averages, whatever the content.
        entropy: of the softmax of these logits, as a share of that of equal weights, in [0, 1].
        other_registers: change of the output, relative to its length, with the registers of another video in place of
            a video's own; None without registers, or of one video.
        mean_register: the same with the mean of a video's registers in the place of each.
    """

    block: str
    deviation: float
    entropy: float
    other_registers: float | None = None
    mean_register: float | None = None


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
class ListMetrics:
    """Metrics that look at all right videos of a query, means over the queries in percent.

    Args:
        map: mean average precision.
        ndcg: normalised discounted cumulative gain of the whole list, with gain 1 for a right video, or 2^level - 1.
        right: right videos of a query, on average.
    """

    map: float
    ndcg: float
    right: float


@dataclass(frozen=True)
class MomentMetrics:
    """Recall of moments: the queries, in percent, with a right moment among the first k.

    Args:
        task: `vcmr`: among the moments of all videos; `svmr`: among those of the query's own video.
        iou: the least intersection over union with the true moment at which a moment is right.
        r1, r5, r10, r100: recall at 1, 5, 10 and 100.
        queries: the number of queries with a known moment.
        intervals: bootstrap interval of each recall, clustered by video; may be empty.
    """

    task: Literal["vcmr", "svmr"]
    iou: float
    r1: float
    r5: float
    r10: float
    r100: float
    queries: int
    intervals: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class MomentBaselines:
    """R@1 of moments, in percent, of a model and of answers that read no query, in the model's ranking of videos.

    Args:
        task, iou: as of `MomentMetrics`.
        below: queries whose moment takes less than this share of its video; 1: all.
        queries: their number.
        model: of the model; None if it has no moments.
        whole, middle, random: of the whole video, its middle third, and any part between 32 equal parts, on average.
    """

    task: Literal["vcmr", "svmr"]
    iou: float
    below: float
    queries: int
    model: float | None
    whole: float
    middle: float
    random: float


@dataclass(frozen=True)
class Rejection:
    """How well the best score of a query tells whether any video answers it, see `rejection_auroc`.

    Args:
        auroc: area under the ROC curve, in [0, 1]; 0.5 by chance.
        interval: its 95 % interval.
        queries: the number of queries that no video answers.
    """

    auroc: float
    interval: Interval
    queries: int


@dataclass(frozen=True)
class EvaluationReport:
    """The metrics of a model on a split, and the ranks that they are computed from.

    Args:
        split: collection and split.
        ties: the rank among equal scores.
        seed: the seed of the bootstrap, and of samples that the model draws.
        chance: expected text-to-video SumR if every order of the gallery is equally likely.
        text_to_video: ranks of videos for a query; the numbers in papers.
        video_to_text: best rank of a video's own queries among all queries.
        text_to_text: best rank of a caption's siblings among all other captions; None if no caption has a sibling.
        intervals: bootstrap interval of each recall and of SumR, text-to-video; may be empty.
        groups: text-to-video by moment-to-video ratio; empty if no moment is known.
        tags: text-to-video by tag, sorted; a query counts under each of its tags.
        query_ids, video_ids: the queries and the gallery.
        query_to_video: `(q,)` the video each query was written for.
        ranks: `(q,)` text-to-video rank of each query.
        video_ranks: `(v,)` video-to-text rank of each video.
        video_to_sets: rank of a video's own set of queries among those of all videos, by the best query of each set:
            video to text in papers on MSVD; None if it was not computed.
        stages: a line for each stage, see `prvr.Pipeline.describe`.
        labels: the relevance labels: the original ones of the captions, or dense ones.
        changed: keys of the first stage's configuration that differ from training, with their values.
        blocks: what each block of attention of the first stage does; empty if it has none.
        lists: mAP and nDCG; None if every query has one right video, or lists were not evaluated.
        moments: moment retrieval; empty if no moment is known, the model has none, or lists were not evaluated.
        baselines: the first moments beside answers that read no query; empty if no moment is known, or likewise.
        left_out: videos of the split that have no features and are not in the gallery, see `data.missing`.
        rejection: queries that no video answers; None if there were none.
        graded: nDCG@20 of moments with graded labels, in [0, 1], by the overlap that counts; may be empty.
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
    blocks: tuple[BlockUse, ...] = field(default=(), compare=False)
    lists: ListMetrics | None = None
    moments: tuple[MomentMetrics, ...] = ()
    baselines: tuple[MomentBaselines, ...] = ()
    left_out: int = 0
    rejection: Rejection | None = None
    graded: dict[str, float] = field(default_factory=dict)

    @property
    def above_chance(self) -> bool:
        """Whether text-to-video SumR, by the lower end of its interval, is above chance for any `ties`."""
        interval = self.intervals.get("sumr")
        low = self.text_to_video.sumr if interval is None else interval.low
        gain = 0.0 if self.ties == "worst" else 100 * len(RECALLS) * self.text_to_video.tied  # at most, from ties
        return low - gain > self.chance

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays and ids, for JSON."""
        values = {name: value for name, value in asdict(self).items() if name not in _ARRAYS}
        return {
            "format": FORMAT,
            "split": self.split,
            "videos": len(self.video_ids),
            "queries": len(self.query_ids),
            "chance_sumr": values.pop("chance"),
            **values,
        }

    def to_json(self, path: Path | str) -> None:
        """Writes `path` and `<stem>_ranks.npz` in the same folder; each file is written completely or not at all.

        The JSON contains its own hash and that of the ranks, so that damaged, edited and mismatched files are detected.
        """
        path = Path(path)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{name: np.array(getattr(self, name)) for name in _ARRAYS})
        ranks_file = _ranks_file(path)
        write_file(ranks_file, buffer.getvalue())
        values = self.to_dict()
        values["ranks"] = {"file": ranks_file.name, "sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
        write_file(path, signed(values).encode())

    @classmethod
    def from_json(cls, path: Path | str) -> "EvaluationReport":
        """Reads what `to_json` wrote.

        Raises:
            DataError: a file is missing, damaged, of another format, or the two files do not match.
        """
        path = Path(path)
        missing = f"{path}: no such file. Run prvr evaluate first."
        values = read_signed(path, range(FORMAT, FORMAT + 1), _AGAIN, missing)
        stored = parse_record(_Stored, values | {"chance": values.get("chance_sumr")}, str(path))
        return cls(**vars(stored), **_read_ranks(path, values["ranks"]["sha256"]))  # as its own hash says


_Stored = make_dataclass(
    "_Stored",
    [
        (each.name, each.type, field(default=each.default, default_factory=each.default_factory))  # pyright: ignore[reportArgumentType, reportCallIssue]
        for each in fields(EvaluationReport)
        if each.name not in _ARRAYS
    ],
    frozen=True,
)
"""The JSON of an evaluation: every field but the arrays; fields with a default may be missing."""

_AGAIN = "Run prvr evaluate again."


def _ranks_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}_ranks.npz")


def _read_ranks(path: Path, sha256: str) -> dict[str, Any]:
    """The arrays of a report, ids as tuples."""
    file = _ranks_file(path)
    if not file.is_file():
        raise DataError(f"{file}: no such file, but {path.name} exists. Copy both files. Or: {_AGAIN}")
    content = read_bytes(file, LARGE)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{file}: is damaged, or does not belong to {path.name}. Copy both files. Or: {_AGAIN}")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file_arrays:
            arrays = {name: file_arrays[name] for name in _ARRAYS}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read ({error!r}). {_AGAIN}") from error
    return arrays | {name: tuple(arrays[name].tolist()) for name in ("query_ids", "video_ids")}
