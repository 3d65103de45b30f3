"""Another model of the same hyperbolic space: the Poincare ball, of radius 1/sqrt(c).

The operations have the conventions of geoopt's `PoincareBall(c)`: points p and tangent vectors
have d coordinates, and the length of a tangent vector at p is 2|v|/(1 - c|p|^2). `to_poincare` carries points,
distances and gyroaddition of the hyperboloid to them; a tangent vector at the origin is half as long in the ball.

All of them are made of s = p + q or q - p and of 1 - c|p|^2, without a subtraction of large numbers, and exact for the
coordinates that they are given. What limits the ball is the coordinates: a rounding of p by eps changes 1 - c|p|^2 by
eps cosh(sqrt(c) r/2)^2 of itself at distance r. Nothing is clamped: a result that rounds to the rim is on the rim,
infinitely far from all points inside.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._centroid import centroid
from ._precision import Precision, Scalar, evaluate
from ._series import asinhc, cosh_sinhc, safe_sqrt
from ._validation import check_factor, vectors
from .points import ball_points, check_in_ball, point_spaces

Ball = Float[Tensor, "*#b d"]
"""Coordinates of points of a ball, or of tangent vectors."""

_FAR = 40.0**2  # where tanh is 1 and 1 - tanh^2 no more than rounding


def _off_boundary(p: Tensor, c: Scalar) -> Tensor:
    """1 - c|p|^2, and 0 on the rim and where rounding has put a point beyond it."""
    return (1.0 - c * hyp.dot(p, p)).clamp_min(0.0)


def _to_poincare(x: Tensor, c: Scalar) -> Tensor:
    return x / (1.0 + hyp.root(c) * hyp.time(x, c))


def _from_poincare(p: Tensor, c: Scalar) -> Tensor:
    return hyp.lifted(2.0 * p / _off_boundary(p, c), c)


def _add(p: Tensor, q: Tensor, off: Tensor, off_of_q: Tensor, c: Scalar) -> Tensor:
    """p (+) q from s = p + q: (c|s|^2 p + off s)/(off off_of_q + c|s|^2), off = 1 - c|p|^2."""
    s = p + q
    ss = c * hyp.dot(s, s)
    return (ss * p + off * s) / (off * off_of_q + ss)


def _mobius_add(p: Tensor, q: Tensor, c: Scalar) -> Tensor:
    return _add(p, q, _off_boundary(p, c), _off_boundary(q, c), c)


def _poincare_dist(p: Tensor, q: Tensor, c: Scalar) -> Tensor:
    s = q - p
    shrink = torch.sqrt(_off_boundary(p, c)) * torch.sqrt(_off_boundary(q, c))
    return 2.0 / hyp.root(c) * torch.asinh(hyp.root(c) * safe_sqrt(hyp.dot(s, s)) / shrink)


def _poincare_expmap(p: Tensor, v: Tensor, c: Scalar) -> Tensor:
    off = _off_boundary(p, c)
    v = v / off
    q = c * hyp.dot(v, v)
    near = q < _FAR
    cosh, sinhc = cosh_sinhc(torch.where(near, q, 1.0))
    w = torch.where(near, sinhc / cosh, torch.rsqrt(torch.where(near, 1.0, q))) * v  # tanh(t)/t v, t = sqrt(q)
    return _add(p, w, off, torch.where(near, cosh.square().reciprocal(), 0.0), c)


def _poincare_logmap(p: Tensor, q: Tensor, c: Scalar) -> Tensor:
    off, off_of_q, s = _off_boundary(p, c), _off_boundary(q, c), q - p
    ss = c * hyp.dot(s, s)
    u = ss / (off * off_of_q)  # sinh^2(sqrt(c) dist / 2)
    return asinhc(u) / (off_of_q * torch.sqrt(1.0 + u)) * (off * s - ss * p)


def _expmap0(v: Tensor, c: Scalar) -> Tensor:
    return _poincare_expmap(torch.zeros_like(v), v, c)


def _logmap0(p: Tensor, c: Scalar) -> Tensor:
    return _poincare_logmap(torch.zeros_like(p), p, c)


def _mobius_matvec(matrix: Tensor, p: Tensor, c: Scalar) -> Tensor:
    return _expmap0(_logmap0(p, c) @ matrix.mT, c)


def _gyration(p: Tensor, q: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """gyr[p, q] v from s = p + q, of which every term has a factor: at p = -q it is v itself."""
    s, off = p + q, _off_boundary(p, c)
    ss, pv, sv = c * hyp.dot(s, s), hyp.dot(p, v), hyp.dot(s, v)
    along_p = sv * (off + 2.0 * c * hyp.dot(p, s)) - pv * ss
    along_s = sv * (c * hyp.dot(p, p)) + pv * off
    return v + 2.0 * c * (along_p * p - along_s * s) / (off * _off_boundary(q, c) + ss)


def _poincare_transport(p: Tensor, q: Tensor, v: Tensor, c: Scalar) -> Tensor:
    return _off_boundary(q, c) / _off_boundary(p, c) * _gyration(q, -p, v, c)


def _poincare_plane_dist(x: Tensor, p: Tensor, a: Tensor, c: Scalar) -> Tensor:
    off, off_of_x, s, root = _off_boundary(p, c), _off_boundary(x, c), x - p, hyp.root(c)
    towards = off * hyp.dot(s, a) - c * hyp.dot(s, s) * hyp.dot(p, a)
    return torch.asinh(2.0 * root * towards / (off * off_of_x * safe_sqrt(hyp.dot(a, a)))) / root


def to_poincare(
    x: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n-1"]:
    """Point of the Poincare ball: x / (1 + sqrt(c) x0) (stereographic projection).

    Args:
        x: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates of norm < 1/sqrt(c), which is the largest radius they can hold: rounded to float32 they are
        on the rim beyond sqrt(c) dist(o, x) = 17, in float64 beyond 37.

    Examples:
        >>> to_poincare(torch.tensor([1.25, 0.75]))
        tensor([0.3333])
    """
    return evaluate(_to_poincare, precision, c, *point_spaces(c, x=x))


def from_poincare(p: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Float[Tensor, "*#b d+1"]:
    """Point of the hyperboloid from Poincare coordinates: 2p / (1 - c|p|^2).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point.

    Examples:
        >>> from_poincare(torch.tensor([1 / 3]))
        tensor([1.2500, 0.7500])
    """
    return evaluate(_from_poincare, precision, c, *ball_points(c, p=p))


def mobius_add(p: Ball, q: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Moebius addition of the Poincare ball (Ungar 2008), the `lorentz.gyro_add` of its points.

    p (+) q = ((1 + 2c p.q + c|q|^2) p + (1 - c|p|^2) q)/(1 + 2c p.q + c^2|p|^2|q|^2). With s = p + q it is
    (c|s|^2 p + (1 - c|p|^2) s)/((1 - c|p|^2)(1 - c|q|^2) + c|s|^2), whose denominator is a sum of positive terms.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        q: ball coordinates, sqrt(c)|q| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates.

    Examples:
        >>> mobius_add(torch.tensor([0.5]), torch.tensor([0.5]))
        tensor([0.8000])
    """
    return evaluate(_mobius_add, precision, c, *ball_points(c, p=p, q=q))


