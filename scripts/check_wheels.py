"""Build wheels and source archives, and try each wheel: alone in an empty environment, the first example of its README.

Usage: python scripts/check_wheels.py [lorentz regdiff prvr prvr-search]

`twine check` reads all archives. "Alone" means: lorentz-nn and regdiff without the other packages, prvr with the
wheels of both, prvr-search with all three: lorentz-nn, prvr and prvr-search share an environment, each added to what
the one before needs, which it needs itself. prvr also trains, and converts and evaluates a released checkpoint.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import release
from release import DISTRIBUTIONS, ROOT

DIST = ROOT / "dist"
COMPILED = os.environ.get("LORENTZ_BUILD_EXTENSION") == "1"
MUST_HOLD = {
    "lorentz": ["lorentz/_compiled.so"] if COMPILED else [],
    "regdiff": [],
    "prvr": [
        "prvr/config/presets/",
        "prvr/config/presets/rerankers/",
        "prvr/papers/tables/",
        "prvr/papers/sets.yaml",
        "prvr/models/shipped/toy-world/model.safetensors",
        "prvr/toy/encoder.safetensors",
    ],
    "prvr-search": ["prvr_search/serve/web/index.html"],
}

NEEDS = {
    "lorentz": ["lorentz"],
    "regdiff": ["regdiff"],
    "prvr": ["lorentz", "regdiff", "prvr"],
    "prvr-search": ["lorentz", "regdiff", "prvr", "prvr-search"],
}
"""What is installed to try a package: its siblings as files, because their names on an index are not ours."""

CHAINS = [["lorentz", "prvr", "prvr-search"], ["regdiff"]]
"""What is installed one after the other into one environment."""

ABSENT = {name: ["av", "fastapi", "transformers"] for name in NEEDS} | {"prvr-search": ["fastapi"]}
"""What is in an extra, or for prvr-search alone."""

RELEASED = """
import torch
from prvr import Retriever
from prvr.published import tensors

torch.save({"state_dict": tensors(Retriever.from_pretrained("run/best"))}, "best.ckpt")  # by the authors' names
"""
TOY = "--preset gmmformer-toy --data.collection toy-tiny --model.max_frames 128"  # as their checkpoints for TVR
TRAIN = f"train {TOY} --train.epochs 1 --fit.baseline never --output run"
CONVERT = "convert checkpoint best.ckpt --dataset tvr --output released"
EVALUATE = "evaluate released --collection toy-tiny --fit.baseline never --output released/evaluation.json"


def run(command: list[str | Path], *, cwd: Path = ROOT) -> str:
    """Run a command; on failure print its output and stop."""
    process = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"},
    )
    if process.returncode:
        raise SystemExit(f"failed ({process.returncode}): {' '.join(map(str, command))}\n{process.stdout}")
    return process.stdout


def build(package: str) -> Path:
    """The wheel of one package, checked for its contents; the source archive is in the same folder."""
    built = release.build(package, DIST)
    release.check(built)
    (wheel,) = (path for path in built if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    module = package.replace("-", "_")
    for needed in [f"{module}/__init__.py", f"{module}/py.typed", "licenses/LICENSE", *MUST_HOLD[package]]:
        if not any(needed in name for name in names):
            raise SystemExit(f"{wheel.name}: {needed} is missing")
    unexpected = {name.split("/")[0] for name in names if ".dist-info/" not in name} - {module}
    if unexpected:
        raise SystemExit(f"{wheel.name}: holds unexpected packages: {sorted(unexpected)}")
    return wheel


def readme_example(package: str) -> str:
    """The first python block of the package's README."""
    readme = ROOT / "packages" / package / "README.md"
    block = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    if block is None:
        raise SystemExit(f"{readme}: no ```python block to run")
    return block.group(1)


def try_chain(packages: list[str], wheels: dict[str, Path]) -> str:
    """Install packages one after the other in an empty environment, outside the repository, and try each."""
    folder = Path(tempfile.mkdtemp(prefix="wheels-"))
    try:
        venv.create(folder / "env", with_pip=False)
        return "".join(try_alone(package, [wheels[name] for name in NEEDS[package]], folder) for package in packages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_alone(package: str, wheels: list[Path], folder: Path) -> str:
    """Install one package in the environment of the folder and run its README example."""
    started = time.monotonic()
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # this environment's pip installs into the other one: nothing is upgraded first
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", *wheels])
    example = folder / "example.py"
    example.write_text(readme_example(package), encoding="utf-8", newline="\n")
    printed = run([python, "-I", example], cwd=folder)
    others = [name.replace("-", "_") for name in DISTRIBUTIONS if name not in NEEDS[package]] + ABSENT[package]
    probe = f"import importlib.util as u; print([n for n in {others!r} if u.find_spec(n)])"
    present = run([python, "-I", "-c", probe], cwd=folder).strip()
    if present != "[]":
        raise SystemExit(f"{package}: its environment also holds {present}")
    if package == "lorentz":
        probe = "from lorentz._extension import library; print('compiled' if library() else 'pure')"
        found = run([python, "-I", "-c", probe], cwd=folder).strip()
        if found != ("compiled" if COMPILED else "pure"):
            raise SystemExit(f"{wheels[0].name}: its operations are {found}")
    if package == "prvr":
        printed += released_as_trained(python, folder)
    return f"{package}: installed alone, README example ran in {time.monotonic() - started:.0f} s\n{printed}"


def released_as_trained(python: Path, folder: Path) -> str:
    """Train, write what was trained as the authors would, convert and evaluate that: the ranks are the same."""
    prvr = python.with_name(f"prvr{python.suffix}")
    run([prvr, *TRAIN.split()], cwd=folder)
    run([python, "-I", "-c", RELEASED], cwd=folder)
    run([prvr, *CONVERT.split()], cwd=folder)
    run([prvr, *EVALUATE.split()], cwd=folder)
    trained, converted = (json.loads((folder / name / "evaluation.json").read_bytes()) for name in ("run", "released"))
    if trained["ranks"] != converted["ranks"]:
        raise SystemExit(f"{folder}: a converted checkpoint ranks otherwise than the run that it was made of")
    return f"a released checkpoint ranks as the run that it was made of: {converted['text_to_video']}\n"


def main(packages: list[str]) -> None:
    """Build all, then try the named ones, two environments at a time."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = {package: build(package) for package in DISTRIBUTIONS}
    chains = [[package for package in chain if package in packages] for chain in CHAINS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for report in pool.map(lambda chain: try_chain(chain, built), chains):
            print(report.rstrip())


if __name__ == "__main__":
    main(sys.argv[1:] or list(DISTRIBUTIONS))
