"""Every part on a pretended GPU: no tensor of the CPU is mixed in, nothing is read that need not be, equal numbers."""

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec, patch

import pytest
import torch
from accelerator import DEVICE, Accelerator
from nightly import NIGHTLY
from safetensors.torch import load_file
from search_files import tiny_config
from test_models import make_batch
from test_models_presets import SYSTEMS, small_config
from training_runs import same

from _counts import OnMeta, count_step
from _noise_store import noise_store
from prvr.config import Config, LossConfig, ModelConfig, RegisterConfig, load_config
from prvr.data import PackedSplit, VideoLoader
from prvr.data.on_device import split_bytes
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.models import Retriever, build_retriever
from prvr.objective import Objective
from prvr.training import RetrievalTask
from prvr.training.checkpoint import save_best
from prvr.training.task import TrainingStep

MATCHED = Counter({"to the CPU": 1, "to the accelerator": 1})
"""The assignment of queries to clips is found on the host."""
MODEL = tiny_config(video_dim=24, query_dim=12, registers=RegisterConfig(kind="diffusion", num=2, steps=3))
STEPS = [
    *((name, "compute") for name in SYSTEMS),
    *((f"{name}-tvr", rows) for name in ("hybrid", "hlformer") for rows in ("drop", "fixed")),
]


