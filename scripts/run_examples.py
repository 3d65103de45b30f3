"""Run every example as a reader would: no arguments, an empty working folder, small data.

Two run at a time; what they say is printed in order.
An example that needs arguments names them in a line of its docstring: `Quick: --train-steps 60 --out out`.
Notebooks are run from the first cell to the last; they are kept without outputs, which would hold times and paths.
Names of examples run only these: `run_examples.py quickstart`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # for a script, or a cell of a notebook


def arguments(example: Path) -> list[str]:
    """What stands after `Quick:` in the example's text."""
    line = re.search(r"^\s*Quick:\s*(.*)$", example.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return shlex.split(line.group(1)) if line else []


def run_script(example: Path, folder: Path, environment: dict[str, str]) -> str:
    """What a script says; SystemExit if it fails, says nothing or shows a traceback."""
    command = [sys.executable, str(example), *arguments(example)]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    said = f"== {shlex.join([example.name, *command[2:]])}\n{process.stdout}\n{process.stderr}"
    if process.returncode or not process.stdout.strip() or "Traceback" in process.stderr:
        raise SystemExit(f"{said}\n{example.name} failed ({process.returncode}), printed nothing, or a traceback")
    return said


def run_notebook(example: Path, folder: Path, environment: dict[str, str]) -> str:
    """What all cells say in a fresh kernel of this Python; the first that fails ends the run with its traceback."""
    notebook = nbformat.read(example, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if any(cell.outputs or cell.execution_count for cell in cells):
        raise SystemExit(f"{example.name} holds outputs. Clear all of them in Jupyter and save it again.")
    quiet = ["--log-level=ERROR"]  # kernels warn of their connection, which is local
    NotebookClient(notebook, timeout=SECONDS, extra_arguments=quiet).execute(cwd=str(folder), env=environment)
    outputs = [output for cell in cells for output in cell.outputs]
    texts = (output.text if output.output_type == "stream" else f"[{', '.join(output.data)}]" for output in outputs)
    return "\n".join([f"== {example.name}", *texts])


def main(names: list[str]) -> None:
    """Run all, or those that are named; stop at the first that fails."""
    runners = {".py": run_script, ".ipynb": run_notebook}
    examples = {path.stem: path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in runners}
    if unknown := set(names) - set(examples):
        raise SystemExit(f"no example {', '.join(sorted(unknown))}; there are {', '.join(examples)}")
    # Small work is slower on several threads, much slower where the cores are shared.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"MPLBACKEND": "Agg"}

    def run(name: str) -> str:
        example = examples[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return runners[example.suffix](example, Path(folder), environment)

    with ThreadPoolExecutor(2) as pool:
        for said in pool.map(run, names or examples):
            print(said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
