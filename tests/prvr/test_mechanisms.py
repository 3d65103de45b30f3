"""Mechanisms that a configuration can switch on: pure functions against plain loops, and the terms that apply them."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import prvr
from prvr.config import ConfigError, LossConfig, ModelConfig, load_config
from prvr.losses import (
    angle_geometry_loss,
    brier_loss,
    caption_similarity,
    contrastive_loss,
    distance_geometry_loss,
    distillation_loss,
    soft_targets,
)
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.stages import AnchorSettings, anchor_scores
from prvr.stages.anchors import segment_anchors

TAU = 0.3
OWNERS = torch.tensor([0, 0, 1, 2, 2, 2])
seeds = st.integers(0, 10_000)


def case(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of 6 queries with 4 videos, of which the last has no query; what is right; what is ignored; sentences."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 4, generator=generator, dtype=torch.float64) * 2 - 1
    right = OWNERS[:, None] == torch.arange(4)
    right[0, 2] = True  # video 2 answers query 0 as well
    ignored = (torch.rand(6, 4, generator=generator) < 0.3) & ~right
    sentences = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    return scores, right, ignored, sentences / sentences.norm(dim=1, keepdim=True)


@given(seeds)
def test_the_brier_loss_is_the_plain_loop(seed: int) -> None:
    scores, right, ignored, _ = case(seed)
    targets = soft_targets(right, 0.2, ignored=ignored).double()
    total = 0.0
    for q in range(6):
        kept = [v for v in range(4) if not ignored[q, v]]
        mass = sum(math.exp(scores[q, v].item() / TAU) for v in kept)
        total += sum((math.exp(scores[q, v].item() / TAU) / mass - targets[q, v].item()) ** 2 for v in kept)
    assert brier_loss(scores, targets, TAU, ignored).item() == pytest.approx(total / 6, rel=1e-10)
    assert 0 <= total / 6 <= 2


@given(seeds)
def test_targets_are_the_plain_loop_and_add_up_to_one(seed: int) -> None:
    _, right, ignored, sentences = case(seed)
    similarity = caption_similarity(sentences, OWNERS, 4)
    found = soft_targets(right, 0.2, similarity, 0.3, TAU, ignored)
    torch.testing.assert_close(found.sum(1), torch.ones(6, dtype=found.dtype), rtol=0, atol=1e-6)
    for q in range(6):
        kept = [v for v in range(4) if not ignored[q, v]]
        alike = {
            v: max([float(sentences[q] @ sentences[p]) for p in range(6) if OWNERS[p] == v], default=-1.0)
            for v in range(4)
        }
        mass = sum(math.exp(alike[v] / TAU) for v in kept)
        for v in range(4):
            hard = 0.8 * right[q, v].item() / right[q].sum().item() + 0.2 * (v in kept) / len(kept)
            expected = 0.7 * hard + 0.3 * (v in kept) * math.exp(alike[v] / TAU) / mass
            assert found[q, v].item() == pytest.approx(expected, abs=1e-6)
            assert similarity[q, v].item() == pytest.approx(alike[v], abs=1e-12)


@given(seeds)
def test_the_contrastive_loss_with_targets_is_the_plain_loop(seed: int) -> None:
    scores, right, ignored, _ = case(seed)
    targets = soft_targets(right, 0.2, ignored=ignored).double()
    logits = (scores / TAU).masked_fill(ignored, -torch.inf)

    def mean(x: Tensor, y: Tensor, rows: list[int]) -> float:
        loss = 0.0
        for r in rows:
            whole = math.log(sum(math.exp(value) for value in x[r].tolist()))
            terms = zip(x[r].tolist(), (y[r] / y[r].sum()).tolist(), strict=True)
            loss -= sum(share * (value - whole) for value, share in terms if share)
        return loss / len(rows)

    expected = (mean(logits, targets, list(range(6))) + mean(logits.mT, targets.mT, [0, 1, 2])) / 2
    assert contrastive_loss(scores, right, TAU, targets, ignored).item() == pytest.approx(expected, rel=1e-9)


def test_without_targets_the_contrastive_loss_is_bit_for_bit_what_it_was() -> None:
    def before(logits: Tensor, positive: Tensor) -> Tensor:
        counts = positive.sum(1)
        per_row = -(logits.log_softmax(1) * positive).sum(1) / counts.clamp_min(1)
        return per_row.sum() / (counts > 0).sum().clamp_min(1)

    for seed in range(20):
        scores, right, _, _ = case(seed)
        old, new = scores.float().requires_grad_(), scores.float().requires_grad_()
        logits = old / 0.01
        expected = (before(logits, right) + before(logits.mT, right.mT)) / 2
        found = contrastive_loss(new, right, 0.01)
        for loss in (expected, found):
            loss.backward()
        assert torch.equal(found, expected)
        assert old.grad is not None
        assert new.grad is not None
        assert torch.equal(new.grad, old.grad)


@pytest.mark.parametrize("form", ["brier", "cross_entropy"])
def test_gradients_are_those_of_finite_differences(form: str) -> None:
    scores, right, ignored, sentences = case(1)
    targets = soft_targets(right, 0.2, caption_similarity(sentences, OWNERS, 4), 0.3, TAU, ignored)

    def loss(scores: Tensor, temperature: Tensor) -> Tensor:
        if form == "brier":
            return brier_loss(scores, targets, temperature, ignored)
        return contrastive_loss(scores, right, temperature, targets, ignored)

    temperature = torch.tensor(TAU, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (scores.requires_grad_(), temperature))


@given(seeds, st.permutations(range(6)), st.permutations(range(4)))
def test_no_loss_depends_on_the_order_of_queries_or_videos(seed: int, queries: list[int], videos: list[int]) -> None:
    scores, right, ignored, sentences = case(seed)

    def losses(q: Tensor, v: Tensor) -> list[float]:
        places = torch.empty_like(v).scatter_(0, v, torch.arange(4))
        some, wanted, without = (x[q][:, v] for x in (scores, right, ignored))
        alike = caption_similarity(sentences[q], places[OWNERS[q]], 4)
        targets = soft_targets(wanted, 0.1, alike, 0.4, TAU, without)
        found = brier_loss(some, targets, TAU, without), contrastive_loss(some, wanted, TAU, targets, without)
        return [loss.item() for loss in found]

    same = losses(torch.arange(6), torch.arange(4))
    assert losses(torch.tensor(queries), torch.tensor(videos)) == pytest.approx(same, rel=1e-9)


def smooth(x: float) -> float:
    return x * x / 2 if abs(x) < 1 else abs(x) - 0.5


def with_equal_rows(seed: int) -> tuple[Tensor, Tensor]:
    """Five queries, of which the last two have the same words, in a space of 4 dimensions and in one of 3."""
    generator = torch.Generator().manual_seed(seed)
    text, fixed = (torch.randn(5, d, generator=generator, dtype=torch.float64) for d in (4, 3))
    fixed[4] = 2 * fixed[3]
    return text, fixed


@given(seeds)
def test_distances_are_compared_as_in_the_plain_loop(seed: int) -> None:
    text, fixed = with_equal_rows(seed)
    relative = []
    for x in (text, fixed):
        unit = x / x.norm(dim=1, keepdim=True)
        distances = [float((unit[p] - unit[q]).norm()) for p in range(5) for q in range(p)]
        relative.append([d / (sum(distances) / 10) for d in distances])
    expected = sum(smooth(d - f) for d, f in zip(*relative, strict=True)) / 10
    assert distance_geometry_loss(text, fixed).item() == pytest.approx(expected, abs=1e-5)


@given(seeds)
def test_angles_are_compared_as_in_the_plain_loop(seed: int) -> None:
    text, fixed = with_equal_rows(seed)
    found = []
    for p, q, r in itertools.permutations(range(5), 3):
        cosines = []
        for x in (text, fixed):
            unit = x / x.norm(dim=1, keepdim=True)
            sides = unit[p] - unit[q], unit[r] - unit[q]
            cosines.append(float(sides[0] @ sides[1] / sides[0].norm() / sides[1].norm()))
        if {3, 4} not in ({p, q}, {q, r}):  # equal vectors have no angle
            found.append(smooth(cosines[0] - cosines[1]))
    expected = sum(found) / len(found)
    assert angle_geometry_loss(text, fixed).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", [distance_geometry_loss, angle_geometry_loss])
def test_geometry_has_finite_gradients_and_knows_neither_scale_nor_order(loss: Callable[..., Tensor]) -> None:
    text, fixed = with_equal_rows(3)
    assert torch.autograd.gradcheck(lambda x: loss(x, fixed), text.requires_grad_())
    turned, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))
    order = torch.tensor([4, 2, 0, 1, 3])
    assert loss((3 * text @ turned)[order], fixed[order]).item() == pytest.approx(loss(text, fixed).item(), rel=1e-9)
    for count in (0, 1, 2):
        few = text[:count].detach().requires_grad_()
        loss(few, fixed[:count]).backward()
        assert few.grad is not None
        assert few.grad.isfinite().all()
    same = torch.ones(5, 4, requires_grad=True)  # a network that has collapsed
    loss(same, fixed.float()).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


@pytest.mark.parametrize("key", ["text_distances", "text_angles"])
def test_geometry_is_that_of_the_words_and_of_at_most_64_queries(key: str) -> None:
    batch = batch_with_twins()
    objective, output = objective_and_output(**{key: 2.0})
    loss = {"text_distances": distance_geometry_loss, "text_angles": angle_geometry_loss}[key]
    assert objective(output, batch)["total"].item() == pytest.approx(2 * loss(output.text, batch.sentences).item())
    with pytest.raises(ConfigError, match=rf"loss\.{key}=1.0 needs features of words"):
        load_config("diffusionret-msrvtt-pixels", {f"loss.{key}": 1.0})
    text, sentences = torch.randn(80, 16, requires_grad=True), torch.randn(80, 6)
    many = prvr.types.Labels(4, torch.arange(80) % 4, sentences=sentences / sentences.norm(dim=1, keepdim=True))
    objective(replace(output, text=text), many)["total"].backward()
    assert text.grad is not None
    assert int((text.grad != 0).any(1).sum()) == (64 if key == "text_angles" else 80)


SIZES: dict[str, Any] = {"video_dim": 10, "query_dim": 6, "hidden": 16, "heads": 2, "num_clips": 4, "max_frames": 8}
OFF = {"triplet": 0.0, "info_nce_clips": 0.0, "info_nce_frames": 0.0, "diversity": 0.0}


def batch_with_twins() -> prvr.Batch:
    """Four videos with one caption each; the captions of the first two are the same but for the order of words."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(4, 5, 6, generator=generator)
    words[1, :5] = words[0, torch.tensor([2, 0, 1, 4, 3])]
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
    output = retriever(batch_with_twins())
    for tensor in vars(output.scores).values():
        tensor.retain_grad()
    return Objective(LossConfig(**(OFF | loss)), retriever.config), output


