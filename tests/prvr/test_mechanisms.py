"""Mechanisms that a configuration can switch on: pure functions against plain loops, and the terms that apply them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import prvr
from prvr.config import LossConfig, ModelConfig
from prvr.losses import contrastive_loss, distillation_loss
from prvr.models import Retriever
from prvr.objective import Objective

TAU = 0.3
OWNERS = torch.tensor([0, 0, 1, 2, 2, 2])
seeds = st.integers(0, 10_000)


def case(seed: int) -> tuple[Tensor, Tensor]:
    """Scores of 6 queries with 4 videos, of which the last has no query, and which are right."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 4, generator=generator, dtype=torch.float64) * 2 - 1
    right = OWNERS[:, None] == torch.arange(4)
    right[0, 2] = True  # video 2 answers query 0 as well
    return scores, right


@given(seeds)
def test_the_contrastive_loss_is_the_plain_loop(seed: int) -> None:
    scores, right = case(seed)

    def mean(x: Tensor, y: Tensor, rows: list[int]) -> float:
        loss = 0.0
        for r in rows:
            total = math.log(sum(math.exp(value) for value in x[r].tolist()))
            terms = zip(x[r].tolist(), (y[r] / y[r].sum()).tolist(), strict=True)
            loss -= sum(share * (value - total) for value, share in terms if share)
        return loss / len(rows)

    logits = scores / TAU
    expected = (mean(logits, right, list(range(6))) + mean(logits.mT, right.mT, [0, 1, 2])) / 2
    assert contrastive_loss(scores, right, TAU).item() == pytest.approx(expected, rel=1e-9)


def test_gradients_of_the_contrastive_loss_are_those_of_finite_differences() -> None:
    scores, right = case(1)
    temperature = torch.tensor(TAU, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, t: contrastive_loss(s, right, t), (scores.requires_grad_(), temperature))


SIZES: dict[str, Any] = {"video_dim": 10, "query_dim": 6, "hidden": 16, "heads": 2, "num_clips": 4, "max_frames": 8}
OFF = {"triplet": 0.0, "info_nce_clips": 0.0, "info_nce_frames": 0.0, "diversity": 0.0}


def four_videos() -> prvr.Batch:
    """Four videos with one caption each, of different lengths."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(4, 5, 6, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 5, 3, 4])[:, None]
    return prvr.Batch(
        clips=torch.randn(4, 4, 10, generator=generator),
        frames=torch.randn(4, 8, 10, generator=generator),
        frame_mask=torch.ones(4, 8, dtype=torch.bool),
        words=words.masked_fill(~mask[..., None], 1e3),
        word_mask=mask,
        query_to_video=torch.arange(4),
    )


def objective_and_output(**loss: Any) -> tuple[Objective, prvr.RetrieverOutput]:
    torch.manual_seed(0)
    retriever = Retriever(ModelConfig(**SIZES)).eval()
    output = retriever(four_videos())
    return Objective(LossConfig(OFF | loss), retriever.config), output


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@given(seeds)
def test_the_distillation_loss_is_the_plain_loop(seed: int) -> None:
    scores, _ = case(seed)
    teacher = case(seed + 1)[0]
    total = 0.0
    for q in range(6):
        wanted, found = (
            [math.exp(some[q, v].item() / TAU) / sum(math.exp(x / TAU) for x in some[q].tolist()) for v in range(4)]
            for some in (teacher, scores)
        )
        total += sum(p * math.log(p / f) for p, f in zip(wanted, found, strict=True))
    assert distillation_loss(scores, teacher, TAU).item() == pytest.approx(total / 6, rel=1e-9)
    assert total > 0
    shifted = teacher + torch.arange(6)[:, None]
    assert distillation_loss(shifted, teacher, TAU).item() == pytest.approx(0, abs=1e-12)


def test_distillation_leaves_the_teacher_alone_and_its_gradient_is_that_of_finite_differences() -> None:
    scores, teacher = case(1)[0].requires_grad_(), case(2)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda s: distillation_loss(s, teacher.detach(), TAU), (scores,))
    distillation_loss(scores, teacher, TAU).backward()
    assert teacher.grad is None


def test_the_objective_distils_the_total_scores_and_says_what_is_missing() -> None:
    batch = four_videos()
    objective, output = objective_and_output(distillation={"weight": 2.0, "temperature": 0.2})
    with pytest.raises(prvr.InputError, match=r"this batch has none. Pass them as Batch\.teacher"):
        objective(output, batch)
    teacher = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    expected = 2 * distillation_loss(output.scores.total, teacher, 0.2).item()
    told = replace(batch, teacher=teacher)
    assert objective(output, told)["total"].item() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(objective(output, told.labels)["total"], objective(output, told)["total"])
