"""Compiled stacks of blocks. `make shapes` leaves this file out: its checks cannot be compiled."""

import pytest
import torch

from prvr.config import BlockConfig, ModelConfig, RegisterConfig
from prvr.models import Retriever
from prvr.training.retrieval import compile_blocks
from prvr.types import Batch


def batch(lengths: list[int]) -> Batch:
    frames, count = torch.tensor(lengths), len(lengths)
    return Batch(
        clips=torch.randn(count, 4, 10),
        frames=torch.randn(count, 12, 10),
        frame_mask=torch.arange(12) < frames[:, None],
        words=torch.randn(count, 7, 6),
        word_mask=torch.arange(7) < (frames % 7 + 1)[:, None],
        query_to_video=torch.arange(count),
    )


def test_compiled_blocks_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setitem(torch._dynamo.utils.counters["stats"], "unique_graphs", 0)
    sizes = {"video_dim": 10, "query_dim": 6, "hidden": 16, "heads": 2, "num_clips": 4, "max_frames": 12}
    blocks, registers = (BlockConfig(width=2.0),), RegisterConfig(kind="diffusion", num=2, steps=1)
    config = ModelConfig(**sizes, max_words=7, blocks=blocks, registers=registers, padded_rows="drop", branches="clips")
    retriever = Retriever(config).eval()
    batches, names = [batch([12, 5, 1]), batch([7, 2])], list(retriever.state_dict())
    expected = [retriever(each).scores.total for each in batches]
    assert compile_blocks(retriever, "eager") == 4  # words, clips, what registers are made of, their denoiser
    found = [retriever(each).scores.total for each in batches]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2
    assert list(retriever.state_dict()) == names
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch._dynamo.reset()