def test_sentences_of_a_batch_are_the_mean_words_and_know_no_padding() -> None:
    batch = batch_with_twins()
    for q, count in enumerate([5, 5, 3, 4]):
        mean = batch.words[q, :count].mean(0)
        torch.testing.assert_close(batch.sentences[q], mean / mean.norm(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(batch.padded(0, 9).sentences, batch.sentences, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss", [{"triplet": 1.0, "margin": 5.0}, {"contrastive": 1.0}])
def test_twins_are_no_negatives(loss: dict[str, float]) -> None:
    touched = {}
    for threshold in (None, 0.999):
        objective, output = objective_and_output(**loss, twin_threshold=threshold)
        generator = torch.Generator().manual_seed(0)
        reached = torch.zeros(4, 4, dtype=torch.bool)
        for _ in range(20):
            objective(output, batch_with_twins(), generator=generator)["total"].backward(retain_graph=True)
        for scores in (output.scores.total, output.scores.clips, output.scores.frames):
            if scores is not None and scores.grad is not None:
                reached |= scores.grad != 0
        touched[threshold] = reached
    twins = torch.zeros(4, 4, dtype=torch.bool)
    twins[0, 1] = twins[1, 0] = True
    assert touched[None].all()
    assert torch.equal(~touched[0.999], twins)


def test_the_objective_computes_the_loss_that_the_keys_name() -> None:
    batch = batch_with_twins()
    keys = {"contrastive_temperature": 0.05, "contrastive_smoothing": 0.1, "contrastive_similarity": 0.2}
    objective, output = objective_and_output(contrastive=1.0, contrastive_form="brier", **keys)
    total, right = output.scores.total, batch.positives
    targets = soft_targets(right, 0.1, caption_similarity(batch.sentences, batch.query_to_video, 4), 0.2, 0.1)
    assert objective(output, batch)["total"].item() == pytest.approx(brier_loss(total, targets, 0.05).item(), rel=1e-6)
    objective, _ = objective_and_output(contrastive=1.0, **keys)
    expected = contrastive_loss(total, right, 0.05, targets).item()
    assert objective(output, batch)["total"].item() == pytest.approx(expected, rel=1e-6)


def test_labels_without_sentences_are_enough_until_a_loss_reads_them() -> None:
    batch = batch_with_twins()
    objective, output = objective_and_output(contrastive=1.0, contrastive_similarity=0.2)
    told = replace(batch.labels, sentences=batch.sentences)
    assert torch.equal(objective(output, told)["total"], objective(output, batch)["total"])
    with pytest.raises(prvr.InputError, match=r"train with one, or set loss\.contrastive_similarity"):
        objective(output, batch.labels)
    plain, output = objective_and_output(contrastive=1.0)
    assert torch.equal(plain(output, batch.labels)["total"], plain(output, batch)["total"])


def test_a_model_that_reads_token_numbers_has_no_sentences_to_compare() -> None:
    for key, value in (("contrastive_similarity", 0.1), ("twin_threshold", 0.9)):
        with pytest.raises(ConfigError, match=rf"loss\.{key}={value} needs features of words"):
            load_config("diffusionret-msrvtt-pixels", {f"loss.{key}": value})
        assert getattr(load_config("diffusionret-msrvtt", {f"loss.{key}": value}).loss, key) == value


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@given(seeds)
def test_routes_over_anchors_are_the_plain_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    text, frames, anchors = (torch.randn(*n, 4, generator=generator).double() for n in ((3,), (2, 5), (2, 3)))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    a, b, tau = 0.4, 0.7, 0.2
    settings = AnchorSettings(residual=a, soft=b, temperature=tau)
    found = anchor_scores(text, frames, mask, anchors, settings)
    for q, v in itertools.product(range(3), range(2)):
        query, rows, marks = unit(text[q]), unit(frames[v, mask[v]]), unit(anchors[v])
        ways = []
        for row in rows:
            near = sum(math.exp(float(query @ mark + mark @ row) / tau) for mark in marks)
            ways.append(float(query @ row) + a * tau * math.log(near))
        picked = (marks @ query / tau).softmax(0)
        weights = sum(picked[k] * (rows @ marks[k] / tau).softmax(0) for k in range(3))
        read = sum(weights[i] * row for i, row in enumerate(rows))
        expected = max(ways) + b * float(query @ unit(read))
        assert found[q, v].item() == pytest.approx(expected, rel=1e-9)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(anchor_scores(text, frames, mask, anchors[:, order], settings), found)
    longer = torch.cat([frames, torch.full((2, 3, 4), 1e3).double()], 1)
    more = torch.cat([mask, torch.zeros(2, 3, dtype=torch.bool)], 1)
    torch.testing.assert_close(anchor_scores(text, longer, more, anchors, settings), found)


@pytest.mark.parametrize("segments", [1, 3, 8])
def test_segments_are_equal_parts_of_the_valid_frames(segments: int) -> None:
    frames = torch.randn(3, 11, 4, generator=torch.Generator().manual_seed(0))
    lengths = [11, 5, 1]
    mask = torch.arange(11) < torch.tensor(lengths)[:, None]
    found = segment_anchors(frames, mask, segments)
    for v, length in enumerate(lengths):
        pooled = torch.nn.functional.adaptive_avg_pool1d(unit(frames[v, :length]).mT, segments).mT
        torch.testing.assert_close(found[v], pooled, rtol=0, atol=1e-6)


@given(seeds)
def test_the_distillation_loss_is_the_plain_loop(seed: int) -> None:
    scores, _, _, _ = case(seed)
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
    batch = batch_with_twins()
    objective, output = objective_and_output(distillation=2.0, distillation_temperature=0.2)
    with pytest.raises(prvr.InputError, match=r"this batch has none: give them as Batch\.teacher"):
        objective(output, batch)
    teacher = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    expected = 2 * distillation_loss(output.scores.total, teacher, 0.2).item()
    told = replace(batch, teacher=teacher)
    assert objective(output, told)["total"].item() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(objective(output, told.labels)["total"], objective(output, told)["total"])
