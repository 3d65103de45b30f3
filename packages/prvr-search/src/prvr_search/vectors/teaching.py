r"""A few captions of a folder's videos, and how much better they make the encoder alone.

The map of rows is that of `prvr.training.closed_form` towards the identity: a large penalty gives the encoder alone.
Each caption is shared out among the rows of its moments, or of its video where it has no times, as its cosines with
them are. Sums over the rows of groups of videos are all that is kept, so a map without a group costs no pass.
"""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import ceil, isnan
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from prvr.corpora.caption_corpus import CaptionLine, match_captions
from prvr.corpora.user_captions import Problems, read_table
from prvr.encoders import VideoEntry, VideoFeatures
from prvr.errors import DataError
from prvr.evaluation.metrics import RetrievalMetrics, count_ranks
from prvr.evaluation.significance import Difference, paired_test
from prvr.training.closed_form import Sums, ridge
from prvr_search.store.features import encoder_key
from prvr_search.vectors.embedding import cut_windows
from prvr_search.vectors.joint import JointModel
from prvr_search.vectors.rows import unit
from prvr_search.vectors.taught import Taught

Progress = Callable[[float, float, str], None]
"""Called with how much is done, how much there is in all, and of what."""

_PENALTIES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""In mean squares of the rows' entries; of those that rank alike, the first is chosen."""
_TEMPERATURE = 0.05
_FOLDS = 5  # groups of videos that are left out in turn
_VIDEOS, _CAPTIONS = 1000, 2000  # that are compared, at most
_NUMBERS, _ROWS = 2**26, 2**13  # in the rows of these videos, and rows by which the penalty is chosen, at most
_AT_ONCE = 256  # captions
_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Captions ranked by the encoder alone, and by maps that were fitted without the video of each.

    Args:
        captions: how many were ranked.
        gallery: the number of videos among which they were.
        step: of the rows of these, every so many-th counted.
        zero_shot, taught: their metrics.
        differences: R@1, 5, 10, 100 and SumR, taught minus zero-shot, paired and resampled by video.
    """

    captions: int
    gallery: int
    step: int
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


@dataclass(frozen=True)
class _Gallery:
    """Captions that are ranked among videos.

    Args:
        rows: `(r, d)` of each video.
        sentences: `(q, d)` of the captions.
        own: `(q,)` the number of the video of each.
        others: `(q, v)` the other videos that have the same caption, which do not count.
    """

    rows: Sequence[Float32[np.ndarray, "_ d"]]
    sentences: Float32[np.ndarray, "q d"]
    own: Int[np.ndarray, " q"]
    others: Bool[np.ndarray, "q v"]

    def ranks(
        self, some: Bool[np.ndarray, " q"], weight: Float32[np.ndarray, "d d"] | None, videos: int
    ) -> Int[np.ndarray, " n"]:
        """The ranks of the videos of some captions among the first videos, by a map or by the encoder alone."""
        mapped = (rows if weight is None else unit(rows @ weight) for rows in self.rows[:videos])
        scores = np.stack([(rows @ self.sentences[some].T).max(0) for rows in mapped], 1)
        scores[self.others[some, :videos]] = -np.inf
        relevant = self.own[some, None] == np.arange(videos)
        return count_ranks(torch.from_numpy(scores), torch.from_numpy(relevant)).ranks().numpy()


def teach(
    path: Path | str, folder: Path, features: VideoFeatures, model: JointModel, window: float, progress: Progress
) -> tuple[Taught, Comparison]:
    """Fits the map of a folder to captions, and compares it with the encoder alone.

    Groups of videos are left out in turn: their captions are ranked by a map that was fitted to those of the others,
    with the penalty whose maps rank these best, each without its own group as well. Copies are one video. All captions
    are fitted to; of very many videos and captions, some are compared.

    Args:
        path: a table that `prvr.corpora.read_user_captions` reads.
        folder: the folder of videos.
        features: of its videos.
        model: the encoder alone.
        window: the length of windows of the index, in seconds.
        progress: called now and then.

    Raises:
        DataError: lines that cannot be used, each with its number; captions of a single video.
    """
    problems = Problems(Path(path).expanduser())
    lines = match_captions(read_table(problems), features, problems)
    problems.refuse()
    entries = {entry.sha256: entry for entry in reversed(features.entries.values())}
    # Hashes are an order without meaning, whatever that of the table: its beginning is a sample.
    keys = [(features.entries[line.video].sha256, _hash(f"{line.caption.text}\n{line.moment}")) for line in lines]
    lines, keys = [lines[place] for place in np.lexsort(np.array(keys).T[::-1])], sorted(keys)
    captioned = list(dict.fromkeys(sha256 for sha256, _ in keys))
    if len(captioned) < 2:
        raise DataError(f"{path}: captions of 1 video. Expected captions of several, so that one can be left out.")
    videos = captioned + sorted(entries.keys() - {*captioned})[: max(0, _VIDEOS - len(captioned))]
    own = np.searchsorted(captioned, [sha256 for sha256, _ in keys])
    sentences = _sentences(lines, problems, model, progress)

    parts = _parts(features, [entries[sha256] for sha256 in captioned], lines, own, sentences, progress)
    folds = len(parts)

    def fit(left_out: Sequence[int], penalty: float) -> Float32[np.ndarray, "d d"] | None:
        kept = [part for fold, part in enumerate(parts) if fold not in left_out]
        return ridge(Sums.mean(kept), penalty, identity=True)[0].float().numpy() if kept else None

    step = ceil(sum(4 / 3 * model.dim * entries[sha256].frames for sha256 in videos[:_VIDEOS]) / _NUMBERS)
    gallery = list[Float32[np.ndarray, "_ d"]]()
    for number, sha256 in enumerate(videos[:_VIDEOS]):
        progress(number, len(videos), "gallery")
        rows, duration = features.read(entries[sha256].id), entries[sha256].duration
        spans, _ = cut_windows(len(rows), duration, features.rate, window, window)
        vectors = model.encode_windows([rows[slice(*span)] for span in spans])
        gallery.append(np.concatenate([vector.frames for vector in vectors])[::step].copy())
    alike = defaultdict[str, set[int]](set)
    for line, number in zip(lines, own.tolist(), strict=True):
        alike[line.caption.text.casefold()].add(number)
    several = np.arange(len(own)) - np.searchsorted(own, own)  # the first caption of each video comes first, and so on
    queries = np.sort(np.argsort(several + len(own) * (own >= len(gallery)), kind="stable")[:_CAPTIONS])
    queries = queries[own[queries] < len(gallery)]
    others = np.zeros((len(queries), len(videos)), bool)
    for row, query in zip(others, queries, strict=True):
        row[[*alike[lines[query].caption.text.casefold()] - {int(own[query])}]] = True
    compared = _Gallery(gallery, sentences[queries], own[queries], others[:, : len(gallery)])

    few = max(folds, int(np.searchsorted(np.cumsum([*map(len, gallery)]), _ROWS, "right")))
    fold_of = compared.own % folds
    quality = np.zeros((folds, folds, len(_PENALTIES)))
    pairs = [*combinations_with_replacement(range(folds), 2)]
    for done, (first, second) in enumerate(pairs):
        progress(done, len(pairs), "penalties")
        for number, penalty in enumerate(_PENALTIES):
            some = np.isin(fold_of, (first, second)) & (compared.own < few)
            gains = 1 / compared.ranks(some, fit((first, second), penalty), few)
            for left_out, fold in {(first, second), (second, first)}:
                quality[left_out, fold, number] = gains[fold_of[some] == fold].sum()
    before, after = np.zeros(len(queries), int), np.zeros(len(queries), int)
    for fold in range(folds):
        progress(fold, folds, "comparisons")
        penalty = _PENALTIES[(quality[fold].sum(0) - quality[fold, fold]).argmax()]
        before[fold_of == fold] = compared.ranks(fold_of == fold, None, len(gallery))
        after[fold_of == fold] = compared.ranks(fold_of == fold, fit((fold,), penalty), len(gallery))
    metrics = (RetrievalMetrics.from_ranks(torch.from_numpy(ranks)) for ranks in (before, after))
    differences = paired_test(before, after, compared.own)
    comparison = Comparison(len(queries), len(gallery), step, next(metrics), next(metrics), differences)
    weight = fit((), _PENALTIES[np.einsum("ffp->p", quality).argmax()])
    assert weight is not None
    taught = Taught(
        folder=str(folder),
        encoder=encoder_key(features.spec),
        digest=_hash(str(keys)),
        captions=len(lines),
        videos=len(captioned),
        zero_shot=comparison.zero_shot.sumr,
        taught=comparison.taught.sumr,
        better=comparison.is_better,
        map=base64.b64encode(weight.astype("<f4").tobytes()).decode(),
    )
    return taught, comparison


def _sentences(
    lines: Sequence[CaptionLine], problems: Problems, model: JointModel, progress: Progress
) -> Float32[np.ndarray, "n d"]:
    """The unit vector of each caption."""
    vectors = []
    for first in range(0, len(lines), _AT_ONCE):
        progress(first, len(lines), "captions")
        some = lines[first : first + _AT_ONCE]
        try:
            vectors.append(model.encode_texts([line.caption.text for line in some]))
        except ValueError:
            for line in some:
                try:
                    model.encode_texts([line.caption.text])
                except ValueError as error:
                    problems.add(line.caption.line, error)
    problems.refuse()
    return np.concatenate(vectors)


def _parts(
    features: VideoFeatures,
    captioned: Sequence[VideoEntry],
    lines: Sequence[CaptionLine],
    own: Int[np.ndarray, " n"],
    sentences: Float32[np.ndarray, "n d"],
    progress: Progress,
) -> list[Sums]:
    """The sums of each group of videos; every caption is shared out among the rows that it describes."""
    dim = sentences.shape[1]
    parts = [
        Sums(torch.zeros(dim + 1, dim + 1, dtype=torch.float64), torch.zeros(dim + 1, dim, dtype=torch.float64))
        for _ in range(min(_FOLDS, len(captioned)))
    ]
    for number, entry in enumerate(captioned):
        progress(number, len(captioned), "videos")
        x = torch.from_numpy(unit(features.read(entry.id)[:, :dim].astype(np.float32)))
        first, end = np.searchsorted(own, (number, number + 1))
        for start in range(first, end, _AT_ONCE):
            some = slice(start, min(end, start + _AT_ONCE))
            inside, y = _described(lines[some], features.rate, len(x)), torch.from_numpy(sentences[some])
            shares = (y @ x.mT / _TEMPERATURE).masked_fill(~inside, -torch.inf).softmax(1)
            sums, part = Sums.of(x, shares.sum(0), shares.mT @ y), parts[number % len(parts)]
            part.rows.add_(sums.rows)
            part.pairs.add_(sums.pairs)
    return parts


def _described(lines: Sequence[CaptionLine], rate: float, count: int) -> Bool[Tensor, "k r"]:
    """Which rows of its video each caption describes: those of its moments, or all."""
    inside = torch.zeros(len(lines), count, dtype=torch.bool)
    for row, line in zip(inside, lines, strict=True):
        for start, end in ((line.moment.start, line.moment.end), *line.moment.more):
            first = 0 if isnan(start) else min(int(start * rate), count - 1)
            row[first : None if isnan(end) else max(first + 1, ceil(end * rate))] = True
    return inside


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
