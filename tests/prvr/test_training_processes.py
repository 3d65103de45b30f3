"""What is set for the process of a run."""

import platform

import pytest
import torch

from prvr.training.processes import kept_memory

resource = pytest.importorskip("resource", reason="page faults are counted by POSIX systems")


def page_faults() -> int:
    """Of filling 64 MB that were freed just before."""
    torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_freed_memory_is_used_again_inside_the_block_only() -> None:
    pages = 2**26 // resource.getpagesize()
    with kept_memory():
        assert page_faults() < pages / 100
    with kept_memory(on=False):
        assert page_faults() > pages / 2
