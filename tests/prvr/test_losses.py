"""Losses against plain loops over queries and videos, which the benchmark of losses times."""

import math
from dataclasses import replace
from typing import Any, get_args

import plain_losses as plain
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_models import build, make_batch
from torch import Tensor

import prvr
from prvr.config import LossConfig
from prvr.errors import InputError
from prvr.losses import (
    Negatives,
    contrastive_loss,
    diversity_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    query_structure_loss,
    regression_loss,
    triplet_loss,
    triplet_pairs_loss,
)
from prvr.published.msc.parts import angle_geometry_loss, distance_geometry_loss


def _case(seed: int, videos: int, per_video: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    owner = torch.tensor([v for v in range(videos) for _ in range(per_video[v])])
    scores = torch.rand(len(owner), videos, generator=generator, dtype=torch.float64) * 2 - 1
    text = torch.randn(len(owner), 5, generator=generator, dtype=torch.float64)
    return scores, owner, owner[:, None] == torch.arange(videos), text


batches = st.builds(_case, st.integers(0, 10_000), st.just(4), st.lists(st.integers(1, 3), min_size=4, max_size=4))


@given(batches)
def test_triplet_info_nce_and_query_structure_are_the_plain_loops(case: tuple[Tensor, ...]) -> None:
    scores, owner, own, text = case
    videos = owner.tolist()
    for found, expected in (
        (triplet_loss(scores, own, own, 0.2, "hardest"), plain.triplet(scores, videos, 0.2)),
        (info_nce_loss(scores, own), plain.info_nce(scores, videos)),
        (query_structure_loss(text, owner, 0.3), plain.query_structure(text, videos, 0.3)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@given(batches)
def test_another_right_video_is_no_negative_whatever_its_score(case: tuple[Tensor, ...]) -> None:
    scores, owner, own, _ = case
    right = own.clone()
    right[0, (owner[0] + 1) % 4] = True
    moved = scores.masked_fill(right & ~own, 9.0)
    for loss in (triplet_loss, triplet_pairs_loss):
        assert torch.equal(loss(scores, own, right, 0.2, "hardest"), loss(moved, own, right, 0.2, "hardest"))


@pytest.mark.parametrize("loss", [triplet_loss, triplet_pairs_loss])
def test_random_negatives_are_never_positives_and_reach_all_others(loss: Any) -> None:
    own = torch.eye(4, dtype=torch.bool)
    scores = torch.arange(16.0).reshape(4, 4)
    positives = own.clone()
    positives[0, 3] = True  # video 3 answers query 0 as well
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        hot = scores.clone().requires_grad_()
        loss(hot, own, positives, 100.0, "random", generator=generator).backward()
        assert hot.grad is not None
        seen |= {(int(q), int(v)) for q, v in (hot.grad > 0).nonzero()}
    assert seen == {(q, v) for q in range(4) for v in range(4)} - {(0, 0), (1, 1), (2, 2), (3, 3), (0, 3)}


def test_hard_pool_keeps_only_the_highest() -> None:
    scores = torch.tensor([[0.0, 0.9, 0.8, 0.1, 0.2]])
    own = torch.tensor([[True, False, False, False, False]])
    chosen = set()
    for seed in range(50):
        hot = scores.clone().requires_grad_()
        triplet_loss(hot, own, own, 1.0, "hard", hard_pool=2, generator=torch.Generator().manual_seed(seed)).backward()
        assert hot.grad is not None
        chosen |= set((hot.grad[0] > 0).nonzero()[:, 0].tolist())
    assert chosen == {1, 2}


@pytest.mark.parametrize("form", ["focal", "log_sum", "pairs"])
@given(case=batches)
def test_diversity_is_the_plain_loop(form: Any, case: tuple[Tensor, ...]) -> None:
    _, owner, _, text = case
    margin, scale, power = 0.2, 8.0, 2.0
    unit = text / text.norm(dim=-1, keepdim=True)
    terms, exponentials = [0.0] * len(owner), [0.0] * len(owner)
    for p in range(len(owner)):
        for q in range(len(owner)):
            if p != q and owner[p] == owner[q]:
                c = float(unit[p] @ unit[q])
                exponentials[p] += math.exp(scale * (c + margin))
                terms[p] += (1 + c) ** power * math.log1p(math.exp(scale * (c + margin)))
    expected = sum(terms) / len(owner)
    if form == "log_sum":
        expected = sum(math.log1p(x) for x in exponentials) / len(owner)
    elif form == "pairs":  # equation 34
        groups = [[terms[q] for q in range(len(owner)) if owner[q] == v] for v in range(4)]
        per_video = [2 / (len(g) * (len(g) - 1)) * sum(g) for g in groups if len(g) > 1]
        expected = sum(per_video) / max(len(per_video), 1)
    found = diversity_loss(text, owner, margin, scale, power, form)
    assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(batches)
def test_the_triplet_of_pairs_is_equation_31(case: tuple[Tensor, ...]) -> None:
    scores, owner, own, _ = case
    total = 0.0
    for q, v in enumerate(owner.tolist()):
        text = max(scores[p, v].item() for p in range(len(owner)) if owner[p] != v)
        video = max(scores[q, u].item() for u in range(4) if u != v)
        total += max(0.0, 0.2 + text - scores[q, v].item()) + max(0.0, 0.2 + video - scores[q, v].item())
    found = triplet_pairs_loss(scores, own, own, 0.2, "hardest")
    assert found.item() == pytest.approx(total / len(owner), rel=1e-12, abs=1e-12)


@given(batches)
def test_info_nce_of_pairs_is_equation_32(case: tuple[Tensor, ...]) -> None:
    scores, owner, own, _ = case
    own = own | (scores > 0.9)  # several videos may answer a query
    s = scores.exp()
    total, n = 0.0, 0
    for q in range(len(owner)):
        for v in range(4):
            if own[q, v]:
                texts = sum(s[p, v].item() for p in range(len(owner)) if not own[p, v])
                videos = sum(s[q, u].item() for u in range(4) if not own[q, u])
                positive = s[q, v].item()
                total += math.log(positive / (positive + texts)) + math.log(positive / (positive + videos))
                n += 1
    assert info_nce_pairs_loss(scores, own).item() == pytest.approx(-total / n, rel=1e-9, abs=1e-12)


ALONE = torch.tensor([[True], [True]])
NONE_OF_THE_LAST = torch.eye(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("loss", "own", "expected"),
    [
        *((lambda s, o, kind=kind: triplet_loss(s, o, o, 0.2, kind), ALONE, 0) for kind in get_args(Negatives)),
        (lambda s, o: triplet_pairs_loss(s, o, o, 0.2, "hard"), ALONE, 0),
        (info_nce_pairs_loss, ALONE, 0),
        (info_nce_loss, NONE_OF_THE_LAST, None),
        (lambda s, o: diversity_loss(s, torch.arange(2), 0.2, 32.0, form="pairs"), NONE_OF_THE_LAST, 0),
    ],
)
def test_without_negatives_or_pairs_loss_and_gradient_are_finite(loss: Any, own: Tensor, expected: float) -> None:
    scores = torch.rand(own.shape, requires_grad=True)
    value = loss(scores, own)
    value.backward()
    assert value.isfinite()
    assert expected is None or value.item() == pytest.approx(expected, abs=1e-6)
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_geometry_of_text_is_the_same_in_blocks_and_finite_for_equal_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the authors, see test_released.py."""
    text, fixed = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    text[5], fixed[5] = text[4], fixed[4]
    text.requires_grad_()
    expected = angle_geometry_loss(text, fixed)
    monkeypatch.setattr("prvr.published.msc.parts._ANGLES", 1)
    torch.testing.assert_close(angle_geometry_loss(text, fixed), expected)
    both = distance_geometry_loss(text, fixed) + angle_geometry_loss(text, fixed)
    assert torch.autograd.grad(both, text)[0].isfinite().all()


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.3, 1e6]))
def test_regression_is_the_plain_loop_and_its_shares_are_constants(seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, targets = (torch.randn(*shape, 5, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,)))
    rows, owner = rows.requires_grad_(), torch.tensor([0, 0, 1, 2, 2])
    valid = torch.arange(4) < torch.tensor([[4], [1], [3]])
    losses = (
        regression_loss(rows, valid, targets, owner, temperature),
        plain.regression(rows, valid, targets, owner.tolist(), temperature),
    )
    torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(loss, rows)[0] for loss in losses]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_the_contrastive_loss_is_the_plain_loop() -> None:
    """Video 2 answers query 0 as well, and video 3 no query."""
    scores, right = torch.rand(6, 4, dtype=torch.float64) * 2 - 1, OWNERS[:, None] == torch.arange(4)
    right[0, 2] = True

    def mean(x: Tensor, y: Tensor, rows: list[int]) -> float:
        loss = 0.0
        for r in rows:
            total = math.log(sum(math.exp(value) for value in x[r].tolist()))
            terms = zip(x[r].tolist(), (y[r] / y[r].sum()).tolist(), strict=True)
            loss -= sum(share * (value - total) for value, share in terms if share)
        return loss / len(rows)

    logits = scores / 0.3
    expected = (mean(logits, right, list(range(6))) + mean(logits.mT, right.mT, [0, 1, 2])) / 2
    assert contrastive_loss(scores, right, 0.3).item() == pytest.approx(expected, rel=1e-9)


OWNERS = torch.tensor([0, 0, 1, 2, 2, 2])


def test_distillation_is_the_plain_loop_and_leaves_the_teacher_alone() -> None:
    retriever, batch = build(), make_batch([9, 3, 12])
    out, teacher = retriever(batch), torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    total = 0.0
    for rows in zip(teacher.tolist(), out.scores.total.tolist(), strict=True):
        right, own = ([math.exp(x / 0.2) / sum(math.exp(y / 0.2) for y in row) for x in row] for row in rows)
        total += sum(p * math.log(p / f) for p, f in zip(right, own, strict=True))
    terms = {**dict.fromkeys(LossConfig().terms, 0.0), "distillation": {"weight": 2.0, "temperature": 0.2}}
    objective = prvr.Objective(LossConfig(terms), retriever.config).double()
    taught = replace(batch, teacher=teacher)
    loss = objective(out, taught)["total"]
    assert loss.item() == pytest.approx(2 * total / 6, rel=1e-9)
    loss.backward()
    assert teacher.grad is None
    with pytest.raises(InputError, match=r"this batch has none. Pass them as Batch\.teacher"):
        objective(out, batch)
