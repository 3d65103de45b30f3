"""Modules over `lorentz.functional`: they hold parameters, the functions hold the maths.

Every module takes the curvature as `c`: a number, or a `Curvature` (learned, shared between modules). Points are
ambient, time first. Layers read the space part and recompute the time; `LorentzLinear` also reads the time it is given.
What they return has the dtype of their weights, or that of the points where they have none; under autocast it is
float32. They compute in that dtype, half precision in float32, and `LorentzMLR` in float64 where the device has it; a
`lorentz.precision` block says otherwise.
"""

from .attention import LorentzLinearAttention, LorentzMultiheadAttention
from .contrastive import ContrastiveLosses, LorentzContrastiveLoss
from .convolution import LorentzConv2d, LorentzConv3d, LorentzFlatten, LorentzGraphConv, LorentzPool2d
from .curvature import Curvature
from .embedding import LorentzEmbedding
from .linear import LorentzLinear, LorentzPlaneLinear
from .maps import ExpMap0, LogMap0
from .mlr import LorentzMLR
from .normalisation import LorentzBatchNorm, LorentzLayerNorm, LorentzRMSNorm
from .pointwise import LorentzActivation, LorentzDropout
from .residual import LorentzResidual
from .rotary import LorentzRotary

__all__ = [
    "ContrastiveLosses",
    "Curvature",
    "ExpMap0",
    "LogMap0",
    "LorentzActivation",
    "LorentzBatchNorm",
    "LorentzContrastiveLoss",
    "LorentzConv2d",
    "LorentzConv3d",
    "LorentzDropout",
    "LorentzEmbedding",
    "LorentzFlatten",
    "LorentzGraphConv",
    "LorentzLayerNorm",
    "LorentzLinear",
    "LorentzLinearAttention",
    "LorentzMLR",
    "LorentzMultiheadAttention",
    "LorentzPlaneLinear",
    "LorentzPool2d",
    "LorentzRMSNorm",
    "LorentzResidual",
    "LorentzRotary",
]
