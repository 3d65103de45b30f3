"""Derivatives: finite everywhere, right by gradcheck (curvature included), and open to vmap and func.grad."""

import pytest
import torch
from functions import Inputs, Operation
from nightly import crossed
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import lorentz.functional as lf

pytestmark = pytest.mark.usefixtures("any_time")


@pytest.mark.parametrize("c", [0.2, 5.0])
def test_gradcheck(name: str, operation: Operation, inputs: Inputs, c: float) -> None:
    x, y, v, curvature = inputs(c)
    arguments = [argument.requires_grad_() for argument in (x[:2], y[:2], v[:2], curvature)]
    fast = name == "frechet_mean"  # it solves a problem for every number of the full Jacobian
    assert gradcheck(operation, arguments, fast_mode=fast)
    if c < 1.0:  # the slower check once
        assert gradgradcheck(operation, arguments, atol=1e-4, fast_mode=fast)


def test_gradcheck_through_the_origin_and_coincident_points() -> None:
    zero = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    for function in (
        lambda z, c: lf.expmap0(z[..., 1:], c),
        lf.logmap0,
        lambda z, c: lf.project(z[..., 1:], c),
        lambda z, c: lf.inner(z, z, c),
        lambda z, c: lf.logmap(z, z + 0.0, c),
        lambda z, c: lf.expmap(z, z, c),
        lambda z, c: lf.parallel_transport(z, 2.0 * z, z + 1.0, c),
    ):
        assert gradcheck(function, (zero, c))
        assert gradgradcheck(function, (zero, c), atol=1e-4)
    for function in (lf.logmap, lf.inner):
        assert gradcheck(lambda x, z, c, function=function: function(x, x + z, c), (x, zero, c))
        assert gradgradcheck(lambda x, z, c, function=function: function(x, x + z, c), (x, zero, c), atol=1e-4)


def test_zero_subgradient_at_coincident_points() -> None:
    x = torch.randn(5, 4).requires_grad_()
    y = x.detach().clone().requires_grad_()
    for function in (lf.dist, lf.exterior_angle):
        grad_x, grad_y = torch.autograd.grad(function(x, y).sum(), (x, y))
        assert (grad_x == 0).all()
        assert (grad_y == 0).all()
    zero = torch.zeros(4).requires_grad_()
    assert not torch.autograd.grad(lf.dist0(zero), zero)[0].any()


def edge_points(dtype: torch.dtype) -> Tensor:
    """Space parts: origin, tiny, coincident, collinear both ways, close, radius 50, and mixtures."""
    u = torch.nn.functional.normalize(torch.randn(4, dtype=torch.float64), dim=0)
    w = torch.randn(4, dtype=torch.float64)
    far = float(torch.sinh(torch.tensor(50.0, dtype=torch.float64)))
    mixed = [
        [-0.0, far, 1e-8, 1.0],
        [1e-30, 0.2, -far, 30.0],
        [1.0, 1e-20, 0.0, -1.0],
        [1.0 + 2.0**-7, 0.0, 2.0, 1e-30],
    ]
    rows = [0 * u, 1e-30 * u, 1e-8 * u, 0.2 * u, u, -u, 3 * u, -3 * u, u + 1e-6 * w, 20 * w, far * u, -far * u, far * w]
    return torch.cat([torch.stack(rows), torch.tensor(mixed, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize(("c", "dtype"), crossed(2, [0.1, 1.0, 10.0], [torch.float32, torch.float64, torch.bfloat16]))
def test_finite_at_the_edges(name: str, operation: Operation, c: float, dtype: torch.dtype) -> None:
    native = name in ("lorentz_attention", "centroid_native")
    space = edge_points(dtype)[: 9 if native else None]  # the native forms hold up to about radius 6
    n = len(space)
    x = torch.nn.functional.pad(space.repeat_interleave(n, 0), (1, 0)).requires_grad_()
    y = torch.nn.functional.pad(space.repeat(n, 1), (1, 0)).requires_grad_()
    curvature = torch.tensor(c, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
    for v in ([0.0] * 5, [0.0, 1.0, 0.0, 2.0, 0.0], [1e-20] * 5, [-0.0, 1.0, 1e-30, 0.2, -1.0]):
        if name.startswith(("centroid", "pairwise_dist", "lorentz_attention")):
            value = operation(
                x[:: n - 1], y[:: n - 1], torch.tensor(v).to(dtype).expand(len(x[:: n - 1]), 5), curvature
            )
        else:
            value = operation(x, y, torch.tensor(v).to(dtype).expand_as(x), curvature)
        # Only what is larger than the dtype's largest number may be infinite (inner products of points at radius 50).
        overflow = ~torch.isfinite(value)
        assert not torch.isnan(value).any()
        assert (
            dtype == torch.float64
            or name in ("inner", "pairwise_inner", "project_tangent", "gyro_add")
            or not overflow.any()
        )
        value = torch.where(overflow, 0.0, value)
        gradients = torch.autograd.grad(
            (value / (1.0 + value.detach().abs())).sum(), (x, y, curvature), allow_unused=True
        )
        for gradient in gradients:
            assert gradient is None or torch.isfinite(gradient).all()


def test_vmap_and_func_grad(operation: Operation, inputs: Inputs) -> None:
    x, y, v, c = inputs(0.8)
    stacked = [torch.stack([tensor, tensor.flip(0) * 0.5]) for tensor in (x, y, v)] + [torch.stack([c, 2 * c])]
    looped = torch.stack([operation(*(tensor[i] for tensor in stacked)) for i in range(2)])
    torch.testing.assert_close(torch.vmap(operation)(*stacked), looped)

    def total(x: Tensor, y: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return operation(x, y, v, c).square().sum()

    per_row = torch.vmap(torch.func.grad(total, argnums=(0, 3)))(*stacked)
    leaf_x, leaf_c = stacked[0].requires_grad_(), stacked[3].requires_grad_()
    loss = sum(total(leaf_x[i], stacked[1][i], stacked[2][i], leaf_c[i]) for i in range(2))
    expected = torch.autograd.grad(loss, (leaf_x, leaf_c), materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(per_row, expected)


def test_forward_and_reverse_mode_agree_for_close_points() -> None:
    # Forward mode goes through the plain formula, reverse mode through the pass of its own.
    x = lf.expmap0(torch.randn(3, dtype=torch.float64))
    y = lf.project(x[1:] + 1e-5 * torch.randn(3, dtype=torch.float64))
    for function in (lambda y: lf.logmap(x, y), lambda y: lf.dist(x, y)):
        ahead, back = torch.func.jacfwd(function)(y), torch.autograd.functional.jacobian(function, y)
        torch.testing.assert_close(ahead, back, rtol=1e-11, atol=1e-11)
