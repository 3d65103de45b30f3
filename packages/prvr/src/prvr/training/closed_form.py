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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
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
_CHOOSE = 1000  # videos by which settings are compared, at most
_ITERATIONS = 2  # after which settings are compared
_MARGIN = 0.5  # of SumR: shorter windows take longer
_FEW = 500  # landmarks by which settings are compared, twice as many with one fold
_SAMPLE = 1000  # landmarks between which distances are measured
_KEPT = 2**27  # numbers of rows that are kept between passes
_UNIT = 1500  # the part of the variance that a penalty counts in
VERSION = 2
"""Raised with every change after which a fit gives another map."""


@dataclass(frozen=True)
class Sums:
    """Weighted sums over rows x, with a last entry of 1, and sentences y.

    Args:
        rows: `(d + 1, d + 1)` of x x^T, float64.
        pairs: `(d + 1, e)` of x y^T.
    """

    rows: Float[Tensor, "n n"]
    pairs: Float[Tensor, "n e"]

    @classmethod
    def of(cls, x: Float[Tensor, "r d"], shares: Float[Tensor, " r"], targets: Float[Tensor, "r e"]) -> "Sums":
        """Of some rows, each with its share of the captions, and the sum of their sentences weighted by it."""
        x = F.pad(x, (0, 1), value=1.0)
        return cls(((x * shares[:, None]).mT @ x).double(), (x.mT @ targets).double())


Map = tuple[Float[Tensor, "d e"], Float[Tensor, " e"]]
"""W^T and b: features z to z W^T + b."""


def ridge(sums: Sums, penalty: float, *, centred: bool = True) -> Map:
    """The map of least weighted squared error and penalty, in float64 by Cholesky.

    Args:
        sums: the sums.
        penalty: of the squared entries of W, as a share of the total variance of the rows.
        centred: with an offset; else b = 0, and squares take the place of variances.
    """
    count = sums.rows[-1, -1]
    mean, target = sums.rows[:-1, -1] / count, sums.pairs[-1] / count
    rows, pairs = sums.rows[:-1, :-1] / count, sums.pairs[:-1] / count
    if centred:
        rows, pairs = rows - mean.outer(mean), pairs - mean.outer(target)
    # A positive penalty of at least a rounding error, also of rows that are all alike.
    strength = penalty * rows.trace() + torch.finfo(rows.dtype).eps
    eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    weight = torch.cholesky_solve(pairs, torch.linalg.cholesky(rows + strength * eye))
    return weight, target - mean @ weight if centred else torch.zeros_like(target)


@dataclass(frozen=True)
class Part:
    """Some videos as the regression reads them.

    Args:
        rows: `(v, r, m)` z(x).
        start: `(v, r, e)` what is added to the map, x with `toward: identity`, or zero.
        valid: `(v, r)` which rows there are.
        targets: `(v, k, e)` the sentences of the captions of each video.
        captioned: `(v, k)` which captions there are.
    """

    rows: Float[Tensor, "v r m"]
    start: Float[Tensor, "*_"]
    valid: Bool[Tensor, "v r"]
    targets: Float[Tensor, "v k e"]
    captioned: Bool[Tensor, "v k"]

    def of(self, videos: Bool[Tensor, " v"]) -> "Part":
        """Some of the videos."""
        start = self.start[videos] if self.start.ndim else self.start
        return Part(self.rows[videos], start, self.valid[videos], self.targets[videos], self.captioned[videos])

    def mapped(self, fitted: Map) -> Float[Tensor, "v r e"]:
        """The rows in the space of the sentences."""
        weight, bias = (part.to(self.rows) for part in fitted)
        return self.rows @ weight + bias + self.start

    def sums(self, temperature: float, fitted: Map | None) -> Sums:
        """Sums with shares by a map, or equal ones."""
        logits = torch.zeros(*self.captioned.shape, self.rows.shape[1], dtype=self.rows.dtype, device=self.rows.device)
        if fitted is not None:
            logits = self.targets @ F.normalize(self.mapped(fitted), dim=-1).mT / temperature
        shares = logits.masked_fill(~self.valid[:, None], -torch.inf).softmax(2) * self.captioned[..., None]
        of_rows = shares.sum(1)  # (v, r)
        targets = shares.mT @ self.targets - of_rows[..., None] * self.start
        return Sums.of(self.rows[self.valid], of_rows[self.valid], targets[self.valid])


def total(parts: Iterable[Part], temperature: float = 1.0, fitted: Map | None = None) -> Sums:
    """The sums of all parts, one pass; each caption is shared out equally, or as a map says."""
    sums = None
    for part in parts:
        more = part.sums(temperature, fitted)
        sums = more if sums is None else Sums(sums.rows + more.rows, sums.pairs + more.pairs)
    if sums is None:
        raise InputError("kernel regression needs captions of one video at least")
    return sums


