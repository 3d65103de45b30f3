"""The compiled operations against the same formulas in torch, with a backward pass of their own (fused) and without.

Built here into a temporary folder, where there is g++: nothing compiled is installed with the sources.
"""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from far_rows import errors_at
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.autograd.functional import jacobian

import lorentz
import lorentz.functional as lf
from lorentz import _extension

pytestmark = [
    pytest.mark.usefixtures("any_time"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]
HOOK = Path(__file__).parents[2] / "packages" / "lorentz" / "hatch_build.py"
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "dist": lf.dist,
    "logmap": lf.logmap,
    "expmap": lf.expmap,
    "centroid": lf.centroid,
    "pairwise_dist": partial(lf.pairwise_dist, exact=True),
}
WAYS = [
    (name, dtype, precision)
    for name in OPERATIONS
    for dtype, precision in ((torch.float32, "auto"), (torch.float32, "native"), (torch.float64, "auto"))
    if (name, precision) != ("centroid", "native")  # another formula
]
LAYOUTS = ("rows", "broadcast", "strided", "expanded", "negated", "empty", "many")
CURVATURES = ("number", "scalar", "rows")
LIBRARY = _extension.library


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    target = tmp_path_factory.mktemp("extension") / "_compiled.so"
    hook.compile_extension(target)
    return target


