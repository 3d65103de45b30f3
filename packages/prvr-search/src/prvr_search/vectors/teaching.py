r"""A few captions of a folder's videos, and how much better they make the encoder alone.

A caption y teaches the mean row x of its moment, or of its video where it has no times. The map of rows is ridge
regression towards the encoder alone, in closed form (see `prvr.training.closed_form`; here in its dual form, whose
matrices are as large as the number of captions):

$$u \mapsto u + (u - \bar x)\, X_c^T (X_c X_c^T + \lambda I)^{-1} (Y - X)_c,$$

where c takes means away. A large penalty gives the encoder alone, and the mean row stays where it is: what all pictures
differ in from all sentences says nothing about which picture a sentence describes.
"""

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from prvr.corpora.caption_corpus import CaptionLine, match_captions
from prvr.corpora.user_captions import Problems, read_table
from prvr.encoders import VideoFeatures
from prvr.errors import DataError
from prvr.evaluation.metrics import RetrievalMetrics, count_ranks
from prvr.evaluation.significance import Difference, paired_test
from prvr_search.store.features import encoder_key
from prvr_search.vectors.embedding import cut_windows
from prvr_search.vectors.joint import JointModel
from prvr_search.vectors.rows import unit
from prvr_search.vectors.taught import Taught

_PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""In mean variances of the rows; of those that rank alike, the first is chosen."""
_FOLDS, _SAMPLE = 5, 64  # groups of videos that are left out in turn to choose the penalty, and rows of each video
_WORK, _FEWEST = 1e12, 10  # products of all these choices, above which videos are left out in groups; at least so many
_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Captions ranked by the encoder alone, and by maps that were fitted without the video of each.

    Args:
        gallery: the number of videos that were ranked.
        zero_shot, taught: their metrics.
        differences: R@1, 5, 10, 100 and SumR, taught minus zero-shot, paired and resampled by video.
    """

    gallery: int
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


