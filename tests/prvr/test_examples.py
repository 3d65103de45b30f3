"""Every example runs as a reader would run it: in an empty folder, in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _arguments(example: Path, out: Path) -> list[str]:
    spec = importlib.util.spec_from_file_location("run_examples", ROOT / "scripts" / "run_examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.arguments(example, out)


def test_the_main_job_is_among_them() -> None:
    assert ROOT / "examples" / "train_prvr.py" in EXAMPLES
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    caches = tmp_path_factory.getbasetemp() / "examples-cache"  # the embedded corpus is made once
    environment = os.environ | {"MPLBACKEND": "Agg", "XDG_CACHE_HOME": str(caches), "LOCALAPPDATA": str(caches)}
    done = subprocess.run(
        [sys.executable, str(example), *_arguments(example, tmp_path / "out")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr
