"""Every differentiable operation under one signature, so that the laws of derivatives and compilation run on all."""

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor
from unchecked import unchecked_lorentz

import lorentz
import lorentz.functional

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def operations(lf: ModuleType) -> dict[str, Operation]:
    """Each takes two points x, y, an ambient vector v and the curvature c."""
    models = importlib.import_module("lorentz.models")
    distributions = importlib.import_module("lorentz.distributions")

    def ball(v: Tensor, c: Tensor) -> Tensor:
        return 0.9 * v[..., 1:].tanh() / ((v.shape[-1] - 1) * c).sqrt()

    def log_prob(x: Tensor, y: Tensor, v: Tensor, c: Tensor) -> Tensor:
        normal = distributions.WrappedNormal(x, 0.5 + v[..., 1:].sigmoid(), c, validate_args=False)
        return normal.log_prob(y)

    def weights(v: Tensor) -> Tensor:  # without a matrix product, which autocast would round
        return (v[..., :2, None, :] * v[..., None, :, :]).abs().sum(-1)

    return {
        "project": lambda x, y, v, c: lf.project(v[..., 1:], c),
        "expmap0": lambda x, y, v, c: lf.expmap0(v[..., 1:], c),
        "logmap0": lambda x, y, v, c: lf.logmap0(x, c),
        "expmap": lambda x, y, v, c: lf.expmap(x, v, c),
        "logmap": lambda x, y, v, c: lf.logmap(x, y, c),
        "project_tangent": lambda x, y, v, c: lf.project_tangent(x, v, c),
        "parallel_transport": lambda x, y, v, c: lf.parallel_transport(x, y, v, c),
        "geodesic": lambda x, y, v, c: lf.geodesic(x, y, 2.0 * v[..., :1].sigmoid(), c),
        "lorentz_inner": lambda x, y, v, c: lf.lorentz_inner(x, v),
        "inner": lambda x, y, v, c: lf.inner(x, y, c),
        "dist": lambda x, y, v, c: lf.dist(x, y, c),
        "dist0": lambda x, y, v, c: lf.dist0(x, c),
        "pairwise_inner": lambda x, y, v, c: lf.pairwise_inner(x, y, c),
        "pairwise_dist": lambda x, y, v, c: lf.pairwise_dist(x, y, c),
        "pairwise_dist_exact": lambda x, y, v, c: lf.pairwise_dist(x, y, c, exact=True),
        "centroid": lambda x, y, v, c: lf.centroid(x, weights(v), c),
        "centroid_native": lambda x, y, v, c: lf.centroid(x, weights(v), c, precision="native"),
        "frechet_mean": lambda x, y, v, c: lf.frechet_mean(torch.stack([x, y], -2), v[..., :2].sigmoid(), c),
        "busemann": lambda x, y, v, c: lf.busemann(x, v[..., 1:], c),
        "horospherical_projection": lambda x, y, v, c: lf.horospherical_projection(
            x, torch.eye(v.shape[-1] - 1, dtype=x.dtype, device=x.device)[:2], c
        ),
        "gyro_add": lambda x, y, v, c: lf.gyro_add(x, y, c),
        "gyro_scale": lambda x, y, v, c: lf.gyro_scale(1.5 * v[..., :1].sigmoid(), x, c),
        "lorentz_attention": lambda x, y, v, c: lf.lorentz_attention(
            x, y, y, c, temperature=1.0 + c, attn_bias=-lf.pairwise_dist(x, y)
        ),
        "heads": lambda x, y, v, c: lf.join_heads(lf.split_heads(v[..., 1:], v.shape[-1] - 1, c), c),
        "half_aperture": lambda x, y, v, c: lf.half_aperture(x, c),
        "exterior_angle": lambda x, y, v, c: lf.exterior_angle(x, y, c),
        "entailment_violation": lambda x, y, v, c: lf.entailment_violation(x, y, c),
        "to_poincare": lambda x, y, v, c: models.to_poincare(x, c),
        "from_poincare": lambda x, y, v, c: models.from_poincare(ball(v, c), c),
        "to_klein": lambda x, y, v, c: models.to_klein(x, c),
        "from_klein": lambda x, y, v, c: models.from_klein(ball(v, c), c),
        "mobius_add": lambda x, y, v, c: models.mobius_add(ball(x, c), ball(v, c), c),
        "poincare_dist": lambda x, y, v, c: models.poincare_dist(ball(x, c), ball(y, c), c),
        "poincare_expmap": lambda x, y, v, c: models.poincare_expmap(ball(x, c), v[..., 1:], c),
        "poincare_logmap": lambda x, y, v, c: models.poincare_logmap(ball(x, c), ball(y, c), c),
        "poincare_expmap0": lambda x, y, v, c: models.poincare_expmap0(v[..., 1:], c),
        "poincare_logmap0": lambda x, y, v, c: models.poincare_logmap0(ball(x, c), c),
        "log_prob": log_prob,
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames and not any(
        m.args[0] == "name" for m in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("name", list(operations(lorentz.functional)))


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """Values are checked in every test that does not ask for `any_time`."""
    with lorentz.checked():
        yield


@pytest.fixture
def any_time(_checked: None) -> Iterator[None]:
    """Points of any time part: for derivatives by ambient coordinates, and for what one curvature does to all."""
    with lorentz.checked(False):
        yield


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device at hand, on which tensors and modules are made."""
    with torch.device(request.param):
        yield request.param


@pytest.fixture
def operation(name: str) -> Operation:
    """The operation of this name, from lorentz.functional."""
    return operations(lorentz.functional)[name]


@pytest.fixture
def operations_of() -> Callable[[ModuleType], dict[str, Operation]]:
    """All operations, from any import of lorentz.functional."""
    return operations


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    """lorentz.functional as users import it, in sys.modules for a whole test module."""
    with unchecked_lorentz():
        yield importlib.import_module("lorentz.functional")


@pytest.fixture
def inputs() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Random arguments of an operation."""

    def draw(c: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y, v = torch.randn(3, 3, 4, dtype=dtype)
        return x, y, v, torch.tensor(c, dtype=dtype)

    return draw
