"""A split that is re-ranked block by block against plain loops; candidates of training; what must be refused."""

from dataclasses import replace

import pytest
import torch
from diffusionret import PLAIN, reranking
from retrievers import MeanPooling

from prvr.data import open_corpus, pack
from prvr.errors import InputError
from prvr.evaluation import EvaluationConfig, RetrievalMetrics, encode_split, evaluate
from prvr.evaluation.metrics import ranks
from prvr.published.diffusionret.candidate_reranker import CandidateReranker, reranker_inputs
from prvr.published.diffusionret.candidates import Candidates, hard_candidates
from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.published.diffusionret.stage import fingerprint
from prvr.published.qb_norm import QBNormSettings, QBNormStage, qb_norm
from prvr.stages import EncodedSplit, Pipeline, ScoreMatrix
from prvr.types import VideoEmbedding

WIDTH = 8


@pytest.fixture(scope="module")
def split(toy_root, toy_cache):
    with pack(open_corpus(toy_root, "toy-tiny"), "test", cache_dir=toy_cache / "packed") as packed:
        yield packed.subset(range(10))


@pytest.fixture(scope="module")
def retriever(split):
    torch.manual_seed(0)
    return MeanPooling(split.feature_dim, split.query_dim, WIDTH).double().eval()


@pytest.fixture(scope="module")
def encoded(retriever, split):
    return encode_split(retriever, split, video_batch=7)


@pytest.fixture(scope="module")
def scores(retriever, encoded, split):
    return ScoreMatrix(retriever, encoded, split.relevant, block=11)


def whole(retriever, encoded):
    """The score matrix at once."""
    return retriever.score(encoded.text, VideoEmbedding.cat(encoded.videos)).total


def make(direction="t2v", retriever=None, **changes):
    known = None if retriever is None else fingerprint(retriever)
    values = {"steps": 3, "candidates": 5, "trained_on": known} | changes
    return CandidateReranker(RerankerConfig(width=WIDTH, **values), direction).double().eval()


@pytest.mark.parametrize("combine", ["add", "alone"])
@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_a_reranked_split_is_each_row_reranked_by_itself(retriever, encoded, split, direction, combine) -> None:
    reranker = make(direction, combine=combine, candidates=4)
    inputs = reranker_inputs(encoded, reranker.config)
    matrix = whole(retriever, encoded)
    right = torch.from_numpy(split.relevant_matrix)
    if direction == "v2t":
        matrix, right = matrix.mT.contiguous(), right.mT
    system = reranking(retriever, {direction: reranker}, weight=0.7, seed=3)
    config = EvaluationConfig(bootstrap=0, query_batch=10)
    report, expected = evaluate(system, split, config, encoded=encoded), []
    for row in range(len(matrix)):  # one by one, through the class
        if not right[row].any():
            continue
        one = slice(row, row + 1)
        asking = (inputs.text[one], inputs.frames, inputs.mask)
        if direction == "v2t":
            asking = (inputs.text, inputs.frames[one], inputs.mask[one])
        combined = reranker.rerank(matrix[one], *asking, top_k=4, weight=0.7, seed=3)
        expected.append(int(ranks(combined, right[one])))
    assert (report.ranks if direction == "t2v" else report.video_ranks).tolist() == expected


@pytest.mark.parametrize("settings", [None, {"weight": 0.0}, {"top_k": 1}])
def test_a_weight_of_nothing_or_one_candidate_is_the_retriever_itself(retriever, split, encoded, settings) -> None:
    alone = evaluate(retriever, split, PLAIN, encoded=encoded)
    rerankers = {"t2v": make("t2v"), "v2t": make("v2t")}
    system = Pipeline(retriever) if settings is None else reranking(retriever, rerankers, **settings)
    report = evaluate(system, split, PLAIN, encoded=encoded)
    assert (report.ranks == alone.ranks).all()
    assert (report.video_ranks == alone.video_ranks).all()
    assert report.text_to_text == alone.text_to_text


def test_sets_of_captions_are_ranked_after_reranking(scores, retriever, encoded, split) -> None:
    alone = evaluate(retriever, split, EvaluationConfig(bootstrap=0, caption_sets=True), encoded=encoded).video_to_sets
    config = EvaluationConfig(bootstrap=0, caption_sets=True, query_batch=4)
    assert evaluate(Pipeline(retriever), split, config, encoded=encoded).video_to_sets == alone
    reranker = make("v2t", weight=50.0)
    found = evaluate(reranking(retriever, {"v2t": reranker}, seed=3), split, config, encoded=encoded).video_to_sets
    inputs, owner = reranker_inputs(encoded, reranker.config), torch.from_numpy(split.query_to_video)
    with torch.inference_mode():
        matrix = reranker.rerank(
            whole(retriever, encoded).mT.contiguous(), inputs.text, inputs.frames, inputs.mask, top_k=5, seed=3
        )
    expected = []
    for video in sorted(set(owner.tolist())):
        best = {other: float(matrix[video][owner == other].max()) for other in set(owner.tolist())}
        expected.append(sum(value >= best[video] for value in best.values()))
    assert found == RetrievalMetrics.from_ranks(torch.tensor(expected))
    assert found != alone