def fit_map(
    parts: Iterable[Part], equal: Sums, penalty: float, temperature: float, iterations: int, *, centred: bool = True
) -> Map:
    """The map after some iterations, each with shares by the map before.

    Args:
        parts: what it is fitted to, read once for each iteration.
        equal: their sums with equal shares, which the first map is fitted to.
        penalty, temperature: of the regression, in 1,500ths of the total variance, and of the shares.
        iterations: how many.
        centred: as of `ridge`.
    """
    fitted = ridge(equal, penalty / _UNIT, centred=centred)
    for _ in range(iterations):
        fitted = ridge(total(parts, temperature, fitted), penalty / _UNIT, centred=centred)
    return fitted


def sumr(parts: Sequence[Part], fitted: Map) -> float:
    """SumR of the captions of some videos among these; of equal scores the right one is the last."""
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
        dtype: of the products that are summed; sums are float64.
        batch: videos that are read at a time.
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
        """Some of the videos."""
        return Captions(self.split.subset(videos), self.device, self.dtype, self.batch)

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
    """A kernel with its landmarks: what makes rows of frames.

    Args:
        path: windows, kernel, and what the map is drawn to.
        mean, scale: `(f,)` x = (means of windows - mean) scale.
        rows: `(m, w, f)` the landmarks.
        widths: `(w,)` of the Gaussians.
    """

    path: PathConfig
    mean: Float[Tensor, " f"]
    scale: Float[Tensor, " f"]
    rows: Float[Tensor, "m w f"]
    widths: Float[Tensor, " w"]

    @classmethod
    def of(
        cls, path: PathConfig, captions: Captions, standard: tuple[Tensor, Tensor], most: int, width: float
    ) -> "Landmarks":
        """At most so many rows of the training videos, evenly spread over them.

        Args:
            path: windows, kernel, and what the map is drawn to.
            captions: the training videos.
            standard: their mean and scale.
            most: the number of landmarks.
            width: of the Gaussians, in medians of the distances of rows.
        """
        wanted = _spread(sum(parts_of(int(count), path.windows) for count in captions.split.frame_counts), most)
        found, before = [], 0
        for frames, mask, _ in captions.frames():
            means, valid = window_means(frames, mask, path.windows)
            rows = means[valid]
            here = wanted[(wanted >= before) & (wanted < before + len(rows))] - before
            found.append((rows[here.to(rows.device)] - standard[0]) * standard[1])
            before += len(rows)
        rows = torch.cat(found)
        sample = rows[_spread(len(rows), _SAMPLE).to(rows.device)]
        distances = [torch.pdist(of_length) for of_length in sample.unbind(1)]
        medians = [some.median().clamp(min=1e-6) if len(some) else rows.new_ones(()) for some in distances]
        return cls(path, *standard, rows, width * torch.stack(medians))

    def kernel(self, rows: Float[Tensor, "*b w f"], some: Any = slice(None)) -> Float[Tensor, "*b m"]:
        """Between rows and all or some landmarks."""
        return kernel(rows, self.rows[some], self.widths, self.path.kernel)

    def factor(self, some: Any = slice(None)) -> Float[Tensor, "m m"]:
        """L^T of the landmarks."""
        square = self.kernel(self.rows[some], some).double()
        # Rows that are alike make it singular; the shift is far below any penalty.
        shift = torch.finfo(self.rows.dtype).eps ** 0.75 * square.diagonal().mean()
        eye = torch.eye(len(square), dtype=square.dtype, device=square.device)
        return torch.linalg.cholesky(square + (shift + torch.finfo(square.dtype).tiny) * eye).mT.to(self.rows.dtype)

    def parts(self, captions: Captions, of_rows: Callable[[Tensor], Tensor]) -> Iterator[tuple[Part, list[int]]]:
        """Batches of videos, with what is made of their rows, and their numbers."""
        for frames, mask, numbers in captions.frames():
            means, valid = window_means(frames, mask, self.path.windows)
            start = means.mean(2) if self.path.toward == "identity" else means.new_zeros(())
            videos = numbers.tolist()
            yield Part(of_rows((means - self.mean) * self.scale), start, valid, *captions.targets(videos)), videos


