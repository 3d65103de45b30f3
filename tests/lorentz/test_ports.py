"""The page for users of other libraries: each line of theirs and ours agree."""

import inspect
from pathlib import Path
from typing import Any

import geoopt
import pytest
import torch
from hypll.manifolds.poincare_ball import Curvature, PoincareBall
from hypll.tensors import ManifoldTensor, TangentTensor
from torch import Tensor

import lorentz
import lorentz.manifold
from lorentz import models

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ball.md"
ROWS = [
    [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
C = 0.5


def points_and_vectors() -> dict[str, Tensor]:
    """Points up to distance 3 from the centre, the first two equal."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(3, 20, 4, dtype=torch.float64, generator=generator)
    radii = 3 * torch.rand(3, 20, 1, dtype=torch.float64, generator=generator)
    x, y, p = models.poincare_expmap0(0.5 * radii * torch.nn.functional.normalize(directions, dim=-1), C)
    y[0] = x[0]
    v, a = torch.randn(2, 20, 4, dtype=torch.float64, generator=generator)
    return {"x": x, "y": y, "p": p, "v": v, "a": a, "M": torch.randn(3, 4, dtype=torch.float64, generator=generator)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_line_of_theirs_and_ours_agree(row: list[str]) -> None:
    tensors = points_and_vectors() | {"r": torch.tensor(0.7).double(), "w": torch.linspace(0.1, 2, 20).double()}
    x, y, v = tensors["x"], tensors["y"], tensors["v"]
    spaces = tensors | vars(models) | {"lorentz": lorentz, "c": C}
    spaces |= {"X": models.from_poincare(x, C), "Y": models.from_poincare(y, C)}
    spaces["ball"] = geoopt.PoincareBall(torch.tensor(C, dtype=torch.float64))
    manifold = PoincareBall(Curvature(torch.tensor(C, dtype=torch.float64), constraining_strategy=lambda c: c))
    X, Y, V = (ManifoldTensor(value, manifold) for value in (x, y, v))
    of_hypll = {"manifold": manifold, "x": X, "y": Y, "w": tensors["w"], "v_": V}
    of_hypll |= {"v_x": TangentTensor(v, X, manifold), "v_0": TangentTensor(v, None, manifold)}
    *theirs, ours = row
    values = [eval(line, of_hypll if "manifold" in line else spaces) for line in (*theirs, ours) if line]
    values = [getattr(value, "tensor", value) for value in values]
    assert len(values) >= 2
    for value in values[:-1]:
        torch.testing.assert_close(values[-1], value.reshape(values[-1].shape), rtol=1e-6, atol=1e-6)


METHODS = [
    name
    for name, member in inspect.getmembers(geoopt.PoincareBall, inspect.isfunction)
    if not hasattr(torch.nn.Module, name) and not name.startswith("_")
]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_ball_takes_what_that_of_geoopt_takes(name: str) -> None:
    theirs = inspect.signature(getattr(geoopt.PoincareBall, name)).parameters
    ours = inspect.signature(getattr(lorentz.manifold.PoincareBall, name)).parameters
    named = {argument for argument, one in theirs.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named <= ours.keys(), named - ours.keys()
    named |= {"kwargs"}
    assert [argument for argument in theirs if argument not in named] == [
        argument for argument in ours if argument in theirs and argument not in named
    ] or name == "transp0back"  # whose first is called x, as in geoopt.Lorentz
    for argument in named - {"kwargs"}:
        assert ours[argument].default == theirs[argument].default


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("dim", [-1, 0])
def test_values_of_the_ball_are_those_of_geoopt_on_any_axis(dim: int) -> None:
    ours, theirs = lorentz.manifold.PoincareBall(C), geoopt.PoincareBallExact(torch.tensor(C, dtype=torch.float64))
    tensors = points_and_vectors()
    x, y, p, v, a = (tensors[name] for name in "xypva")
    u, t = v / theirs.norm(x, v, keepdim=True), torch.linspace(0.1, 1.9, 20, dtype=torch.float64).unsqueeze(-1)
    close = {"rtol": 1e-6, "atol": 1e-6}
    calls: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(
            ("dist", "dist2", "logmap", "mobius_add", "mobius_sub", "mobius_coadd", "mobius_cosub"), (x, y)
        ),
        **dict.fromkeys(("dist0", "logmap0", "lambda_x", "antipode", "inv_sproj", "projx"), (x,)),
        **dict.fromkeys(("expmap", "retr", "proju", "egrad2rgrad"), (x, v)),
        **{"expmap0": (v,), "transp": (x, y, v), "transp0": (y, v), "transp0back": (y, v), "gyration": (x, y, v)},
        **{"geodesic": (t, x, y), "geodesic_unit": (t, x, u), "mobius_scalar_mul": (t, x), "dist2plane": (y, p, a)},
        **{"mobius_pointwise_mul": (v, x), "transp_follow_expmap": (x, 0.1 * v, v), "mobius_fn_apply": (torch.sin, x)},
        **dict.fromkeys(("expmap_transp", "retr_transp", "transp_follow_retr"), (x, 0.1 * v, v)),
        **{"mobius_fn_apply_chain": (x, torch.sin, torch.neg), "sproj": (theirs.inv_sproj(x),)},
    }
    apart = {"weighted_midpoint", "mobius_matvec", "random_normal", "random", "wrapped_normal", "origin"}
    tested = {name for name in METHODS if "dim" in inspect.signature(getattr(theirs, name)).parameters}
    assert tested - calls.keys() <= apart | {"component_inner", "inner", "norm"}
    for name, given in calls.items():
        moved = [one.movedim(-1, dim) if isinstance(one, Tensor) else one for one in given]
        if name.startswith("mobius_fn"):
            moved = [one.movedim(-1, dim) if one is x else one for one in given]
        expected, got = getattr(theirs, name)(*given), getattr(ours, name)(*moved, dim=dim)
        for one, other in zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]:
            one = one.movedim(dim, -1) if one.ndim == x.ndim else one
            torch.testing.assert_close(one, other, **close, msg=lambda text, name=name: f"{name}: {text}")
        if "keepdim" in inspect.signature(getattr(theirs, name)).parameters:
            kept = getattr(ours, name)(*moved, dim=dim, keepdim=True)
            torch.testing.assert_close(kept, expected.unsqueeze(dim), **close)
    for name in ("inner", "norm"):  # without keepdim geoopt's are of all pairs of rows
        expected = getattr(theirs, name)(x, v, keepdim=True)
        got = getattr(ours, name)(x.movedim(-1, dim), v.movedim(-1, dim), keepdim=True, dim=dim)
        torch.testing.assert_close(got.movedim(dim, -1), expected, **close)
    for options in ({"signed": True}, {"scaled": True}, {"signed": True, "scaled": True, "keepdim": True}):
        torch.testing.assert_close(ours.dist2plane(y, p, a, **options), theirs.dist2plane(y, p, a, **options), **close)
    matrix = tensors["M"]
    torch.testing.assert_close(ours.mobius_matvec(matrix, x), theirs.mobius_matvec(matrix, x), **close)
    assert float(ours.k) == float(theirs.k) == -C
    torch.testing.assert_close(ours.radius.double(), theirs.radius)


@pytest.mark.parametrize("reduced", [None, [0], [1], [0, 1]])
@pytest.mark.parametrize("options", [{}, {"lincomb": True}, {"posweight": True}, {"lincomb": True, "keepdim": True}])
def test_weighted_midpoints_are_those_of_geoopt(reduced: list[int] | None, options: dict[str, bool]) -> None:
    ours, theirs = lorentz.manifold.PoincareBall(C), geoopt.PoincareBall(torch.tensor(C, dtype=torch.float64))
    x, close = 0.7 * points_and_vectors()["x"].view(5, 4, 4), {"rtol": 1e-6, "atol": 1e-6}
    weights = torch.linspace(-0.5 if "posweight" in options else 0.1, 1.0, 20, dtype=torch.float64).view(5, 4)
    for given in (None, weights, weights[2:3].abs()):
        expected = theirs.weighted_midpoint(x, given, reducedim=reduced, **options)
        torch.testing.assert_close(ours.weighted_midpoint(x, given, reducedim=reduced, **options), expected, **close)
        # On another axis, where geoopt fails: coordinates before the second axis of points.
        moved = None if reduced is None else [2 * axis for axis in reduced]
        got = ours.weighted_midpoint(x.movedim(-1, 1), given, reducedim=moved, dim=1, **options)
        place = 1 if reduced == [1] or "keepdim" in options else 0
        torch.testing.assert_close(got.movedim(place, -1), expected, **close)


def test_a_wrapped_normal_of_the_ball() -> None:
    ball = lorentz.manifold.PoincareBall(C)
    mean = models.poincare_expmap0(torch.tensor([0.6, -0.2, 0.1]), C)
    x = ball.wrapped_normal(20_000, 3, mean=mean, std=0.3)
    v = ball.logmap(mean, torch.as_tensor(x)) * ball.lambda_x(mean)
    torch.testing.assert_close(v.std(0), torch.full((3,), 0.3), rtol=0.03, atol=0.0)
    assert v.mean(0).abs().max() < 0.01


@pytest.mark.parametrize("optimiser", [geoopt.optim.RiemannianSGD, geoopt.optim.RiemannianAdam])
def test_steps_of_geoopts_optimisers_in_the_ball(optimiser: type[torch.optim.Optimizer]) -> None:
    """As in geoopt's ball, where its steps are exponential maps too."""
    target, start = points_and_vectors()["y"], points_and_vectors()["x"]
    ends = []
    for ball in (lorentz.manifold.PoincareBall(C), geoopt.PoincareBallExact(torch.tensor(C, dtype=torch.float64))):
        points = geoopt.ManifoldParameter(start.clone(), manifold=ball)
        steps = optimiser([points], lr=0.05)
        for _ in range(30):
            steps.zero_grad()
            ball.dist(points, target + 0.01).square().sum().backward()
            steps.step()
        ends.append(points.detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


def test_a_learned_curvature_and_long_steps_stay_inside_the_ball() -> None:
    ball = lorentz.manifold.PoincareBall(torch.tensor(1.0), learnable=True)
    points = geoopt.ManifoldParameter(ball.random_normal(8, 3, std=0.3), manifold=ball)
    steps = geoopt.optim.RiemannianSGD([points, *ball.parameters()], lr=1e6)
    (-ball.dist0(points).sum()).backward()
    assert all(float(parameter.grad.abs()) > 0 for parameter in ball.parameters() if parameter.grad is not None)
    steps.param_groups[0]["params"].pop()  # the points alone
    steps.step()
    assert ball.check_point_on_manifold(points.detach())
    assert torch.isfinite(ball.dist0(points)).all()
