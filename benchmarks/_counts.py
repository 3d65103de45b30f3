"""A training step on the meta device: what a GPU is asked to do, counted where there is none.

Nothing is computed, so a step at paper size takes seconds. The operators are those of a GPU, not those of a CPU:
dropout is one operator, and so is attention, and a whole GRU, forwards and again backwards (cuDNN starts some more
kernels inside). An optimiser that torch fuses on a GPU is counted with its `_foreach` operators.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast
from unittest.mock import create_autospec, patch

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from _device import Traffic
from prvr.config import Config, ModelConfig
from prvr.data import PackedSplit, VideoLoader
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.papers.plan import random_batch
from prvr.training import RetrievalTask
from prvr.training.task import TrainingStep
from prvr.types import Batch


class OnMeta(Accelerator):
    """An accelerator of the device that computes nothing."""

    def __init__(self) -> None:
        pass

    device = property(lambda self: torch.device("meta"))
    num_processes = property(lambda self: 1)

    def autocast(self, *args: Any, **kwargs: Any) -> Any:
        return nullcontext()

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        loss.backward()


class _Gru(torch.autograd.Function):
    """The shapes of a bidirectional GRU, as one operator forwards and one backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        return x.new_zeros(*x.shape[:2], 2 * hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        return grads[0].new_zeros(x.shape), None, *map(torch.empty_like, weights)


def _gru(x: Tensor, state: Tensor, weights: list[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
    return cast(Tensor, _Gru.apply(x, state.shape[-1], *weights)), state


@contextmanager
def like_a_gpu() -> Iterator[None]:
    """On the meta device: the fused operators that a GPU has."""
    dropped = lambda x, p=0.5, training=True, inplace=False: torch.native_dropout(x, p, True)[0] if training else x  # noqa: E731

    def attend(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, **_: Any
    ) -> Tensor:
        if attn_mask is not None:
            attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout_p)[0]

    with (
        patch.object(torch.nn.functional, "dropout", dropped),
        patch.object(torch.nn.functional, "scaled_dot_product_attention", attend),
        patch.object(torch.nn.modules.rnn._VF, "gru", _gru),
        patch.object(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *args: True),
    ):
        yield


def batch_of_shapes(model: ModelConfig, videos: int, captions: int = 5, frames: float = 60.0) -> Batch:
    """A batch on the meta device, with lengths as `noise_store` draws them."""
    rng = np.random.default_rng(0)
    long = torch.from_numpy(rng.normal(frames, 25, videos).round().clip(8, model.max_frames).astype(np.int64))
    words = torch.from_numpy(rng.integers(5, model.max_words + 1, videos * captions))
    owner = torch.arange(videos).repeat_interleave(captions)
    return random_batch(model, long.tolist(), words.tolist(), owner, "meta")


def meta_step(config: Config) -> TrainingStep:
    """The training step of a configuration, to be called inside `like_a_gpu`."""
    torch.manual_seed(0)
    assert isinstance(config.model, ModelConfig)
    retriever = Retriever(config.model).train()
    objective = Objective(config.loss, config.model, retriever.registers).train()
    split, loader = (create_autospec(kind, instance=True) for kind in (PackedSplit, VideoLoader))
    task = RetrievalTask(config, OnMeta(), retriever, objective, loader, split)
    optimizer, scheduler = task.optimizer(100_000)
    for group in optimizer.param_groups:
        group["foreach"] = True
    step = TrainingStep(config, task, optimizer, scheduler, torch.device("meta"))
    step.lag = 1  # as on a GPU: the numbers of a step are read when the next one is queued
    return step


def count_step(config: Config, videos: int, captions: int = 5) -> Traffic:
    """The work of a training step in float32, by operator and shapes, after a first step that fills caches."""
    assert isinstance(config.model, ModelConfig)
    with like_a_gpu():
        step, batch = meta_step(config), batch_of_shapes(config.model, videos, captions)
        epoch = config.train.hard_negatives_from
        step((batch, None), "", epoch, 0, None)
        with Traffic() as traffic:
            step((batch, None), "", epoch, 1, None)
    return traffic