class _Passes:
    """The parts of a fit: kept between passes where they are small, else made again in each."""

    def __init__(self, landmarks: Landmarks, captions: Captions, factor: Float[Tensor, "m m"]) -> None:
        self._landmarks, self._captions, self._factor = landmarks, captions, factor
        rows = sum(parts_of(int(count), landmarks.path.windows) for count in captions.split.frame_counts)
        self._kept = [*self._parts()] if rows * len(factor) <= _KEPT else None

    def __iter__(self) -> Iterator[Part]:
        return self._parts() if self._kept is None else iter(self._kept)

    def _parts(self) -> Iterator[Part]:
        def whitened(rows: Tensor) -> Tensor:
            return _solved(self._factor, self._landmarks.kernel(rows))

        return (part for part, _ in self._landmarks.parts(self._captions, whitened))


def _spread(total: int, most: int) -> Int[Tensor, " n"]:
    """At most so many of the numbers below a total, evenly spread."""
    count = min(most, total)
    return torch.arange(count) * total // count


def _solved(factor: Float[Tensor, "m m"], rows: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
    flat = rows.flatten(0, -2)
    return torch.linalg.solve_triangular(factor, flat, upper=True, left=False).unflatten(0, rows.shape[:-1])


@dataclass(frozen=True)
class Choice:
    """What a fit has chosen.

    Args:
        path: windows and kernel.
        width: of the Gaussian, in median distances.
        penalty, temperature: of the regression and the shares.
    """

    path: PathConfig
    width: float
    penalty: float
    temperature: float


def _places(split: PackedSplit) -> np.ndarray:
    """Numbers that depend on the id of each video alone."""
    return np.array([int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in split.video_ids])


def climb(
    options: Sequence[_T], start: _T, score: Callable[[_T], float], margin: float = 0.0
) -> tuple[_T, dict[_T, float]]:
    """The best option of an ordered list, found in the direction in which the score rises.

    Args:
        options: from small to large.
        start: the one to begin with.
        score: of an option.
        margin: how much it must rise.

    Returns:
        The option from which the score rises to neither side, and the scores of those looked at, in their order.

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
    """Videos that maps are fitted to, their sums with equal shares, and videos that are held out."""

    train: Sequence[Part]
    equal: Sums
    test: Sequence[Part]

    def sumr(self, penalty: float, temperature: float, centred: bool) -> float:
        """SumR on what is held out, after as many iterations as settle the order of settings."""
        return sumr(self.test, fit_map(self.train, self.equal, penalty, temperature, _ITERATIONS, centred=centred))


def _folds(
    landmarks: Landmarks, captions: Captions, groups: Sequence[Int[np.ndarray, " _"]], selection: Captions | None
) -> Iterator[_Fold]:
    """The training videos without each of some groups, which are held out, and all with a selection held out.

    Landmarks of videos that are held out do not count.
    """
    batches = [*landmarks.parts(captions, landmarks.kernel)]
    owner = np.concatenate([np.repeat(videos, part.valid.sum(1).tolist()) for part, videos in batches])
    owner = owner[_spread(len(owner), len(landmarks.rows))]
    for group in groups:
        free = torch.from_numpy(np.flatnonzero(~np.isin(owner, group))).to(landmarks.rows.device)
        factor = landmarks.factor(free)
        sides: tuple[list[Part], list[Part]] = [], []
        for part, videos in batches:
            out = np.isin(videos, group)
            for side, here in zip(sides, (~out, out), strict=True):
                if here.any():
                    kept = part.of(torch.from_numpy(here).to(free.device))
                    side.append(replace(kept, rows=_solved(factor, kept.rows[..., free])))
        yield _Fold(sides[0], total(sides[0]), sides[1])
    if selection is not None:
        factor = landmarks.factor()
        train = [replace(part, rows=_solved(factor, part.rows)) for part, _ in batches]
        test = [part for part, _ in landmarks.parts(selection, lambda x: _solved(factor, landmarks.kernel(x)))]
        yield _Fold(train, total(train), test)


def choose(config: Config, captions: Captions, selection: Captions | None = None, level: int = logging.INFO) -> Choice:
    """Windows, then the width, each with its penalty, then the temperature, by SumR on held-out videos.

    Of many training videos some are compared, and fewer landmarks.

    Args:
        config: the configuration of the run.
        captions: the training split, parts of which are held out.
        selection: a split that is held out too; None: there is none but the reported one, which is left alone.
        level: at which comparisons are logged.
    """
    fit = config.fit
    if len(captions.split) > _CHOOSE:
        captions = captions.of(np.sort(np.argsort(_places(captions.split))[:_CHOOSE]))
    order = np.argsort(_places(captions.split))
    count = min(fit.folds, len(order), max(1, _CHOOSE // len(order)))
    groups = [order[fold :: min(fit.folds, len(order))] for fold in range(count)]
    captioned = [sum(len(captions.split.queries_of(int(video))) for video in group) for group in groups]
    captioned += [] if selection is None else [len(selection.sentences)]
    standard, scored = _standard(captions, fit), dict[Any, float]()
    most = min(fit.landmarks, max(_FEW, 2 * _FEW // len(captioned)))

    @lru_cache(maxsize=1)
    def folds(windows: tuple[int, ...], width: float) -> list[_Fold]:
        path = PathConfig(windows, fit.kernel, toward=fit.toward)
        return [*_folds(Landmarks.of(path, captions, standard, most, width), captions, groups, selection)]

    def score(windows: tuple[int, ...], width: float, penalty: float, temperature: float) -> float:
        key = windows, width, penalty, temperature
        if key not in scored:
            values = [fold.sumr(penalty, temperature, fit.toward == "zero") for fold in folds(windows, width)]
            scored[key] = float(np.average(values, weights=captioned))
        return scored[key]

    widths = fit.widths if fit.kernel == "gaussian" else (1.0,)
    lists: dict[str, Sequence[Any]] = {"windows": fit.windows, "widths": widths, "penalties": fit.penalties}
    lists["temperatures"] = fit.temperatures
    chosen = {name: values[len(values) // 2] for name, values in lists.items()}
    for name, inner in (("windows", "penalties"), ("widths", "penalties"), ("temperatures", "temperatures")):
        if len(lists[name]) == len(lists[inner]) == 1:
            continue
        found: dict[Any, tuple[Any, float]] = {}  # of each option the best setting of the inner list, and its score

        def with_option(option: Any, name: str = name, inner: str = inner, found: dict[Any, Any] = found) -> float:
            setting = chosen | {name: option}
            values = lists[inner] if inner != name else (option,)
            best, scores = climb(values, setting[inner], lambda value: score(*(setting | {inner: value}).values()))
            found[option] = best, scores[best]
            return scores[best]

        best, _ = climb(lists[name], chosen[name], with_option, _MARGIN if name == "windows" else 0.0)
        chosen.update({name: best, inner: found[best][0]})
        listed = ", ".join(f"{option} {found[option][1]:.1f}" for option in lists[name] if option in found)
        logger.log(level, "fit: SumR on held-out videos by %s: %s", name, listed)
    for name, values in lists.items():
        if len(values) > 1 and chosen[name] in (values[0], values[-1]):
            logger.log(level, "fit: %s is at an end of fit.%s: further ones may be better", chosen[name], name)
    windows, width, penalty, temperature = chosen.values()
    return Choice(PathConfig(windows, fit.kernel, toward=fit.toward), width, penalty, temperature)


def _standard(captions: Captions, fit: FitConfig) -> tuple[Tensor, Tensor]:
    """Mean and scale of entries, which are left as they are for a map that is drawn to the identity."""
    if fit.toward == "zero":
        return captions.standard()
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
        dtype: of the products that are summed.
        selection, level: as of `choose`.

    Returns:
        The configuration of the retriever with what was chosen, and the tensors of its `KernelPath`.

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
    choice = choose(config, captions, None if selection is None else Captions(selection, captions.device, dtype), level)
    logger.log(
        level,
        "fit: windows of %s frames, width %g, penalty %g, temperature %g",
        *(choice.path.windows, choice.width, choice.penalty, choice.temperature),
    )
    path, tensors = fit_choice(captions, choice, fit)
    model = replace(model, path=path)
    return model, {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}


def fit_choice(captions: Captions, choice: Choice, fit: FitConfig) -> tuple[PathConfig, dict[str, Tensor]]:
    """Fits what was chosen: the path with its number of landmarks, and its tensors."""
    windows = choice.path.windows
    rows = sum(parts_of(int(count), windows) for count in captions.split.frame_counts)
    most = rows if rows <= 2 * fit.landmarks else fit.landmarks
    landmarks = Landmarks.of(choice.path, captions, _standard(captions, fit), most, choice.width)
    factor = landmarks.factor()
    passes, centred = _Passes(landmarks, captions, factor), fit.toward == "zero"
    settings = choice.penalty, choice.temperature, fit.iterations
    weight, bias = fit_map(passes, total(passes), *settings, centred=centred)
    weight = torch.linalg.solve_triangular(factor.double(), weight, upper=True)
    path = replace(choice.path, landmarks=len(landmarks.rows))
    shared = {"mean": landmarks.mean, "scale": landmarks.scale, "landmarks": landmarks.rows, "widths": landmarks.widths}
    return path, shared | {"weight": weight.mT, "bias": bias, "gate": torch.zeros(())}
