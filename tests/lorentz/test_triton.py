"""The kernels of `lorentz._triton` by Triton's interpreter, in processes of their own: it is chosen at import."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
import lorentz._fused as fused
from lorentz.functional import dist, expmap0

def saved(value):
    return len(value.grad_fn.next_functions[0][0].saved_tensors)

torch.manual_seed(0)
for d in (1, 5, 127, 200):
    radius = torch.tensor([0.0, 1e-6, 1e-3, 0.5, 3.0, 20.0, 87.0]).repeat(5)[:, None]
    x, y = (expmap0(radius * torch.nn.functional.normalize(torch.randn(35, d), dim=-1)) for _ in range(2))
    y[7:14], y[14:21] = x[7:14], expmap0(0.3 * torch.randn(7, d))  # the same points, and others near the origin
    y[21:28] = x[21:28] * (1.0 + 1e-6 * torch.randn(7, 1))
    x, y, g = x.requires_grad_(), y.requires_grad_(), torch.randn(35)
    for c in (1.0, 0.3, torch.tensor(0.7, requires_grad=True)):
        leaves, results = (x, y, c) if isinstance(c, torch.Tensor) else (x, y), []
        for fused.KERNELS in (True, False):
            value = dist(x, y, c)
            assert (saved(value) == len(leaves)) == fused.KERNELS
            results.append((value.detach(), *torch.autograd.grad(value, leaves, g)))
        for kernel, default in zip(*results):
            torch.testing.assert_close(kernel, default, rtol=3e-7, atol=0)
        assert not results[0][0][7:14].any() and not results[0][1][7:14].any() and not results[0][2][7:14].any()
fused.KERNELS = True
views = x.detach().T.contiguous().T.requires_grad_()  # rows that are not side by side
torch.testing.assert_close(dist(views, y), dist(x, y), rtol=0, atol=0)
assert dist(x[:0], y[:0]).shape == (0,)
near, wide = expmap0(0.1 * torch.randn(4, 3)).requires_grad_(), torch.randn(2, 4, 4)
assert saved(dist(near, wide[0])) == 2
for value in (dist(near, wide), dist(near.double(), wide[0].double()), dist(near, wide[0], precision="native")):
    assert saved(value) > 2  # the code without kernels
torch.testing.assert_close(torch.vmap(dist, (None, 0))(near, wide), dist(near, wide))
per_row = torch.autograd.grad(dist(near, wide[0]), near, torch.eye(4), is_grads_batched=True)[0]
torch.testing.assert_close(per_row.sum(0), torch.autograd.grad(dist(near, wide[0]).sum(), near)[0])
(first,) = torch.autograd.grad(dist(near, wide[0]).sum(), near, create_graph=True)
fused.KERNELS = False
(default,) = torch.autograd.grad(dist(near, wide[0]).sum(), near, create_graph=True)
second = [torch.autograd.grad(one.square().sum(), near)[0] for one in (first, default)]
torch.testing.assert_close(*second)
"""
COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lorentz import _triton

for kernel, constants in ((_triton._forward, {}), (_triton._backward, {"OF_C": True})):
    constants = constants | {"R": 8, "N": 128}
    types = {"c_at": "*fp64", "to_c": "*fp64"} | dict.fromkeys(("x_stride", "y_stride", "count", "width"), "i32")
    types = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    code = compile(ASTSource(kernel, types, places), target=GPUTarget("cuda", 80, 32)).asm["ptx"]
    assert "sqrt.rn.f64" in code and "div.rn.f64" in code and "sqrt.approx" not in code and "lg2.approx" not in code
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONWARNINGS": "ignore::RuntimeWarning"} | variables
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_kernels_are_the_default_in_values_gradients_and_promises() -> None:
    child = run("-c", SCRIPT, LORENTZ_TRITON="1", TRITON_INTERPRET="1")
    assert child.returncode == 0, child.stderr


def test_the_references_of_dist_hold_for_kernels() -> None:
    files = (f"tests/lorentz/test_{name}.py" for name in ("reference", "far"))
    options = ("-q", "-p", "no:cacheprovider", "-k", "dist and not dist0 and not pairwise and not native")
    child = run("-m", "pytest", *files, *options, LORENTZ_TRITON="1", TRITON_INTERPRET="1")
    assert child.returncode == 0, child.stdout
    assert " passed" in child.stdout


def test_kernels_compile_for_a_card_without_short_forms_of_roots_and_logarithms() -> None:
    child = run("-c", COMPILE)
    assert child.returncode == 0, child.stderr
