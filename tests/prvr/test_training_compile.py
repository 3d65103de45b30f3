"""Compiled parts of a retriever. `make shapes` leaves this file out: its checks cannot be compiled."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from prvr.config import BlockConfig, ModelConfig, RegisterConfig
from prvr.models import Retriever
from prvr.training.retrieval import compile_blocks
from prvr.types import Batch

CONFIG = ModelConfig(
    video_dim=10,
    query_dim=6,
    hidden=16,
    heads=2,
    num_clips=4,
    max_frames=12,
    max_words=7,
    blocks=(BlockConfig(width=2.0),),
    registers=RegisterConfig(kind="diffusion", num=2, steps=2, sampling_steps=1),
    padded_rows="drop",
    branches="clips",
)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are counted from 0, and none is left to another test."""
    torch._dynamo.reset()
    monkeypatch.setitem(torch._dynamo.utils.counters["stats"], "unique_graphs", 0)
    yield
    torch._dynamo.reset()


def batch(lengths: list[int]) -> Batch:
    frames, count = torch.tensor(lengths), len(lengths)
    return Batch(
        clips=torch.randn(count, 4, 10),
        frames=torch.randn(count, max(lengths), 10),
        frame_mask=torch.arange(max(lengths)) < frames[:, None],
        words=torch.randn(count, 7, 6),
        word_mask=torch.arange(7) < (frames % 7 + 1)[:, None],
        query_to_video=torch.arange(count),
    )


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_compiled_blocks_give_the_same_numbers() -> None:
    retriever = Retriever(CONFIG).eval()
    batches, names = [batch([12, 5, 1]), batch([7, 2])], list(retriever.state_dict())
    expected = [retriever(each).scores.total for each in batches]
    assert compile_blocks(retriever, "eager") == 5  # words, clips, what registers are made of, denoiser and its chain
    found = [retriever(each).scores.total for each in batches]
    assert graphs() >= 2
    assert list(retriever.state_dict()) == names
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_fixed_lengths_need_a_graph_for_each_length_and_no_more() -> None:
    config = dataclasses.replace(CONFIG, padded_rows="fixed", branches="both")
    retriever, seen = Retriever(config).eval(), set[tuple[int, ...]]()
    epoch = [batch(lengths) for lengths in ([12, 5, 1], [7, 5, 2], [3, 1, 2], [11, 1, 1], [2, 2, 2], [1, 1, 3])]
    names, expected = list(retriever.state_dict()), [retriever(each).scores.total for each in epoch]
    assert compile_blocks(retriever, "eager") == 9
    assert retriever.frames is not None
    retriever.frames.register_forward_pre_hook(lambda module, inputs: seen.add(tuple(inputs[0].shape)))
    found = [retriever(each).scores.total for each in epoch]
    assert seen == {(3, 3, 16), (3, 12, 16)}
    # Text, clips (2), what registers are made of, and their chain; for each length frames (2) and scores.
    assert graphs() == 5 + 3 * len(seen)
    for each in epoch:
        retriever(each)
    assert graphs() == 5 + 3 * len(seen)
    assert list(retriever.state_dict()) == names
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
