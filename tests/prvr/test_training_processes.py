"""What is set for the process of a run."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from kills import START, become, free_ports

from prvr.errors import TrainingError
from prvr.training.processes import make_accelerator, process_count, wait_for_all


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
