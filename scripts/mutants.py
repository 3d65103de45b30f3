"""Would the tests notice? Small mistakes, each put into a copy of lorentz or regdiff on which its tests are run.

    python scripts/mutants.py lorentz|regdiff [--only N ...] [--tests FILE ...]

A mutant is killed when a test fails, and the first that fails is printed. The working tree is only read. Ends with 1
where one survives, and with an error where the text a mutant replaces is no longer there exactly once.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Fast ones, those that kill most first; pytest runs them in this order.
TESTS = {
    "lorentz": (
        "test_reference",
        "test_functional",
        "test_attention",
        "test_properties_sets",
        "test_gradient_reference",
        "test_properties",
        "test_edges",
        "test_checked",
        "test_gradients",
    ),
    "regdiff": (
        "test_diffusion_losses",
        "test_gaussian",
        "test_guidance",
        "test_register_masks",
        "test_diffusion",
        "test_registers",
        "test_schedulers",
        "test_samplers",
    ),
}


class Mutant(NamedTuple):
    """One mistake: in which file, what it replaces, by what, and whose mistake it is."""

    file: str
    old: str
    new: str
    why: str


LORENTZ = (
    Mutant("_hyperboloid.py", "same_side = of.xy >= 0", "same_side = of.xy == of.xy", "one form of Q for all angles"),
    Mutant(
        "_hyperboloid.py",
        "wedge = torch.where(near, 1.0, xx), torch.where(near, xx * dd - xd.square(), dot(p, p))",
        "wedge = torch.ones_like(xx), xx * dd - xd.square()",
        "the Gram form of |x ^ y|^2 far out",
    ),
    Mutant(
        "_hyperboloid.py",
        "return vv / xx0 / c + torch.where(",
        "return vv / xx0 + torch.where(",
        "a curvature forgotten: right at c = 1 only",
    ),
    Mutant(
        "_series.py",
        "torch.where(positive, torch.sqrt(torch.where(positive, q, 1.0)), 0.0)",
        "torch.sqrt(q.clamp_min(0.0))",
        "a root with an infinite slope at 0",
    ),
    Mutant("_series.py", "_SINHC_LIMIT = 0.2", "_SINHC_LIMIT = 0.8", "a Taylor series used too far out, by a little"),
    Mutant("_series.py", "_ASINHC_LIMIT = 0.02", "_ASINHC_LIMIT = 0.08", "the same, in the other series"),
    Mutant(
        "maps.py",
        "0.5 * q * sinhc(0.25 * q).square()",
        "0.5 * q * sinhc(0.25 * q)",
        "cosh - 1 without its square: right to first order",
    ),
    Mutant("maps.py", "v = asinhc(0.25 * q)", "v = asinhc((0.25 * q).clamp_min(1e-8))", "a clamp in the logarithm"),
    Mutant("maps.py", "torch.where(of.near, direct, split)", "direct", "transport by differences far out"),
    Mutant("maps.py", "/ (2.0 + 0.5 * q) * (x + y)", "/ (2.0 + q) * (x + y)", "a factor 2 in transport"),
    Mutant(
        "_fused.py",
        "factor = hyp.range_factor(x)",
        "factor = torch.ones_like(x[..., :1])",
        "overflow of a square at radius 44 in float32",
    ),
    Mutant(
        "distances.py",
        "2.0 * torch.asinh(0.5 * safe_sqrt(q))",
        "torch.acosh(1.0 + 0.5 * torch.relu(q))",
        "the textbook acosh",
    ),
    Mutant(
        "_centroid.py",
        "return _over(weights, weights.sum(-1, keepdim=True))",
        "return weights",
        "tiny weights underflow",
    ),
    Mutant("_centroid.py", "torch.where(forward, stable, p0 - along)", "p0 - along", "s0 - |s| by subtraction far out"),
    Mutant(
        "_centroid.py",
        "squared = torch.where(squared < bound, bound, squared)",
        "squared = squared.abs()",
        "no lower bound on -c<s, s> when it cancels",
    ),
    Mutant("cones.py", "r = hyp.root(c) * hyp.length(x)", "r = hyp.length(x)", "an aperture right at c = 1 only"),
    Mutant("cones.py", "hyp.across_exact(x, of.e)", "hyp.across(x, of.e)", "angles on the line nearly 0, not 0"),
    Mutant("cones.py", "adjacent = hyp.root(c) * safe", "adjacent = safe", "an exterior angle right at c = 1 only"),
    Mutant("attention.py", "sharpness = 2.0 /", "sharpness = 1.0 /", "half of the squared Lorentz distance"),
    Mutant(
        "attention.py",
        "return space if alive is None else torch.where(alive, space, 0.0)",
        "return space",
        "a row without keys is the mean of all values",
    ),
    Mutant(
        "_fused.py",
        "obtuse = ((xx / both) * yy0 - xy) * c",
        "obtuse = ((xx / both) * yy0 - xy)",
        "Q beyond a right angle",
    ),
    Mutant(
        "_fused.py",
        "torch.addcmul(x, torch.where(s > 0, torch.tanh(s) / s, 1.0), v) * cosh",
        "torch.addcmul(cosh * x, sinhc, v)",
        "inf - inf in the exponential map",
    ),
    Mutant("_fused.py", "- length) / hyp.root(c)", "- 2.0 * length) / hyp.root(c)", "the gradient of a distance by c"),
    Mutant(
        "_fused.py",
        "_SINHC_SLOPE_LIMIT = 0.2",
        "_SINHC_SLOPE_LIMIT = 2.0",
        "a Taylor series of a gradient used too far out",
    ),
    Mutant(
        "_validation.py",
        'value.device.type == "cpu" and not torch',
        "False and not torch",
        "a curvature in a tensor is not read",
    ),
    Mutant(
        "points.py",
        "if _is_true(off.any()):\n            raise ValueError(_message(",
        "if _is_true(off.all()):\n            raise ValueError(_message(",
        "points are refused only where all are off",
    ),
    Mutant(
        "points.py",
        "except RuntimeError:\n        return False",
        "except KeyError:\n        return False",
        "values that cannot be read",
    ),
    Mutant("means.py", "for _ in range(2):", "for _ in range(1):", "a mean without its second derivatives"),
    Mutant("gyro.py", "torch.where(of.near, smooth, of.p - along * x)", "smooth", "a boost by differences far out"),
)
REGDIFF = (
    Mutant("losses.py", "(gamma / snr).clamp(max=1.0)", "(gamma / snr)", "min-SNR weights without their cap"),
    Mutant("losses.py", "capped / (snr + 1)", "capped / snr", "min-SNR weights of the velocity"),
    Mutant(
        "losses.py",
        "kept = mask.any(1) if values.ndim == 1 else mask",
        "kept = mask",
        "rows without a valid register in a mean",
    ),
    Mutant("losses.py", "logits.masked_fill(target == 0, 0)", "logits", "0 log 0 is not a number"),
    Mutant("schedule.py", "/ (1 + COSINE_OFFSET) *", "*", "the cosine schedule without its offset's scale"),
    Mutant(
        "schedule.py",
        "u = torch.arange(1, steps + 1,",
        "u = torch.arange(0, steps,",
        "a flow that never reaches pure noise",
    ),
    Mutant(
        "schedule.py", "round(stride * k) - 1", "round(stride * k - 1) if k > 1 else 0", "spacing that always ends at 0"
    ),
    Mutant(
        "forward.py",
        "return signal * noise - sigma * target",
        "return signal * noise + sigma * target",
        "the sign of the velocity",
    ),
    Mutant("forward.py", "return noise - target", "return target - noise", "the sign of the flow"),
    Mutant(
        "solver.py",
        "return torch.add(stage.signal * x, prediction, alpha=-stage.sigma)",
        "return torch.add(x, prediction, alpha=-stage.sigma)",
        "x_0 of a velocity without the signal",
    ),
    Mutant("solver.py", "F.hardtanh(clean, -limit, limit)", "clean", "estimates are not clipped"),
    Mutant(
        "solver.py",
        "terms = [(weight, value) for weight, value in terms if weight]",
        "terms = [(weight, value) for weight, value in terms if weight > 0]",
        "negative weights of a step",
    ),
    Mutant(
        "predictor.py",
        "null + self.scale * (given - null)",
        "given + self.scale * (given - null)",
        "guidance from the wrong end",
    ),
    Mutant(
        "predictor.py",
        '{"mask": torch.cat((mask, mask))}',
        '{"mask": torch.cat((mask, torch.ones_like(mask)))}',
        "the mask of the null half",
    ),
    Mutant(
        "gaussian.py",
        "(self.mean**2 + self.logvar.exp() - 1 - self.logvar)",
        "(self.mean**2 + self.logvar.exp() - self.logvar)",
        "a divergence that is not 0 at N(0, I)",
    ),
    Mutant(
        "gaussian.py",
        "return torch.exp(0.5 * self.logvar)",
        "return torch.exp(self.logvar)",
        "the variance for the deviation",
    ),
    Mutant(
        "gaussian.py", "ordered.masked_fill(padding.unsqueeze(-1), 0)", "ordered", "padding in a pooling: 0 times -inf"
    ),
    Mutant(
        "condition.py",
        "end = -(-(segment + 1) * count // num)",
        "end = (segment + 1) * count // num",
        "segments whose end is rounded down",
    ),
    Mutant("condition.py", "x = masked(x, mask)  # a weight of 0", "x = x  # a weight of 0", "a NaN in padding"),
)
MUTANTS = {"lorentz": LORENTZ, "regdiff": REGDIFF}
FIXTURES = {"lorentz": ("lorentz_reference.npz", "lorentz_gradients.npz"), "regdiff": ()}


def sources(package: str) -> Path:
    """Where the modules of a package are, from the root."""
    return Path("packages", package, "src", package)


def mutated(package: str, mutant: Mutant) -> str:
    """The text of the file with the mistake; ValueError where the place is gone."""
    text = (ROOT / sources(package) / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.file}: {mutant.old!r} is there {text.count(mutant.old)} times, expected once; mend MUTANTS"
        )
    text = text.replace(mutant.old, mutant.new)
    compile(text, mutant.file, "exec")
    return text


def copy_into(folder: Path, package: str) -> None:
    """What the tests of the package need, and nothing of the others."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "packages" / package, folder / "packages" / package, ignore=skip)
    shutil.copytree(ROOT / "tests" / package, folder / "tests" / package, ignore=skip)
    (folder / "tests" / "fixtures").mkdir()
    fixtures = [f"tests/fixtures/{name}" for name in FIXTURES[package]]
    for file in ("pyproject.toml", "conftest.py", *fixtures):
        shutil.copy(ROOT / file, folder / file)


