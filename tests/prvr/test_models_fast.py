"""Padded rows that are not computed change nothing."""

import dataclasses
from typing import Any

import pytest
import torch
from test_models import CORRECT, SMALL, make_batch
from torch import Tensor

import prvr
from prvr.config import BlockConfig, Compat, LossConfig, ModelConfig, RegisterConfig
from prvr.models import Retriever
from prvr.models.layers import Positions
from prvr.models.rows import Sequences
from prvr.objective import Objective

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


@pytest.mark.parametrize("space", ["euclidean", "lorentz"])
def test_released_parts_differ_in_the_guide_alone(space: Any) -> None:
    """Blocks give the same rows; the mean that guides the fusion is over a video's own frames."""
    exact, fast = both(RELEASED | {"blocks": (BlockConfig(space), BlockConfig(space, 2.0))})
    batch, registers = make_batch([9, 3, 1]), torch.randn(3, 2, 16, dtype=torch.float64)
    frames, mask, _ = exact.pad_frames(batch.frames, batch.frame_mask, exact.config.max_frames)
    rows = []
    for retriever, sequences in ((exact, Sequences.padded(mask)), (fast, Sequences.packed(mask))):
        branch: Any = retriever.frames
        rows.append(branch.layers[0].blocks(branch.embed(frames, sequences), sequences, registers)[:, mask])
    torch.testing.assert_close(*rows, rtol=0, atol=1e-10)
    slow, quick = exact(batch).scores, fast(batch).scores
    assert not torch.allclose(slow.frames, quick.frames)
    torch.testing.assert_close(quick.clips, slow.clips, rtol=0, atol=1e-10)


def test_gradients_of_packed_rows_do_not_depend_on_the_order_of_threads() -> None:
    """Many rows share a position: their gradients are added in one order, however many threads add them."""
    torch.manual_seed(0)
    positions, before = Positions(30, 96, 0.0), torch.get_num_threads()
    sequences = Sequences.packed(torch.rand(256, 30) < 0.5)
    x = sequences.pack(torch.randn(256, 30, 96))
    torch.set_num_threads(4)
    try:
        found = []
        for _ in range(5):
            positions.zero_grad()
            positions(x, sequences).pow(3).sum().backward()
            assert positions.table.grad is not None
            found.append(positions.table.grad.clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)
