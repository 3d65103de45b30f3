"""Padded rows that are not computed change nothing."""

import dataclasses
from typing import Any

import pytest
import torch
from test_models import SMALL, make_batch
from torch import Tensor

import prvr
from prvr.config import BlockConfig, Compat, LossConfig, ModelConfig, RegisterConfig
from prvr.models import Retriever
from prvr.objective import Objective

CORRECT = {
    "hybrid": {"registers": RegisterConfig(kind="diffusion", num=3, steps=4)},
    "gmmformer": {
        "layer": "attention",
        "depth": 2,
        "fusion": "mean",
        "frame_pooling": "attention",
        "blocks": (BlockConfig(), BlockConfig(width=2.0)),
    },
    "condition": {"registers": RegisterConfig(kind="condition", num=2), "fusion": "concat_linear"},
}
RELEASED: dict[str, Any] = {
    "window": "multiply",
    "compat": Compat("released", "to_length", "released", "released", "start"),
    "registers": RegisterConfig(kind="diffusion", num=2, steps=3, start="prior_mean"),
}
LOSS = LossConfig({"query_structure": 0.01, "entailment": 1e-3})


def both(changes: dict[str, Any], rows: str = "drop") -> tuple[Retriever, Retriever]:
    """The same weights, with padded rows computed, and with `rows`."""
    torch.manual_seed(0)
    config = ModelConfig(**(SMALL | changes), padded_rows="compute")
    exact = Retriever(config).double().eval()
    for key, parameter in exact.named_parameters():
        if "fusion" in key and key.endswith("weight"):
            torch.nn.init.normal_(parameter, std=0.5)  # as initialised, the fusion hardly looks at its guide
    fast = Retriever(dataclasses.replace(config, padded_rows=rows)).double().eval()
    fast.load_state_dict(exact.state_dict())
    return exact, fast


def gradients(retriever: Retriever, batch: prvr.Batch) -> dict[str, Tensor]:
    torch.manual_seed(1)
    objective = Objective(LOSS, retriever.config).double().eval()
    objective(retriever(batch), batch, generator=torch.Generator().manual_seed(0))["total"].backward()
    return {name: p.grad for name, p in retriever.named_parameters() if p.grad is not None}


def expect_equal(exact: Retriever, fast: Retriever, batch: prvr.Batch) -> None:
    """Scores, and gradients of all parameters."""
    torch.testing.assert_close(fast(batch).scores.total, exact(batch).scores.total, rtol=0, atol=1e-10)
    exact.zero_grad()
    fast.zero_grad()
    found, expected = gradients(fast, batch), gradients(exact, batch)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-8, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", list(CORRECT))
def test_dropping_padded_rows_changes_nothing(name: str) -> None:
    expect_equal(*both(CORRECT[name]), make_batch([7, 5, 1], pad_to=12))


@pytest.mark.parametrize("name", [*CORRECT, "released"])
def test_fixed_lengths_change_nothing(name: str) -> None:
    exact, fast = both((CORRECT | {"released": RELEASED})[name], "fixed")
    for seed, lengths in enumerate([[7, 5, 1, 2], [3, 1], [2, 2, 2], [12, 4, 1]]):
        batch = make_batch(lengths, seed)
        short = int(batch.word_mask.sum(1).max())
        some = torch.arange(1, 2 * len(lengths))  # captions whose number is no multiple of that of the videos
        texts = {"words": batch.words[some, :short], "word_mask": batch.word_mask[some, :short]}
        owners = {"query_to_video": batch.query_to_video[some], "teacher_frames": batch.teacher_frames[some]}
        expect_equal(exact, fast, dataclasses.replace(batch, **texts, **owners))


def test_fixed_lengths_are_a_quarter_a_half_or_all() -> None:
    config = ModelConfig(**SMALL, padded_rows="fixed")
    assert [config.padded_length(length, 12) for length in (1, 3, 4, 6, 7, 12)] == [3, 3, 6, 6, 12, 12]
    with pytest.raises(ValueError, match=r"padded_rows='drop' does not go with compat.padding='to_batch'"):
        ModelConfig(**(SMALL | {"compat": Compat(padding="to_batch"), "padded_rows": "drop"}))