class FirstFailure:
    """A plugin of pytest with the name of the first test that fails."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/")


def first_failure(package: str, texts: dict[str, str], tests: tuple[str, ...]) -> str | None:
    """The first test that fails where these files have these texts; None if all pass. Runs once in a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_into(folder, package)
        for file, text in texts.items():
            (folder / sources(package) / file).write_text(text)
        os.chdir(folder)
        os.environ.update(CI="1", PYTHONDONTWRITEBYTECODE="1")
        sys.path.insert(0, str(folder / sources(package).parent))
        first, files = FirstFailure(), [f"tests/{package}/{name}.py" for name in tests]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=short", *files], plugins=[first])
        where = Path(importlib.import_module(package).__file__ or "")
        os.chdir(ROOT)
        if not where.is_relative_to(folder):
            raise RuntimeError(f"the tests imported {where}, not the copy in {folder}")
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (code != 0) != (first.name is not None):
            raise RuntimeError(f"the tests did not run:\n{output.getvalue()[-3000:]}")
        return first.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=MUTANTS)
    parser.add_argument("--only", nargs="+", type=int, help="numbers of mutants; default: all")
    parser.add_argument("--tests", nargs="+", help="test files of the package, without .py")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    mutants, tests = MUTANTS[args.package], tuple(args.tests or TESTS[args.package])
    chosen = {i: mutants[i - 1] for i in args.only or range(1, len(mutants) + 1)}
    texts = {
        i: {mutant.file: mutated(args.package, mutant)} for i, mutant in chosen.items()
    }  # all of them, before anything runs
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(["diffusers", "geoopt", "hypothesis", "mpmath", "pytest", "torch"])
    survivors = 0
    with ProcessPoolExecutor(args.workers, mp_context=context, max_tasks_per_child=1) as pool:
        runs = {i: pool.submit(first_failure, args.package, texts[i], tests) for i in chosen}
        unchanged = pool.submit(first_failure, args.package, {}, tests)
        for i, mutant in chosen.items():
            killer = runs[i].result()
            survivors += killer is None
            verdict = "SURVIVED" if killer is None else f"killed by {killer}"
            print(f"{i:2d} {mutant.file:16s} {mutant.why:50s} {verdict}", flush=True)
        if (failed := unchanged.result()) is not None:
            raise RuntimeError(f"without any mutant {failed} fails, so nothing above counts: mend it first")
    print(f"{len(chosen) - survivors} of {len(chosen)} killed; without a mutant all pass")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
