"""In the place of geoopt.Lorentz: its methods and keywords, its values on any axis, its checkpoints."""

import inspect
import warnings

import geoopt
import pytest
import torch
from torch import Tensor

import lorentz
from lorentz.manifold import Lorentz

F64 = torch.float64
METHODS = [
    name
    for name, member in inspect.getmembers(geoopt.Lorentz, inspect.isfunction)
    if not hasattr(torch.nn.Module, name) and not name.startswith("__")
]


def points(*shape: int) -> Tensor:
    return torch.as_tensor(Lorentz(k=2.0).random_normal(*shape, std=0.7, dtype=F64))


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("dim", [-1, 0])
def test_values_are_those_of_geoopt_on_any_axis(dim: int) -> None:
    ours, theirs = Lorentz(k=2.0), geoopt.Lorentz(k=torch.tensor(2.0, dtype=F64))
    x, y, z = points(3, 6, 4)
    u, v, w = ours.logmap(x, y), ours.logmap(x, z), torch.randn(6, 4, dtype=F64)
    t = torch.linspace(0.1, 0.9, 6, dtype=F64).unsqueeze(-1)
    close = {"rtol": 1e-6, "atol": 1e-6}
    at_origin = ours.logmap0(x)
    arguments = {"x": x, "y": y, "u": u, "v": v, "t": t, "p": x, "q": y}
    own = {"expmap0": (at_origin,), "proju": (x, w), "egrad2rgrad": (x, w), "transp0": (x, at_origin), "norm": (u,)}
    own |= {"inner0": (x,), "geodesic_unit": (t, x, u / ours.norm(x, u, keepdim=True)), "inner": (x, u, v)}
    for name in METHODS:
        names = inspect.signature(getattr(theirs, name)).parameters
        if "dim" not in names or name.startswith("_"):
            continue
        given = own.get(name) or [arguments[n] for n, p in names.items() if p.default is p.empty and n in arguments]
        moved = [argument.movedim(-1, dim) for argument in given]
        expected, got = getattr(theirs, name)(*(one.clone() for one in given)), getattr(ours, name)(*moved, dim=dim)
        for one, other in zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]:
            one = one.movedim(dim, -1) if one.ndim == x.ndim else one
            torch.testing.assert_close(one, other, **close, msg=name)
        if "keepdim" in names:
            kept = getattr(ours, name)(*moved, dim=dim, keepdim=True)
            torch.testing.assert_close(kept, expected.unsqueeze(dim), **close, msg=name)
    for pair in zip(ours.expmap_transp(x, u, v), theirs.expmap_transp(x, u, v), strict=True):
        torch.testing.assert_close(*pair, **close)
    torch.testing.assert_close(ours.transp_follow_retr(x, u, v), theirs.transp_follow_retr(x, u, v), **close)
    torch.testing.assert_close(ours.component_inner(x, u, v), theirs.component_inner(x, u, v), **close)
    torch.testing.assert_close(ours.inner(None, w, x), theirs.inner(None, w, x), **close)
    normed = {"norm_tan": True}
    torch.testing.assert_close(ours.expmap(x, w, **normed), theirs.expmap(x, w, **normed), **close)
    half = ours.geodesic(0.5, x.movedim(-1, dim), y.movedim(-1, dim), dim=dim).movedim(dim, -1)
    torch.testing.assert_close(ours.dist(x, half), 0.5 * ours.dist(x, y))
    assert ours._check_point_on_manifold(x.movedim(-1, dim), dim=dim)[0]
    assert ours._check_vector_on_tangent(x.movedim(-1, dim), u.movedim(-1, dim), dim=dim)[0]
    assert not ours.check_point_on_manifold(x + 1.0)
    assert not ours.check_vector_on_tangent(x, x)


@pytest.mark.parametrize("learnable", [False, True])
def test_float64_has_the_number_that_was_given_and_not_a_float32_rounding(learnable: bool) -> None:
    manifold = Lorentz(c=0.1, learnable=learnable)
    assert (manifold.dtype, manifold.k.dtype) == (torch.float32, torch.float32)
    manifold = manifold.bfloat16().double()
    assert (manifold.dtype, manifold.k.dtype) == (F64, F64)
    assert float(torch.as_tensor(manifold.c, dtype=F64).detach()) == pytest.approx(0.1, rel=1e-15)
    assert float(next(iter(manifold.state_dict().values()))) == pytest.approx(
        float(torch.tensor(0.1, dtype=F64).log()) if learnable else 0.1, rel=1e-15
    )


def test_curvature_of_a_layer_is_followed_with_its_gradient() -> None:
    curvature = lorentz.nn.Curvature(0.5)
    manifold, layer = Lorentz(curvature), lorentz.nn.LorentzLinear(3, 3, c=curvature)
    x, y = lorentz.expmap0(torch.randn(2, 5, 3), 0.5)
    manifold.dist(x, y).sum().backward()
    assert float(curvature.raw.grad.abs()) > 0.0
    assert layer.c == manifold.c == 1.0 / manifold.k
    with torch.no_grad():
        curvature.raw.add_(1.0)
    assert layer.c == manifold.c > 0.6
    with pytest.raises(RuntimeError, match=r"k: the checkpoint has c = 4, this manifold has c = "):
        manifold.load_state_dict({**manifold.state_dict(), "k": torch.tensor(0.25)})


