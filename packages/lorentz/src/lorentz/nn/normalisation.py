"""Normalisation of points: of the space part of each, and of the points of a batch."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz import maps
from lorentz._centroid import stable_centroid
from lorentz._precision import Scalar, evaluate
from lorentz.attention import check_mask
from lorentz.geodesics import on_geodesic
from lorentz.gyro import boosted

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature


def _check_eps(features: int, eps: float) -> None:
    check_features("features", features)
    if not eps >= 0.0:
        raise ValueError(f"eps: got {eps}, expected a number >= 0")


class _SpaceNorm(OnHyperboloid, ABC):
    """Normalises the space part with a weight for every coordinate; the time follows."""

    def __init__(self, features: int, eps: float, affine: bool, c: float | Curvature) -> None:
        super().__init__(c)
        _check_eps(features, eps)
        self.features, self.eps = features, eps
        self.weight = nn.Parameter(torch.ones(features)) if affine else None

    @abstractmethod
    def _norm(self, space: Tensor, eps: float) -> Tensor: ...

    @staticmethod
    def _like(parameter: Tensor | None, space: Tensor) -> Tensor | None:
        return None if parameter is None else parameter.to(space.dtype)

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Normalise the space parts of points (*b, features + 1) and recompute their time parts."""
        x = self._checked_points("x", x, self.features, self.weight)

        def normalise(space: Tensor, c: Scalar) -> Tensor:
            # Squares of far-out coordinates overflow float32; an exact power of two, also in eps, changes nothing else.
            return hyp.lifted(self._norm(space * hyp.SHRINK, self.eps * hyp.SHRINK**2), c)

        return evaluate(normalise, None, self.c, x[..., 1:], auto="native")

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.features}, eps={self.eps}, affine={self.weight is not None}"


class LorentzLayerNorm(_SpaceNorm):
    """`nn.LayerNorm` on the space part, time recomputed (as in Hypformer, Yang et al. 2024).

    The output is a point whose space part has mean 0 and variance 1 (before weight and bias), so every
    output lies near radius asinh(sqrt(c d))/sqrt(c) and activations neither drift to infinity nor collapse.
    It is not intrinsic: the centre is the origin and the axes count. It commutes with permutations of the coordinates,
    not with Lorentz boosts or rotations, and it forgets the distance from the origin. Where that distance
    carries meaning (depth in a tree), normalise inside a residual branch, not on the main path.

    Args:
        features: space dimension of the points.
        eps: added to the variance of the space part.
        affine: learn a weight for every coordinate, and a bias.
        bias: with `affine`, learn the bias too.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `features` < 1, `eps` < 0 or `c` a number <= 0; at the call, points of another dimension.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import project
        >>> LorentzLayerNorm(2)(project(torch.tensor([2.0, 4.0]))).detach()
        tensor([ 1.7320, -1.0000,  1.0000])
    """

    def __init__(
        self, features: int, *, eps: float = 1e-5, affine: bool = True, bias: bool = True, c: float | Curvature = 1.0
    ) -> None:
        super().__init__(features, eps, affine, c)
        self.bias = nn.Parameter(torch.zeros(features)) if affine and bias else None

    def _norm(self, space: Tensor, eps: float) -> Tensor:
        affine = (self._like(parameter, space) for parameter in (self.weight, self.bias))
        return F.layer_norm(space, (self.features,), *affine, eps=eps)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{super().extra_repr()}, bias={self.bias is not None}"


class LorentzRMSNorm(_SpaceNorm):
    """`nn.RMSNorm` on the space part, time recomputed (HELM, arXiv:2505.24722): w x/sqrt(mean(x^2) + eps).

    As `LorentzLayerNorm` without the mean and the bias: it commutes with rotations about the origin, up to the weight.
    Before the weight every output is at distance asinh(sqrt(c d))/sqrt(c).

    Args:
        features: space dimension of the points.
        eps: added to the mean square of the space part.
        affine: learn the weight w of every coordinate.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `features` < 1, `eps` < 0 or `c` a number <= 0; at the call, points of another dimension.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import project
        >>> LorentzRMSNorm(2)(project(torch.tensor([6.0, 8.0]))).detach()
        tensor([1.7321, 0.8485, 1.1314])
    """

    def __init__(self, features: int, *, eps: float = 1e-5, affine: bool = True, c: float | Curvature = 1.0) -> None:
        super().__init__(features, eps, affine, c)

    def _norm(self, space: Tensor, eps: float) -> Tensor:
        return F.rms_norm(space, (self.features,), self._like(self.weight, space), eps=eps)


