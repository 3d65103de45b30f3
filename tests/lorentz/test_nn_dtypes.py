"""Half precision: layers and maps take and give the dtype of the network, compute in float32 inside, and round once."""

import copy
from collections.abc import Callable

import pytest
import torch
from layers import EXAMPLES
from test_nn_laws import build, call
from test_nn_training import Block, batch
from test_precision import Dtypes
from torch import Tensor, nn

import lorentz.functional as lf
import lorentz.nn as lnn
from lorentz.nn import (
    Curvature,
    ExpMap0,
)

pytestmark = pytest.mark.usefixtures("any_time")

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Inputs = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_precision_that_casts_parameters_and_inputs(dtype: torch.dtype) -> None:
    """FSDP keeps float32 parameters, and casts them and the inputs for the time of a step."""
    model, (v, _) = Block(lnn), batch(4)
    parameters = dict(model.named_parameters())
    cast = {name: parameter.to(dtype) for name, parameter in parameters.items()}
    got = torch.func.functional_call(model, cast, (v.to(dtype),))
    assert got.dtype == dtype
    got.float().square().sum().backward()
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("layer", EXAMPLES)
@pytest.mark.parametrize("points", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_the_weights_decide_and_autocast_gives_float32(
    layer: str, points: torch.dtype, weights: torch.dtype, device: str
) -> None:
    module, x = build(layer, 0.8).eval().to(weights), lf.expmap0(torch.randn(2, 5, 4), 0.8).to(points)
    weightless = all(p.ndim == 0 for p in module.parameters())  # a scalar is no weight: it decides nothing
    assert call(layer, module, x).dtype == (points if weightless else weights)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert call(layer, module, x).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_functions_give_the_dtype_they_are_given_and_round_once(
    operation: Operation, inputs: Inputs, dtype: torch.dtype
) -> None:
    arguments = tuple(argument.to(dtype) for argument in inputs(0.75, torch.float32))
    got = operation(*arguments)
    assert got.dtype == dtype
    wide = operation(*(argument.float() for argument in arguments))
    assert wide.dtype == torch.float32
    # One rounding of the float32 result; four where the operation under test is made of several calls.
    assert (got.float() - wide).abs().le(4 * torch.finfo(dtype).eps * (1 + wide.abs())).all()
    mixed = operation(*(argument.float() if i else argument for i, argument in enumerate(arguments)))
    assert mixed.dtype in (torch.float32, dtype)


def test_one_rounding() -> None:
    v = torch.randn(100, 8).bfloat16()
    for got, wide in ((lf.expmap0(v), lf.expmap0(v.float())), (lf.dist0(lf.expmap0(v)), None)):
        assert got.dtype == torch.bfloat16
        assert wide is None or torch.equal(got, wide.bfloat16())
    assert lf.dist(v, v.float()).dtype == torch.float32
    assert lf.dist(v, v.half()).dtype == torch.float32  # neither holds the other


@pytest.mark.parametrize("dtype", HALVES)
def test_curvature_computes_in_float32_and_a_fixed_one_is_never_rounded(dtype: torch.dtype) -> None:
    fixed = nn.Sequential(ExpMap0(Curvature(0.3, learnable=False))).to(dtype)
    assert fixed[0].c.dtype == torch.float32
    assert fixed[0].c == torch.tensor(0.3)
    assert fixed.double()[0].c.dtype == torch.float64
    learned = Curvature(0.3).to(dtype)
    assert learned.raw.dtype == dtype
    assert learned().dtype == torch.float32
    torch.testing.assert_close(learned(), 0.1 * 100 ** torch.sigmoid(learned.raw.float()))


@pytest.mark.parametrize("layer", EXAMPLES)
def test_only_what_needs_it_computes_in_float64(layer: str) -> None:
    module = build(layer, Curvature(0.8))
    x = lf.expmap0(torch.randn(2, 5, 4), 0.8).requires_grad_()
    with Dtypes() as seen:
        call(layer, module, x).sum().backward()
    assert (torch.float64 in seen.seen) == (layer in ("LorentzMLR", "LorentzResidual"))


@pytest.mark.parametrize("layer", ["LorentzLayerNorm", "LorentzLinear bounded"])
@pytest.mark.parametrize("radius", [1e-6, 1.0, 8.0, 30.0, 60.0])
def test_native_layers_are_accurate_near_and_far(layer: str, radius: float) -> None:
    """Against float64: a few roundings of the coordinates, also where squares of float32 overflow or vanish."""
    module = build(layer, 1.0)
    x = lf.expmap0(radius * torch.nn.functional.normalize(torch.randn(2, 50, 4), dim=-1))
    if layer == "LorentzLinear bounded":  # the direction, with lengths that do not vanish
        for parameter in (module.linear.bias, module.gate.weight):  # type: ignore[union-attr]
            torch.nn.init.zeros_(parameter)  # type: ignore[arg-type]
    got, wide = call(layer, module, x), call(layer, copy.deepcopy(module).double(), x.double())
    error = (got.double() - wide)[..., 1:].norm(dim=-1) / wide[..., 1:].norm(dim=-1)
    # Both cancel before they normalise: the mean in one, a product in the other.
    assert error.median() < 4e-7
    assert error.max() < 1e-4
