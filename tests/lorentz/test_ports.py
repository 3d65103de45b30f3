"""The page for users of other libraries: each line of theirs and ours agree."""

import re
from pathlib import Path

import geoopt
import pytest
import torch
from hypll.manifolds.poincare_ball import Curvature, PoincareBall
from hypll.tensors import ManifoldTensor, TangentTensor
from mpmath import mp, mpf
from textbook import ball_add, dot
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


def test_the_page_has_the_operations_of_the_ball() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [name for name in vars(models) if re.match("poincare_|mobius_|gyration|conformal", name)]
    assert len(names) >= 13
    assert [name for name in names if name not in page] == []


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
    shared = lorentz.nn.Curvature(0.3)
    assert lorentz.manifold.PoincareBall(shared).c == shared()
    with pytest.raises(ValueError, match="learnable"):
        lorentz.manifold.PoincareBall(shared, learnable=True)


def exact(p: list[mpf], q: list[mpf], v: list[mpf], c: mpf) -> dict[str, list[mpf]]:
    """The textbook's formulas (Ungar 2008; Ganea et al. 2018), for mpmath's digits."""

    def gyr(u: list[mpf], v: list[mpf], w: list[mpf]) -> list[mpf]:
        uu, vv, uv, uw, vw = dot(u, u), dot(v, v), dot(u, v), dot(u, w), dot(v, w)
        of_u, of_v = c * vw - c * c * uw * vv + 2 * c * c * uv * vw, -c * c * vw * uu - c * uw
        below = 1 + 2 * c * uv + c * c * uu * vv
        return [z + 2 * (of_u * x + of_v * y) / below for z, x, y in zip(w, u, v, strict=True)]

    minus_p = [-a for a in p]
    u, length = ball_add(minus_p, q, c), mp.sqrt(c * dot(p, p))
    sinh = 2 * mp.sqrt(c) * dot(u, v) / ((1 - c * dot(u, u)) * mp.sqrt(dot(v, v)))
    return {
        "gyration": gyr(p, q, v),
        "transport": [(1 - c * dot(q, q)) / (1 - c * dot(p, p)) * a for a in gyr(q, minus_p, v)],
        "plane": [mp.asinh(sinh) / mp.sqrt(c)],
        "scale": [mp.tanh(mpf(0.75) * mp.atanh(length)) / length * a for a in p],
        "factor": [2 / (1 - c * dot(p, p))],
    }


@pytest.mark.parametrize("c", [0.3, 1.0, 5.0])
def test_operations_are_right_to_rounding_near_the_rim(c: float) -> None:
    """Float32 points up to distance 15 from the centre: close, opposite, and apart."""
    radius = torch.tensor([0.5, 4.0, 8.0, 12.0, 15.0]).repeat_interleave(3).unsqueeze(-1) / c**0.5
    u, noise, v = torch.nn.functional.normalize(torch.randn(3, 15, 3), dim=-1)
    p = models.poincare_expmap0(0.5 * radius * u, c)
    near = models.poincare_expmap0(0.5 * (radius - 0.3 / c**0.5) * (u + 1e-4 * noise), c)
    q = torch.stack([near, -near, p.roll(4, 0)])[torch.arange(15) % 3, torch.arange(15)]
    values = {
        "gyration": models.gyration(p, q, v, c),
        "transport": models.poincare_transport(p, q, v, c),
        "plane": models.poincare_plane_dist(q, p, v, c).unsqueeze(-1),
        "scale": models.mobius_scale(0.75, p, c),
        "factor": models.conformal_factor(p, c).unsqueeze(-1),
    }
    with mp.workdps(80):
        for row in range(15):
            right = exact(*([mpf(a) for a in tensor[row].tolist()] for tensor in (p, q, v)), mpf(c))
            for name, value in values.items():
                gap = mp.sqrt(sum((mpf(a) - b) ** 2 for a, b in zip(value[row].tolist(), right[name], strict=True)))
                size = mp.sqrt(sum(b * b for b in right[name]))
                assert gap <= size * torch.finfo(torch.float32).eps, name
