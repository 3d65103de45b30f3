"""Which dtype is computed in: the argument, the context manager, autocast, and devices without float64."""

import threading

import pytest
import torch
from functions import Inputs, Operation, Operators
from torch import Tensor

import lorentz
import lorentz.functional as lf

pytestmark = pytest.mark.usefixtures("any_time")

# Accurate enough in the dtype they are given; everything else is computed in float64 by default.
HALVES = [torch.bfloat16, torch.float16]
NATIVE = ("project", "expmap0", "logmap0", "heads", "lorentz_inner", "centroid_native")


def far_pair() -> tuple[Tensor, Tensor]:
    """Close points far out, where the two precisions differ."""
    x = 1000.0 * torch.randn(20, 4)
    return lf.project(x), lf.project(x * (1.0 + 1e-4 * torch.randn(20, 4)))


def current(x: Tensor, y: Tensor) -> str:
    """Which of the two precisions a call without argument has."""
    got = lf.dist(x, y)
    is_native = torch.equal(got, lf.dist(x, y, precision="native"))
    assert is_native or torch.equal(got, lf.dist(x, y, precision="float64"))
    return "native" if is_native else "float64"


def test_the_argument_wins_over_the_innermost_block() -> None:
    x, y = far_pair()
    assert current(x, y) == "float64"
    with lorentz.precision("native"):
        assert current(x, y) == "native"
        with lorentz.precision("float64"):
            assert current(x, y) == "float64"
        with lorentz.precision("auto"):
            assert current(x, y) == "float64"
        assert current(x, y) == "native"
    assert current(x, y) == "float64"


def test_blocks_end_with_an_exception_and_decorate() -> None:
    x, y = far_pair()
    with pytest.raises(RuntimeError, match="inside"), lorentz.precision("native"):
        raise RuntimeError("inside")
    assert current(x, y) == "float64"
    decorated = lorentz.precision("native")(current)
    assert [decorated(x, y), current(x, y), decorated(x, y)] == ["native", "float64", "native"]


def test_threads_have_their_own() -> None:
    x, y = far_pair()
    seen: list[str] = []
    with lorentz.precision("native"):
        thread = threading.Thread(target=lambda: seen.append(current(x, y)))
        thread.start()
        thread.join()
    assert seen == ["float64"]


def test_every_operation_follows_the_block(name: str, operation: Operation, inputs: Inputs) -> None:
    arguments = inputs(0.8, torch.float32)
    double = operation(*(argument.double() for argument in arguments))
    assert double.dtype == torch.float64
    for value in ("native", "float64", "auto"):
        with lorentz.precision(value), Operators() as operators:  # type: ignore[arg-type]
            result = operation(*arguments)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), double, rtol=1e-4, atol=1e-5)  # near the origin all are sound
        # Those whose precision is fixed in the call or by their definition, and attention, whose bias is a distance.
        if name in ("lorentz_inner", "centroid_native"):
            continue
        wide = value == "float64" or (value == "auto" and name not in NATIVE)
        assert (torch.float64 in operators.dtypes) == wide


def test_devices_without_float64_stay_native(operation: Operation, inputs: Inputs) -> None:
    arguments = tuple(argument.to("meta") for argument in inputs(0.8, torch.float32))
    with Operators() as operators:
        assert operation(*arguments).dtype == torch.float32
    assert operators.dtypes == {torch.float32}


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_never_drops_below_float32(
    operation: Operation, inputs: Inputs, dtype: torch.dtype, device: str
) -> None:
    arguments = inputs(0.8, torch.float32)
    expected = operation(*arguments)
    with torch.autocast(device, dtype=dtype):
        assert torch.equal(operation(*arguments), expected)
        # What autocast hands on in half precision comes out as float32, too.
        assert operation(*(argument.to(dtype) for argument in arguments)).dtype == torch.float32


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
