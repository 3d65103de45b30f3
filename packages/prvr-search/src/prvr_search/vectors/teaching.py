r"""A few captions of a folder's videos, and how much better they make the encoder alone.

The map of rows is that of `prvr.training.closed_form` towards the identity: a large penalty gives the encoder alone.
Each caption is shared out among the rows of its moments, or of its video where it has no times, as its cosines with
them are. Sums over the rows of groups of videos are all that is kept, so a map without a group costs no pass.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int

from prvr.corpora.caption_corpus import CaptionLine, match_captions
from prvr.corpora.user_captions import Problems, read_table
from prvr.data.hashes import digest
from prvr.encoders import VideoFeatures
from prvr.errors import DataError
from prvr.evaluation.metrics import RetrievalMetrics, count_ranks
from prvr.evaluation.significance import Difference, paired_test
from prvr.training.closed_form import Sums, ridge
from prvr_search.store.encoding import Progress
from prvr_search.vectors.files import cut_windows
from prvr_search.vectors.joint import JointModel
from prvr_search.vectors.model import Rows, unit
from prvr_search.vectors.taught import Map, Taught

_T = TypeVar("_T")
Captions = Int[np.ndarray, " n"]
"""The numbers of captions, or one for each of some: of its video, its rank."""

_PENALTIES = (100.0, 25.0, 6.0, 1.5, 0.4)
"""In mean squares of the rows' entries; of those that rank alike, the first is chosen."""
_TEMPERATURE = 0.05
_FEWEST = 3  # captioned videos
_FOLDS = 5  # groups of videos that are left out in turn
_VIDEOS, _CAPTIONS, _ROWS = 1000, 2000, 2**17  # that are compared, at most
_FEW = 2**13  # rows by which the penalty is chosen, at most
_AT_ONCE = 256  # captions
_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Captions ranked by the encoder alone, and by maps that were fitted without the video of each.

    Args:
        captions: how many were ranked.
        gallery: the number of videos among which they were.
        rows: how many rows of each of these counted, at most.
        zero_shot, taught: their metrics.
        differences: R@1, 5, 10, 100 and SumR, taught minus zero-shot, paired and resampled by video.
    """

    captions: int
    gallery: int
    rows: int
    zero_shot: RetrievalMetrics
    taught: RetrievalMetrics
    differences: dict[str, Difference]

    @property
    def is_better(self) -> bool:
        """Whether teaching is shown to be better: the interval of SumR lies above 0, and so does p below 0.05.

        With few videos intervals are too narrow; below 6 videos, p is never that small.
        """
        sumr = self.differences["sumr"]
        return sumr.interval.low > 0 and sumr.p_value < _LEVEL


class _Folds:
    """Captions in groups of videos, the sums of each group, and the videos among which captions are ranked.

    Args:
        lines: the captions, those of a video together.
        own: `(n,)` the number of the video of each, which rises.
        sentences: `(n, d)` their unit vectors.
        count: how many of the first videos captions are ranked among.
    """

    def __init__(self, lines: Sequence[CaptionLine], own: Captions, sentences: Rows, count: int) -> None:
        self.lines, self.own, self.sentences, self.gallery = lines, own, sentences, list[Rows]()
        captioned, size = int(own[-1]) + 1, sentences.shape[1] + 1
        self.all = range(min(_FOLDS, captioned))
        self.rows = torch.zeros(len(self.all), size, size, dtype=torch.float64)
        self.pairs = self.rows[..., 1:].clone()
        of_video = np.arange(len(own)) - np.searchsorted(own, own)  # 0 for the first caption of each video
        few = of_video < _CAPTIONS // min(captioned, count)
        self.compared = [np.flatnonzero(few & (own < count) & (own % len(self.all) == fold)) for fold in self.all]
        _, self.texts = np.unique([line.caption.text.casefold() for line in lines], return_inverse=True)

    def add(self, video: int, rows: Rows, rate: float) -> None:
        """Adds the captions of a video, each shared out among the rows of its moments, or all."""
        captions, times = np.flatnonzero(self.own == video), np.arange(len(rows))
        x = torch.from_numpy(rows)
        for some in np.split(captions, range(_AT_ONCE, len(captions), _AT_ONCE)):
            moments = [self.lines[caption].moment for caption in some]
            outside = [
                np.all(
                    [  # no comparison with NaN holds
                        (times + 1 <= np.minimum(start * rate, len(rows) - 1)) | (times >= end * rate)
                        for start, end in ((moment.start, moment.end), *moment.more)
                    ],
                    0,
                )
                for moment in moments
            ]
            y = torch.from_numpy(self.sentences[some])
            logits = (y @ x.mT / _TEMPERATURE).masked_fill(torch.from_numpy(np.stack(outside)), -torch.inf)
            shares = logits.softmax(1)
            sums = Sums.of(x, shares.sum(0), shares.mT @ y)
            self.rows[video % len(self.all)] += sums.rows
            self.pairs[video % len(self.all)] += sums.pairs

    def fit(self, folds: Sequence[int], penalty: float) -> Map:
        """The map W^T of the captions of some groups."""
        rows, pairs = self.rows[folds].sum(0), self.pairs[folds].sum(0)
        size = len(rows) - 1
        change, _ = ridge(Sums(rows, pairs - rows[:, :size]), penalty / size, centred=False)  # of W - I
        return (torch.eye(size) + change).float().numpy()

    def best(self, folds: Sequence[int]) -> Map:
        """The map of some groups with the penalty whose maps rank their captions best, each without its own group."""
        videos = max(len(self.all), int(np.searchsorted(np.cumsum([*map(len, self.gallery)]), _FEW)))

        def quality(penalty: float) -> float:
            total = 0.0
            for fold in folds:
                captions, weight = self.compared[fold], self.fit([other for other in folds if other != fold], penalty)
                total += (1 / self.ranks(captions[self.own[captions] < videos], videos, weight)).sum()
            return total

        return self.fit(folds, max(_PENALTIES, key=quality))

    def ranks(self, captions: Captions, videos: int, weight: Map | None = None) -> Captions:
        """The ranks of the videos of captions among the first videos, by a map or the encoder alone.

        Other videos with the same caption do not count.
        """
        mapped = (rows if weight is None else unit(rows @ weight) for rows in self.gallery[:videos])
        scores = np.stack([(rows @ self.sentences[captions].T).max(0) for rows in mapped], 1)
        for row, caption in zip(scores, captions, strict=True):
            alike = self.own[self.texts == self.texts[caption]]
            row[alike[(alike < videos) & (alike != self.own[caption])]] = -np.inf
        relevant = self.own[captions, None] == np.arange(videos)
        return count_ranks(torch.from_numpy(scores), torch.from_numpy(relevant)).ranks().numpy()


def teach(
    path: Path | str, features: VideoFeatures, model: JointModel, window: float, progress: Progress
) -> tuple[Taught, Comparison]:
    """Fits the map of a folder to captions, and compares it with the encoder alone.

    Groups of videos are left out in turn: their captions are ranked by a map that was fitted to those of the others,
    with the penalty whose maps rank these best, each without its own group as well. Copies are one video. All captions
    are fitted to; of very many videos, captions and rows, some are compared.

    Args:
        path: a table that `prvr.corpora.read_user_captions` reads.
        features: of the videos of the folder.
        model: the encoder alone.
        window: the length of windows of the index, in seconds.
        progress: called now and then.

    Raises:
        DataError: lines that cannot be used, each with its number; captions of one or two videos.
    """
    problems = Problems(Path(path).expanduser())
    lines = match_captions(read_table(problems), features, problems)
    problems.refuse()
    entries = {entry.sha256: entry for entry in reversed(features.entries.values())}

    def key(line: CaptionLine) -> tuple[str, str]:
        return features.entries[line.video].sha256, digest({"text": line.caption.text, "moment": str(line.moment)})

    lines.sort(key=key)  # hashes are an order without meaning, whatever that of the table: its beginning is a sample
    keys = [*map(key, lines)]
    shas, own = np.unique([sha256 for sha256, _ in keys], return_inverse=True)
    captioned = shas.tolist()
    if len(captioned) < _FEWEST:
        raise DataError(f"{path}: captions of {len(captioned)} of the videos. Expected captions of {_FEWEST} or more.")
    videos = [*captioned, *sorted(entries.keys() - {*captioned})][: max(_VIDEOS, len(captioned))]
    count = min(_VIDEOS, len(videos))
    vectors = []
    for line in _counted(lines, "captions", progress):
        try:
            vectors.append(model.encode_texts([line.caption.text])[0])
        except ValueError as error:
            problems.add(line.caption.line, error)
    problems.refuse()
    most, folds = _ROWS // count, _Folds(lines, own, np.stack(vectors), count)
    for number, sha256 in enumerate(_counted(videos, "videos", progress)):
        rows = features.read(entries[sha256].id)
        if number < count:
            spans, _ = cut_windows(len(rows), entries[sha256].duration, features.rate, window, window)
            frames = np.concatenate([part.frames for part in model.encode_video(rows, spans)[1]])
            folds.gallery.append(frames[:: ceil(len(frames) / most)].copy())
        if number < len(captioned):
            folds.add(number, unit(rows[:, : model.dim].astype(np.float32)), features.rate)
    ranks = list[tuple[Captions, Captions]]()
    for fold in _counted(folds.all, "groups left out", progress):
        captions, weight = folds.compared[fold], folds.best([other for other in folds.all if other != fold])
        ranks.append((folds.ranks(captions, count), folds.ranks(captions, count, weight)))
    before, after = np.concatenate(ranks, axis=1)
    zero_shot, taught = (RetrievalMetrics.from_ranks(torch.from_numpy(ranks)) for ranks in (before, after))
    differences = paired_test(before, after, own[np.concatenate(folds.compared)])
    comparison = Comparison(len(before), count, most, zero_shot, taught, differences)
    record = Taught(
        digest=digest({"captions": keys}),
        captions=len(lines),
        videos=len(captioned),
        zero_shot=zero_shot.sumr,
        taught=taught.sumr,
        better=comparison.is_better,
        map=base64.b64encode(folds.best(folds.all).astype("<f4").tobytes()).decode(),
    )
    return record, comparison


def _counted(items: Sequence[_T], what: str, progress: Progress) -> Iterator[_T]:
    for done, item in enumerate(items):
        progress(done, len(items), what)
        yield item
