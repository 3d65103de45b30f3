"""A batch is its points one by one: every operation, batch axes of length 1 and 0, few dimensions, vmap, keepdim.

An operation on n points in d dimensions gets tensors of (*batch, n, d + 1). A function that has no axis of points in
its signature is also the one that sees each point alone.
"""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functions import axes_of, functions, operations
from torch import Tensor

import lorentz.functional as lf
from lorentz.manifold import Lorentz, PoincareBall
from lorentz.models import poincare_dist

Operation = Callable[..., Tensor]
F64 = torch.float64
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}  # a sum over more rows may be taken in another order
BATCHES = [(), (1,), (0,), (2, 1), (1, 3), (2, 0), (1, 1, 1)]
SETS = {"heads", "lorentz_attention", "pairwise_dist_exact", "centroid_native"}  # beside those that say it


def takes_sets(name: str) -> bool:
    """Whether an operation reads an axis of points beside that of coordinates."""
    known = functions(lf)
    return name in SETS or (
        name in known and any(len(axes) > 2 or "m" in axes for axes in axes_of(known[name]).values())
    )


def drawn(batch: tuple[int, ...], points: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    x, y, v = torch.randn(3, *batch, points, dim + 1, dtype=F64)
    return x, y, v


def by_themselves(operation: Operation, lead: tuple[int, ...], tensors: tuple[Tensor, ...], c: Tensor) -> Tensor:
    """The results of every index of the leading axes, put together."""
    every = list(itertools.product(*(range(size) for size in lead)))
    if not every:  # the shape alone can be compared, that of one result
        alone = operation(*(tensor.new_full(tensor.shape[len(lead) :], 0.5) for tensor in tensors), c)
        return alone.new_empty((*lead, *alone.shape))
    results = torch.stack([operation(*(tensor[index] for tensor in tensors), c) for index in every])
    return results.reshape(*lead, *results.shape[1:])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention below vmap
@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("points", [1, 3])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_batch_is_its_parts(name: str, operation: Operation, points: int, dim: int) -> None:
    c = torch.tensor(0.7, dtype=F64)
    for batch in BATCHES:
        tensors = drawn(batch, points, dim)
        whole, lead = operation(*tensors, c), batch
        if not takes_sets(name):
            lead = (*batch, points)
        torch.testing.assert_close(whole, by_themselves(operation, lead, tensors, c), **CLOSE)
        if batch and batch[0]:
            torch.testing.assert_close(torch.vmap(operation, (0, 0, 0, None))(*tensors, c), whole, **CLOSE)


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("function", [n for n in operations(lf) if not takes_sets(n) and n != "frechet_mean"])
def test_no_points_and_curvatures_of_rows(function: str) -> None:
    operation, c = operations(lf)[function], torch.tensor(0.7, dtype=F64)
    tensors = drawn((4, 1), 0, 3)
    torch.testing.assert_close(operation(*tensors, c), by_themselves(operation, (4, 1, 0), tensors, c), **CLOSE)
    tensors, c = drawn((2, 1), 2, 3), torch.tensor([0.3, 4.0], dtype=F64)[:, None, None, None]
    alone = [operation(*(tensor[i] for tensor in tensors), c[i]) for i in range(2)]  # pyright: ignore[reportCallIssue]
    if function != "log_prob":  # of a distribution, whose curvature is one number
        torch.testing.assert_close(operation(*tensors, c), torch.stack(alone), **CLOSE)


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("function", ["dist", "logmap", "expmap", "logmap0"])
def test_many_rows_with_a_curvature_each_and_with_one(function: str) -> None:
    """More rows than are worked on at a time: values and gradients are those of the first and of the last alone."""
    operation = operations(lf)[function]
    tensors = [tensor.requires_grad_() for tensor in drawn((), 70_001, 3)]
    for c in (torch.tensor(0.7, dtype=F64), 0.3 + torch.rand(70_001, 1, dtype=F64)):
        rows = c if c.ndim else c.expand(70_001, 1)
        value = operation(*tensors, c)  # pyright: ignore[reportCallIssue]
        found = torch.autograd.grad(value.sum(), tensors, allow_unused=True)
        for part in (slice(0, 9), slice(-9, None)):
            few = [tensor.detach()[part].requires_grad_() for tensor in tensors]
            alone = operation(*few, rows[part])  # pyright: ignore[reportCallIssue]
            torch.testing.assert_close(value[part], alone, **CLOSE)
            slopes = torch.autograd.grad(alone.sum(), few, allow_unused=True)
            for one, other in zip(found, slopes, strict=True):
                if other is not None:
                    torch.testing.assert_close(one[part], other, **CLOSE)


@pytest.mark.parametrize("c", [0.25, 4.0])
def test_the_ball_of_a_manifold_has_the_radius_of_its_curvature(c: float) -> None:
    ball, axis = PoincareBall(c=c), torch.tensor([1.0, 0.0], dtype=F64)
    radius = c**-0.5
    torch.testing.assert_close(ball.projx(3.0 * radius * axis), radius * axis)
    assert torch.equal(ball.projx(0.9 * radius * axis), 0.9 * radius * axis)
    assert ball.check_point_on_manifold(0.99 * radius * axis)
    assert not ball.check_point_on_manifold(1.01 * radius * axis)
    distance = 2.0 / c**0.5 * torch.atanh(torch.tensor(0.9, dtype=F64))
    torch.testing.assert_close(ball.dist0(0.9 * radius * axis), distance)


@pytest.mark.usefixtures("any_time")
def test_a_loss_of_single_points_weighs_each_once() -> None:
    p, q = 0.3 * torch.rand(2, 5, 1, 3, dtype=F64)
    weights = torch.rand(5, 1, dtype=F64)
    expected = sum(w * poincare_dist(a[0], b[0]) for w, a, b in zip(weights[:, 0], p, q, strict=True))
    torch.testing.assert_close((weights * poincare_dist(p, q)).sum(), expected)
    hessian = torch.autograd.functional.hessian(lambda p: poincare_dist(p, q).sum(), p)
    assert hessian.isfinite().all()


def methods(manifold: type) -> list[tuple[type, str]]:
    """Those of a manifold with an axis `dim`; test_ports.py has those of two results, sets, matrices and functions."""
    every = inspect.getmembers(manifold, inspect.isfunction)
    apart = ("expmap_transp", "retr_transp", "weighted_midpoint", "mobius_matvec", "mobius_fn_apply")
    return [
        (manifold, name)
        for name, member in every
        if name[0] != "_" and "dim" in inspect.signature(member).parameters and not name.startswith(apart)
    ]


def given(manifold: Any, method: Callable[..., Any], shape: tuple[int, ...]) -> list[Tensor]:
    """What a method takes, coordinates last: points x and y, tangent vectors, a number of each in t."""
    x, y = (torch.as_tensor(manifold.random_normal(*shape, std=0.5, dtype=F64)) for _ in range(2))
    u = 0.5 * manifold.logmap(x, y)
    values = {"x": x, "y": y, "u": u, "v": u, "t": torch.rand(*shape[:-1], 1, dtype=F64), "a": u, "p": y}
    values |= {"z": u, "w": u, "r": values["t"]}
    if method.__name__ in ("expmap0", "transp0"):
        values["u"] = manifold.logmap0(y)
    names = inspect.signature(method).parameters
    wanted = [name for name, p in names.items() if p.default is p.empty or (method.__name__ == "norm" and name in "xu")]
    return [values[name] for name in wanted]


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize(
    ("manifold", "method"), [*methods(Lorentz), *methods(PoincareBall)], ids=lambda value: getattr(value, "name", value)
)
def test_methods_on_any_axis_of_any_batch(manifold: type, method: str) -> None:
    own = manifold(c=0.6)
    function = getattr(own, method)
    for batch in [(), (1,), (0,), (5, 1), (1, 1), (2, 3), (2, 0)]:
        arguments = given(own, function, (*batch, 3))
        expected = function(*arguments)
        if 0 not in batch:
            every = itertools.product(*(range(size) for size in batch))
            alone = [function(*(argument[index] for argument in arguments)) for index in every]
            torch.testing.assert_close(expected, torch.stack(alone).reshape(expected.shape), **CLOSE)
        kinds = [{}, *([{"keepdim": True}] if "keepdim" in inspect.signature(function).parameters else [])]
        for dim, options in itertools.product(range(-len(batch) - 1, len(batch) + 1), kinds):
            got = function(*(argument.movedim(-1, dim) for argument in arguments), dim=dim, **options)
            of_numbers = expected.ndim == len(batch)
            if not of_numbers:
                wanted = expected.movedim(-1, dim)
            else:
                wanted = expected.unsqueeze(dim) if options else expected
            torch.testing.assert_close(got, wanted, **CLOSE, msg=lambda m, at=(batch, dim, options): f"{at}: {m}")
