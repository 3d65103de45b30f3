"""Every published system, built small from its preset: what padding holds, and derivatives of every order."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import crossed
from test_models import SIZES, make_batch
from torch import Tensor

import prvr
from prvr.config import Config, config_to_dict, validated
from prvr.models import AnyRetriever, build_retriever, load_pretrained
from prvr.objective import Objective

SYSTEMS = ["diffusionret-msrvtt", *(n for n in prvr.preset_names() if n.endswith("-tvr") and n != "kernel-tvr")]


def small_config(name: str) -> Config:
    values = config_to_dict(prvr.load_config(name))
    model = values["model"]
    model |= {key: size for key, size in SIZES.items() if key in model}
    if "registers" in model:
        model["registers"] |= {"steps": 3, "num": 2}
    else:
        model |= {"frame_projection": "linear", "depth": 1}
    values["train"]["teacher"], values["loss"]["distillation"] = None, 0.0
    return validated(Config, values)


def system(name: str) -> tuple[AnyRetriever, Objective]:
    torch.manual_seed(0)
    config = small_config(name)
    retriever = build_retriever(config.model).double().eval()
    with torch.no_grad():
        for parameter in retriever.parameters():  # as initialised, parts hardly see each other, and ReLUs stand at 0
            parameter += 0.2 * torch.randn_like(parameter)
    return retriever, Objective(config.loss, config.model, retriever.registers).double().eval()


def padded_with(value: float) -> prvr.Batch:
    batch = make_batch([9, 3, 1], pad_to=11)
    frames = batch.frames.masked_fill(~batch.frame_mask[..., None], value)
    words = batch.words.masked_fill(~batch.word_mask[..., None], value)
    return dataclasses.replace(batch, frames=frames.requires_grad_(), words=words.requires_grad_())


def results(name: str, batch: prvr.Batch) -> dict[str, Tensor]:
    """Scores, loss terms and the gradients of the total, of the inputs included."""
    retriever, objective = system(name)
    output = retriever(batch)
    terms = objective(output, batch, generator=torch.Generator().manual_seed(1))
    terms["total"].backward()
    gradients = {key: p.grad for key, p in retriever.named_parameters() if p.grad is not None}
    inputs = {"frames": batch.frames.grad, "words": batch.words.grad}
    assert all(gradient is not None for gradient in inputs.values())
    return {"scores": output.scores.total, **terms, **gradients, **inputs}  # type: ignore[dict-item]


@pytest.mark.parametrize(("name", "value"), crossed(3, SYSTEMS, [float("nan"), float("inf"), -1e30]))
def test_what_padding_holds_changes_nothing(name: str, value: float) -> None:
    expected = results(name, padded_with(0.0))
    for key, tensor in results(name, padded_with(value)).items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("name", SYSTEMS)
def test_saved_and_loaded_models_agree(name: str, tmp_path: Path) -> None:
    retriever, batch = system(name)[0].float(), make_batch([9, 3], dtype=torch.float32)
    retriever.save_pretrained(tmp_path)
    loaded = load_pretrained(tmp_path).eval()
    assert (type(loaded), loaded.config) == (type(retriever), retriever.config)
    assert torch.equal(loaded(batch).scores.total, retriever(batch).scores.total)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("hybrid-tvr", {"words": torch.zeros(4, 8, 6)}, "got 8 words, this model takes at most 7"),
        ("diffusionret-msrvtt", {"words": torch.zeros(4, 7, 5)}, r"words have 5 features.*built for 6.*query_dim=5"),
        ("hybrid-tvr", {"clips": torch.zeros(2, 5, 10)}, "5 clips, this model takes exactly 4"),
    ],
)
def test_input_of_another_size_is_refused(name: str, change: dict[str, Tensor], message: str) -> None:
    masks = {"words": "word_mask", "frames": "frame_mask"}
    changes: dict[str, Any] = {"teacher_frames": None} | change
    for key in masks.keys() & change.keys():
        changes[masks[key]] = torch.ones(change[key].shape[:2], dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        system(name)[0].float()(dataclasses.replace(make_batch([4, 5], dtype=torch.float32), **changes))
