"""What all layers share: a curvature, and the refusal of inputs that cannot be points of theirs."""

import torch
from torch import Tensor, nn

from lorentz._precision import Scalar
from lorentz._validation import described, is_checked, vectors
from lorentz.points import check_on_hyperboloid

from .curvature import Constant, Curvature


class OnHyperboloid(nn.Module):
    """Holds c: a `Curvature` is registered (and may be shared), a number is kept as it is and saved beside weights."""

    def __init__(self, c: float | Curvature = 1.0) -> None:
        super().__init__()
        if isinstance(c, Tensor):
            raise TypeError(f"c: got {described(c)}, expected a number or a lorentz.nn.Curvature, which moves with it")
        self.curvature = c if isinstance(c, Curvature) else Constant(c)

    @property
    def c(self) -> Scalar:
        """The current c: a number, or a scalar tensor with gradient."""
        return self.curvature.c if isinstance(self.curvature, Constant) else self.curvature()

    def _checked_points(self, name: str, x: Tensor, features: int, weight: Tensor | None) -> Tensor:
        """x in the dtype of the layer's `weight`; refused if it is no point with `features` space coordinates."""
        vectors(1, 2, **{name: x})
        if x.shape[-1] != features + 1:
            raise ValueError(
                f"{name}: got shape {tuple(x.shape)}, expected a last axis of length {features + 1}, the time and "
                f"{features} space coordinates"
            )
        if weight is None or (x.dtype == weight.dtype and x.device == weight.device):
            return self._on_hyperboloid(name, x)
        if x.device != weight.device:
            raise ValueError(f"{name}: got {described(x)} on {x.device}, but the layer is on {weight.device}")
        # Half precision and float32 mix, as in the functions; the layer's weights decide what comes out.
        if torch.promote_types(x.dtype, torch.float32) != torch.promote_types(weight.dtype, torch.float32):
            raise TypeError(
                f"{name}: got {described(x)}, but the layer is {weight.dtype}; convert one of them with .to()"
            )
        return self._on_hyperboloid(name, x).to(weight.dtype)

    def _on_hyperboloid(self, name: str, x: Tensor) -> Tensor:
        if is_checked():  # a learned c is not computed without need
            check_on_hyperboloid(self.c, **{name: x})
        return x


def check_features(name: str, features: int) -> None:
    """Refuse a dimension below 1."""
    if features < 1:
        raise ValueError(f"{name}: got {features}, expected at least 1")
