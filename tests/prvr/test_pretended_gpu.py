"""Every part on a pretended GPU: no tensor of the CPU is mixed in, nothing is read that need not be, equal numbers."""

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec, patch

import numpy as np
import pytest
import torch
from accelerator import DEVICE, Accelerator
from nightly import NIGHTLY
from retrievers import MeanPooling
from safetensors.torch import load_file
from search_files import some_videos, tiny_config
from test_models import make_batch
from test_models_presets import SYSTEMS, small_config
from torch import nn

from _counts import OnMeta, count_step
from _noise_store import noise_store
from prvr.config import LossConfig, ModelConfig, RegisterConfig, load_config
from prvr.data import PackedSplit, VideoLoader
from prvr.data.on_device import split_bytes
from prvr.encoders import open_encoder, open_featurizer
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.models import Retriever, build_retriever
from prvr.objective import Objective
from prvr.training import RetrievalTask, Splits, build_optimizer, reranker_run_config
from prvr.training.checkpoint import save_best
from prvr.training.gradients import backward_in_parts
from prvr.training.rerankers import RerankerTask
from prvr.training.task import TrainingStep
from prvr_search.trained import WindowEncoder

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


def numbers_of_steps(name: str, rows: str, device: torch.device, reads: Counter[str]) -> list[dict[str, float]]:
    """The loss terms of two steps; `reads` is then what the second one waited for."""
    config = small_config(name)
    changes: dict[str, Any] = {"dropout": 0.0}  # devices draw other numbers
    if isinstance(config.model, ModelConfig):
        changes |= {"input_dropout": 0.0, "padded_rows": rows}
    train = replace(config.train, cuda_graph="off")
    config = replace(config, model=replace(config.model, **changes), train=train)
    torch.manual_seed(0)
    retriever = build_retriever(config.model).train()
    objective = Objective(config.loss, config.model, retriever.registers).train()
    loader, split = (create_autospec(kind, instance=True) for kind in (VideoLoader, PackedSplit))
    task = RetrievalTask(config, On(device), retriever, objective, loader, split)
    step = TrainingStep(config, task, *task.optimizer(10), device)
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


def test_nor_do_the_chunks_of_a_step(gpu: Accelerator) -> None:
    config = small_config("hlformer-tvr")
    retriever = build_retriever(config.model).train().to(DEVICE)
    objective = Objective(config.loss, config.model, retriever.registers).train().to(DEVICE)
    batch = make_batch([12, 5, 1], dtype=torch.float32).to(DEVICE)
    for _ in range(2):
        gpu.reads.clear()
        backward_in_parts(retriever, objective, batch.padded(12, 7).split(2), batch.labels, seeds=[1, 2])
    assert not gpu.reads


def test_a_step_of_the_reranker_reads_nothing(split: PackedSplit, gpu: Accelerator) -> None:
    values = {
        "reranker": {"steps": 4, "candidates": 3},
        "candidates": {"num": 3, "pool": 4},
        "train": {"batch_size": 8},
    }
    config = reranker_run_config(values, width=8)
    retriever = MeanPooling(split.feature_dim, split.query_dim, 8)
    task = RerankerTask(config, On(DEVICE), retriever, Splits(split, split, split.subset(range(4))))
    networks = nn.ModuleList(task.networks.values())
    step = TrainingStep(config, task, *build_optimizer(config.optim, networks, nn.Module(), 10), DEVICE)
    counted = []
    for number, (rows, _) in enumerate(task.batches(0, 0)):
        gpu.reads.clear()
        step(rows, "", 0, number, None)
        counted.append(Counter(gpu.reads))
    assert counted[-1] == Counter()


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
    assert len(retriever.state_dict()) > 20
    assert gpu.reads == {"to the CPU": 2}  # the retriever, the objective
    for name in ("model.safetensors", "objective.safetensors"):
        there, here = (load_file(tmp_path / str(place) / name) for place in (DEVICE, "cpu"))
        assert there.keys() == here.keys()
        assert all(torch.equal(there[key], tensor) for key, tensor in here.items())


def test_what_a_search_encodes_is_that_of_the_cpu(gpu: Accelerator) -> None:
    torch.manual_seed(0)
    retriever, text = Retriever(tiny_config()), open_featurizer("toy")
    windows = [rows.astype(np.float32) for rows in some_videos([12, 5, 30]).values()]
    sentence = "a red square moves left"
    plain, pretended = (WindowEncoder(retriever, False, text, device) for device in ("cpu", DEVICE))
    expected, vector = plain.encode_windows(windows), plain.encode_text(sentence)
    gpu.reads.clear()
    for ours, theirs in zip(pretended.encode_windows(windows), expected, strict=True):
        np.testing.assert_allclose(ours.clips, theirs.clips, atol=1e-5)
        np.testing.assert_allclose(ours.frames, theirs.frames, atol=1e-5)
    assert gpu.reads["to the CPU"] == 3  # of a batch: clips, frames and their mask
    torch.testing.assert_close(pretended.encode_text(sentence).cpu(), vector, rtol=0, atol=1e-5)
    pictures = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    rows = [open_encoder("toy", device).encode(pictures) for device in ("cpu", DEVICE)]
    np.testing.assert_allclose(*rows, atol=1e-5)


def test_what_would_go_wrong_on_a_gpu_is_found(gpu: Accelerator) -> None:
    there, here = torch.ones(3).to(DEVICE), torch.ones(3)
    with pytest.raises(AssertionError, match="mixes tensors"):
        there + here
    with pytest.raises(AssertionError, match="generator of the other"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())
    gpu.reads.clear()
    for read in (there.sum().item, there.tolist, there.cpu, there.nonzero, lambda: bool(there[0])):
        before = gpu.reads.total()
        read()
        assert gpu.reads.total() > before
    gpu.reads.clear()
    there.to("cpu", non_blocking=True)
    here.pin_memory().to(DEVICE, non_blocking=True)
    assert not gpu.reads


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
    found, known = (work.calls, work.bytes / 1e6), COUNTED[preset]
    line = f'"{preset}": ({work.calls}, {work.bytes / 1e6:.1f})'
    for what, now, before in zip(("operators", "megabytes"), found, known, strict=True):
        assert now <= 1.05 * before, f"{what} of a step: {before} before, {now:.6g} now; if that must be, write {line}"
        if now < 0.95 * before:
            warnings.warn(f"{what} of a step: {before} before, {now:.6g} now; write {line} into COUNTED", stacklevel=1)
