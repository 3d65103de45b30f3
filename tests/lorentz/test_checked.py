"""Values that are wrong: on a CPU a curvature always, points and vectors inside `lorentz.checked()`."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerator import DEVICE, Accelerator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import lorentz
import lorentz.functional as lf
from lorentz import nn
from lorentz.manifold import Lorentz
from lorentz.models import poincare_dist

pytestmark = pytest.mark.usefixtures("unchecked")

WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "time last": (lambda x: x.roll(-1, -1), r"the last coordinate fits as the time part, .*: {}\.roll\(1, -1\)$"),
    "another time": (
        lambda x: torch.cat([x[..., :1] + 1.0, x[..., 1:]], -1),
        r"lorentz\.project\({}\[\.\.\., 1:\], c\)",
    ),
    "another curvature": (lambda x: lf.project(x[..., 1:], 2.0), r"they fit the curvature -2: pass c=2"),
    "not a number": (lambda x: x * math.nan, "they are not finite"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_points_off_the_hyperboloid_are_refused_with_a_remedy(wrong: str) -> None:
    change, remedy = WRONG[wrong]
    x = lf.expmap0(torch.rand(2, 3))
    with pytest.raises(ValueError, match=rf"^y: .*; {remedy.format('y')}"):
        lf.dist(x, change(x))
    if wrong != "not a number":
        with lorentz.checked(False):  # only the space part is read
            assert lf.dist(x, change(x)).isfinite().all()


def test_the_maps_at_the_origin_notice_the_time_part() -> None:
    x, v = lf.project(torch.randn(4, 3)), torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"^x: .*lorentz\.project\(x, c\) adds one to space coordinates"):
        lf.logmap0(v)
    with pytest.raises(ValueError, match=r"^v: got points of shape \(4, 4\), expected the d space coordinates"):
        lf.expmap0(x)
    with pytest.warns(UserWarning, match=r"^v: got shape \(4, 4\), the first coordinate 0 in every row"):
        lf.expmap0(torch.nn.functional.pad(v, (1, 0)))
    with pytest.raises(ValueError, match=r"^u: got shape \(4, 3\) and time parts up to .* expected ambient tangent"):
        Lorentz().expmap0(v)


def test_good_points_pass_in_every_dtype_and_after_a_conversion() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = lf.expmap0(torch.randn(50, 4).to(dtype), 0.7).to(dtype)
        lf.dist(x, x.flip(0), 0.7)
        lf.expmap(x, lf.logmap(x, x.flip(0), 0.7), 0.7)
    x = lf.expmap0(torch.randn(50, 4))
    lf.dist(x.double(), x.double().flip(0))
    far = lf.expmap0(torch.nn.functional.normalize(torch.randn(50, 4), dim=-1) * 80.0)
    lf.dist(far, far.flip(0))


def test_what_cannot_be_read_runs_unchecked() -> None:
    x, y = lf.expmap0(torch.randn(2, 6, 3)).roll(1, -1)  # off the hyperboloid
    c = torch.tensor([0.5, 1.0, 2.0])
    assert torch.vmap(lf.dist)(x, y).shape == (6,)
    assert torch.vmap(lambda c: lf.dist(x, y, c))(c).shape == (3, 6)
    assert lf.dist(x.to("meta"), y.to("meta"), torch.tensor(1.0, device="meta")).shape == (6,)
    number = c[1].clone()
    with FakeTensorMode() as mode:
        assert lf.dist(*map(mode.from_tensor, (x, y, number))).shape == (6,)
    layer = nn.LorentzLinear(3, 3, c=nn.Curvature(1.0)).to("meta")
    assert layer(x.to("meta")).shape == (6, 4)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_derivatives_go_through_the_checks(transform: Callable[..., Any]) -> None:
    x, y = lf.expmap0(torch.randn(2, 3))
    of_c = transform(lambda c: lf.dist(x, y, c).square())(torch.tensor(1.0))
    of_vector = transform(lambda v: lf.dist(lf.expmap0(v), y).square())(torch.randn(3))
    assert torch.isfinite(of_c).all()
    assert torch.isfinite(of_vector).all()
    with pytest.raises(ValueError, match=r"^x: 1 of 1 points"):
        torch.func.grad(lambda y: lf.dist(x.roll(1), y))(y)


def test_blocks_nest_and_the_call_alone_switches() -> None:
    x = torch.ones(2, 4)
    with lorentz.checked(False):
        with lorentz.checked(), pytest.raises(ValueError, match=r"^x: "):
            lf.dist0(x)
        lf.dist0(x)
        lorentz.checked()
        with pytest.raises(ValueError, match=r"^x: "):
            lf.dist0(x)


def test_values_on_a_card_are_checked_where_asked_and_never_read_else() -> None:
    points, c = lf.expmap0(torch.randn(6, 3)), torch.tensor(2.0)
    layer = nn.LorentzLinear(3, 3, c=nn.Curvature(1.0))
    with Accelerator() as device:
        x, c, layer = points.to(DEVICE), c.to(DEVICE), layer.to(DEVICE)
        off, negative = x.roll(1, -1), -c
        for call, message in (
            (lambda: lf.dist(x, off), "^y: .* off the hyperboloid"),
            (lambda: lf.dist(x, x, c), "^x: .* off the hyperboloid of curvature -2"),
            (lambda: lf.expmap0(off[:, 1:], negative), "^c: got -2"),
            (lambda: layer(off), "^x: .* off the hyperboloid"),
        ):
            with lorentz.checked(False):
                device.reads.clear()
                call()
                assert not device.reads
            with pytest.raises(ValueError, match=message):
                call()
            assert device.reads
        assert layer(x).shape == (6, 4)


@pytest.mark.parametrize("c", [0.25, 4.0])
def test_coordinates_of_the_ball_are_inside_of_its_radius(c: float) -> None:
    p = torch.tensor([0.0, 0.9 / c**0.5])
    with lorentz.checked():
        assert poincare_dist(p, -p, c).isfinite()
        with pytest.raises(ValueError, match=r"^q: 1 of 1 points .* up to 1[.]08"):
            poincare_dist(p, -1.2 * p, c)
