"""Re-ranking whole score matrices: what is added where, that it is deterministic, and what is refused."""

import pytest
import torch
from diffusionret import FRAMES, RELEASED, WIDTH, gallery, make
from torch import Tensor

from prvr import scoring
from prvr.published.diffusionret.token_retriever import token_alignment

both_ways = pytest.mark.parametrize("direction", ["t2v", "v2t"])


def oriented(direction: str, scores: Tensor) -> Tensor:
    return scores if direction == "t2v" else scores.mT.contiguous()


@both_ways
@pytest.mark.parametrize("released", [False, True])
def test_it_adds_the_generated_probability_to_the_best(direction, released):
    scores, text, frames, mask = gallery()
    scores = oriented(direction, scores)
    options = {"compat": RELEASED, "score_temperature": 2.0} if released else {}
    reranker = make(direction, weight=0.5, **options)
    initial = torch.randn(len(scores), 4).double()
    combined = reranker.rerank(scores, text, frames, mask, initial=initial, batch_size=2)
    for row, (before, after) in enumerate(zip(scores, combined, strict=True)):
        best = before.argsort(descending=True)[:4]
        if direction == "t2v":
            inputs = text[row : row + 1], frames[best][None], mask[best][None]
        else:
            inputs = text[best][None], frames[row : row + 1], mask[row : row + 1]
        sample = reranker.sample(*inputs, initial=initial[row : row + 1])[0]
        expected = before.clone()
        expected[best] += 0.5 * ((2.0 * sample).softmax(0) if released else sample)
        torch.testing.assert_close(after, expected)
        assert set(after.argsort(descending=True)[:4].tolist()) == set(best.tolist())


@both_ways
@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_a_query_gets_the_same_list_alone_in_a_batch_and_in_another_order(direction, sampler):
    scores, text, frames, mask = gallery()
    scores, reranker = oriented(direction, scores), make(direction, sampler=sampler)
    combined = reranker.rerank(scores, text, frames, mask)
    torch.manual_seed(1)  # the global source plays no part
    assert torch.equal(reranker.rerank(scores, text, frames, mask), combined)
    assert not torch.allclose(reranker.rerank(scores, text, frames, mask, seed=1), combined)
    torch.testing.assert_close(reranker.rerank(scores, text, frames, mask, batch_size=2), combined)
    order = torch.randperm(len(scores))
    for rows in (order, order[:1]):
        asks = (text[rows], frames, mask) if direction == "t2v" else (text, frames[rows], mask[rows])
        torch.testing.assert_close(reranker.rerank(scores[rows], *asks), combined[rows])
    order = torch.randperm(scores.shape[1])  # nor does the order of the gallery matter
    moved = (text, frames[order], mask[order]) if direction == "t2v" else (text[order], frames, mask)
    torch.testing.assert_close(reranker.rerank(scores[:, order], *moved), combined[:, order])


@both_ways
def test_a_gallery_smaller_than_the_candidates_is_reranked_whole(direction):
    scores, text, frames, mask = gallery(texts=3, videos=2)
    scores, reranker = oriented(direction, scores), make(direction, candidates=32)
    gained = reranker.rerank(scores, text, frames, mask) - scores
    torch.testing.assert_close(gained.sum(1), torch.ones(len(scores)).double())
    alone = reranker.rerank(scores, text, frames, mask, top_k=1)
    torch.testing.assert_close((alone - scores).amax(1), torch.ones(len(scores)).double())


@pytest.mark.usefixtures("unchecked")
def test_bad_galleries_and_pairs_are_refused():
    gallery_of = dict(zip(("scores", "text", "frames", "frame_mask"), gallery(), strict=True))
    for changes, message in (
        ({"scores": torch.full((7, 9), torch.nan)}, "scores: row 0 is NaN"),
        ({"text": torch.randn(7, 24)}, "text: got width 24, this re-ranker expects 12"),
    ):
        with pytest.raises(ValueError, match=message):
            make().rerank(**(gallery_of | changes))


def tokens(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.rand(rows, length) < 0.6
    mask[:, 1] = True
    weights = torch.rand(rows, length).double().masked_fill(~mask, 0)
    return torch.randn(rows, length, WIDTH).double(), mask, weights / weights.sum(1, keepdim=True)


def align(words: tuple[Tensor, ...], frames: tuple[Tensor, ...]) -> Tensor:
    return token_alignment(*words[:2], *frames[:2], words[2], frames[2])


def test_token_alignment_in_blocks_and_in_half_precision_autocast(monkeypatch):
    words, frames = tokens(4, 6), tokens(5, FRAMES)
    expected = align(words, frames)
    for size in (1, 3 * 6 * FRAMES, 11 * 6 * FRAMES):
        monkeypatch.setattr(scoring, "_BLOCK", size)
        torch.testing.assert_close(align(words, frames), expected)
    single = [tuple(part.float() if part.is_floating_point() else part for part in side) for side in (words, frames)]
    plain = align(*single)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(align(*single), plain)
