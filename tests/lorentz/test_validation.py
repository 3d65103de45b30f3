"""Bad input: every public function and layer names the argument and what it got (run-time checks of the tests off)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from functions import arguments, axes_of, functions
from layers import EXAMPLES, build
from matplotlib.figure import Figure

import lorentz
import lorentz.functional as lf
import lorentz.nn as lnn
from lorentz.distributions import WrappedNormal
from lorentz.manifold import Lorentz
from lorentz.plot import HoroPCA, origin_distances, poincare_disk

pytestmark = pytest.mark.usefixtures("unchecked")

PUBLIC = functions(lf) | {"check_point": lf.check_point, "WrappedNormal": WrappedNormal}
CURVED = [name for name in PUBLIC if name != "lorentz_inner"]


def valid(public: str, batch: int = 2) -> dict[str, Any]:
    """Arguments that the function takes, with a first batch axis of this length."""
    x, y, v = lf.project(0.1 + 0.3 * torch.rand(3, batch, 3, 5, 3))
    return arguments(PUBLIC[public], x, y, v, 1.0)


@pytest.mark.parametrize("public", PUBLIC)
def test_every_function_refuses_by_name(public: str) -> None:
    """A dtype, too few coordinates, another batch, a point off the hyperboloid, a curvature; empty batches pass."""
    function = PUBLIC[public]
    for batch in (2, 0):
        result = function(**valid(public, batch))
        result = result.rsample() if isinstance(result, WrappedNormal) else result
        assert result.shape[0] == batch
        assert torch.isfinite(result).all()

    def refuse(error: type[Exception], argument: str, value: object) -> None:
        with pytest.raises(error, match=rf"^{argument}: (got|\d+ of) "):
            function(**(valid(public) | {argument: value}))

    vectors = [name for name, axes in axes_of(function).items() if axes and axes[0].startswith("*")]
    for argument in vectors:
        value = valid(public)[argument]
        ambient = argument not in ("weights", "scale") and axes_of(function)[argument][-1] != "d"
        refuse(TypeError, argument, value.long())
        refuse(ValueError, argument, value[..., : int(ambient)])
        if argument != vectors[0]:
            refuse(ValueError, argument, torch.cat([value, value[:1]]))
        if ambient and argument not in ("u", "v", "w") and public not in ("lorentz_inner", "check_point"):
            refuse(ValueError, argument, torch.cat([value[..., :1] + 1.0, value[..., 1:]], -1))
    if public in CURVED:
        refuse(ValueError, "c", -1.0)
        refuse(ValueError, "c", torch.ones(4))  # would meet the coordinates
        with lorentz.checked(False):  # on a CPU it is read in any mode
            refuse(ValueError, "c", torch.tensor(-1.0))


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("public", [name for name in CURVED if name not in ("check_point", "WrappedNormal")])
def test_a_tensor_of_curvatures_may_add_batch_axes(public: str) -> None:
    function, given = PUBLIC[public], valid(public)
    c, axes = torch.tensor([0.5, 2.0]), 4 + {"join_heads": -1, "split_heads": 1}.get(public, 0)
    together = function(**given, c=c.reshape(2, *(1,) * axes))
    for i in range(2):
        torch.testing.assert_close(together[i], function(**given, c=c[i]))


@pytest.mark.parametrize("layer", EXAMPLES)
def test_a_curvature_of_a_layer_is_a_positive_number_or_a_module(layer: str) -> None:
    with pytest.raises(ValueError, match=r"c: got -1\.0, expected a finite number > 0"):
        build(layer, -1.0)
    with pytest.raises(TypeError, match=r"c: got float32 tensor.*lorentz.nn.Curvature"):
        build(layer, torch.tensor(1.0))


@pytest.mark.parametrize("layer", [name for name, one in EXAMPLES.items() if one.of_points and name != "LogMap0"])
def test_layers_of_points_refuse_what_is_none(layer: str) -> None:
    module = build(layer, 1.0)
    with pytest.raises(TypeError, match=r"x: got int64 tensor of shape \(2, 5\), expected floating point"):
        module(torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"x: got shape \(2, 1\)"):
        module(torch.ones(2, 1))
    assert module(torch.ones(0, 5)).shape[0] == 0
    if module.state_dict().keys() > {"curvature._extra_state"}:
        for bad, error, message in (
            (torch.ones(2, 4), ValueError, r"shape \(2, 4\), expected a last axis of length 5"),
            (torch.ones(2, 5).double(), TypeError, r"float64 tensor .*, but the layer is torch.float32"),
            (torch.ones(2, 5, device="meta"), ValueError, r".* on meta, but the layer is on cpu"),
        ):
            with pytest.raises(error, match=f"x: got {message}"):
                module(bad)


X, POINTS = lf.project(torch.zeros(2, 5, 3)), lf.project(torch.zeros(3, 6, 4))
IMAGE, EDGES, FEATURES = lf.project(torch.zeros(2, 5, 5, 2)), torch.ones(6, 6), torch.ones(2, 4)
attend, bend = partial(lf.lorentz_attention, X, X), partial(lf.dist, X, X)
attention, norm = lnn.LorentzMultiheadAttention(4, 2), lnn.LorentzBatchNorm(4)
convolve, spread, contrast = lnn.LorentzConv2d(2, 3, 3), lnn.LorentzGraphConv(4, 3), lnn.LorentzContrastiveLoss(4)
disk = partial(poincare_disk, ax=Figure().subplots())
histogram = partial(origin_distances, ax=Figure().subplots())
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: lf.dist(X, POINTS), ValueError, "y: got .*a last axis of length 4 as that of x"),
    (lambda: bend(torch.ones(5)), ValueError, r"c: got shape \(5,\), .*; reshape it to \(5, 1\)"),
    (lambda: bend(torch.tensor([[1.0], [-1.0]])), ValueError, "c: got numbers from -1 to 1, expected"),
    (lambda: bend(lnn.Curvature(1.0)), TypeError, r"c: got Curvature, expected .*; call it: c\(\)$"),  # type: ignore[arg-type]
    (lambda: bend(precision="double"), ValueError, "precision: got 'double', expected 'auto', 'native' or 'float64'"),
    (lambda: lf.centroid(X, torch.ones(5)), ValueError, r"weights: got shape \(5,\)"),
    (lambda: attend(X, temperature=0.0), ValueError, "temperature: got .* expected a finite number > 0"),
    (lambda: attend(X, temperature=1.0, mask=torch.ones(5, 5)), TypeError, "mask: got float32 .*booleans"),
    (lambda: lf.split_heads(torch.zeros(5, 6), 4), ValueError, "heads: .*a divisor of the space dimension 6"),
    (lambda: lorentz.topk(X[0], X[0], 6), ValueError, "k: got 6, expected 1 to 5"),
    (lambda: Lorentz(c=0.5, k=2.0), ValueError, "c, k: got 0.5 and 2.0, expected one of them"),
    (lambda: Lorentz().expmap(X, X[..., :3]), ValueError, "v: .*length 4"),
    (lambda: lorentz.nothing, AttributeError, "module 'lorentz' has no attribute 'nothing'"),
    (lambda: lnn.LorentzLinear(2, 2, magnitude="unbounded"), ValueError, ".*bounded"),  # type: ignore[arg-type]
    (lambda: lnn.LorentzActivation("relu"), TypeError, "activation: got str"),  # type: ignore[arg-type]
    (lambda: lnn.LorentzConv2d(4, 3, 3, groups=2), ValueError, "groups: got 2, expected a divisor of 4 and 3"),
    (lambda: lnn.LorentzEmbedding(4, 4, 4), ValueError, "padding_idx: got 4, expected one of the 4 numbers"),
    (lambda: lnn.LorentzEmbedding(4, 4)(FEATURES), TypeError, "numbers: got .*, expected integers"),
    (lambda: lnn.ExpMap0(max_norm=0), ValueError, "max_norm: got 0, expected a positive number, or None"),
    (lambda: lnn.Curvature(0.05), ValueError, ".*expected 0 < lo < init < hi"),
    (lambda: attention(POINTS, POINTS, POINTS[:, :2]), ValueError, "v: got shape .*, expected one value for each key"),
    (lambda: convolve(IMAGE[:, :2]), ValueError, r"x: got shape .* at least \(3, 3\) points"),
    (lambda: spread(POINTS, EDGES.to_sparse()), ValueError, "adjacency: got a sparse matrix for 1 batch axes of x"),
    (lambda: norm(POINTS[:1, :1]), ValueError, r"x: got one point, .* expected more in training; call \.eval"),
    (lambda: norm(POINTS, EDGES[:3]), TypeError, "mask: got float32 tensor .*booleans, True where a point counts"),
    (lambda: contrast(FEATURES, FEATURES.repeat(2, 1)), ValueError, "specific: got shape .* general_of"),
    (lambda: HoroPCA(2, starts=1).fit(X[0]).transform(POINTS[0]), ValueError, r"x: got .*, expected \(n, 4\)"),
    (lambda: HoroPCA(2).transform(X[0]), ValueError, "HoroPCA: not fitted"),
    (lambda: disk(X[0], edges=[(0, 5)]), ValueError, "edges: got row numbers 0 to 5, expected 0 to 4"),
    (lambda: histogram({}), ValueError, "x: got an empty mapping"),
]


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_messages_say_what_was_got_and_how_to_mend_it(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.usefixtures("any_time")
def test_half_precision_mixes_with_float32_and_c_takes_any_dtype() -> None:
    x = lf.expmap0(torch.randn(3, 4))
    assert torch.equal(lf.dist(x.bfloat16(), x), lf.dist(x.bfloat16().float(), x))
    for c in (torch.tensor(2.0).double(), torch.tensor(2.0).bfloat16(), 2, torch.full((3, 1), 2.0)):
        assert torch.equal(lf.dist(x, x.flip(0), c), lf.dist(x, x.flip(0), 2.0))


def test_check_point_says_by_how_much() -> None:
    x = lf.expmap0(torch.randn(3, 5, 4), 0.5)
    assert lf.check_point(x, 0.5) is x
    off = x.clone()
    off[1, 2, 0] += 0.25
    assert lf.check_point(off, 0.5, atol=0.3) is off
    for points, c, message in (
        (off, 0.5, r"x: 1 of 15 points .* curvature -0\.5: .* at index \(1, 2\), .* off by 0\.25"),
        (-x, 0.5, "x: 15 of 15"),  # the other sheet
        (x, torch.tensor([0.5, 0.5, 4.0]).reshape(3, 1, 1), r"x: 5 of 15 points .* curvature -4"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            lf.check_point(points, c)