@pytest.fixture
def calls(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The extension is used, and a number is added for each of its calls."""
    monkeypatch.setenv("LORENTZ_EXTENSION", str(built))
    LIBRARY.cache_clear()
    compiled, made = LIBRARY(), []
    assert compiled is not None

    def counted(numbers: Any) -> None:
        made.append(numbers[0])
        compiled(numbers)

    monkeypatch.setattr(_extension, "library", lambda: counted)
    yield made
    LIBRARY.cache_clear()


def drawn(name: str, layout: str, curvature: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor | float]:
    """Points close, far apart and equal, and the curvature."""
    n = {"empty": 0, "many": 2100 if name != "pairwise_dist" else 9}.get(layout, 9)
    shape, k = (2, n), 65 if layout == "many" else 5
    x = lf.project(torch.randn(*shape, k - 1, dtype=dtype), 0.7)
    y = lf.project(torch.randn(*shape, k - 1, dtype=dtype), 0.7)
    y[:, 1:3] = lf.project(1.001 * x[:, 1:3, 1:])
    y[:, 3:4] = x[:, 3:4]
    if name == "expmap":
        y = lf.project_tangent(x, torch.randn_like(x), 0.7)
    if layout == "broadcast" and name != "pairwise_dist":
        x, y = x[:, None], y[:1]
    elif layout == "broadcast":
        x = x[:1]
    elif layout == "strided":
        x, y = x.mT.contiguous().mT, torch.cat([y, y], -2)[:, ::2]
    elif layout == "expanded":
        x = x[:, :1].expand_as(x)
    elif layout == "negated":
        x = torch.complex(x, -x).conj().imag
        assert x.is_neg()
    sets = name in ("centroid", "pairwise_dist")
    if name == "centroid":
        y = torch.rand(*y.shape[:-2], 3, x.shape[-2], dtype=dtype)
    if curvature == "number":
        return [x, y], 0.7
    if curvature == "scalar":
        return [x, y], torch.tensor(0.7, dtype=dtype)
    shape = (2, *(1,) * (x.ndim - 1)) if sets else (*x.shape[:-1], 1)
    return [x, y], 0.5 + torch.rand(shape, dtype=dtype)


def value_and_gradients(operation: Callable[..., Tensor], tensors: list[Tensor], c: Tensor | float) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    if isinstance(c, Tensor):
        leaves.append(c.detach().requires_grad_())
        value = operation(*leaves)
    else:
        value = operation(*leaves, c)
    weights = torch.linspace(0.5, 1.0, value.numel(), dtype=value.dtype).reshape(value.shape)
    return [value.detach(), *torch.autograd.grad((weights * value).sum(), leaves)]


def close(got: list[Tensor], expected: list[Tensor], eps: float) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert torch.isfinite(one).all()
        size = torch.linalg.vector_norm(other.double())
        assert torch.linalg.vector_norm(one.double() - other.double()) <= eps * (
            size + 1e-3
        )  # gradients at equal points are 0


@pytest.mark.parametrize("curvature", CURVATURES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("chosen", "dtype", "precision"), WAYS)
def test_plain_fused_and_compiled_agree(
    chosen: str, dtype: torch.dtype, precision: Any, layout: str, curvature: str, calls: list[int]
) -> None:  # fmt: skip
    tensors, c = drawn(chosen, layout, curvature, dtype)
    operation, threads = partial(OPERATIONS[chosen], precision=precision), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        compiled = value_and_gradients(operation, tensors, c)
    finally:
        torch.set_num_threads(threads)
    negated = any(x.is_neg() for x in tensors)
    assert len(calls) == 2 * (not negated)
    with pytest.MonkeyPatch.context() as without:
        without.setattr(_extension, "library", lambda: None)
        fused = value_and_gradients(operation, tensors, c)
        without.setattr(torch.compiler, "is_compiling", lambda: True)
        plain = value_and_gradients(operation, tensors, c)
    assert len(calls) == 2 * (not negated)
    # Natively, the gradients of close pairs far from the origin are a rounding of each way's own.
    eps = {(torch.float32, "auto"): 1e-6, (torch.float32, "native"): 1e-2}.get((dtype, precision), 1e-11)
    close(compiled, fused, eps)
    close(compiled, plain, eps)


@pytest.mark.parametrize("name", OPERATIONS)
def test_other_derivatives_stay(name: str, calls: list[int]) -> None:
    (x, y), _ = drawn(name, "rows", "number", torch.float64)
    x, y, c = x[:, 4:7], y[:, 4:7] if name != "centroid" else y[..., 4:7], torch.tensor(0.7, dtype=torch.float64)
    operation = OPERATIONS[name]

    def derived() -> list[Any]:
        along = tuple(torch.ones_like(z) for z in (x, y, c))
        return [
            torch.func.jvp(operation, (x, y, c), along)[1],
            torch.vmap(operation, (0, 0, None))(x, y, c),
            torch.vmap(torch.func.grad(lambda *z: operation(*z).sum(), (0, 1, 2)), (0, 0, None))(x, y, c),
            torch.func.hessian(lambda x: operation(x, y, c).square().sum())(x),
            jacobian(operation, (x, y, c), vectorize=True),
        ]

    with_extension = derived()
    with pytest.MonkeyPatch.context() as without:
        without.setattr(_extension, "library", lambda: None)
        torch.testing.assert_close(with_extension, derived())
    assert gradgradcheck(operation, tuple(z[:1].requires_grad_() for z in (x, y)), atol=1e-4)


def test_half_precision_and_mixed_dtypes_are_computed_as_before(calls: list[int]) -> None:
    x, y = lf.project(torch.randn(2, 4, 3))
    assert lf.dist(x.bfloat16(), y.bfloat16()).dtype == torch.bfloat16
    assert lf.dist(x.bfloat16(), y).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lf.dist(x.bfloat16(), y.bfloat16()).dtype == torch.float32
    assert not calls
    assert torch.equal(lf.dist(x, y), torch.autocast("cpu")(lf.dist)(x, y))
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["dist", "logmap", "expmap", "centroid"])
@pytest.mark.parametrize("radius", [1, 7, 24, 88])
def test_as_right_as_the_textbook(name: str, radius: float, calls: list[int]) -> None:
    assert max(errors_at(name, radius, 1.0, torch.float32, "auto")) <= 2.0 * torch.finfo(torch.float32).eps
    if name == "dist":
        assert max(errors_at(name, 3 * radius, 1.0, torch.float64, "auto")) <= 1e-12
    assert calls


def test_none_where_it_is_not_wanted(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for value, present in (("0", False), (str(built), True)):
            monkeypatch.setenv("LORENTZ_EXTENSION", value)
            LIBRARY.cache_clear()
            assert (LIBRARY() is not None) == present
        monkeypatch.setenv("LORENTZ_EXTENSION", str(built.with_name("absent.so")))
        LIBRARY.cache_clear()
        with pytest.raises(OSError, match=r"absent\.so"):
            lorentz.dist(*lf.project(torch.zeros(2, 1, 2)))
    finally:
        LIBRARY.cache_clear()


@pytest.mark.parametrize("chosen", ["dist", "logmap", "expmap", "centroid"])
def test_one_row_without_batch_axes(chosen: str, calls: list[int]) -> None:
    x, y = drawn(chosen, "strided", "number", torch.float32)[0]
    tensors = [x[0], y[0]] if chosen == "centroid" else [x[0, 0], y[0, 0]]
    compiled = value_and_gradients(OPERATIONS[chosen], tensors, 0.7)
    assert len(calls) == 2
    wide = value_and_gradients(partial(OPERATIONS[chosen], precision="float64"), [z.double() for z in tensors], 0.7)
    close(compiled, [z.float() for z in wide], 1e-6)
