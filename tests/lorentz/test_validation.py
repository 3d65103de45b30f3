"""Bad input: every public function names the argument and what it got (run-time checks of the tests off)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lorentz
import lorentz.functional as lf
from lorentz import models
from lorentz.distributions import WrappedNormal
from lorentz.manifold import Lorentz

pytestmark = pytest.mark.usefixtures("unchecked")

POINT, SPACE = (2, 4), (2, 3)
ROWS, PAIRS = {"x": (2, 3, 4), "y": (2, 5, 4)}, {"x": POINT, "y": POINT}
# name: (function, shape of each vector argument, which of them hold space parts only)
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]], str]] = {
    "project": (lf.project, {"x": SPACE}, "x"),
    "expmap0": (lf.expmap0, {"v": SPACE}, "v"),
    "logmap0": (lf.logmap0, {"x": POINT}, ""),
    "expmap": (lf.expmap, {"x": POINT, "v": POINT}, ""),
    "logmap": (lf.logmap, PAIRS, ""),
    "project_tangent": (lf.project_tangent, {"x": POINT, "w": POINT}, ""),
    "parallel_transport": (lf.parallel_transport, PAIRS | {"v": POINT}, ""),
    "geodesic": (partial(lf.geodesic, t=0.5), PAIRS, ""),
    "lorentz_inner": (lf.lorentz_inner, {"u": POINT, "v": POINT}, ""),
    "inner": (lf.inner, PAIRS, ""),
    "dist": (lf.dist, PAIRS, ""),
    "dist0": (lf.dist0, {"x": POINT}, ""),
    "pairwise_inner": (lf.pairwise_inner, ROWS, ""),
    "pairwise_dist": (lf.pairwise_dist, ROWS, ""),
    "pairwise_dist_exact": (partial(lf.pairwise_dist, exact=True), ROWS, ""),
    "centroid": (lf.centroid, {"x": (2, 5, 4), "weights": (2, 3, 5)}, "weights"),
    "centroid_native": (partial(lf.centroid, precision="native"), {"x": (2, 5, 4), "weights": (2, 3, 5)}, "weights"),
    "frechet_mean": (lf.frechet_mean, {"x": (2, 5, 4), "weights": (2, 5)}, "weights"),
    "busemann": (lf.busemann, {"x": POINT, "direction": SPACE}, "direction"),
    "gyro_add": (lf.gyro_add, PAIRS, ""),
    "gyro_scale": (partial(lf.gyro_scale, 0.5), {"x": POINT}, ""),
    "half_aperture": (lf.half_aperture, {"x": POINT}, ""),
    "exterior_angle": (lf.exterior_angle, PAIRS, ""),
    "entailment_violation": (lf.entailment_violation, {"general": POINT, "specific": POINT}, ""),
    "lorentz_attention": (
        partial(lf.lorentz_attention, temperature=1.0),
        {"q": (2, 3, 4), "k": (2, 5, 4), "v": (2, 5, 4)},
        "",
    ),
    "split_heads": (partial(lf.split_heads, heads=3), {"x": (2, 5, 6)}, "x"),
    "join_heads": (lf.join_heads, {"x": (2, 3, 5, 4)}, ""),
    "check_point": (lf.check_point, {"x": POINT}, ""),
    "to_poincare": (models.to_poincare, {"x": POINT}, ""),
    "from_poincare": (models.from_poincare, {"p": SPACE}, "p"),
    "to_klein": (models.to_klein, {"x": POINT}, ""),
    "from_klein": (models.from_klein, {"p": SPACE}, "p"),
    "mobius_add": (models.mobius_add, {"p": SPACE, "q": SPACE}, "p q"),
    "poincare_dist": (models.poincare_dist, {"p": SPACE, "q": SPACE}, "p q"),
    "poincare_expmap": (models.poincare_expmap, {"p": SPACE, "v": SPACE}, "p v"),
    "poincare_logmap": (models.poincare_logmap, {"p": SPACE, "q": SPACE}, "p q"),
    "poincare_expmap0": (models.poincare_expmap0, {"v": SPACE}, "v"),
    "poincare_logmap0": (models.poincare_logmap0, {"p": SPACE}, "p"),
    "WrappedNormal": (WrappedNormal, {"loc": POINT, "scale": SPACE}, "scale"),
}
CURVED = [name for name in FUNCTIONS if name != "lorentz_inner"]


def valid(name: str, batch: int = 2) -> dict[str, Tensor]:
    """Arguments the function takes, with a first batch axis of this length."""
    _, shapes, space = FUNCTIONS[name]
    drawn = {key: 0.1 + 0.3 * torch.rand(batch, *shape[1:]) for key, shape in shapes.items()}
    return {key: t if key in space.split() else lf.project(t[..., 1:]) for key, t in drawn.items()}


@pytest.mark.parametrize("public", FUNCTIONS)
def test_every_function_refuses_by_name(public: str) -> None:
    """A dtype, too few coordinates, another batch, a point off the hyperboloid, a curvature; empty batches pass."""
    function, shapes, space = FUNCTIONS[public]
    for batch in (2, 0):
        result = function(**valid(public, batch))
        result = result.rsample() if isinstance(result, WrappedNormal) else result
        assert result.shape[0] == batch
        assert torch.isfinite(result).all()

    def refuse(error: type[Exception], argument: str, value: object) -> None:
        with pytest.raises(error, match=rf"^{argument}: (got|\d+ of) "):
            function(**(valid(public) | {argument: value}))

    for argument, tensor in valid(public).items():
        ambient = argument not in space.split()
        refuse(TypeError, argument, tensor.long())
        refuse(ValueError, argument, tensor[..., : int(ambient)])
        if argument != next(iter(shapes)):
            refuse(ValueError, argument, torch.cat([tensor, tensor[:1]]))
        if ambient and argument not in ("u", "v", "w") and public not in ("lorentz_inner", "check_point"):
            refuse(ValueError, argument, torch.cat([tensor[..., :1] + 1.0, tensor[..., 1:]], -1))
    if public in CURVED:
        refuse(ValueError, "c", -1.0)
        refuse(ValueError, "c", torch.ones(4))  # would meet the coordinates
        with lorentz.checked(False):  # on a CPU it is read in any mode
            refuse(ValueError, "c", torch.tensor(-1.0))


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("public", [name for name in CURVED if name not in ("check_point", "WrappedNormal")])
def test_a_tensor_of_curvatures_may_add_batch_axes(public: str) -> None:
    function, arguments = FUNCTIONS[public][0], valid(public)
    axes = {"join_heads": 3, "split_heads": 4}.get(public) or next(iter(arguments.values())).ndim
    c = torch.tensor([0.5, 2.0])
    together = function(**arguments, c=c.reshape(2, *(1,) * axes))
    for i in range(2):
        torch.testing.assert_close(together[i], function(**arguments, c=c[i]))


X = lf.project(torch.zeros(2, 5, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"y": X > 0}, TypeError, "y: got bool tensor"),
        ({"y": X.to(torch.complex64)}, TypeError, "y: got complex64 tensor"),
        ({"x": X.tolist()}, TypeError, "x: got list"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x: got shape \(\)"),
        ({"y": X.double()}, TypeError, "y: got float64 tensor"),
        ({"y": X.to("meta")}, ValueError, "y: got .*meta"),
        ({"y": lf.project(torch.zeros(2, 5, 4))}, ValueError, "y: got .*a last axis of length 4 as that of x"),
        ({"x": X.long()}, TypeError, r"x: got int64 tensor of shape \(2, 5, 4\), .* call \.float\(\) on it"),
        ({"c": torch.ones(5)}, ValueError, r"c: got shape \(5,\), .*; reshape it to \(5, 1\)"),
        ({"c": torch.ones(7, 1, 1)}, ValueError, "c: got shape"),  # meets no batch axis
        ({"c": torch.tensor(1)}, TypeError, "c: got int64 tensor"),
        ({"c": "1"}, TypeError, "c: got str"),
        ({"c": True}, TypeError, "c: got "),
        ({"c": float("nan")}, ValueError, "c: got nan"),
        ({"c": -1.0}, ValueError, "c: got .*geoopt's k is 1/c"),
        ({"c": torch.tensor([[1.0], [-1.0]])}, ValueError, "c: got numbers from -1 to 1, expected"),
        ({"c": lorentz.nn.Curvature(1.0)}, TypeError, r"c: got Curvature, expected .*; call it: c\(\)$"),
        ({"precision": "double"}, ValueError, "precision: got 'double', expected 'auto', 'native' or 'float64'"),
    ],
)
def test_messages_say_what_was_got_and_how_to_mend_it(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        lf.dist(**({"x": X, "y": X} | arguments))


@pytest.mark.usefixtures("any_time")
def test_half_precision_mixes_with_float32_and_c_takes_any_dtype() -> None:
    x = lf.expmap0(torch.randn(3, 4))
    assert torch.equal(lf.dist(x.bfloat16(), x), lf.dist(x.bfloat16().float(), x))
    for c in (torch.tensor(2.0).double(), torch.tensor(2.0).bfloat16(), 2, torch.full((3, 1), 2.0)):
        assert torch.equal(lf.dist(x, x.flip(0), c), lf.dist(x, x.flip(0), 2.0))


def test_centroid_and_attention_of_no_points_are_the_origin() -> None:
    x, origin = lf.expmap0(torch.randn(2, 5, 3)), lf.project(torch.zeros(2, 3, 3))
    for precision in ("auto", "native"):
        assert torch.equal(lf.centroid(x[:, :0], torch.ones(2, 3, 0), precision=precision), origin)
    assert torch.equal(lf.lorentz_attention(x[:, :3], x[:, :0], x[:, :0], temperature=1.0), origin)


attend = partial(lf.lorentz_attention, X, X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lf.centroid(X, torch.ones(5)), ValueError, r"weights: got shape \(5,\)"),
        (lambda: attend(X, temperature=0.0), ValueError, "temperature: got .* expected a finite number > 0"),
        (lambda: attend(X, temperature=torch.tensor(-1.0)), ValueError, r"temperature: got -1\.0, expected"),
        (lambda: attend(X, temperature=torch.ones(5)), ValueError, r"temperature: got shape \(5,\)"),
        (lambda: attend(X, temperature=1.0, mask=torch.ones(5, 5)), TypeError, "mask: got float32 .*booleans"),
        (lambda: attend(X, temperature=1.0, mask=torch.ones(5, 4).bool()), ValueError, r"mask: got shape \(5, 4\)"),
        (lambda: attend(X, temperature=1.0, attn_bias=torch.zeros(3, 5, 5)), ValueError, "attn_bias: got shape"),
        (lambda: attend(X, temperature=1.0, attn_bias=torch.zeros(5, 5).long()), TypeError, "attn_bias: got int64"),
        (lambda: attend(X[:, :4], temperature=1.0), ValueError, "v: got shape .*, expected 5 points as in k"),
        (lambda: lf.geodesic(X, X, "half"), TypeError, "t: got"),
        (lambda: lf.geodesic(X, X, torch.rand(3)), ValueError, r"t: got shape \(3,\), expected a scalar"),
        (lambda: lf.half_aperture(X, min_radius=0.0), ValueError, "min_radius: got"),
        (lambda: lf.half_aperture(X, min_radius="big"), ValueError, "min_radius: got"),
        (lambda: lf.split_heads(torch.zeros(5, 6), 0), ValueError, "heads: got 0"),
        (lambda: lf.split_heads(torch.zeros(5, 6), 4), ValueError, "heads: .*a divisor of the space dimension 6"),
        (lambda: lf.gyro_scale(None, X), TypeError, "r: got"),
        (lambda: lf.gyro_scale(torch.rand(3), X), ValueError, r"r: got shape \(3,\), expected a scalar"),
        (lambda: lf.origin(3, 1), ValueError, "size: got"),
        (lambda: lf.horospherical_projection(X, torch.eye(4)), ValueError, "directions: got shape"),
        (lambda: lf.horospherical_projection(X, torch.eye(3).double()), TypeError, "directions: got float64"),
        (lambda: lf.horospherical_projection(X, torch.eye(3)[:0]), ValueError, "directions: got shape"),
        (lambda: lf.frechet_mean(X, torch.ones(3, 5)), ValueError, "weights: got shape"),
        (lambda: WrappedNormal(X, 1.0).log_prob(X[..., :3]), ValueError, "value: got shape"),
        (lambda: Lorentz(c=torch.ones(2)), ValueError, r"c: got shape \(2,\), expected a scalar"),
        (lambda: Lorentz(c=0.0), ValueError, "c: got 0.0, expected a finite number > 0"),
        (lambda: Lorentz(k=-1.0), ValueError, "k: got -1.0, expected a finite number > 0"),
        (lambda: Lorentz(c=0.5, k=2.0), ValueError, "c, k: got 0.5 and 2.0, expected one of them"),
        (lambda: Lorentz(lorentz.nn.Curvature(1.0), learnable=True), ValueError, "learnable: got True and a Curv"),
        (lambda: Lorentz().norm(), TypeError, "u: got None"),
        (lambda: lorentz.nothing, AttributeError, "module 'lorentz' has no attribute 'nothing'"),
        (lambda: Lorentz().origin(3, 1), ValueError, r".*expected a last axis of d \+ 1 >= 2"),
    ],
)
def test_arguments_of_one_function(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


def test_manifold_methods_name_their_arguments() -> None:
    manifold = Lorentz()
    x = manifold.random_normal(3, 4)
    for method, argument in (("dist", "y"), ("inner", "u"), ("expmap", "v"), ("transp0", "v"), ("egrad2rgrad", "u")):
        with pytest.raises(ValueError, match=rf"^{argument}: got shape \(3, 3\), expected a last axis of length 4"):
            getattr(manifold, method)(x, x[..., :3])
    with pytest.raises(TypeError, match=r"^[xu]: got int64 tensor of shape \(3, 4\)"):
        manifold.projx(x.long())


def test_check_point_says_by_how_much() -> None:
    x = lf.expmap0(torch.randn(3, 5, 4), 0.5)
    assert lf.check_point(x, 0.5) is x
    off = x.clone()
    off[1, 2, 0] += 0.25
    with pytest.raises(
        ValueError, match=r"x: 1 of 15 points .* curvature -0\.5: .* at index \(1, 2\), .* off by 0\.25"
    ):
        lf.check_point(off, 0.5)
    assert lf.check_point(off, 0.5, atol=0.3) is off
    assert lf.check_point(off, 0.5, rtol=0.3) is off
    with pytest.raises(ValueError, match="15 of 15"):
        lf.check_point(x, 2.0)
    with pytest.raises(ValueError, match="15 of 15"):
        lf.check_point(-x, 0.5)  # the other sheet
    per_row = torch.tensor([0.5, 0.5, 4.0]).reshape(3, 1, 1)
    with pytest.raises(ValueError, match=r"5 of 15 points .* curvature -4"):
        lf.check_point(x, per_row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_check_point_in_every_dtype(dtype: torch.dtype) -> None:
    x = lf.expmap0(torch.randn(50, 4).to(dtype)).to(dtype)
    x = torch.cat([(1.0 + x[..., 1:].double().square().sum(-1, keepdim=True)).sqrt().to(dtype), x[..., 1:]], dim=-1)
    assert lf.check_point(x) is x
    for bad in (torch.nan, torch.inf):
        broken = x.clone()
        broken[7, 2] = bad
        with pytest.raises(ValueError, match=r"1 of 50 points .* index \(7,\)"):
            lf.check_point(broken)
