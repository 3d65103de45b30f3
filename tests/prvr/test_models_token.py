"""Laws of the retriever that compares words with frames, its loss, and its course through evaluation."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_models import make_batch as batch_of

import prvr
from prvr.config import LossConfig
from prvr.objective import Objective
from prvr.published.diffusionret.model_config import TokenCompat, TokenModelConfig
from prvr.published.diffusionret.token_retriever import TokenRetriever
from prvr.types import query_vectors

SIZES = {"video_dim": 10, "query_dim": 6, "hidden": 8, "heads": 2, "depth": 2, "max_frames": 9, "max_words": 7}
SMALL: dict[str, Any] = {"kind": "tokens", "frame_projection": "linear", **SIZES}
LENGTHS = [7, 1, 4]


def build(**changes: Any) -> TokenRetriever:
    """In float64 and with nothing at zero, so that every part shows."""
    torch.manual_seed(0)
    retriever = TokenRetriever(TokenModelConfig(**(SMALL | changes))).double().eval()
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return retriever


def make_batch(frames: int = 7, nonsense: float = 1e3) -> prvr.Batch:
    """Three videos with two captions each, padded with nonsense."""
    batch = batch_of(LENGTHS, seed=1, pad_to=frames)
    padded = {
        name: getattr(batch, name).masked_fill(~getattr(batch, f"{name[:-1]}_mask")[..., None], nonsense)
        for name in ("frames", "words")
    }
    return dataclasses.replace(batch, teacher_frames=None, **padded)


COUNTS = make_batch().word_mask.sum(1).tolist()


@pytest.mark.parametrize("word_depth", [0, 2])
@pytest.mark.parametrize("sentence", ["weighted", "last"])
def test_padding_changes_nothing(sentence: str, word_depth: int) -> None:
    retriever = build(sentence=sentence, word_depth=word_depth)
    plain, padded = make_batch(), make_batch(frames=9, nonsense=math.nan)
    out, again = retriever(plain), retriever(padded)
    torch.testing.assert_close(out.scores.total, again.scores.total, rtol=0, atol=1e-12)
    alone = retriever.encode_video(plain.clips[2:], plain.frames[2:, :4], plain.frame_mask[2:, :4])
    torch.testing.assert_close(out.video.frames[2, :4], alone.frames[0], rtol=0, atol=1e-12)
    for q, count in enumerate(COUNTS):
        if sentence == "last":
            assert torch.equal(
                query_vectors(out.text)[q], retriever.encode_text(plain.words, plain.word_mask).words[q, count - 1]
            )
        alone = retriever.encode_text(plain.words[q : q + 1, :count], plain.word_mask[q : q + 1, :count])
        torch.testing.assert_close(query_vectors(alone)[0], query_vectors(out.text)[q], rtol=0, atol=1e-12)
        torch.testing.assert_close(retriever.score(alone, out.video).total[0], out.scores.total[q], rtol=0, atol=1e-12)


def test_a_new_one_scores_as_the_features_do() -> None:
    """Its layers and positions add nothing yet: cosines of frames are those of the features."""
    torch.manual_seed(0)
    same = {"video_dim": 8, "query_dim": 8, "frame_projection": "none"}
    retriever = TokenRetriever(TokenModelConfig(**(SMALL | same))).eval()
    frames, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    video = retriever.encode_video(torch.zeros(2, 1, 8), frames, mask)
    assert torch.equal(video.frames, 2 * frames)
    words = torch.randn(3, 4, 8)
    assert torch.equal(retriever.encode_text(words, torch.ones(3, 4, dtype=torch.bool)).words, words)


@pytest.mark.parametrize("word_depth", [0, 1])
def test_the_order_of_words_counts_where_they_know_of_each_other(word_depth: int) -> None:
    retriever, batch = build(word_depth=word_depth), make_batch()
    turned = batch.words.clone()
    q = COUNTS.index(max(COUNTS))
    turned[q, : COUNTS[q]] = batch.words[q, : COUNTS[q]].flip(0)
    scores = [
        retriever.score(retriever.encode_text(words, batch.word_mask), retriever(batch).video).total
        for words in (batch.words, turned)
    ]
    assert torch.allclose(scores[0][q], scores[1][q], rtol=0, atol=1e-12) == (word_depth == 0)


@pytest.mark.parametrize("alignment", ["masked", "released"])
def test_the_score_is_the_weighted_mean_of_best_cosines(alignment: Any) -> None:
    """Equation 10 by plain loops."""
    retriever, batch = build(compat=TokenCompat(alignment)), make_batch()
    out = retriever(batch)
    text = retriever.encode_text(batch.words, batch.word_mask)
    frames = out.video.frames
    rows, columns = retriever.weigh_words(text.words, text.mask), retriever.weigh_frames(frames, batch.frame_mask)
    for q, count in enumerate(COUNTS):
        for v, length in enumerate(LENGTHS):
            cosine = F.normalize(text.words[q, :count], dim=-1) @ F.normalize(frames[v, :length], dim=-1).mT
            of_words, of_frames = cosine.amax(1), cosine.amax(0)
            if alignment == "released":  # padding has a cosine of 0
                of_words = of_words.clamp_min(0) if length < frames.shape[1] else of_words
                of_frames = of_frames.clamp_min(0) if count < text.words.shape[1] else of_frames
            expected = (rows[q, :count] @ of_words + columns[v, :length] @ of_frames) / 2
            assert out.scores.total[q, v].item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("learned", [False, True])
def test_gradients_are_finite_and_reach_everything(learned: bool) -> None:
    retriever = build(dropout=0.1).train()
    config = LossConfig({"contrastive": {"weight": 1.0, "temperature": 0.05, "learned": learned}, "diversity": 0.01})
    objective = Objective(config, retriever.config).double()
    batch = make_batch(nonsense=math.nan)
    terms = objective(retriever(batch), batch)
    assert set(terms) == {"contrastive", "diversity", "total"}
    terms["total"].backward()
    for name, parameter in [*retriever.named_parameters(), *objective.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        silent = name.endswith("net.2.bias")  # a constant does not move a softmax
        assert silent or parameter.grad.abs().max() > 0, name
    assert len(list(objective.parameters())) == learned
