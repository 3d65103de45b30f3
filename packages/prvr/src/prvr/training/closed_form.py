r"""The fit of a kernel path in closed form, from captions of whole videos without the times of their moments.

Which row of its video a caption describes is not known (multiple instance learning; Dietterich et al., 1997). As in EM,
two steps alternate. Given the map f, each caption is shared out among the rows of its own video,

$$r_{qi} = \mathrm{softmax}_i(\cos(y_q, f(x_i)) / \tau),$$

at first equally. Given the shares, the map is kernel ridge regression of sentences y on rows x, weighted by r. With
landmarks Z, $z(x) = L^{-1} k(Z, x)$ and $L L^T = k(Z, Z)$ (Williams and Seeger, 2001),

$$f(x) = W z(x) + b, \quad W^T = (A + \lambda s I)^{-1} C, \quad A = \sum r\, z z^T, \quad C = \sum r\, z y^T,$$

of centred sums, where s is the trace of A over 1,500. With all rows as landmarks this is exact. Each iteration is one
pass over the videos, whose sums are all that is kept. Where the map is drawn to the identity, the regression is
on y - x, and sums are not centred.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.config import Config, FitConfig, ModelConfig, PathConfig
from prvr.data import PackedSplit
from prvr.data.on_device import batches_on
from prvr.data.sampling import pad
from prvr.errors import InputError
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.models.kernel_path import kernel, parts_of, sentences, window_means
from prvr.scoring import max_scores

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_VIDEOS, _QUERIES = 64, 1024  # read at a time
_CHOOSE = 1000  # training videos on which settings are compared, at most
_ITERATIONS = 2  # of the fits that are compared
_MARGIN = 0.5  # of SumR: shorter windows take longer
_FEW = 500  # landmarks with which settings are compared, twice as many with one fold
_SAMPLE = 1000  # landmarks between which distances are measured
_IN_MEMORY = 2**27  # entries of z(x) that are kept between passes
_UNIT = 1500  # penalties count in this part of the total variance
VERSION = 3
"""Raised with every change after which a fit gives another map."""


@dataclass(frozen=True)
class Sums:
    """Weighted sums over rows x, with a last entry of 1, and sentences y.

    Args:
        rows: `(d + 1, d + 1)` of x x^T, float64.
        pairs: `(d + 1, e)` of x y^T.
        rounding: the relative error of the products that were summed.
    """

    rows: Float[Tensor, "n n"]
    pairs: Float[Tensor, "n e"]
    rounding: float = torch.finfo(torch.float32).eps

    @classmethod
    def of(cls, x: Float[Tensor, "r d"], shares: Float[Tensor, " r"], targets: Float[Tensor, "r e"]) -> "Sums":
        """Of some rows, each with its share of the captions, and the sum of their sentences weighted by it."""
        x = F.pad(x, (0, 1), value=1.0)
        rows, pairs = (x * shares[:, None]).mT @ x, x.mT @ targets
        return cls(rows.double(), pairs.double(), torch.finfo(x.dtype).eps)


Map = tuple[Float[Tensor, "d e"], Float[Tensor, " e"]]
"""W^T and b: features z to z W^T + b."""


def ridge(sums: Sums, penalty: float, *, centred: bool = True) -> Map:
    """The map of least weighted squared error and penalty, in float64 by Cholesky.

    Args:
        sums: the sums.
        penalty: the weight of the squared entries of W, as a share of the total variance of the rows.
        centred: fit an offset; otherwise b = 0, and squares take the place of variances.
    """
    count = sums.rows[-1, -1]
    mean, target = sums.rows[:-1, -1] / count, sums.pairs[-1] / count
    rows, pairs = sums.rows[:-1, :-1] / count, sums.pairs[:-1] / count
    # Rows that are all alike have no variance but errors of rounding, which the penalty exceeds.
    error = 4 * sums.rounding * rows.trace() + torch.finfo(rows.dtype).tiny
    if centred:
        rows, pairs = rows - mean.outer(mean), pairs - mean.outer(target)
    strength = penalty * rows.trace().clamp(min=0) + error
    eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    weight = torch.cholesky_solve(pairs, torch.linalg.cholesky(rows + strength * eye))
    return weight, target - mean @ weight if centred else torch.zeros_like(target)


@dataclass(frozen=True)
class Part:
    """A batch of videos as the regression reads them.

    Args:
        rows: `(v, r, m)` z(x).
        start: `(v, r, e)` x, which is added to the map with `toward: identity`; otherwise a zero without axes.
        valid: `(v, r)` True = a row of the video, False = padding.
        targets: `(v, k, e)` the sentences of the captions of each video.
        captioned: `(v, k)` True = a caption of the video, False = padding.
    """

    rows: Float[Tensor, "v r m"]
    start: Float[Tensor, "*_"]
    valid: Bool[Tensor, "v r"]
    targets: Float[Tensor, "v k e"]
    captioned: Bool[Tensor, "v k"]

    def of(self, videos: Bool[Tensor, " v"]) -> "Part":
        """The videos of a mask."""
        start = self.start[videos] if self.start.ndim else self.start
        return Part(self.rows[videos], start, self.valid[videos], self.targets[videos], self.captioned[videos])

    def mapped(self, fitted: Map) -> Float[Tensor, "v r e"]:
        """The rows in the space of the sentences."""
        weight, bias = (part.to(self.rows) for part in fitted)
        return self.rows @ weight + bias + self.start

    def sums(self, temperature: float, fitted: Map | None) -> Sums:
        """The sums, where each caption is shared out among the rows of its video by a map, or equally."""
        logits = torch.zeros(*self.captioned.shape, self.rows.shape[1], dtype=self.rows.dtype, device=self.rows.device)
        if fitted is not None:
            logits = self.targets @ F.normalize(self.mapped(fitted), dim=-1).mT / temperature
        shares = logits.masked_fill(~self.valid[:, None], -torch.inf).softmax(2) * self.captioned[..., None]
        of_rows = shares.sum(1)  # (v, r)
        targets = shares.mT @ self.targets - of_rows[..., None] * self.start
        return Sums.of(self.rows[self.valid], of_rows[self.valid], targets[self.valid])


def total(parts: Iterable[Part], temperature: float = 1.0, fitted: Map | None = None) -> Sums:
    """The sums over batches of videos; each caption is shared out by a map, or equally."""
    sums = None
    for part in parts:
        more = part.sums(temperature, fitted)
        sums = more if sums is None else replace(more, rows=sums.rows + more.rows, pairs=sums.pairs + more.pairs)
    if sums is None:
        raise InputError("kernel regression needs the captions of at least one video")
    return sums


def fit_map(
    parts: Callable[[], Iterable[Part]],
    equal: Sums,
    penalty: float,
    temperature: float,
    iterations: int,
    *,
    centred: bool = True,
) -> Map:
    """The map after some iterations, each with shares by the map before.

    Args:
        parts: gives the videos, once for each iteration.
        equal: their sums with equal shares, which the first map is fitted to.
        penalty: the penalty of ridge regression, in 1,500ths of the total variance of the rows.
        temperature: the temperature of the softmax that gives the shares.
        iterations: how often captions are shared out by a map.
        centred: see `ridge`.
    """
    fitted = ridge(equal, penalty / _UNIT, centred=centred)
    for _ in range(iterations):
        fitted = ridge(total(parts(), temperature, fitted), penalty / _UNIT, centred=centred)
    return fitted


def sumr(parts: Sequence[Part], fitted: Map) -> float:
    """SumR of the captions of some videos, which are the gallery; ties count against the right video."""
    texts = torch.cat([part.targets[part.captioned] for part in parts])
    own = torch.cat([part.captioned.sum(1) for part in parts])
    own = torch.arange(len(own), device=own.device).repeat_interleave(own)
    scores = torch.cat([max_scores(texts, part.mapped(fitted), part.valid, dots=False)[0] for part in parts], 1)
    return RetrievalMetrics.from_ranks((scores >= scores.gather(1, own[:, None])).sum(1).cpu()).sumr


class Captions:
    """A split as the fit reads it: batches of videos, each with the sentences of its captions.

    Args:
        split: a packed split.
        device: where sums are computed.
        dtype: the dtype of the products that are summed; sums are float64.
        batch: the number of videos that are read at a time.
    """

    def __init__(
        self, split: PackedSplit, device: torch.device, dtype: torch.dtype = torch.float32, batch: int = _VIDEOS
    ) -> None:
        self.split, self.device, self.dtype, self.batch = split, device, dtype, batch
        words = batches_on(device, split.query_batches(_QUERIES))
        self.sentences = torch.cat([sentences(rows.to(dtype), mask) for rows, mask, _ in words])

    def frames(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Frames, their mask, and the numbers of the videos, a batch at a time."""
        for _, frames, mask, numbers in batches_on(self.device, self.split.video_batches(self.batch)):
            yield frames.to(self.dtype), mask, numbers

    def of(self, videos: Int[np.ndarray, " k"]) -> "Captions":
        """The videos with these numbers, and their captions."""
        return Captions(self.split.subset(videos), self.device, self.dtype, self.batch)

    def num_rows(self, windows: Sequence[int]) -> int:
        """The number of rows of all videos."""
        return sum(parts_of(int(count), windows) for count in self.split.frame_counts)

    @cached_property
    def standard(self) -> tuple[Float[Tensor, " f"], Float[Tensor, " f"]]:
        """The mean of each entry of the frames, and 1 over its deviation, 0 for constant ones."""
        count, total, squares = 0, 0.0, 0.0
        for frames, mask, _ in self.frames():
            valid = frames[mask].double()
            count = count + len(valid)
            total = total + valid.sum(0)
            squares = squares + valid.square().sum(0)
        mean = torch.as_tensor(total) / count
        deviation = (torch.as_tensor(squares) / count - mean.square()).clamp(min=0).sqrt()
        return mean.to(self.dtype), torch.where(deviation > 1e-6, 1 / deviation, 0.0).to(self.dtype)

    def targets(self, videos: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The sentences of some videos, padded to the most of any, and which of them are valid."""
        padded, mask = pad([self.sentences[torch.from_numpy(self.split.queries_of(video))] for video in videos])
        return padded, mask.to(self.device)


@dataclass(frozen=True)
class Landmarks:
    """The landmarks Z of a kernel.

    Args:
        path: the windows, the kernel, and what the map is drawn to.
        mean, scale: `(f,)` x = (means of windows - mean) scale.
        rows: `(m, w, f)` Z.
        widths: `(w,)` the width of the Gaussian for each length of windows.
    """

    path: PathConfig
    mean: Float[Tensor, " f"]
    scale: Float[Tensor, " f"]
    rows: Float[Tensor, "m w f"]
    widths: Float[Tensor, " w"]

    @classmethod
    def of(cls, path: PathConfig, captions: Captions, standard: tuple[Tensor, Tensor], most: int) -> "Landmarks":
        """Rows of the training videos, evenly spread over them.

        Args:
            path: the windows, the kernel and its width, and what the map is drawn to.
            captions: the training videos.
            standard: the mean and the scale of their frames.
            most: the maximum number of landmarks.
        """
        numbers = _spread(captions.num_rows(path.windows), most)
        landmarks, before = [], 0
        for frames, mask, _ in captions.frames():
            means, valid = window_means(frames, mask, path.windows)
            rows = means[valid]
            here = numbers[(numbers >= before) & (numbers < before + len(rows))] - before
            landmarks.append((rows[here.to(rows.device)] - standard[0]) * standard[1])
            before += len(rows)
        rows = torch.cat(landmarks)
        sample = rows[_spread(len(rows), _SAMPLE).to(rows.device)]
        distances = [torch.pdist(of_length) for of_length in sample.unbind(1)]
        medians = [some.median().clamp(min=1e-6) if len(some) else rows.new_ones(()) for some in distances]
        return cls(path, *standard, rows, (path.width or 1.0) * torch.stack(medians))

    def kernel(self, rows: Float[Tensor, "*b w f"], some: Any = slice(None)) -> Float[Tensor, "*b m"]:
        """The kernel between rows and landmarks; `some` indexes the landmarks."""
        return kernel(rows, self.rows[some], self.widths, self.path.kernel)

    def factor(self, some: Any = slice(None)) -> Float[Tensor, "m m"]:
        """L^T; `some` indexes the landmarks."""
        square = self.kernel(self.rows[some], some).double()
        # Rows that are alike make it singular; the shift is far below any penalty.
        shift = torch.finfo(self.rows.dtype).eps ** 0.75 * square.diagonal().mean()
        eye = torch.eye(len(square), dtype=square.dtype, device=square.device)
        return torch.linalg.cholesky(square + (shift + torch.finfo(self.rows.dtype).tiny) * eye).mT.to(self.rows.dtype)

    def parts(self, captions: Captions, of_rows: Callable[[Tensor], Tensor]) -> Iterator[tuple[Part, list[int]]]:
        """Batches of videos and their numbers; `of_rows` makes z(x) of x."""
        for frames, mask, numbers in captions.frames():
            means, valid = window_means(frames, mask, self.path.windows)
            start = means.mean(2) if self.path.toward == "identity" else means.new_zeros(())
            videos = numbers.tolist()
            yield Part(of_rows((means - self.mean) * self.scale), start, valid, *captions.targets(videos)), videos


def _spread(total: int, most: int) -> Int[Tensor, " n"]:
    """At most so many of the numbers below a total, evenly spread."""
    count = min(most, total)
    return torch.arange(count) * total // count


def _solved(factor: Float[Tensor, "m m"], rows: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
    flat = rows.flatten(0, -2)
    return torch.linalg.solve_triangular(factor, flat, upper=True, left=False).unflatten(0, rows.shape[:-1])


def _places(split: PackedSplit) -> np.ndarray:
    """Numbers that depend on the id of each video alone."""
    return np.array([int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in split.video_ids])


def climb(
    options: Sequence[_T], start: _T, score: Callable[[_T], float], margin: float = 0.0
) -> tuple[_T, dict[_T, float]]:
    """The best option of an ordered list, found in the direction in which the score rises.

    Args:
        options: the options, from small to large.
        start: the option to begin with.
        score: gives the score of an option.
        margin: the gain below which a neighbour is not better.

    Returns:
        An option that is better than its neighbours, and the scores of all options that were tried, in order.

    Examples:
        >>> climb([1, 2, 3, 4, 5], 3, lambda option: -abs(option - 5.5))
        (5, {2: -3.5, 3: -2.5, 4: -1.5, 5: -0.5})
    """
    best = options.index(start)
    scores = {best: score(start)}
    for step in (-1, 1):
        while 0 <= best + step < len(options):
            if best + step not in scores:
                scores[best + step] = score(options[best + step])
            if scores[best + step] <= scores[best] + margin:
                break
            best += step
    return options[best], {options[place]: scores[place] for place in sorted(scores)}


@dataclass(frozen=True)
class _Fold:
    """Training videos, their sums with equal shares, and the videos that are held out."""

    train: Sequence[Part]
    equal: Sums
    test: Sequence[Part]

    def sumr(self, penalty: float, temperature: float, centred: bool) -> float:
        """SumR of a map of the training videos on the videos that are held out."""
        return sumr(
            self.test, fit_map(lambda: self.train, self.equal, penalty, temperature, _ITERATIONS, centred=centred)
        )


def _folds(
    landmarks: Landmarks, captions: Captions, groups: Sequence[Int[np.ndarray, " _"]], selection: Captions | None
) -> Iterator[_Fold]:
    """Folds that hold out each of some groups of the training videos, and one that holds out the selection.

    Rows of videos that are held out are no landmarks.
    """
    batches = [*landmarks.parts(captions, landmarks.kernel)]
    owner = np.concatenate([np.repeat(videos, part.valid.sum(1).tolist()) for part, videos in batches])
    owner = owner[_spread(len(owner), len(landmarks.rows))]
    for group in groups if selection is None else (*groups, np.empty(0)):
        free = torch.from_numpy(np.flatnonzero(~np.isin(owner, group))).to(landmarks.rows.device)
        factor = landmarks.factor(free)
        sides: tuple[list[Part], list[Part]] = [], []
        for part, videos in batches:
            out = np.isin(videos, group)
            for side, here in zip(sides, (~out, out), strict=True):
                if here.any():
                    side.append(part.of(torch.from_numpy(here).to(free.device)))
        if selection is not None and not len(group):
            sides[1].extend(part for part, _ in landmarks.parts(selection, landmarks.kernel))
        train, test = ([replace(part, rows=_solved(factor, part.rows[..., free])) for part in side] for side in sides)
        yield _Fold(train, total(train), test)


def _better(
    lists: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any],
    name: str,
    inner: str,
    score: Callable[..., float],
) -> tuple[dict[str, Any], dict[Any, float]]:
    """The settings with the best option of a list, each tried with the best of an inner list; and the tried scores."""
    chosen = dict[Any, Any]()

    def best_score(option: Any) -> float:
        trial = {**settings, name: option}
        values = lists[inner] if inner != name else (option,)
        chosen[option], scores = climb(values, trial[inner], lambda other: score(*(trial | {inner: other}).values()))
        return scores[chosen[option]]

    best, scores = climb(lists[name], settings[name], best_score, _MARGIN if name == "windows" else 0.0)
    return {**settings, name: best, inner: chosen[best]}, scores


def choose(
    config: Config, captions: Captions, selection: Captions | None = None, level: int = logging.INFO
) -> PathConfig:
    """Chooses windows, then the width, each with its penalty, then the temperature, by SumR on held-out videos.

    Settings are compared on at most 1,000 training videos, with fewer landmarks than the fit has.

    Args:
        config: the configuration of the run.
        captions: the training split, parts of which are held out.
        selection: another split to hold out; None: there is none but the reported one, which is left alone.
        level: the level at which comparisons are logged.
    """
    fit, centred = config.fit, config.fit.toward == "zero"
    if len(captions.split) > _CHOOSE:
        captions = captions.of(np.sort(np.argsort(_places(captions.split))[:_CHOOSE]))
    order = np.argsort(_places(captions.split))
    count = min(fit.folds, len(order), max(1, _CHOOSE // len(order)))
    groups = [order[fold :: min(fit.folds, len(order))] for fold in range(count)]
    captioned = [np.isin(captions.split.query_to_video, group).sum() for group in groups]
    captioned += [] if selection is None else [len(selection.sentences)]
    most = min(fit.landmarks, max(_FEW, 2 * _FEW // len(captioned)))

    @lru_cache(maxsize=1)
    def folds(windows: tuple[int, ...], width: float) -> list[_Fold]:
        landmarks = Landmarks.of(_path(windows, width, fit), captions, _standard(captions, fit), most)
        return [*_folds(landmarks, captions, groups, selection)]

    @cache
    def score(windows: tuple[int, ...], width: float, penalty: float, temperature: float) -> float:
        values = [fold.sumr(penalty, temperature, centred) for fold in folds(windows, width)]
        return float(np.average(values, weights=captioned))

    widths = () if fit.kernel == "linear" else fit.widths
    lists: dict[str, Sequence[Any]] = {"windows": fit.windows, "widths": widths, "penalties": fit.penalties}
    lists["temperatures"] = fit.temperatures
    settings = {name: values[len(values) // 2] if values else math.inf for name, values in lists.items()}
    lists["widths"] = widths if fit.kernel == "gaussian" else (*widths, math.inf)
    for name, inner in (("windows", "penalties"), ("widths", "penalties"), ("temperatures", "temperatures")):
        if len(lists[name]) == len(lists[inner]) == 1:
            continue
        settings, scores = _better(lists, settings, name, inner, score)
        table = ", ".join(f"{option} {value:.1f}" for option, value in scores.items())
        logger.log(level, "fit: SumR on held-out videos by %s: %s", name, table)
    for name, values in lists.items():
        if len(values) > 1 and settings[name] in (values[0], values[-1]) and settings[name] != math.inf:
            logger.log(level, "fit: %s is at an end of fit.%s: further ones may be better", settings[name], name)
    windows, width, penalty, temperature = settings.values()
    return replace(_path(windows, width, fit), penalty=penalty, temperature=temperature)


def _path(windows: tuple[int, ...], width: float, fit: FitConfig) -> PathConfig:
    """The linear kernel is the limit of wide Gaussians, where the penalty counts in variances."""
    if width == math.inf:
        return PathConfig(windows, "linear", toward=fit.toward)
    return PathConfig(windows, toward=fit.toward, width=width)


def _standard(captions: Captions, fit: FitConfig) -> tuple[Tensor, Tensor]:
    """The mean and the scale of frames; 0 and 1 for a map that is drawn to the identity."""
    if fit.toward == "zero":
        return captions.standard
    width = captions.split.feature_dim
    zeros, ones = (make(width, dtype=captions.dtype, device=captions.device) for make in (torch.zeros, torch.ones))
    return zeros, ones


def fit_path(
    config: Config,
    split: PackedSplit,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    selection: PackedSplit | None = None,
    level: int = logging.INFO,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Chooses and fits the kernel path of a retriever.

    Args:
        config: the configuration of the run, with `model.start: kernel`.
        split: the training split.
        device: where sums are computed.
        dtype: the dtype of the products that are summed.
        selection, level: see `choose`.

    Returns:
        The configuration of the retriever with the settings of its path, and the tensors of its `KernelPath`.

    Raises:
        InputError: `fit.toward='identity'`, and frames and words have different widths.
    """
    model, fit = config.model, config.fit
    assert isinstance(model, ModelConfig)
    if fit.toward == "identity" and model.video_dim != model.query_dim:
        raise InputError(
            f"fit.toward='identity' needs frames and words of one space, got widths {model.video_dim} and "
            f"{model.query_dim}. Use a corpus of a joint encoder (`prvr convert features`), or set fit.toward=zero."
        )
    captions = Captions(split, torch.device(device), dtype)
    path = choose(config, captions, None if selection is None else Captions(selection, captions.device, dtype), level)
    logger.log(level, "fit: %s", path.text)
    path, tensors = fit_choice(captions, path, fit)
    model = replace(model, path=path)
    return model, {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}


def fit_choice(captions: Captions, path: PathConfig, fit: FitConfig) -> tuple[PathConfig, dict[str, Tensor]]:
    """Fits a path as `choose` gives it: its configuration, with the number of landmarks, and its tensors."""
    assert path.penalty is not None
    assert path.temperature is not None
    rows = captions.num_rows(path.windows)
    most = rows if rows <= 2 * fit.landmarks else fit.landmarks
    landmarks = Landmarks.of(path, captions, _standard(captions, fit), most)
    factor = landmarks.factor()

    def parts() -> Iterator[Part]:
        return (part for part, _ in landmarks.parts(captions, lambda x: _solved(factor, landmarks.kernel(x))))

    in_memory = [*parts()] if rows * len(factor) <= _IN_MEMORY else None
    again = parts if in_memory is None else lambda: in_memory
    settings = path.penalty, path.temperature, fit.iterations
    weight, bias = fit_map(again, total(again()), *settings, centred=fit.toward == "zero")
    weight = torch.linalg.solve_triangular(factor.double(), weight, upper=True)
    path = replace(path, landmarks=len(landmarks.rows))
    shared = {"mean": landmarks.mean, "scale": landmarks.scale, "landmarks": landmarks.rows, "widths": landmarks.widths}
    return path, shared | {"weight": weight.mT, "bias": bias, "gate": torch.zeros(())}
