"""The curvature as a module, learned within bounds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz._precision import at_least_float32
from lorentz._validation import check_curvature


class _Recorded(nn.Module, ABC):
    """Has numbers that a checkpoint records as a small float64 tensor, and that are compared when it is loaded."""

    @abstractmethod
    def _numbers(self) -> tuple[float, ...]:
        """What is recorded."""

    @abstractmethod
    def _compare(self, state: dict[str, Any], prefix: str, recorded: tuple[float, ...]) -> str | None:
        """What is wrong with loading `state`, saved by a module with the numbers `recorded`, which differ."""

    def get_extra_state(self) -> Tensor:
        """Return the numbers, for `state_dict`: a tensor, since safetensors hold nothing else."""
        return torch.tensor(self._numbers(), dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the numbers are given at construction, and were compared before weights were copied."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _, _, missing_keys, _, error_msgs = args
        key = f"{prefix}_extra_state"
        recorded = state_dict.get(key)
        if isinstance(recorded, Tensor) and not recorded.is_meta:
            numbers, own = tuple(recorded.double().reshape(-1).tolist()), self._numbers()
            # A file that was converted to another dtype as a whole has rounded these numbers, too.
            tolerance = 4.0 * torch.finfo(recorded.dtype).eps
            if len(numbers) == len(own) and not all(map(partial(math.isclose, rel_tol=tolerance), numbers, own)):
                error = self._compare(state_dict, prefix, numbers)
                if error is not None:
                    error_msgs.append(f"{prefix.removesuffix('.') or 'c'}: {error}")
        super()._load_from_state_dict(state_dict, prefix, *args)
        if key in missing_keys:  # saved before these numbers were
            missing_keys.remove(key)


class Constant(_Recorded):
    """A number c > 0 as it is, without a tensor; it is saved, and another one is refused on loading."""

    def __init__(self, c: float) -> None:
        super().__init__()
        check_curvature(c)
        self.c = c

    def _numbers(self) -> tuple[float, ...]:
        return (self.c,)

    def _compare(self, state: dict[str, Any], prefix: str, recorded: tuple[float, ...]) -> str | None:
        return (
            f"the checkpoint was saved with c = {recorded[0]:g}, this layer has c = {self.c:g}, and its points lie on "
            f"another hyperboloid; build the layer with c={recorded[0]:g}"
        )

    def extra_repr(self) -> str:
        """Return what `repr` shows."""
        return f"c={self.c:g}"


class Curvature(_Recorded):
    """The number c > 0 of curvature -c, learned within bounds: c = lo (hi/lo)^sigmoid(raw).

    The bounds are part of the expression: the gradient is that of the bounded value and no parameter is ever clipped.
    They are saved in the `state_dict`: loaded into other bounds, a curvature keeps its c, and it is refused where c
    does not lie between them.

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
            self.raw = nn.Parameter(torch.tensor(self._raw(init)))
        else:
            self.register_buffer("value", torch.tensor(float(init)))

    def forward(self) -> Float[Tensor, ""]:
        """Return c as a scalar tensor: float64 if the parameter is, otherwise float32."""
        if not self.learnable:
            return self.get_buffer("value")
        raw = self.raw.to(at_least_float32(self.raw.dtype))
        return torch.exp(self._log_low + self._log_range * torch.sigmoid(raw))

    def _raw(self, c: float) -> float:
        """The parameter at which this curvature is c."""
        share = math.log(c / self.bounds[0]) / self._log_range
        return math.log(share / (1.0 - share))

    def _numbers(self) -> tuple[float, ...]:
        return self.bounds

    def _compare(self, state: dict[str, Any], prefix: str, recorded: tuple[float, ...]) -> str | None:
        key = f"{prefix}raw" if self.learnable else f"{prefix}value"
        if key not in state or state[key].is_meta:
            return None  # torch says what is missing; of a shared curvature a file may hold the tensor only once
        (low, high), saved = recorded, state[key]
        c = float(saved)
        if self.learnable:
            c = low * (high / low) ** (0.5 + 0.5 * math.tanh(0.5 * c))
        if not self.bounds[0] < c < self.bounds[1]:
            return (
                f"the checkpoint holds c = {c:g} with the bounds {low:g} and {high:g}; it does not lie between those "
                f"of this Curvature, {self.bounds[0]:g} and {self.bounds[1]:g}; build it with "
                f"bounds=({low:g}, {high:g})"
            )
        if self.learnable:
            state[key] = torch.full_like(saved, self._raw(c))
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Curvature":
        before = None if self.learnable else self.value
        super()._apply(fn, recurse)
        if before is not None and self.value.dtype != at_least_float32(self.value.dtype):
            self.value = before.to(self.value.device)  # `.half()` is meant for weights; c itself is no weight
        return self

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"init={self.init}, learnable={self.learnable}, bounds={self.bounds}"
