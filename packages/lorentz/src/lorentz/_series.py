"""sinh(sqrt q)/sqrt q and its like as smooth functions of q, and roots whose gradient at zero is zero."""

import math

import torch
from torch import Tensor

# Taylor coefficients in q; the branch below ends where the first dropped term is under the float64 epsilon.
_SINHC = tuple(1.0 / math.factorial(2 * n + 1) for n in range(7))
_SINHC_LIMIT = 0.2
_ASINHC = tuple((-1) ** n * math.comb(2 * n, n) / (4.0**n * (2 * n + 1)) for n in range(9))
_ASINHC_SLOPE = tuple(2 * n * _ASINHC[n] for n in range(1, 9))
_ASINHC_LIMIT = 0.02
# Float32 takes q + 2^-26 for q instead of a Taylor branch, a third of the work: values change by less than half an eps,
# the root has a derivative at q = 0, and what rounding does to f'(q) vanishes in f'(q) dq, dq being of order sqrt(q).
_NUDGE = 2.0**-26


def polynomial(coefficients: tuple[float, ...], q: Tensor) -> Tensor:
    """A polynomial at q by Horner's rule: two coefficients or more, the constant first."""
    value = q * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * q + coefficient
    return value


def asinh(s: Tensor) -> Tensor:
    """asinh(s), s >= 0, as log1p(s + s t), t = s/(1 + sqrt(1 + s^2)): no gradient squares a large s."""
    return torch.log1p(s + s * (s / (1.0 + torch.hypot(s, s.new_ones(())))))


def sinhc(q: Tensor) -> Tensor:
    """sinh(s)/s at s = sqrt(q), q >= 0: smooth through q = 0."""
    if q.dtype != torch.float64:
        root = torch.sqrt(q + _NUDGE)
        return torch.sinh(root) / root
    small = q < _SINHC_LIMIT
    root = torch.sqrt(torch.where(small, 1.0, q))
    return torch.where(small, polynomial(_SINHC, torch.where(small, q, 0.0)), torch.sinh(root) / root)


def cosh_sinhc(q: Tensor) -> tuple[Tensor, Tensor]:
    """cosh(s) and sinh(s)/s at s = sqrt(q), q >= 0: smooth through q = 0, and of one rounded s.

    An error of s moves both along the hyperbola, so that they stay a point of it where s is large.
    """
    if q.dtype != torch.float64:
        root = torch.sqrt(q + _NUDGE)
        return torch.cosh(root), torch.sinh(root) / root
    factor = sinhc(q)
    # cosh(s) = sqrt(1 + q factor^2) with the factor outside, where its square would overflow.
    inverse = 1.0 / factor
    return factor * torch.sqrt(torch.addcmul(q, inverse, inverse)), factor


def log_sinhc(q: Tensor) -> Tensor:
    """log(sinh(s)/s) at s = sqrt(q), q >= 0: smooth through q = 0, and without overflow for large s."""
    small = q < _SINHC_LIMIT
    s = torch.sqrt(torch.where(small, 1.0, q))
    large = s + torch.log1p(-torch.exp(-2.0 * s)) - torch.log(2.0 * s)
    return torch.where(small, torch.log(polynomial(_SINHC, torch.where(small, q, 0.0))), large)


def asinhc(q: Tensor) -> Tensor:
    """asinh(s)/s at s = sqrt(q), q >= 0: smooth through q = 0."""
    if q.dtype != torch.float64:
        root = torch.sqrt(q + _NUDGE)
        return asinh(root) / root
    small = q < _ASINHC_LIMIT
    root = torch.sqrt(torch.where(small, 1.0, q))
    return torch.where(small, polynomial(_ASINHC, torch.where(small, q, 0.0)), asinh(root) / root)


def asinhc_slope(value: Tensor, s: Tensor) -> Tensor:
    """s times the derivative of asinh(s)/s, whose value at s is given: 1/sqrt(1 + s^2) - asinh(s)/s."""
    small = s * s < _ASINHC_LIMIT
    q = torch.where(small, s, 0.0).square()
    return torch.where(small, q * polynomial(_ASINHC_SLOPE, q), 1.0 / torch.hypot(s, s.new_ones(())) - value)


def safe_sqrt(q: Tensor) -> Tensor:
    """sqrt(q) with value and gradient 0 wherever q <= 0 (where rounding put it, or where it belongs)."""
    positive = q > 0
    return torch.where(positive, torch.sqrt(torch.where(positive, q, 1.0)), 0.0)


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b with value and gradients 0 where b = 0."""
    zero = b == 0
    return torch.where(zero, 0.0, a / torch.where(zero, 1.0, b))
