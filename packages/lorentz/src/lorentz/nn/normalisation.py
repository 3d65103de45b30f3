"""Layer normalisation of points."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz._precision import Scalar, evaluate

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature


class LorentzLayerNorm(OnHyperboloid):
    """`nn.LayerNorm` on the space part, time recomputed (as in Hypformer, Yang et al. 2024).

    It is: a point of the hyperboloid whose space part has mean 0 and variance 1 (before weight and bias), so every
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
        super().__init__(c)
        check_features("features", features)
        if not eps >= 0.0:
            raise ValueError(f"eps: got {eps}, expected a number >= 0")
        self.features, self.eps = features, eps
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine and bias else None

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Normalise the space parts of points (*b, features + 1) and recompute their time parts."""
        x = self._checked_points("x", x, self.features, self.weight)

        def normalise(space: Tensor, c: Scalar) -> Tensor:
            affine = (None if p is None else p.to(space.dtype) for p in (self.weight, self.bias))
            # Squares of far-out coordinates overflow float32; an exact power of two, also in eps, changes nothing else.
            small, eps = space * hyp.SHRINK, self.eps * hyp.SHRINK**2
            normal = F.layer_norm(small, (self.features,), *affine, eps=eps)
            return hyp.point(normal, hyp.time(normal, c))

        return evaluate(normalise, None, self.c, x[..., 1:], auto="native")

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.features}, eps={self.eps}, affine={self.weight is not None}, bias={self.bias is not None}"
