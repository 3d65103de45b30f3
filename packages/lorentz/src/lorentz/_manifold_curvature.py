"""The curvature of a manifold: exact in every dtype, kept in checkpoints, and read from geoopt's."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._precision import Scalar
from ._validation import MEANING_OF_C, check_positive

# The names of a curvature in checkpoints: ours (fixed and learned), and geoopt's.
_TO_C: dict[str, Callable[[Tensor], Tensor]] = {
    "c": lambda c: c,
    "log_c": torch.exp,
    "k": lambda k: 1.0 / k,
}


def one_number(name: str, value: Scalar, why: str = MEANING_OF_C, owner: str = "manifold") -> float:
    """The value of a number or a tensor of one number, > 0; its owner has one curvature only."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected a scalar: one {owner} has one curvature")
    check_positive(name, value, why)
    number = as_float(value)
    check_positive(name, number, why)
    return number


def as_float(c: Scalar) -> float:
    """The value of c, learned or not."""
    return float(c.detach() if isinstance(c, Tensor) else c)


def refusal(key: str, stored: Tensor, c: Scalar) -> str | None:
    """What to say of a stored curvature that is neither c nor c rounded to float32 or to its own dtype; else None."""
    number = as_float(c)
    eps = max(torch.finfo(stored.dtype).eps, torch.finfo(torch.float32).eps)
    if stored.is_meta or (stored.numel() == 1 and abs(stored.item() - number) <= 8.0 * eps * number):
        return None
    got = f"{stored.item():g}" if stored.numel() == 1 else f"{stored.tolist()}"
    return (
        f"{key}: the checkpoint has c = {got}, this manifold has c = {number:g}; make the manifold with "
        "the c of the checkpoint, or with learnable=True, which takes it over"
    )


class ManifoldCurvature(nn.Module):
    """A fixed c, or log c as a parameter.

    A fixed c is computed with as the number that was given; the buffer is for checkpoints, dtype and device.

    Args:
        c: the number.
        learnable: learn log c, so that c stays positive.
        like: a tensor whose dtype and device to take; None: the defaults.
    """

    def __init__(self, c: float, learnable: bool, like: Tensor | None = None) -> None:
        super().__init__()
        self.learnable = learnable
        self._initial = math.log(c) if learnable else c
        dtype, device = (like.dtype, like.device) if like is not None else (None, None)
        value = torch.tensor(self._initial, dtype=dtype, device=device)
        if learnable:
            self.log_c = nn.Parameter(value)
        else:
            self.register_buffer("c", value)

    def forward(self) -> Scalar:
        """Return c: a number, or a scalar tensor with gradient if learned."""
        return torch.exp(self.log_c) if self.learnable else self._initial

    def _tensor(self) -> Tensor:
        return self.log_c if self.learnable else self.get_buffer("c")

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "ManifoldCurvature":
        """Convert; what still is the number given stays exact: `.double()` must not leave a float32 rounding of it."""
        tensor = self._tensor()
        untrained = not tensor.is_meta and tensor.item() == torch.tensor(self._initial, dtype=tensor.dtype).item()
        super()._apply(fn, recurse)
        if untrained:
            with torch.no_grad():
                self._tensor().fill_(self._initial)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Read c under any of its names: a learned one takes it over, a fixed one must have it already."""
        error_msgs: list[str] = args[-1]
        own = "log_c" if self.learnable else "c"
        for name in [name for name in _TO_C if prefix + name in state_dict]:
            if self.learnable and name == own:
                continue
            stored = _TO_C[name](state_dict.pop(prefix + name).detach())
            if self.learnable and stored.numel() == 1:
                state_dict[prefix + own] = stored.double().log().reshape(())
                continue
            message = refusal(prefix + name, stored, self())
            error_msgs.extend([message] if message else [])
            state_dict[prefix + own] = self._tensor()
        super()._load_from_state_dict(state_dict, prefix, *args)


def read_names_of_manifold(module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    """Before a manifold is loaded: its curvature may stand beside it (as geoopt's k does), and not in `curvature`."""
    curvature = module.get_submodule("curvature")
    for name, to_c in _TO_C.items():
        if prefix + name in state_dict:
            stored = state_dict.pop(prefix + name)
            if isinstance(curvature, ManifoldCurvature):
                state_dict[f"{prefix}curvature.{name}"] = stored
            else:
                message = refusal(prefix + name, to_c(stored.detach()), curvature())
                args[-1].extend([message] if message else [])
