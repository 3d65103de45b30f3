"""Would the tests notice? Twenty small mistakes, each put into a copy of lorentz on which its tests are run.

    python scripts/lorentz_mutants.py [--only N ...] [--tests FILE ...]

A mutant is killed when a test fails, and the first that fails is printed. The working tree is only read. Ends with 1
where more than two survive, and with an error where the text a mutant replaces is no longer there exactly once.
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
SOURCES = Path("packages/lorentz/src/lorentz")
# Fast ones, those that kill most first; pytest runs them in this order.
TESTS = (
    "test_reference",
    "test_functional",
    "test_attention",
    "test_properties_sets",
    "test_gradient_reference",
    "test_gradients",
    "test_properties",
    "test_edges",
)
ALLOWED = 2


class Mutant(NamedTuple):
    """One mistake: in which file, what it replaces, by what, and whose mistake it is."""

    file: str
    old: str
    new: str
    why: str


MUTANTS = (
    Mutant("_hyperboloid.py", "same_side = of.xy >= 0", "same_side = of.xy == of.xy", "one form of Q for all angles"),
    Mutant(
        "_hyperboloid.py",
        "wedge = torch.where(near, xx * dd - xd.square(), xx * dot(p, p))",
        "wedge = xx * dd - xd.square()",
        "the Gram form of |x ^ y|^2 far out",
    ),
    Mutant(
        "_hyperboloid.py",
        "return (dot(v, v) / c + wedge_squared(x, v, c))",
        "return (dot(v, v) + wedge_squared(x, v, c))",
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
        "maps.py",
        "asinhc(hyp.scaled(hyp.shrunk_square(x), c), hyp.SHRINK)",
        "asinhc(c * hyp.dot(x, x))",
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
        "return safe_divide(weights, weights.sum(-1, keepdim=True).detach())",
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
    Mutant("cones.py", "r = hyp.root(c) * safe_sqrt(", "r = safe_sqrt(", "an aperture right at c = 1 only"),
    Mutant("cones.py", "hyp.across_exact(x, of.e)", "hyp.across(x, of.e)", "angles on the line nearly 0, not 0"),
    Mutant("cones.py", "adjacent = hyp.root(c) * safe", "adjacent = safe", "an exterior angle right at c = 1 only"),
    Mutant("attention.py", "temperature = 2.0 /", "temperature = 1.0 /", "half of the squared Lorentz distance"),
    Mutant(
        "attention.py",
        "return space if alive is None else torch.where(alive, space, 0.0)",
        "return space",
        "a row without keys is the mean of all values",
    ),
)


def mutated(mutant: Mutant) -> str:
    """The text of the file with the mistake; ValueError where the place is gone."""
    text = (ROOT / SOURCES / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.file}: {mutant.old!r} is there {text.count(mutant.old)} times, expected once; mend MUTANTS"
        )
    text = text.replace(mutant.old, mutant.new)
    compile(text, mutant.file, "exec")
    return text


def copy_into(folder: Path) -> None:
    """What the tests of lorentz need, and nothing of prvr."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "packages" / "lorentz", folder / "packages" / "lorentz", ignore=skip)
    shutil.copytree(ROOT / "tests" / "lorentz", folder / "tests" / "lorentz", ignore=skip)
    (folder / "tests" / "fixtures").mkdir()
    fixtures = [f"tests/fixtures/lorentz_{name}.npz" for name in ("reference", "gradients")]
    for file in ("pyproject.toml", "conftest.py", *fixtures):
        shutil.copy(ROOT / file, folder / file)


class FirstFailure:
    """A plugin of pytest that keeps the name of the first test that fails."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/lorentz/")


def first_failure(texts: dict[str, str], tests: tuple[str, ...]) -> str | None:
    """The first test that fails where these files have these texts; None if all pass. Runs once in a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_into(folder)
        for file, text in texts.items():
            (folder / SOURCES / file).write_text(text)
        os.chdir(folder)
        os.environ.update(CI="1", PYTHONDONTWRITEBYTECODE="1")
        sys.path.insert(0, str(folder / SOURCES.parent))
        first, files = FirstFailure(), [f"tests/lorentz/{name}.py" for name in tests]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=short", *files], plugins=[first])
        where = Path(importlib.import_module("lorentz").__file__ or "")
        os.chdir(ROOT)
        if not where.is_relative_to(folder):
            raise RuntimeError(f"the tests imported {where}, not the copy in {folder}")
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (code != 0) != (first.name is not None):
            raise RuntimeError(f"the tests did not run:\n{output.getvalue()[-3000:]}")
        return first.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", type=int, help="numbers of mutants; default: all")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="test files of tests/lorentz, without .py")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    chosen = {i: MUTANTS[i - 1] for i in args.only or range(1, len(MUTANTS) + 1)}
    texts = {i: {mutant.file: mutated(mutant)} for i, mutant in chosen.items()}  # all of them, before anything runs
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(["geoopt", "hypothesis", "mpmath", "pytest", "torch"])  # not lorentz
    survivors = 0
    with ProcessPoolExecutor(args.workers, mp_context=context, max_tasks_per_child=1) as pool:
        runs = {i: pool.submit(first_failure, texts[i], tuple(args.tests)) for i in chosen}
        unchanged = pool.submit(first_failure, {}, tuple(args.tests))
        for i, mutant in chosen.items():
            killer = runs[i].result()
            survivors += killer is None
            verdict = "SURVIVED" if killer is None else f"killed by {killer}"
            print(f"{i:2d} {mutant.file:16s} {mutant.why:50s} {verdict}", flush=True)
        if (failed := unchanged.result()) is not None:
            raise RuntimeError(f"without any mutant {failed} fails, so nothing above counts: mend it first")
    print(f"{len(chosen) - survivors} of {len(chosen)} killed; without a mutant all pass")
    sys.exit(survivors > ALLOWED)


if __name__ == "__main__":
    main()
