"""The page for users of other libraries: each line of theirs and ours agree."""

from pathlib import Path

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