@pytest.mark.parametrize(
    "make", [lambda c: Lorentz(c=c), lambda c: Lorentz(c=torch.tensor(c)), lambda c: Lorentz(k=1 / c)]
)
def test_a_checkpoint_of_another_curvature_is_refused(make) -> None:
    saved = torch.nn.ModuleDict({"space": make(0.3)}).state_dict()
    assert float(saved["space.curvature.c"]) == pytest.approx(0.3)
    torch.nn.ModuleDict({"space": make(0.3)}).load_state_dict(saved)
    with pytest.raises(RuntimeError, match=r"c: the checkpoint has c = 0.3, this manifold has c = 0.5; make"):
        torch.nn.ModuleDict({"space": make(0.5)}).load_state_dict(saved)
    learned = Lorentz(c=1.0, learnable=True)
    learned.load_state_dict(make(0.3).state_dict())
    assert learned.c.item() == pytest.approx(0.3)
    with pytest.raises(RuntimeError, match=r"log_c: the checkpoint has c = 0.3"):
        make(0.5).load_state_dict(learned.state_dict())


@pytest.mark.parametrize("k", [torch.tensor(2.0), torch.tensor([2.0]), torch.tensor(2.0, dtype=F64)])
def test_a_checkpoint_of_geoopt_is_converted(k: Tensor) -> None:
    saved = geoopt.Lorentz(k=k, learnable=True).state_dict()
    Lorentz(c=0.5).load_state_dict(saved)
    Lorentz(c=lorentz.nn.Curvature(0.5, learnable=False)).load_state_dict(saved, strict=False)
    inside = torch.nn.Sequential(Lorentz(learnable=True))
    inside.load_state_dict({f"0.{name}": value for name, value in saved.items()})
    assert inside[0].c.item() == pytest.approx(0.5)
    with pytest.raises(RuntimeError, match=r"k: the checkpoint has c = 0.5, this manifold has c = 2"):
        Lorentz(c=2.0).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="Missing key"):
        Lorentz(c=0.5).load_state_dict({})


def test_the_first_argument_without_a_name_says_how_it_is_read() -> None:
    with pytest.warns(
        UserWarning, match=r"Lorentz\(2\): read as c, .* geoopt.Lorentz reads its first argument as k = 1/c"
    ):
        manifold = Lorentz(2.0)
    assert manifold.c == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Lorentz(c=2.0).c == Lorentz(k=0.5).c == 2.0
        assert Lorentz(1.0).c == 1.0  # the same either way


def test_cdist_is_the_distance_of_every_pair() -> None:
    manifold = Lorentz(k=2.0)
    x, y = manifold.random_normal(5, 4, dtype=torch.float64), manifold.random_normal(3, 4, dtype=torch.float64)
    expected = geoopt.Lorentz(k=torch.tensor(2.0, dtype=torch.float64)).dist(x[:, None], y)
    torch.testing.assert_close(manifold.cdist(x, y), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(lorentz.cdist(x, y, 0.5), manifold.cdist(x, y))


def test_random_normal_uses_std_around_the_origin() -> None:
    manifold = Lorentz(c=4.0)
    x = manifold.random_normal(20000, 3, std=0.2)
    assert abs(float(manifold.logmap0(x)[:, 1:].std()) - 0.2) < 0.01
    assert float(manifold.dist0(manifold.origin(3))) == 0.0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_what_that_of_geoopt_takes(name: str) -> None:
    theirs = inspect.signature(getattr(geoopt.Lorentz, name)).parameters
    ours = inspect.signature(getattr(Lorentz, name)).parameters
    assert [argument for argument in theirs if argument not in ours and argument != "kwargs"] == []
    for argument, parameter in theirs.items():
        if argument == "kwargs":
            continue
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and name != "norm":  # norm(u) has a test of its own
            assert list(ours).index(argument) == list(theirs).index(argument)
        if (name, argument) not in {("expmap", "norm_tan"), ("retr", "norm_tan")}:  # see docs/lorentz.md
            assert ours[argument].default == parameter.default or name in {"norm", "inner0"}


def test_scaled_by_geoopt() -> None:
    plain, doubled = Lorentz(k=2.0), geoopt.Scaled(Lorentz(k=2.0), 2.0)
    x, y = points(2, 5, 4)
    torch.testing.assert_close(doubled.dist(x, y), 2.0 * plain.dist(x, y))
    torch.testing.assert_close(doubled.dist0(x), 2.0 * plain.dist0(x))
    for manifold in (plain, doubled):
        torch.testing.assert_close(manifold.expmap(x, manifold.logmap(x, y)), y)
        torch.testing.assert_close(manifold.expmap0(manifold.logmap0(y)), y)
        torch.testing.assert_close(manifold.expmap(x, manifold.logmap0back(x))[..., 1:], torch.zeros_like(x[..., 1:]))


def test_points_are_made_where_they_are_asked_for() -> None:
    manifold = Lorentz()
    assert manifold.origin(3, device="meta").device.type == "meta"
    assert manifold.random_normal(3, device="meta").device.type == "meta"
    assert manifold.origin(3).device.type == "cpu"
    assert manifold.to("meta").origin(3).device.type == "meta"
    assert manifold.origin(3, device="cpu").device.type == "cpu"
