"""Run every example as a reader would: no arguments, an empty working folder, small data.

An example that needs arguments names them in a line of its docstring: `Quick: --preset gmmformer-tiny --out {out}`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def arguments(example: Path, out: Path) -> list[str]:
    """What stands after `Quick:` in the example's text, with {out} filled in."""
    line = re.search(r"^\s*Quick:\s*(.*)$", example.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return shlex.split(line.group(1).replace("{out}", out.as_posix())) if line else []


def main() -> None:
    """Run all; stop at the first that fails."""
    for example in sorted((ROOT / "examples").glob("*.py")):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            command = [sys.executable, str(example), *arguments(example, Path(folder) / "out")]
            print(f"== {example.name} {shlex.join(command[2:])}", flush=True)
            # Small work is slower on several threads, much slower where the cores are shared.
            environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"MPLBACKEND": "Agg"}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
            print(done.stdout, flush=True)
            print(done.stderr, file=sys.stderr, flush=True)
            if done.returncode or not done.stdout.strip() or "Traceback" in done.stderr:
                raise SystemExit(f"{example.name} failed ({done.returncode}), said nothing, or showed a traceback")


if __name__ == "__main__":
    main()
