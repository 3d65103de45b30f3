"""sinh(sqrt q)/sqrt q and its like as smooth functions of q, and roots whose gradient at zero is zero."""

import math

import torch
from torch import Tensor

# Taylor coefficients in q; the branch below ends where the first dropped term is under the float64 epsilon.
_SINHC = tuple(1.0 / math.factorial(2 * n + 1) for n in range(7))
_SINHC_LIMIT = 0.2
_ASINHC = tuple((-1) ** n * math.comb(2 * n, n) / (4.0**n * (2 * n + 1)) for n in range(9))
_ASINHC_LIMIT = 0.02
_FLOAT32_TERMS = 4  # enough for float32 below both limits
_FAR = 1e9  # beyond it 1 + s^2 = s^2 in either dtype


def _polynomial(coefficients: tuple[float, ...], q: Tensor) -> Tensor:
    terms = coefficients if q.dtype == torch.float64 else coefficients[:_FLOAT32_TERMS]
    value = q * terms[-1] + terms[-2]
    for coefficient in terms[-3::-1]:
        value = value * q + coefficient
    return value


def sinhc(q: Tensor) -> Tensor:
    """sinh(s)/s at s = sqrt(q), q >= 0: smooth through q = 0."""
    small = q < _SINHC_LIMIT
    root = torch.sqrt(torch.where(small, 1.0, q))
    return torch.where(small, _polynomial(_SINHC, torch.where(small, q, 0.0)), torch.sinh(root) / root)


def asinhc(q: Tensor, shrink: float = 1.0) -> Tensor:
    """asinh(s)/s at s = sqrt(q)/shrink, q >= 0: smooth through q = 0, and s may be too large to square."""
    small = q < _ASINHC_LIMIT * shrink**2
    root = torch.sqrt(torch.where(small, 1.0, q)) / shrink
    # asinh(s) = log1p(s + s t), t = s/(1 + sqrt(1 + s^2)), t = 1 far out: neither value nor gradient squares a large s.
    far = root > _FAR
    near = torch.where(far, 1.0, root)
    t = torch.where(far, 1.0, near / (1.0 + torch.sqrt(1.0 + near * near)))
    value = torch.log1p(root + root * t)
    return torch.where(small, _polynomial(_ASINHC, torch.where(small, q, 0.0) / shrink**2), value / root)


def safe_sqrt(q: Tensor) -> Tensor:
    """sqrt(q) with value and gradient 0 wherever q <= 0 (where rounding put it, or where it belongs)."""
    positive = q > 0
    return torch.where(positive, torch.sqrt(torch.where(positive, q, 1.0)), 0.0)


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b with value and gradients 0 where b = 0."""
    zero = b == 0
    return torch.where(zero, 0.0, a / torch.where(zero, 1.0, b))
