"""The curvature as a module, learned within bounds."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz._precision import at_least_float32


class Curvature(nn.Module):
    """The number c > 0 of curvature -c, learned within bounds: c = lo (hi/lo)^sigmoid(raw).

    The bounds are part of the expression: the gradient is that of the bounded value and no parameter is ever clipped.

    Args:
        init: initial c, strictly between the bounds.
        learnable: False keeps c = `init` as a buffer.
        bounds: open interval (lo, hi) for c.

    Raises:
        ValueError: `init` does not lie strictly between the bounds, or lo <= 0.

    Examples:
        >>> Curvature(2.0)()
        tensor(2.0000, grad_fn=<ExpBackward0>)
    """

    def __init__(self, init: float = 1.0, learnable: bool = True, bounds: tuple[float, float] = (0.1, 10.0)) -> None:
        super().__init__()
        low, high = bounds
        if not 0.0 < low < init < high < math.inf:
            raise ValueError(
                f"init, bounds: got {init}, {bounds}, expected 0 < lo < init < hi; widen bounds or move init"
            )
        self.init, self.learnable, self.bounds = init, learnable, (low, high)
        self._log_low, self._log_range = math.log(low), math.log(high / low)
        if learnable:
            share = math.log(init / low) / self._log_range
            self.raw = nn.Parameter(torch.tensor(math.log(share / (1.0 - share))))
        else:
            self.register_buffer("value", torch.tensor(float(init)))

    def forward(self) -> Float[Tensor, ""]:
        """Return c as a scalar tensor: float64 if the parameter is, otherwise float32."""
        if not self.learnable:
            return self.get_buffer("value")
        raw = self.raw.to(at_least_float32(self.raw.dtype))
        return torch.exp(self._log_low + self._log_range * torch.sigmoid(raw))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Curvature":
        before = None if self.learnable else self.value
        super()._apply(fn, recurse)
        if before is not None and self.value.dtype != at_least_float32(self.value.dtype):
            self.value = before.to(self.value.device)  # `.half()` is meant for weights; c itself is no weight
        return self

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"init={self.init}, learnable={self.learnable}, bounds={self.bounds}"
