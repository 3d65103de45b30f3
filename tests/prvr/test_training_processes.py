"""What is set for the process of a run."""

import platform

import pytest
import torch

from prvr.training.processes import kept_memory

resource = pytest.importorskip("resource", reason="page faults are counted by POSIX systems")


def share_of_new_pages() -> float:
    """Of 20 times 64 MB, each freed before the next, how much the system had to give anew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**24)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return faults * resource.getpagesize() / (20 * 2**26)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_freed_memory_is_used_again_inside_the_block_only() -> None:
    with kept_memory():
        assert share_of_new_pages() < 0.5
    with kept_memory(on=False):
        assert share_of_new_pages() > 0.9
