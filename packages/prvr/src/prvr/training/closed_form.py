r"""The fit of a linear path in closed form, from captions of whole videos without the times of their moments.

Which row of its video a caption describes is not known (multiple instance learning; Dietterich et al., 1997). As in EM,
two steps alternate. Given the map, each caption is shared out among the rows of its own video,

$$r_{qi} = \mathrm{softmax}_i(\cos(y_q, W x_i + b) / \tau),$$

at first equally. Given the shares, the map is ridge regression of rows x on sentences y, weighted by r,

$$W = (A + \lambda s I)^{-1} (C + \lambda s P), \quad A = \sum r\, x x^T, \quad C = \sum r\, x y^T,$$

of centred sums, where s is the mean variance and P is 0, or I where frames and sentences share a space. Each iteration
is one pass over the videos, whose sums are all that is kept.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from prvr.config import Config, ModelConfig, PathConfig
from prvr.data import PackedSplit
from prvr.data.on_device import batches_on
from prvr.data.sampling import pad
from prvr.errors import InputError
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.models.linear_path import LinearPath, sentences, window_means
from prvr.scoring import max_scores
from prvr.training.checkpoint import derived_seed

logger = logging.getLogger(__name__)

_VIDEOS, _QUERIES = 64, 1024  # read at a time
_CHOOSE = 1000  # videos, counted once for each fold that is held out, at most
_SAMPLE = 1000  # rows between which distances are measured
VERSION = 1
"""Raised with every change after which a fit gives another map."""


@dataclass(frozen=True)
class Features:
    """What the map reads of a row: its standardised entries x, or random Fourier features of them.

    Args:
        mean, scale: `(f,)` x = (row - mean) scale.
        frequencies, phases: `(m, f)` and `(m,)`: cos(frequencies x + phases); None = x itself.
    """

    mean: Float[Tensor, " f"]
    scale: Float[Tensor, " f"]
    frequencies: Float[Tensor, "m f"] | None = None
    phases: Float[Tensor, " m"] | None = None

    def __call__(self, rows: Float[Tensor, "*b f"]) -> Float[Tensor, "*b d"]:
        """The features of rows."""
        x = (rows - self.mean) * self.scale
        return x if self.frequencies is None else F.linear(x, self.frequencies, self.phases).cos()


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

    @classmethod
    def mean(cls, parts: "Sequence[Sums]") -> "Sums":
        """The mean of several."""
        return cls(torch.stack([p.rows for p in parts]).mean(0), torch.stack([p.pairs for p in parts]).mean(0))


Map = tuple[Float[Tensor, "d e"], Float[Tensor, " e"]]
"""W^T and b: features z to z W^T + b."""


def ridge(sums: Sums, penalty: float, *, identity: bool = False) -> Map:
    """The map of least weighted squared error and penalty, in float64 by Cholesky.

    Args:
        sums: the sums.
        penalty: of the squared entries of W, in mean variances of the features.
        identity: of those of W - I instead, without centring and offset: a large penalty gives the features themselves.
    """
    count = sums.rows[-1, -1]
    mean, target = sums.rows[:-1, -1] / count, sums.pairs[-1] / count
    rows, pairs = sums.rows[:-1, :-1] / count, sums.pairs[:-1] / count
    if not identity:
        rows, pairs = rows - mean.outer(mean), pairs - mean.outer(target)
    eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    # A positive penalty of at least a rounding error, also of features that are all alike.
    strength = penalty * rows.trace() / len(rows) + torch.finfo(rows.dtype).eps
    weight = torch.cholesky_solve(
        pairs + strength * eye if identity else pairs, torch.linalg.cholesky(rows + strength * eye)
    )
    return weight, torch.zeros_like(target) if identity else target - mean @ weight


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

    def videos(self) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Frames, their mask, and the numbers of the videos, a batch at a time."""
        for _, frames, mask, numbers in batches_on(self.device, self.split.video_batches(self.batch)):
            yield frames.to(self.dtype), mask, numbers

    def of(self, videos: Int[np.ndarray, " k"]) -> "Captions":
        """Some of the videos."""
        return Captions(self.split.subset(videos), self.device, self.dtype, self.batch)

    def standard(self, identity: bool = False) -> Features:
        """Entries of mean 0 and variance 1 over all frames, where constant ones are 0; or entries as they are."""
        if identity:
            width = self.split.feature_dim
            return Features(*(fill(width, dtype=self.dtype, device=self.device) for fill in (torch.zeros, torch.ones)))
        count, total, squares = 0, 0.0, 0.0
        for frames, mask, _ in self.videos():
            valid = frames[mask].double()
            count = count + len(valid)
            total = total + valid.sum(0)
            squares = squares + valid.square().sum(0)
        mean = torch.as_tensor(total) / count
        deviation = (torch.as_tensor(squares) / count - mean.square()).clamp(min=0).sqrt()
        scale = torch.where(deviation > 1e-6, 1 / deviation, 0.0)
        return Features(mean.to(self.dtype), scale.to(self.dtype))

    def sums(
        self, features: Features, windows: Sequence[int], temperature: float = 1.0, fitted: Map | None = None
    ) -> Sums:
        """The sums of one pass; each caption is shared out among the rows of its video equally, or as a map says."""
        rows = pairs = torch.zeros((), dtype=torch.float64, device=self.device)
        for frames, mask, numbers in self.videos():
            x, valid = window_means(frames, mask, windows)
            z = features(x)
            targets, target_mask = self._targets(numbers.tolist())  # (v, k, e), (v, k)
            logits = torch.zeros(*target_mask.shape, z.shape[1], dtype=self.dtype, device=self.device)
            if fitted is not None:
                logits = targets @ F.normalize(_mapped(z, fitted), dim=-1).mT / temperature
            shares = logits.masked_fill(~valid[:, None], -torch.inf).softmax(2) * target_mask[..., None]  # (v, k, r)
            part = Sums.of(z[valid], shares.sum(1)[valid], (shares.mT @ targets)[valid])
            rows, pairs = rows + part.rows, pairs + part.pairs
        return Sums(rows, pairs)

    def _targets(self, videos: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The sentences of some videos, padded to the most of any, and which of them are valid."""
        padded, mask = pad([self.sentences[torch.from_numpy(self.split.queries_of(video))] for video in videos])
        return padded, mask.to(self.device)

    def sumr(self, features: Features, windows: Sequence[int], fitted: Map) -> float:
        """SumR of the captions among these videos."""
        scores = []
        for frames, mask, _ in self.videos():
            x, valid = window_means(frames, mask, windows)
            scores.append(max_scores(self.sentences, _mapped(features(x), fitted), valid, dots=False)[0])
        scores_of_all = torch.cat(scores, 1).cpu()
        own = scores_of_all.gather(1, torch.from_numpy(self.split.query_to_video)[:, None])
        return RetrievalMetrics.from_ranks((scores_of_all >= own).sum(1)).sumr


def _mapped(z: Tensor, fitted: Map) -> Tensor:
    weight, bias = (part.to(z) for part in fitted)
    return z @ weight + bias


@dataclass(frozen=True)
class Choice:
    """What a fit has chosen.

    Args:
        path: windows and number of features.
        penalty, temperature: of the fit.
    """

    path: PathConfig
    penalty: float
    temperature: float


def fourier(features: Features, captions: Captions, windows: Sequence[int], count: int, seed: int) -> Features:
    """Random Fourier features of a Gaussian kernel, whose width is the median distance of two rows.

    Frequencies and phases depend on the seed alone, the rows on the ids of the videos.

    Args:
        features: the standardised entries.
        captions: the videos whose rows are measured.
        windows: lengths of windows.
        count: how many features; 0 = the standardised entries themselves.
        seed: of the draws.
    """
    if not count:
        return features
    sample = np.argsort(_places(captions.split))[:_VIDEOS]
    frames, mask = (part.to(captions.device) for part in pad([captions.split.video(int(v))[1] for v in sample]))
    x, valid = window_means(frames.to(captions.dtype), mask, windows)
    rows = features(x)[valid].double()
    rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE), device=rows.device).long()]
    width = torch.pdist(rows).median().clamp(min=1e-6)
    generator = torch.Generator().manual_seed(derived_seed(seed, "fourier"))
    drawn = torch.randn(count, rows.shape[1], generator=generator, dtype=torch.float64)
    phases = torch.rand(count, generator=generator, dtype=torch.float64) * (2 * torch.pi)
    frequencies = drawn.to(rows) / width
    return replace(
        features, frequencies=frequencies.to(captions.dtype), phases=phases.to(frequencies).to(captions.dtype)
    )


def _places(split: PackedSplit) -> np.ndarray:
    """Numbers that depend on the id of each video alone."""
    return np.array([int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in split.video_ids])


def choose(config: Config, captions: Captions, selection: Captions | None = None, level: int = logging.INFO) -> Choice:
    """Windows with a penalty, then features with a penalty, then the temperature, by SumR on held-out videos.

    Maps to choose among are fitted to equal shares, for the temperature to shares of one iteration.

    Args:
        config: the configuration of the run.
        captions: the training split, parts of which are held out.
        selection: a split that is held out too; None: there is none but the reported one, which is left alone.
        level: at which comparisons are logged.
    """
    fit, split, identity = config.fit, captions.split, config.fit.toward == "identity"
    if all(len(options) == 1 for options in (fit.windows, fit.features, fit.penalties, fit.temperatures)):
        return Choice(PathConfig(fit.windows[0], fit.features[0]), fit.penalties[0], fit.temperatures[0])
    order = np.argsort(_places(split))
    parts = [np.sort(order[fold :: fit.folds]) for fold in range(min(fit.folds, len(split)))]
    folds = [
        (captions.of(np.setdiff1d(order, part)), captions.of(part)) for part in parts[: max(1, _CHOOSE // len(split))]
    ]
    if selection is not None:
        folds.append((captions, selection))
    weights = np.array([len(test.sentences) for _, test in folds], float)
    weights /= weights.sum()

    def best(what: str, options: Sequence[Any], score: Callable[[int, Any], float]) -> Any:
        """The option with the highest mean score over folds, weighted by their captions; of equal ones the first."""
        if len(options) == 1:
            return options[0]
        means = [sum(weight * score(fold, option) for fold, weight in enumerate(weights)) for option in options]
        listed = ", ".join(f"{option} {mean:.1f}" for option, mean in zip(options, means, strict=True))
        logger.log(level, "fit: SumR on held-out videos by %s: %s", what, listed)
        return options[max(range(len(options)), key=means.__getitem__)]

    plain = [train.standard(identity) for train, _ in folds]
    lengths = dict.fromkeys(window for windows in fit.windows for window in windows)
    window_sums = [{w: train.sums(x, [w]) for w in lengths} for x, (train, _) in zip(plain, folds, strict=True)]

    def by_windows(fold: int, option: tuple[tuple[int, ...], float]) -> float:
        windows, penalty = option
        sums = Sums.mean([window_sums[fold][window] for window in windows])
        return folds[fold][1].sumr(plain[fold], windows, ridge(sums, penalty, identity=identity))

    windows, _ = best("windows and penalty", list(product(fit.windows, fit.penalties)), by_windows)
    features = {
        count: [
            fourier(x, train, windows, count, config.train.seed) for x, (train, _) in zip(plain, folds, strict=True)
        ]
        for count in fit.features
    }
    equal = {
        count: [train.sums(x, windows) for x, (train, _) in zip(some, folds, strict=True)]
        for count, some in features.items()
    }

    def by_penalty(fold: int, option: tuple[int, float]) -> float:
        count, penalty = option
        fitted = ridge(equal[count][fold], penalty, identity=identity)
        return folds[fold][1].sumr(features[count][fold], windows, fitted)

    count, penalty = best("features and penalty", list(product(fit.features, fit.penalties)), by_penalty)

    def by_temperature(fold: int, temperature: float) -> float:
        x, (train, test) = features[count][fold], folds[fold]
        fitted = ridge(equal[count][fold], penalty, identity=identity)
        again = ridge(train.sums(x, windows, temperature, fitted), penalty, identity=identity)
        return test.sumr(x, windows, again)

    return Choice(PathConfig(windows, count), penalty, best("temperature", fit.temperatures, by_temperature))


def fit_map(captions: Captions, features: Features, choice: Choice, iterations: int, *, identity: bool = False) -> Map:
    """The map after some iterations, each with shares by the map before; the first one is fitted to equal shares.

    Args:
        captions: what it is fitted to.
        features: of the rows.
        choice: windows, penalty and temperature.
        iterations: how many.
        identity: as of `ridge`.
    """
    fitted = ridge(captions.sums(features, choice.path.windows), choice.penalty, identity=identity)
    for _ in range(iterations):
        sums = captions.sums(features, choice.path.windows, choice.temperature, fitted)
        fitted = ridge(sums, choice.penalty, identity=identity)
    return fitted


def fit_path(
    config: Config,
    split: PackedSplit,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    selection: PackedSplit | None = None,
    level: int = logging.INFO,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Chooses and fits the linear path of a retriever.

    Args:
        config: the configuration of the run, with `model.start: linear`.
        split: the training split.
        device: where sums are computed.
        dtype: of the products that are summed.
        selection, level: as of `choose`.

    Returns:
        The configuration of the retriever with what was chosen, and the tensors of its `LinearPath`.

    Raises:
        InputError: `fit.toward='identity'`, and frames and words have different widths, or Fourier features are asked.
    """
    model, identity = config.model, config.fit.toward == "identity"
    assert isinstance(model, ModelConfig)
    if identity and (model.video_dim != model.query_dim or any(config.fit.features)):
        raise InputError(
            f"fit.toward='identity' needs frames and words of one space and fit.features=[0], got widths "
            f"{model.video_dim} and {model.query_dim} and fit.features={list(config.fit.features)}. Use a corpus of a "
            f"joint encoder (`prvr convert features`) and fit.features=[0], or set fit.toward=zero."
        )
    captions = Captions(split, torch.device(device), dtype)
    choice = choose(config, captions, None if selection is None else Captions(selection, captions.device, dtype), level)
    features = captions.standard(identity)
    features = fourier(features, captions, choice.path.windows, choice.path.features, config.train.seed)
    weight, bias = fit_map(captions, features, choice, config.fit.iterations, identity=identity)
    logger.log(level, "fit: %s, penalty %g, temperature %g", choice.path, choice.penalty, choice.temperature)
    model = replace(model, path=choice.path)
    path = LinearPath(model)
    with torch.no_grad():
        scale, shift = features.scale.double(), features.mean.double() * features.scale.double()
        if path.frequencies is None or path.phases is None:
            weight, bias = scale[:, None] * weight, bias - shift @ weight
        else:
            frequencies, phases = (
                part.double() for part in (features.frequencies, features.phases) if part is not None
            )
            path.frequencies.copy_(frequencies * scale)
            path.phases.copy_(phases - frequencies @ shift)
        path.weight.copy_(weight.mT)
        path.bias.copy_(bias)
    return model, path.state_dict()
