"""What is set for the process of a run."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from prvr.training.processes import kept_memory

def share_of_new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**24)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (20 * 2**26)

for on in (False, True):
    with kept_memory(on):
        print(share_of_new_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_memory_that_was_freed_is_used_again() -> None:
    """Of 20 times 64 MB, each freed before the next, how much the system has to give: in a process of its own."""
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    without, kept = map(float, output.split())
    assert without > 0.9
    assert kept < 0.5