class On(OnMeta):
    """An accelerator of a device that is given."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    device = property(lambda self: self._device)
    process_index = property(lambda self: 0)


@pytest.fixture
def gpu() -> Iterator[Accelerator]:
    with Accelerator() as gpu:
        yield gpu


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedSplit]:
    """Eight videos of noise with two captions each."""
    folder = tmp_path_factory.mktemp("noise") / "store"
    with noise_store(folder, MODEL, videos=8, captions=2, frames=12.0, dtype="float32") as split:
        yield split


def training_step(config: Config, device: torch.device, dtype: torch.dtype = torch.float32) -> TrainingStep:
    torch.manual_seed(0)
    retriever = build_retriever(config.model).to(dtype).train()
    objective = Objective(config.loss, config.model, retriever.registers).to(dtype).train()
    loader, split = (create_autospec(kind, instance=True) for kind in (VideoLoader, PackedSplit))
    task = RetrievalTask(config, On(device), retriever, objective, loader, split)
    return TrainingStep(config, task, *task.optimizer(50), device)


def numbers_of_steps(name: str, rows: str, device: torch.device, reads: Counter[str]) -> list[dict[str, float]]:
    """The loss terms of two steps; `reads` is then what the second one waited for."""
    config = small_config(name)
    changes: dict[str, Any] = {"dropout": 0.0}  # devices draw other numbers
    if isinstance(config.model, ModelConfig):
        changes |= {"input_dropout": 0.0, "padded_rows": rows}
    train = replace(config.train, cuda_graph="off")
    config = replace(config, model=replace(config.model, **changes), train=train)
    step = training_step(config, device)
    batch = make_batch([12, 5, 1], dtype=torch.float32).to(device)
    generator = torch.Generator(device)
    steps = []
    for number in range(2):
        torch.manual_seed(number)
        generator.manual_seed(number)
        reads.clear()
        steps.append(step((batch, None), "", 30 * (number > 0), number, generator))
    counted = Counter(reads)
    values = [numbers.values for numbers in steps]
    reads.clear()
    reads.update(counted)
    return values


@pytest.mark.parametrize(("name", "rows"), STEPS)
def test_a_step_of_every_system_reads_nothing_and_has_the_numbers_of_the_cpu(name: str, rows: str) -> None:
    plain = numbers_of_steps(name, rows, torch.device("cpu"), Counter())
    with Accelerator() as gpu:
        steps = numbers_of_steps(name, rows, DEVICE, gpu.reads)
        assert gpu.reads == (MATCHED if small_config(name).loss.weight("matching") else Counter())
    for ours, theirs in zip(steps, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


OTHERWISE = ["dreamprvr-tvr", "hlformer-tvr", "gmmformer-v2-tvr", "best-tvr"]


@pytest.mark.parametrize("name", OTHERWISE)
def test_parts_that_compute_otherwise_on_a_gpu_have_the_gradients_of_the_cpu(name: str) -> None:
    """Feed-forward layers, layer norms, heads and fusions add gradients in place there."""
    model = small_config(name).model
    model = replace(model, dropout=0.0, input_dropout=0.0, padded_rows="fixed")
    found = []
    for device in (torch.device("cpu"), DEVICE):
        with Accelerator():
            torch.manual_seed(0)
            retriever = build_retriever(model).double().to(device).train()
            torch.manual_seed(0)
            scores = retriever(make_batch([12, 5, 1], dtype=torch.float64).to(device)).scores
            (scores.clips.square().sum() + scores.frames.square().sum()).backward()
            gradients = {name: p.grad.cpu() for name, p in retriever.named_parameters() if p.grad is not None}
            found.append({"scores": scores.total.detach().cpu()} | gradients)
    assert len(found[0]) > 20
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", OTHERWISE)
def test_in_bf16_they_are_as_near_to_float32_as_on_the_cpu(name: str) -> None:
    """Their code runs on the CPU, whose autocast is torch's own."""
    config = small_config(name)
    model = replace(config.model, dropout=0.0, input_dropout=0.0)

    def gradient(is_cpu: bool, is_mixed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        retriever = build_retriever(model).train()
        objective = Objective(config.loss, model, retriever.registers)
        batch = make_batch([12, 5, 1], dtype=torch.float32)
        with patch.object(torch.Tensor, "is_cpu", is_cpu), torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            objective(retriever(batch), batch, negatives="hard")["total"].backward()
        return torch.cat([p.grad.flatten() for p in retriever.parameters() if p.grad is not None])

    exact = gradient(True, False)
    there, here = ((gradient(is_cpu, True) - exact).norm() for is_cpu in (False, True))
    assert 0 < there <= 1.3 * here
    assert (gradient(False, False) - exact).norm() <= 1e-5 * exact.norm()


def test_evaluation_has_the_numbers_of_the_cpu_and_a_split_is_sent_in_few_copies(
    split: PackedSplit, gpu: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    retriever = Retriever(MODEL)
    config = EvaluationConfig(bootstrap=0)
    plain = evaluate(retriever, split, config, device="cpu")
    report = evaluate(retriever, split, config, device=DEVICE)
    assert report.text_to_video == plain.text_to_video
    assert report.video_to_text == plain.video_to_text
    assert gpu.reads["to the CPU"] > 0
    monkeypatch.setattr("prvr.data.on_device.BLOCK", split_bytes(split) // 6)  # two blocks or three of each kind
    gpu.reads.clear()
    resident = VideoLoader(split, 3).to(DEVICE, resident=True)
    assert not gpu.reads
    for there, here in zip(resident, VideoLoader(split, 3), strict=True):
        for name in ("clips", "frames", "words"):
            torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name), rtol=0, atol=0)


def test_the_best_model_is_saved_with_one_copy(gpu: Accelerator, tmp_path: Path) -> None:
    retriever, objective = Retriever(MODEL), Objective(LossConfig({"query_structure": 0.01, "entailment": 1e-3}), MODEL)
    for place in ("cpu", DEVICE):
        retriever, objective = retriever.to(place), objective.to(place)
        gpu.reads.clear()
        save_best(tmp_path / str(place), retriever, objective, "card")
    assert gpu.reads == {"to the CPU": 2}  # the retriever, the objective
    for name in ("model.safetensors", "objective.safetensors"):
        there, here = (load_file(tmp_path / str(place) / name) for place in (DEVICE, "cpu"))
        assert same(there, here)


#: Operators that compute, and megabytes that they read and write, of a step with 8 videos and 40 queries.


SIZES = {"hidden": 64, "video_dim": 96, "query_dim": 64, "lorentz_dim": 63}

#: Operators that compute, and megabytes that they read and write, of a step with 8 videos and 40 queries.
COUNTED = {
    "gmmformer-tvr": (759, 414.3),
    "hlformer-tvr": (1860, 1255.7),
    "dreamprvr-tvr": (2448, 1004.1),
    "hybrid-tvr": (3857, 1074.1),
}


@pytest.mark.skipif(torch.__version__ < "2.13" or torch.__version__ >= "2.14", reason="counted with torch 2.13")
@pytest.mark.parametrize("preset", [name for name in COUNTED if NIGHTLY or name != "dreamprvr-tvr"])
def test_operators_and_bytes_of_a_step(preset: str) -> None:
    work = count_step(
        load_config(preset, {f"model.{name}": size for name, size in SIZES.items()}, shared=True), videos=8
    ).total()
    counts = (work.calls, work.bytes / 1e6)
    line = f'"{preset}": ({work.calls}, {work.bytes / 1e6:.1f})'
    for what, now, before in zip(("operators", "megabytes"), counts, COUNTED[preset], strict=True):
        assert now <= 1.05 * before, f"{what} of a step: {before} before, {now:.6g} now; if that must be, write {line}"
        if now < 0.95 * before:
            warnings.warn(f"{what} of a step: {before} before, {now:.6g} now; write {line} into COUNTED", stacklevel=1)