def test_qb_norm_of_a_split_is_that_of_the_whole_matrices(retriever, split, encoded, scores) -> None:
    torch.manual_seed(1)
    training = EncodedSplit(torch.randn(23, WIDTH).double(), (encoded.videos[0],))
    stage = QBNormStage(training.text, training.videos[0], QBNormSettings(beta=3.0))
    matrix = whole(retriever, encoded)
    bank = retriever.score(training.text, VideoEmbedding.cat(encoded.videos)).total
    other = retriever.score(encoded.text, training.videos[0]).total
    right = torch.from_numpy(split.relevant_matrix)
    expected = ranks(qb_norm(matrix, bank, beta=3.0), right), ranks(qb_norm(matrix.mT, other.mT, beta=3.0), right.mT)
    report = evaluate(Pipeline(retriever, [stage]), split, PLAIN, encoded=encoded)
    assert report.ranks.tolist() == expected[0].tolist()
    assert report.video_ranks.tolist() == expected[1].tolist()
    assert not (report.ranks == evaluate(retriever, split, PLAIN, encoded=encoded).ranks).all()


@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_candidates_hold_the_right_one_and_the_hardest_wrong_ones_once_each(
    scores, retriever, encoded, split, direction
):
    with torch.inference_mode():
        pool = hard_candidates(scores, split, direction, 5, block=7)  # every row has five wrong ones
    matrix, right = whole(retriever, encoded), torch.from_numpy(split.relevant_matrix)
    owner = torch.from_numpy(split.query_to_video)
    if direction == "v2t":
        matrix, right = matrix.mT, right.mT
    for query in range(len(owner)):
        asking, own = (query, int(owner[query])) if direction == "t2v" else (int(owner[query]), query)
        assert int(pool.asks[query]) == asking
        columns = pool.columns[query].tolist()
        assert columns[0] == own
        order = matrix[asking].argsort(descending=True).tolist()
        assert columns[1:] == [column for column in order if not right[asking, column]][:5]

    picked = pool.draw(torch.arange(len(owner)), 4, torch.Generator().manual_seed(0))
    assert picked.shape == (len(owner), 4)
    for row, columns in zip(picked.tolist(), pool.columns.tolist(), strict=True):
        assert row[0] == columns[0]
        assert len(set(row) & set(columns)) == 4
    assert torch.equal(picked, pool.draw(torch.arange(len(owner)), 4, torch.Generator().manual_seed(0)))
    every = pool.draw(torch.arange(2), 50, torch.Generator()).sort(1).values
    assert torch.equal(every, pool.columns[:2].sort(1).values)
    shifted = pool.draw(torch.arange(2, len(owner)), 4, torch.Generator().manual_seed(0))
    assert torch.equal(shifted[:, 0], pool.columns[2:, 0])


@pytest.mark.parametrize("direction", ["t2v", "v2t"])
def test_the_other_rows_of_a_step_are_its_wrong_candidates(split, encoded, direction) -> None:
    reranker, owner = make(direction), torch.from_numpy(split.query_to_video)
    inputs = reranker_inputs(encoded, reranker.config)
    source, rows = Candidates(direction, owner), torch.tensor([4, 0, 7, 2, 9])
    videos, own = owner[rows], owner[rows] if direction == "t2v" else rows
    others = [{int(own[j]) for j in range(5) if videos[j] != videos[i]} for i in range(5)]
    most = 1 + min(sum(int(videos[j] != videos[i]) for j in range(5)) for i in range(5))
    drawn = source.draw(rows, 3, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, source.draw(rows, 3, torch.Generator().manual_seed(0)))
    for num, picked in ((3, drawn), (most, source.draw(rows, 100, torch.Generator().manual_seed(0)))):
        assert picked.shape == (5, num)
        assert torch.equal(picked[:, 0], own)
        assert all(set(row[1:].tolist()) <= known for row, known in zip(picked, others, strict=True))
    assert source.draw(rows[:1], 3, torch.Generator()).tolist() == [[int(own[0])]]
    pairs = reranker.pairs(inputs, source.asks[rows], drawn)
    asking = rows if direction == "t2v" else videos
    texts, columns = (asking, drawn) if direction == "t2v" else (drawn, asking)
    target, draws = torch.arange(3).expand(5, 3) == 0, [torch.Generator().manual_seed(2) for _ in range(2)]
    pooled = reranker.loss_of_pairs(target, pairs, generator=draws[0])
    given = inputs.text[texts], inputs.frames[columns], inputs.mask[columns]
    torch.testing.assert_close(pooled, reranker.loss(target, *given, generator=draws[1]))


def test_rows_of_videos_are_frames_or_else_clips(encoded) -> None:
    gallery, config = VideoEmbedding.cat(encoded.videos), RerankerConfig(width=WIDTH)
    inputs = reranker_inputs(encoded, config)
    assert torch.equal(inputs.frames, gallery.frames)
    assert torch.equal(inputs.mask, gallery.frame_mask)
    clips = reranker_inputs(replace(encoded, videos=[replace(gallery, frames=None, frame_mask=None)]), config)
    assert torch.equal(clips.frames, gallery.clips)
    assert clips.mask.shape == gallery.clips.shape[:2]
    assert clips.mask.all()
    with pytest.raises(InputError, match="reads frames or clips of videos"):
        reranker_inputs(replace(encoded, videos=[VideoEmbedding(None, registers=gallery.clips)]), config)
