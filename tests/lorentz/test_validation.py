"""Bad input: every public function names the argument and the shape it got (run-time checks of the tests off)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

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
ARGUMENTS = [(name, argument) for name, (_, shapes, _) in FUNCTIONS.items() for argument in shapes]
LATER = [(name, argument) for name, argument in ARGUMENTS if argument != next(iter(FUNCTIONS[name][1]))]
CURVED = [name for name in FUNCTIONS if name != "lorentz_inner"]


def valid(name: str, batch: int = 2) -> dict[str, Tensor]:
    """Arguments the function takes, with a first batch axis of this length."""
    _, shapes, space = FUNCTIONS[name]
    drawn = {key: 0.1 + 0.3 * torch.rand(batch, *shape[1:]) for key, shape in shapes.items()}
    return {key: t if key in space.split() else lf.project(t[..., 1:]) for key, t in drawn.items()}


def shape_of(tensor: Tensor) -> str:
    return rf"\({', '.join(map(str, tensor.shape))},?\)"


def refuse(error: type[Exception], name: str, argument: str, value: object, *, shape: bool = True) -> None:
    """The function refuses this value of one argument, by its name and shape."""
    function, arguments = FUNCTIONS[name][0], valid(name)
    got = shape_of(value) if shape and isinstance(value, Tensor) else ""
    with pytest.raises(error, match=rf"^{argument}: got .*{got}"):
        function(**(arguments | {argument: value}))


@pytest.mark.parametrize("public", FUNCTIONS)
def test_valid_arguments_and_empty_batches_pass(public: str) -> None:
    function = FUNCTIONS[public][0]
    for batch in (2, 0):
        result = function(**valid(public, batch))
        result = result.rsample() if isinstance(result, WrappedNormal) else result
        assert result.shape[0] == batch
        assert torch.isfinite(result).all()


@pytest.mark.parametrize(("public", "argument"), ARGUMENTS)
def test_what_is_no_floating_point_tensor(public: str, argument: str) -> None:
    tensor = valid(public)[argument]
    for dtype in (torch.int64, torch.bool, torch.complex64):
        refuse(TypeError, public, argument, tensor.to(dtype))
    refuse(TypeError, public, argument, tensor.tolist())
    if argument != "scale":  # which may be a number
        refuse(TypeError, public, argument, 1.0)


@pytest.mark.parametrize(("public", "argument"), ARGUMENTS)
def test_too_few_coordinates_or_axes(public: str, argument: str) -> None:
    tensor = valid(public)[argument]
    least = 0 if argument in FUNCTIONS[public][2].split() else 1
    refuse(ValueError, public, argument, tensor[..., :least])
    if argument != "scale":  # the same for all
        refuse(ValueError, public, argument, torch.tensor(1.0))


@pytest.mark.parametrize(("public", "argument"), LATER)
def test_arguments_that_do_not_fit_each_other(public: str, argument: str) -> None:
    tensor = valid(public)[argument]
    if (public, argument) != ("lorentz_attention", "v"):  # whose values may have another dimension
        refuse(ValueError, public, argument, tensor[..., :2])
    refuse(ValueError, public, argument, torch.cat([tensor, tensor[:1]]))
    refuse(ValueError, public, argument, tensor.to("meta"))
    if argument != "scale":  # a parameter, cast like c
        refuse(TypeError, public, argument, tensor.double())


@pytest.mark.parametrize("public", CURVED)
def test_curvature(public: str) -> None:
    for value in (0.0, -1.0, 0, float("nan"), float("inf"), -float("inf")):
        refuse(ValueError, public, "c", value)
    for value in (torch.tensor(1), torch.tensor(True), torch.ones(2, 1, dtype=torch.int32)):
        refuse(TypeError, public, "c", value)
    for value in ("1", None, True, [1.0]):
        refuse(TypeError, public, "c", value)
    refuse(ValueError, public, "c", torch.ones(4))  # would meet the coordinates
    axes = 3 if public == "join_heads" else next(iter(valid(public).values())).ndim
    refuse(ValueError, public, "c", torch.ones(7, *(1,) * (axes - 1)))  # meets no batch axis


def test_the_message_says_what_how_much_and_how_to_mend_it() -> None:
    x, y = lf.project(torch.zeros(2, 3, 4)), lf.project(torch.zeros(3, 5))
    with pytest.raises(
        ValueError, match=r"y: got shape \(3, 6\), expected a last axis of length 5 as that of x, \(2, 3, 5\)"
    ):
        lf.dist(x, y)
    with pytest.raises(TypeError, match=r"x: got int64 tensor of shape \(2, 3, 5\), .* call \.float\(\) on it"):
        lf.dist(x.long(), x)
    with pytest.raises(
        ValueError, match=r"c: got shape \(3,\), expected a scalar or a last axis of length 1; reshape it to \(3, 1\)"
    ):
        lf.dist(x, x, torch.ones(3))
    with pytest.raises(ValueError, match=r"geoopt's k is 1/c"):
        lf.dist(x, x, -1.0)


@pytest.mark.usefixtures("any_time")
def test_half_precision_mixes_with_float32_and_c_takes_any_dtype() -> None:
    x = lf.expmap0(torch.randn(3, 4))
    assert torch.equal(lf.dist(x.bfloat16(), x), lf.dist(x.bfloat16().float(), x))
    for c in (torch.tensor(2.0).double(), torch.tensor(2.0).bfloat16(), 2, torch.full((3, 1), 2.0)):
        assert torch.equal(lf.dist(x, x.flip(0), c), lf.dist(x, x.flip(0), 2.0))


def test_centroid_weights_and_no_points() -> None:
    x = lf.expmap0(torch.randn(2, 5, 3))
    for shape in ((2, 3, 4), (5,), (3, 3, 5)):
        with pytest.raises(ValueError, match=rf"^weights: got shape {shape_of(torch.empty(shape))}"):
            lf.centroid(x, torch.ones(shape))
    origin = lf.project(torch.zeros(2, 3, 3))
    for precision in ("auto", "native"):
        assert torch.equal(lf.centroid(x[:, :0], torch.ones(2, 3, 0), precision=precision), origin)
    assert torch.equal(lf.lorentz_attention(x[:, :3], x[:, :0], x[:, :0], temperature=1.0), origin)


def test_attention_mask_bias_temperature_and_values() -> None:
    x = lf.expmap0(torch.randn(2, 5, 3))
    attention = partial(lf.lorentz_attention, x, x)
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^temperature: got .* expected a finite number > 0"):
            attention(x, temperature=temperature)
    with pytest.raises(TypeError, match=r"^temperature: got int64 tensor of shape"):
        attention(x, temperature=torch.tensor(1))
    with pytest.raises(ValueError, match=r"^temperature: got shape \(5,\)"):
        attention(x, temperature=torch.ones(5))
    with pytest.raises(TypeError, match=r"^mask: got float32 tensor of shape \(5, 5\), expected booleans"):
        attention(x, temperature=1.0, mask=torch.ones(5, 5))
    with pytest.raises(ValueError, match=r"^mask: got shape \(5, 4\)"):
        attention(x, temperature=1.0, mask=torch.ones(5, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^attn_bias: got shape \(3, 5, 5\)"):
        attention(x, temperature=1.0, attn_bias=torch.zeros(3, 5, 5))
    with pytest.raises(TypeError, match=r"^attn_bias: got int64 tensor"):
        attention(x, temperature=1.0, attn_bias=torch.zeros(5, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^v: got shape \(2, 4, 4\), expected 5 points as in k"):
        attention(x[:, :4], temperature=1.0)


def test_shares_of_a_geodesic_and_cone_radius() -> None:
    x, y = lf.expmap0(torch.randn(2, 3, 4))
    for t in ("half", torch.tensor(1), None):
        with pytest.raises(TypeError, match=r"^t: got"):
            lf.geodesic(x, y, t)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^t: got shape \(3,\), expected a scalar or a last axis of length 1"):
        lf.geodesic(x, y, torch.rand(3))
    for radius in (0.0, -1.0, float("nan"), "big"):
        with pytest.raises(ValueError, match=r"^min_radius: got"):
            lf.half_aperture(x, min_radius=radius)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^heads: got 0"):
        lf.split_heads(torch.zeros(5, 6), 0)


def test_samples_of_another_dimension_are_refused() -> None:
    normal = WrappedNormal(lf.project(torch.zeros(2, 3)), torch.ones(3))
    with pytest.raises(ValueError, match=r"^value: got shape \(5, 1, 3\)"):
        normal.log_prob(lf.project(torch.zeros(5, 1, 2)))
    with pytest.raises(TypeError, match=r"^value: got int64 tensor"):
        normal.log_prob(torch.ones(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("c", [0.0, -1.0, float("nan"), torch.tensor(-1.0), torch.tensor([1.0, 2.0])])
def test_manifold_curvature(c: float | Tensor) -> None:
    with pytest.raises(ValueError, match=r"^c: got"):
        Lorentz(c=c)


def test_manifold_methods_name_their_arguments() -> None:
    manifold = Lorentz()
    x = manifold.random_normal(3, 4)
    short = x[..., :3]
    for function, argument in (
        (manifold.dist, "y"),
        (manifold.dist2, "y"),
        (manifold.inner, "u"),
        (manifold.expmap, "v"),
        (manifold.logmap, "y"),
        (manifold.egrad2rgrad, "u"),
        (partial(manifold.geodesic, 0.5), "y"),
    ):
        with pytest.raises(ValueError, match=rf"^{argument}: got shape \(3, 3\)"):
            function(x, short)
    for function in (manifold.projx, manifold.dist0, manifold.logmap0, manifold.expmap0):
        with pytest.raises(TypeError, match=r"^[xu]: got int64 tensor of shape \(3, 4\)"):
            function(x.long())


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


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("public", [name for name in CURVED if name not in ("check_point", "WrappedNormal")])
def test_a_tensor_of_curvatures_may_add_batch_axes(public: str) -> None:
    function, arguments = FUNCTIONS[public][0], valid(public)
    axes = {"join_heads": 3, "split_heads": 4}.get(public) or next(iter(arguments.values())).ndim
    c = torch.tensor([0.5, 2.0])
    together = function(**arguments, c=c.reshape(2, *(1,) * axes))
    for i in range(2):
        torch.testing.assert_close(together[i], function(**arguments, c=c[i]))
