"""Multinomial logistic regression on points: the classifier."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import _hyperboloid as hyp
from lorentz._precision import Scalar, evaluate
from lorentz._series import safe_divide, safe_sqrt

from ._layer import OnHyperboloid, check_features
from .curvature import Curvature


def _logits(x: Tensor, z: Tensor, a: Tensor, c: Scalar) -> Tensor:
    """|z| times the signed distances; x (*b, d) space parts, z (k, d), a (k)."""
    root = hyp.root(c)
    length = safe_sqrt(hyp.dot(z, z))
    along = root * (x @ safe_divide(z, length).mT)
    across = c * hyp.dot(x, x) - along * along
    # A square, below 0 by rounding only. (At 0 it keeps its gradient: the second derivative is not 0 there.)
    w = torch.sqrt(1.0 + torch.where(across < 0, 0.0, across))
    distance = torch.asinh(w * torch.sinh(torch.asinh(along / w) - root * a))
    return length.squeeze(-1) * distance / root


class LorentzMLR(OnHyperboloid):
    """Multinomial logistic regression on the hyperboloid (Bdeir, Schwethelm, Landwehr, ICLR 2024).

    A class is a hyperplane (a geodesic submanifold) with normal direction z that crosses the geodesic from the origin
    along z at the signed distance a; its logit is |z| times the signed distance of the point,

        |z|/sqrt(c) asinh(sqrt(c) (cosh(A) u.x - sinh(A) x0)),  u = z/|z|,  A = sqrt(c) a.

    The bracket cancels near the plane, far out. With w^2 = 1 + c(|x|^2 - (u.x)^2) it is w sinh(eta - A),
    eta = asinh(sqrt(c) u.x / w), and cancels no more: asinh(w sinh(eta - A)) is what is computed. As c -> 0 the logit
    becomes z.x - |z| a, that of a Euclidean linear layer. |x|^2 - (u.x)^2 cancels where x lies along z, as after
    training; so this layer, unlike the others, computes in float64 where the device has it: full float32 accuracy to
    about radius 10. `with lorentz.precision("native")` is cheaper; its error grows with exp(2|A|), in float32 from 1e-7
    at A = 0 and 5e-6 at |A| = 2 to 1 % at 6. Feed the logits to `nn.CrossEntropyLoss`.

    Args:
        in_features: space dimension of the points.
        num_classes: number of classes.
        c: curvature -c, a number or a `Curvature`.

    Raises:
        ValueError: a dimension < 1, or `c` is a number <= 0; at the call, points of another dimension.
        TypeError: at the call, no floating-point tensor, or float32 meets float64.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> layer = LorentzMLR(2, 1)
        >>> layer.load_state_dict({"weight": torch.tensor([[2.0, 0.0]]), "offset": torch.tensor([1.0])})
        <All keys matched successfully>
        >>> layer(expmap0(torch.tensor([[1.5, 0.0], [0.0, 0.0]]))).detach()  # distances 0.5 and -1, times |z| = 2
        tensor([[ 1.0000],
                [-2.0000]])
    """

    def __init__(self, in_features: int, num_classes: int, *, c: float | Curvature = 1.0) -> None:
        super().__init__(c)
        check_features("in_features", in_features)
        check_features("num_classes", num_classes)
        self.in_features, self.num_classes = in_features, num_classes
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))  # z
        self.offset = nn.Parameter(torch.zeros(num_classes))  # a
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5.0))  # as nn.Linear

    def forward(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b k"]:
        """Return the logits (*b, num_classes) of points (*b, in_features + 1)."""
        x = self._checked_points("x", x, self.in_features, self.weight)

        def kernel(space: Tensor, c: Scalar) -> Tensor:
            return _logits(space, self.weight.to(space.dtype), self.offset.to(space.dtype), c)

        return evaluate(kernel, None, self.c, x[..., 1:])

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"in_features={self.in_features}, num_classes={self.num_classes}"
