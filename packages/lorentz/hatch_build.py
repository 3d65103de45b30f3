"""Compile `lorentz/_extension.cpp` into a wheel where LORENTZ_BUILD_EXTENSION=1 asks for it; others are pure Python.

python packages/lorentz/hatch_build.py FILE.so    # for LORENTZ_EXTENSION=FILE.so
"""

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src" / "lorentz" / "_extension.cpp"
# Not -ffast-math: linked into a library it makes the whole process round small numbers to 0.
FLAGS = "-std=c++17 -O3 -fPIC -shared -pthread -fopenmp-simd -fno-math-errno -fno-trapping-math -Wno-psabi"
if platform.machine() == "x86_64":
    FLAGS += " -mavx2 -mfma"  # `lorentz._extension.library` asks torch whether the processor has them


def compile_extension(target: Path) -> None:
    """Write the library; raises what the compiler says."""
    command = [os.environ.get("CXX", "g++"), *FLAGS.split(), str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}")


class Extension(BuildHookInterface):
    """The hook of hatchling that adds the library to a wheel of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("LORENTZ_BUILD_EXTENSION") != "1":
            return
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name) / "_compiled.so"
        compile_extension(target)
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{tag}"}
        build_data["force_include"][str(target)] = "lorentz/_compiled.so"


if __name__ == "__main__":
    compile_extension(Path(sys.argv[1]))
