"""Entailment cones: a point entails what lies in the cone opening away from the origin."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Precision, Scalar, evaluate
from ._series import safe_divide, safe_sqrt
from ._validation import check_positive
from .points import point_spaces


def half_aperture(
    x: Float[Tensor, "*#b n"], c: Scalar = 1.0, min_radius: float = 0.1, *, precision: Precision | None = None
) -> Float[Tensor, "*#b"]:
    """Half-aperture of the entailment cone at x: asin(2K/(sqrt(c)|x|)), K = min_radius (Le et al. 2019).

    Args:
        x: ambient point; only its space part is read.
        c: see the conventions of `lorentz.functional`.
        min_radius: K > 0; within sqrt(c)|x| <= 2K the cone is a half space, and cones there do not nest.
        precision: see the conventions of `lorentz.functional`.

    Returns:
        Angles in (0, pi/2].

    Raises:
        ValueError: `c` is a number <= 0, or `min_radius` <= 0.

    Examples:
        >>> half_aperture(torch.tensor([1.0, 0.0]))
        tensor(1.5708)
    """
    check_positive("min_radius", min_radius, "cones are wider than a right angle below it")

    def kernel(x: Tensor, c: Scalar) -> Tensor:
        r = hyp.root(c) * hyp.length(x)
        cosine = safe_sqrt(r - 2.0 * min_radius) * torch.sqrt(r + 2.0 * min_radius)
        return torch.atan2(torch.full_like(cosine, 2.0 * min_radius), cosine).squeeze(-1)

    return evaluate(kernel, precision, c, *point_spaces(c, x=x))


def exterior_angle(
    x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b"]:
    """Angle at x between the geodesic to y and the ray from the origin through x, continued: pi - angle(o, x, y).

    atan2(|p|, sqrt(c)(x0 (u.y) - |x| y0)) with u = x/|x| and p the part of y across x, formed without cancellation.
    0 beyond x on its ray, pi between the origin and x; 0 with zero gradient where undefined (x at the origin, y at x).

    Args:
        x: ambient point, the apex of the cone; only its space part is read.
        y: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Angles in [0, pi].

    Examples:
        >>> from lorentz.functional import project
        >>> exterior_angle(project(torch.tensor([1.0, 0.0])), project(torch.tensor([-1.0, 0.0])))
        tensor(3.1416)
    """

    def kernel(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        of = hyp.pair(x, y, c)
        length = safe_sqrt(of.xx)
        p = hyp.across_exact(x, of.e)
        opposite = safe_sqrt(hyp.dot(p, p))
        adjacent = hyp.root(c) * safe_divide(hyp.ahead(of, hyp.separation(of, c), c), length)
        undefined = (opposite == 0) & (adjacent == 0)
        angle = torch.atan2(torch.where(undefined, 0.0, opposite), torch.where(undefined, 1.0, adjacent))
        return angle.squeeze(-1)

    return evaluate(kernel, precision, c, *point_spaces(c, x=x, y=y))


def entailment_violation(
    general: Float[Tensor, "*#b n"],
    specific: Float[Tensor, "*#b n"],
    c: Scalar = 1.0,
    min_radius: float = 0.1,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b"]:
    """How far `specific` lies outside the cone of `general`: relu(exterior_angle - half_aperture) (Le et al. 2019).

    Args:
        general: ambient point whose cone should contain the other; only its space part is read.
        specific: ambient point; only its space part is read.
        c: curvature -c < 0; a number or a tensor that broadcasts against the points with a last axis of length 1.
        min_radius: K of `half_aperture`.
        precision: see the conventions of `lorentz.functional`.

    Returns:
        Angles in [0, pi); 0 inside the cone.

    Examples:
        >>> from lorentz.functional import project
        >>> entailment_violation(project(torch.tensor([1.0, 0.0])), project(torch.tensor([2.0, 0.0])))
        tensor(0.)
    """
    point_spaces(c, general=general, specific=specific)  # errors under these names
    angle = exterior_angle(general, specific, c, precision=precision)
    return torch.relu(angle - half_aperture(general, c, min_radius, precision=precision))