def poincare_dist(p: Ball, q: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Float[Tensor, "*#b"]:
    """Geodesic distance: 2/sqrt(c) asinh(sqrt(c)|p - q|/sqrt((1 - c|p|^2)(1 - c|q|^2))); zero subgradient at p = q.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        q: ball coordinates, sqrt(c)|q| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Distances >= 0, those of the points on the hyperboloid.

    Examples:
        >>> poincare_dist(torch.tensor([0.5]), torch.tensor([-0.5]))
        tensor(2.1972)
    """
    return evaluate(_poincare_dist, precision, c, *ball_points(c, p=p, q=q)).squeeze(-1)


def poincare_expmap(p: Ball, v: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Exponential map at p: p (+) tanh(t)/t v/(1 - c|p|^2) with t = sqrt(c)|v|/(1 - c|p|^2).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        v: tangent vector at p, any real values.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates at distance 2|v|/(1 - c|p|^2) from p.

    Examples:
        >>> poincare_expmap(torch.tensor([0.5]), torch.tensor([-0.8239592]))  # through the centre
        tensor([-0.5000])
    """
    tensors = vectors(p=p, v=v)
    check_in_ball(c, p=p)
    return evaluate(_poincare_expmap, precision, c, *tensors)


def poincare_logmap(p: Ball, q: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Logarithmic map at p, the inverse of `poincare_expmap`: (1 - c|p|^2) artanh(sqrt(c)|u|)/sqrt(c) u/|u|.

    u = (-p) (+) q. The length artanh(sqrt(c)|u|), which cancels far out, is formed as half of the distance is.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        q: ball coordinates, sqrt(c)|q| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Tangent vector at p, of length dist(p, q) (1 - c|p|^2)/2 in coordinates.

    Examples:
        >>> poincare_logmap(torch.tensor([0.5]), torch.tensor([0.5]))
        tensor([0.])
    """
    return evaluate(_poincare_logmap, precision, c, *ball_points(c, p=p, q=q))


def poincare_expmap0(v: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Exponential map at the centre: tanh(sqrt(c)|v|)/(sqrt(c)|v|) v, `to_poincare(lorentz.expmap0(2 v))`.

    Args:
        v: tangent vector at the centre, any real values.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates at distance 2|v| from the centre.

    Examples:
        >>> poincare_expmap0(torch.tensor([0.5493]))
        tensor([0.5000])
    """
    return evaluate(_expmap0, precision, c, *vectors(v=v))


def poincare_logmap0(p: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Logarithmic map at the centre: artanh(sqrt(c)|p|)/(sqrt(c)|p|) p, the inverse of `poincare_expmap0`.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Tangent vector at the centre, half as long as the distance of p from it.

    Examples:
        >>> poincare_logmap0(torch.tensor([0.5]))
        tensor([0.5493])
    """
    return evaluate(_logmap0, precision, c, *ball_points(c, p=p))


def conformal_factor(p: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Float[Tensor, "*#b"]:
    """How much longer a tangent vector at p is than its coordinates: 2/(1 - c|p|^2).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Examples:
        >>> conformal_factor(torch.tensor([0.5]))
        tensor(2.6667)
    """
    return evaluate(lambda p, c: 2.0 / _off_boundary(p, c), precision, c, *ball_points(c, p=p)).squeeze(-1)


def mobius_scale(
    r: float | int | Float[Tensor, "..."], p: Ball, c: Scalar = 1.0, *, precision: Precision | None = None
) -> Ball:
    """Moebius scalar multiplication, `lorentz.gyro_scale` of the points: tanh(r artanh(sqrt(c)|p|))/sqrt(c) p/|p|.

    Args:
        r: a number, or a tensor that broadcasts against the points with a last axis of length 1.
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates, |r| times as far from the centre.

    Examples:
        >>> mobius_scale(2.0, torch.tensor([0.5]))
        tensor([0.8000])
    """
    points = ball_points(c, p=p)
    check_factor("r", r, points)

    def kernel(p: Tensor, c: Scalar) -> Tensor:
        return _expmap0((r.to(p.dtype) if isinstance(r, Tensor) else r) * _logmap0(p, c), c)

    return evaluate(kernel, precision, c, *points)


def mobius_matvec(
    matrix: Float[Tensor, "e d"], p: Ball, c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b e"]:
    """Moebius matrix-vector product (Ganea et al. 2018): exp_0(M log_0 p).

    Args:
        matrix: any real values.
        p: `(*b, d)` ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        `(*b, e)` ball coordinates.

    Examples:
        >>> mobius_matvec(torch.tensor([[2.0], [0.0]]), torch.tensor([0.5]))
        tensor([0.8000, 0.0000])
    """
    return evaluate(_mobius_matvec, precision, c, matrix, *ball_points(c, p=p))


def gyration(p: Ball, q: Ball, v: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """The rotation gyr[p, q] v = -(p (+) q) (+) (p (+) (q (+) v)), by which addition fails to be associative.

    It is linear in v and keeps its length, so v may be any vector (Ungar 2008).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        q: ball coordinates, sqrt(c)|q| < 1.
        v: a vector.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        A vector.

    Examples:
        >>> gyration(torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.0]))
        tensor([ 0.8824, -0.4706])
    """
    tensors = vectors(p=p, q=q, v=v)
    check_in_ball(c, p=p, q=q)
    return evaluate(_gyration, precision, c, *tensors)


def poincare_transport(p: Ball, q: Ball, v: Ball, c: Scalar = 1.0, *, precision: Precision | None = None) -> Ball:
    """Parallel transport of v from p to q along the geodesic: (1 - c|q|^2)/(1 - c|p|^2) gyr[q, -p] v.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        q: ball coordinates, sqrt(c)|q| < 1.
        v: tangent vector at p, any real values.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Tangent vector at q.

    Examples:
        >>> poincare_transport(torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([1.0]))
        tensor([0.7500])
    """
    tensors = vectors(p=p, q=q, v=v)
    check_in_ball(c, p=p, q=q)
    return evaluate(_poincare_transport, precision, c, *tensors)


def poincare_midpoint(
    p: Float[Tensor, "*#b n d"],
    weights: Float[Tensor, "*#b m n"] | None = None,
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b m d"] | Float[Tensor, "*#b d"]:
    """The gyromidpoint (Ungar 2008), geoopt's `weighted_midpoint`: the `lorentz.centroid` of the points.

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        weights: non-negative, one row per midpoint; None is the one midpoint of equal weights.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates, `(*b, d)` without weights.

    Examples:
        >>> poincare_midpoint(torch.tensor([[0.5], [-0.5]]))
        tensor([0.])
    """
    points = from_poincare(p, c, precision=precision)
    return to_poincare(centroid(points, weights, c, precision=precision), c, precision=precision)


def poincare_plane_dist(
    x: Ball, p: Ball, a: Ball, c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b"]:
    """Signed distance of x from the hyperplane through p with normal a (Ganea et al. 2018, theorem 5).

    asinh(2 sqrt(c) <u, a>/((1 - c|u|^2)|a|))/sqrt(c) with u = (-p) (+) x.

    Args:
        x: ball coordinates, sqrt(c)|x| < 1.
        p: ball coordinates, sqrt(c)|p| < 1.
        a: tangent vector at p, not 0.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Distances, positive on the side that a points to.

    Examples:
        >>> poincare_plane_dist(torch.tensor([0.5, 0.0]), torch.zeros(2), torch.tensor([-1.0, 0.0]))
        tensor(-1.0986)
    """
    tensors = vectors(x=x, p=p, a=a)
    check_in_ball(c, x=x, p=p)
    return evaluate(_poincare_plane_dist, precision, c, *tensors).squeeze(-1)