class _Pairs:
    """The rows x and sentences y of captions as products alone.

    Args:
        x, y: `(n, d)`.
    """

    def __init__(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n d"]) -> None:
        self.both, self.dim = np.concatenate([x, y]), x.shape[1]
        gram = (self.both @ self.both.T).reshape(2, len(x), 2, len(x))
        self.xx, self.xy, self.yy = gram[0, :, 0], gram[0, :, 1], gram[1, :, 1]

    def products(self, rows: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r m"]:
        """Rows with all x, then with all y."""
        return rows @ self.both.T

    def scores(
        self,
        products: Float[np.ndarray, "r m"],
        starts: Int[np.ndarray, " v"],
        queries: Int[np.ndarray, " q"],
        support: Int[np.ndarray, " s"],
        penalty: float,
    ) -> Float[np.ndarray, "q v"]:
        """The highest cosine of sentences with the rows of each video, by the map that some captions give.

        Args:
            products: of the rows of some videos, one after the other.
            starts: the first row of each.
            queries: numbers of the sentences.
            support: numbers of the captions that the map is fitted to; none: the encoder alone.
            penalty: of the map.
        """
        with_x, with_y = np.split(products, 2, 1)
        dots, squares = with_y[:, queries], np.ones(len(products))
        if len(support):
            block = np.ix_(support, support)
            xx, xy, yy = self.xx[block], self.xy[block], self.yy[block]
            shares = (with_x[:, support] - xx.mean(0)) @ _dual(xx, penalty, self.dim)
            dots = dots + shares @ (self.yy - self.xy)[np.ix_(support, queries)]
            along, gaps = with_y[:, support] - with_x[:, support], yy - xy - xy.T + xx
            squares = squares + (shares * (2 * along + shares @ gaps)).sum(1)
        return np.maximum.reduceat(dots / np.sqrt(np.maximum(squares, 1e-12))[:, None], starts, axis=0).T

    def map(self, penalty: float) -> Float[np.ndarray, "e d"]:
        """W^T, then b, of all captions."""
        x, y = np.split(self.both, 2)
        change = x.T @ _dual(self.xx, penalty, self.dim) @ (y - x)
        return np.concatenate([np.eye(self.dim) + change, -x.mean(0)[None] @ change])


def _dual(xx: Float[np.ndarray, "n n"], penalty: float, dim: int) -> Float[np.ndarray, "n n"]:
    """The inverse of the centred products and the penalty, which takes means away on both sides."""
    centre = np.eye(len(xx)) - 1 / len(xx)
    products = centre @ xx @ centre
    strength = penalty * np.trace(products) / dim + np.finfo(float).eps
    return centre @ np.linalg.inv(products + strength * np.eye(len(xx))) @ centre


def teach(
    path: Path | str, folder: Path, features: VideoFeatures, model: JointModel, window: float
) -> tuple[Taught, Comparison]:
    """Fits the map of a folder to captions, and compares it with the encoder alone.

    Each video is left out in turn, of very many a group of them: its captions are ranked among all videos by a map that
    was fitted to the captions of the others, with the penalty that ranked them best. Copies are one video, and each
    video with the same caption is relevant.

    Args:
        path: a table that `prvr.corpora.read_user_captions` reads.
        folder: the folder of videos.
        features: of its videos.
        model: the encoder alone.
        window: the length of windows of the index, in seconds.

    Raises:
        DataError: lines that cannot be used, each with its number; captions of a single video.
    """
    lines, sentences = _sentences(Path(path).expanduser(), features, model)
    numbers = {sha: number for number, sha in enumerate(dict.fromkeys(e.sha256 for e in features.entries.values()))}
    own = np.array([numbers[features.entries[line.video].sha256] for line in lines])
    if len(set(own)) < 2:
        raise DataError(f"{path}: captions of 1 video. Expected captions of several, so that one can be left out.")
    texts = np.array([line.caption.text.casefold() for line in lines])
    relevant = np.zeros((len(lines), len(numbers)), bool)
    for text, video in zip(texts, own, strict=True):
        relevant[texts == text, video] = True
    pairs = _Pairs(np.stack([_moment(line, features, model) for line in lines]), sentences)
    videos = {numbers[entry.sha256]: video for video, entry in reversed(features.entries.items())}

    def products(number: int) -> Float[np.ndarray, "r m"]:
        entry, rows = features.entries[videos[number]], features.read(videos[number])
        spans, _ = cut_windows(len(rows), entry.duration, features.rate, window, window)
        vectors = model.encode_windows([rows[slice(*span)] for span in spans])
        return pairs.products(np.concatenate([vector.frames for vector in vectors]))

    captioned, everything = np.unique(own), np.arange(len(lines))
    cache = {number: products(number) for number in captioned.tolist()}
    samples = [rows[:: -(-len(rows) // _SAMPLE)] for rows in cache.values()]
    gallery = np.concatenate(samples)
    starts = np.cumsum([0, *map(len, samples)])[:-1]

    def best_penalty(captions: Int[np.ndarray, " s"]) -> float:
        """The one whose maps rank these captions best among captioned videos, each without its own."""
        quality = dict.fromkeys(_PENALTIES, 0.0)
        for group in _groups(np.unique(own[captions]), _FOLDS):
            queries = captions[np.isin(own[captions], group)]
            support = captions[~relevant[np.ix_(captions, group)].any(1)]
            for penalty in _PENALTIES:
                scores = pairs.scores(gallery, starts, queries, support, penalty)
                quality[penalty] += (1 / _ranks(scores, relevant[np.ix_(queries, captioned)])).sum()
        return max(quality, key=quality.__getitem__)

    plans = []
    most = _WORK / (4 * _FOLDS * len(_PENALTIES) * len(gallery) * len(lines) ** 2)
    for group in _groups(captioned, max(_FEWEST, int(most))):
        support = np.flatnonzero(~relevant[:, group].any(1))
        plans.append((np.flatnonzero(np.isin(own, group)), support, best_penalty(support)))
    alone = np.zeros(relevant.shape)
    taught = np.zeros(relevant.shape)
    first = np.zeros(1, int)
    for number in range(len(numbers)):
        rows = cache[number] if number in cache else products(number)
        alone[:, number] = pairs.scores(rows, first, everything, everything[:0], 0.0)[:, 0]
        for queries, support, penalty in plans:
            taught[queries, number] = pairs.scores(rows, first, queries, support, penalty)[:, 0]
    before, after = _ranks(alone, relevant), _ranks(taught, relevant)
    metrics = (RetrievalMetrics.from_ranks(torch.from_numpy(ranks)) for ranks in (before, after))
    comparison = Comparison(len(numbers), *metrics, differences=paired_test(before, after, own))
    matrix = pairs.map(best_penalty(everything)).astype("<f4")
    record = Taught(
        folder=str(folder),
        encoder=encoder_key(features.spec),
        captions=len(lines),
        videos=len(captioned),
        zero_shot=comparison.zero_shot.sumr,
        taught=comparison.taught.sumr,
        better=comparison.is_better,
        dim=pairs.dim,
        map=base64.b64encode(matrix.tobytes()).decode(),
    )
    return record, comparison


def _sentences(
    path: Path, features: VideoFeatures, model: JointModel
) -> tuple[list[CaptionLine], Float[np.ndarray, "n d"]]:
    """The captions of a table, and the unit vector of each."""
    problems = Problems(path)
    lines = match_captions(read_table(problems), features, problems)
    vectors = []
    for line in lines:
        if line.caption.text:
            try:
                vectors.append(model.encode_texts([line.caption.text])[0])
            except ValueError as error:
                problems.add(line.caption.line, error)
    problems.refuse()
    return lines, np.array(vectors, float)


def _moment(line: CaptionLine, features: VideoFeatures, model: JointModel) -> Float[np.ndarray, " d"]:
    """The unit mean of the rows that a caption describes."""
    rows = unit(features.read(line.video)[:, : model.dim].astype(np.float32))
    if not np.isnan(line.moment.start):
        first = min(int(line.moment.start * features.rate), len(rows) - 1)
        rows = rows[first : max(first + 1, int(np.ceil(line.moment.end * features.rate)))]
    return unit(rows.mean(0, keepdims=True))[0].astype(float)


def _groups(videos: Int[np.ndarray, " v"], most: int) -> list[Int[np.ndarray, " _"]]:
    """The videos in at most so many groups of about one size."""
    count = min(most, len(videos))
    return [videos[first::count] for first in range(count)]


def _ranks(scores: Float[np.ndarray, "q v"], relevant: Bool[np.ndarray, "q v"]) -> Int[np.ndarray, " q"]:
    return count_ranks(torch.from_numpy(scores), torch.from_numpy(relevant)).ranks().numpy()