class LorentzBatchNorm(OnHyperboloid):
    """Batch normalisation on the hyperboloid: the mean of the points becomes a learned point, their variance g^2.

    With the Lorentz centroid m of all points of the batch and the variance s^2, the mean of dist(x, m)^2,

        y = b (+) g/sqrt(s^2 + eps) (*) ((-m) (+) x),

    with gyroaddition (+) and gyroscaling (*), see `lorentz.gyro_add` and `lorentz.gyro_scale`: the isometry that takes
    m to the origin, a scaling of the distances from there, and the isometry that takes the origin to b. This is the
    gyrogroup batch normalisation of ILNN (arXiv:2602.23981), as geoopt has it. In place of the isometries Bdeir et al.
    (ICLR 2024) transport tangent vectors, which is the same, and they divide by s^2.

    One variance for all coordinates: the axes do not count, and a Lorentz transformation of all points changes the
    result before b by a rotation only. At the start the points have a mean squared distance of 1 from the origin,
    where `LorentzMultiheadAttention` wants them. Mean and variance of evaluation are running ones, as those of
    `nn.BatchNorm1d`; the mean moves along geodesics and is kept as its tangent vector at the origin. Processes do not
    share them. Points beyond radius 6 or so keep more digits inside `lorentz.precision("float64")`.

    Args:
        features: space dimension of the points.
        eps: added to the variance.
        momentum: share of the batch in the running mean and variance.
        affine: learn b, as its tangent vector `bias` at the origin, and the number g, `weight`.
        track_running_stats: False takes mean and variance of the batch in evaluation, too. In training `torch.vmap` and
            `torch.func` need it, since they cannot change running ones in place.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: `features` < 1, `eps` < 0, `momentum` is not in [0, 1] or `c` a number <= 0; at the call, points of
            another dimension, or in training a single point.
        TypeError: at the call, no floating-point tensor, float32 meets float64, or a mask that is not boolean.

    Examples:
        >>> from lorentz.functional import dist0, expmap0
        >>> x = expmap0(torch.tensor([[1.0, 2.0], [1.0, 4.0]]))
        >>> dist0(LorentzBatchNorm(2)(x)).detach()
        tensor([1.0000, 1.0000])
    """

    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        c: float | Curvature = 1.0,
    ) -> None:
        super().__init__(c)
        _check_eps(features, eps)
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"momentum: got {momentum}, expected 0 <= momentum <= 1")
        self.features, self.eps, self.momentum = features, eps, momentum
        self.weight = nn.Parameter(torch.ones(())) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(()) if track_running_stats else None)

    def forward(self, x: Float[Tensor, "*b n"], mask: Bool[Tensor, "*b"] | None = None) -> Float[Tensor, "*b n"]:
        """Normalise points (*b, features + 1).

        Args:
            x: points; all leading axes are the batch.
            mask: True where a point counts in mean and variance, (*b); all points are normalised. A batch without any
                takes the running ones.
        """
        x = self._checked_points("x", x, self.features, self.bias)
        if mask is not None:
            check_mask("mask", mask, x.shape[:-1], "the points", "a point counts")
        of_batch = self.training or self.running_mean is None
        if of_batch and x.shape[:-1].numel() == 1:
            raise ValueError(f"x: got one point, shape {tuple(x.shape)}, expected more in training; call .eval()")

        def normalise(space: Tensor, c: Scalar) -> Tensor:
            if of_batch:
                points = space.reshape(-1, self.features)
                valid = torch.ones_like(points[:, 0]) if mask is None else mask.expand(x.shape[:-1]).reshape(-1)
                tangent, var = self._centred(points, valid.to(space.dtype), c)
                tangent = tangent.reshape(space.shape)
            else:
                mean, var = self._running(space, c)
                tangent = maps._logmap0(boosted(-mean, space, c), c)
            scaled = torch.rsqrt(var + self.eps) * tangent
            if self.weight is None or self.bias is None:
                return maps._expmap0(scaled, c)
            place = maps._expmap0(self.bias.to(space.dtype), c)[1:]
            return hyp.lifted(boosted(place, maps._expmap0(self.weight.to(space.dtype) * scaled, c)[..., 1:], c), c)

        return evaluate(normalise, None, self.c, x[..., 1:], auto="native")

    def _centred(self, points: Tensor, valid: Tensor, c: Scalar) -> tuple[Tensor, Tensor]:
        """Tangent vectors (n, d) of points as seen from their mean, and their variance; the running ones follow."""
        count = valid.sum()
        before, var_before = (value.detach() for value in self._running(points, c))
        mean = torch.where(count > 0, stable_centroid(points, valid.unsqueeze(0), c)[0, 1:], before)
        tangent = maps._logmap0(boosted(-mean, points, c), c)
        var = valid @ hyp.dot(tangent, tangent).squeeze(-1) / count.clamp_min(1.0)
        var = torch.where(count > 0, var, var_before)
        if self.training and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                moved = on_geodesic(before, mean, self.momentum, c)
                self.running_mean.copy_(maps._logmap0(moved, c))
                self.running_var.copy_(torch.lerp(var_before, var, self.momentum))
        return tangent, var

    def _running(self, like: Tensor, c: Scalar) -> tuple[Tensor, Tensor]:
        """Space part of the running mean, and the running variance; the origin and 1 where there are none."""
        if self.running_mean is None or self.running_var is None:
            return like.new_zeros(self.features), like.new_ones(())
        return maps._expmap0(self.running_mean.to(like.dtype), c)[1:], self.running_var.to(like.dtype)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.features}, eps={self.eps}, momentum={self.momentum}, affine={self.weight is not None}"
