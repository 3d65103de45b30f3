"""What is set for the process of a run."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from kills import START, become, free_ports

from prvr.errors import TrainingError
from prvr.training.processes import make_accelerator, process_count, wait_for_all

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


def test_each_process_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(TrainingError, match="2 processes on 1 GPU: each needs its own"),
        make_accelerator("no", tmp_path, None, ()),
    ):
        pass


def _wait(rank: int, folder: str, port: str) -> None:
    """Where PyTorch sees a GPU."""
    become(rank, port)
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
    torch._C._get_accelerator = lambda: torch.device("cuda")
    with make_accelerator("no", Path(folder), "cpu", ()) as accelerator:
        wait_for_all()
        Path(folder, f"seen-{rank}").write_text(f"{accelerator.device.type} {process_count()}")


def test_processes_on_the_cpu_beside_a_gpu_wait_for_each_other(tmp_path: Path) -> None:
    mp.start_processes(_wait, (str(tmp_path), *free_ports(1)), nprocs=2, start_method=START)
    assert [path.read_text() for path in tmp_path.glob("seen-*")] == ["cpu 2"] * 2
