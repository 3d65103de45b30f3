"""Evaluation of real models on the packed toy corpus, by the whole score matrix and by hand; reports on disk."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from retrievers import MeanPooling
from torch import nn

from prvr.config import ModelConfig
from prvr.data import Caption, MomentTimes, PackSettings, TextData, open_corpus, pack, write_layout
from prvr.data.packed import Moments
from prvr.errors import DataError
from prvr.evaluation import (
    EvaluationConfig,
    EvaluationReport,
    RetrievalMetrics,
    encode_split,
    evaluate,
    find_moments,
    moment_groups,
    report_from_scores,
    tag_metrics,
)
from prvr.evaluation.metrics import RankCounts, ranks
from prvr.evaluation.rejection import rejection, rejection_auroc
from prvr.models import Retriever
from prvr.stages import EncodedSplit, Pipeline
from prvr.types import Scores, VideoEmbedding


@pytest.fixture
def model(packed):
    return MeanPooling(packed.feature_dim, packed.query_dim)


class Identity(MeanPooling):
    """Features are embeddings already; with or without the clip branch."""

    def __init__(self, clips=True):
        super().__init__(1, 1)
        self.clips = clips

    def encode_text(self, words, word_mask):
        return words[:, 0]

    def encode_video(self, clips, frames, frame_mask):
        return VideoEmbedding(clips if self.clips else None, frames, frame_mask)

    def score(self, text, video):
        frames = torch.einsum("qd,vld->qvl", text, video.frames)
        return Scores(frames.masked_fill(~video.frame_mask, -torch.inf).amax(-1))


# Video i shows feature i in frames [start, stop) of n, background elsewhere; two seconds a frame.
PLANTED = {"a": (20, 8, 12), "b": (40, 0, 4), "c": (20, 16, 20), "d": (10, 2, 4)}
TAGS = {"a#0": ["seen"], "c#0": ["seen", "rare"], "b#1": ["seen"], "d#0": [], "a#2": ["rare"]}
ASKED = ("a#0", "b#0", "a#1", "c#0", "b#1", "d#0", "a#2")  # mixed, and d has one caption only


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A corpus whose answers are known: every caption asks for its own video's feature."""
    root, ids = tmp_path_factory.mktemp("planted"), list(PLANTED)
    videos, moments = {}, {}
    for video, (length, start, stop) in PLANTED.items():
        videos[video] = np.tile(np.eye(5)[4], (length, 1))
        videos[video][start:stop] = np.eye(5)[ids.index(video)]
    captions = [Caption(query, query[0], f"asks for {query[0]}") for query in ASKED]
    for caption in captions:
        length, start, stop = PLANTED[caption.video_id]
        moments[caption.id] = MomentTimes(2.0 * start, 2.0 * stop, 2.0 * length)
    queries = [(query, np.eye(5)[[ids.index(query[0])]]) for query in ASKED]
    texts = TextData(captions={"test": captions}, moments=moments, tags=TAGS)
    write_layout(root / "planted", texts, videos=videos.items(), queries=queries)
    corpus = open_corpus(root, "planted")
    with pack(corpus, "test", cache_dir=root, settings=PackSettings(clips=10)) as packed:
        yield packed


def whole_matrix(model, packed):
    """All scores at once, and what is relevant."""
    encoded = encode_split(model, packed)
    scores = model.score(encoded.text, VideoEmbedding.cat(encoded.videos)).total
    return scores, torch.from_numpy(packed.relevant_matrix)


def test_report_agrees_with_the_whole_matrix(model, packed):
    scores, relevant = whole_matrix(model, packed)
    report = evaluate(model, packed, EvaluationConfig(video_batch=7, query_batch=9, bootstrap=50))
    expected = ranks(scores, relevant)
    assert report.ranks.tolist() == expected.tolist()
    assert report.video_ranks.tolist() == ranks(scores.T, relevant.T).tolist()
    assert report.text_to_video == RetrievalMetrics.from_ranks(expected, report.text_to_video.tied)
    assert (report.query_ids, report.video_ids) == (packed.query_ids, packed.video_ids)
    assert report.video_to_text.queries == report.text_to_text.queries - 80 == 20
    assert report.intervals["sumr"].low < report.text_to_video.sumr < report.intervals["sumr"].high


def test_queries_that_no_video_answers_are_told_by_their_best_score(model, packed, corpus, toy_cache):
    with pack(corpus, "train", cache_dir=toy_cache / "packed") as others:
        encoded, unanswered = encode_split(model, packed), encode_split(model, others)
    videos = VideoEmbedding.cat(encoded.videos)
    best = [model.score(split.text, videos).total.amax(1).double().numpy() for split in (encoded, unanswered)]
    result = rejection(Pipeline(model), encoded, unanswered)
    assert result.auroc == pytest.approx(rejection_auroc(*best)[0], abs=1e-3)
    assert result.queries == len(unanswered.query_ids)


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("video_batch", [1, 3, 64])
def test_planted_moments_are_found_in_seconds(planted, clips, video_batch):
    model = Identity(clips)
    encoded = encode_split(model, planted, video_batch=video_batch)
    examples = find_moments(model, planted, range(len(ASKED)), k=1, encoded=encoded)
    for query, example in zip(ASKED, examples, strict=True):
        _, start, stop = PLANTED[query[0]]
        assert (example.query_id, example.hits[0].video_id, example.correct) == (query, query[0], True)
        assert (example.hits[0].start, example.hits[0].end) == (2.0 * start, 2.0 * stop)
        assert (example.start, example.end) == (2.0 * start, 2.0 * stop)


class Wrong(Identity):
    """Cannot tell c from a: whoever asks for c finds a just as well."""

    def encode_text(self, words, word_mask):
        text = super().encode_text(words, word_mask).clone()
        text[:, 0] += text[:, 2]
        return text


def test_ranks_belong_to_their_queries_in_any_order_of_captions(planted):
    report = evaluate(Wrong(), planted, EvaluationConfig(query_batch=2, video_batch=3, bootstrap=0))
    assert dict(zip(report.query_ids, report.ranks.tolist(), strict=True)) == {
        query: 2 if query[0] == "c" else 1 for query in ASKED
    }
    assert dict(zip(report.video_ids, report.video_ranks.tolist(), strict=True)) == {"a": 2, "b": 1, "c": 1, "d": 1}
    assert report.text_to_video.tied == pytest.approx(1 / 7)
    found = [(part.tag, part.metrics.r1, part.metrics.queries) for part in report.tags]
    assert found == [("rare", 50.0, 2), ("seen", pytest.approx(200 / 3), 3)]  # only c#0 has rank 2, by a tie


def test_captions_without_siblings_are_misses_in_text_to_text(planted):
    found = evaluate(Identity(), planted, EvaluationConfig(bootstrap=0)).text_to_text
    assert (found.r1, found.r100, found.queries) == (pytest.approx(100 * 5 / 7), pytest.approx(100 * 5 / 7), 7)
    report = evaluate(Identity(), planted.subset([3]), EvaluationConfig(bootstrap=10))
    assert (report.text_to_text, report.text_to_video.r1, report.chance) == (None, 100.0, 400.0)


def test_modes_and_random_state_are_left_as_they_were(model, packed):
    model.train()
    model.noise.eval()
    state = torch.get_rng_state()
    first = evaluate(model, packed, EvaluationConfig(bootstrap=0))
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()
    assert evaluate(model, packed, EvaluationConfig(bootstrap=0)) == first  # dropout was off


def test_a_constant_model_ties_everywhere_and_chance_is_reported(model, packed):
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    worst, mean = (evaluate(model, packed, EvaluationConfig(ties=ties, bootstrap=0)) for ties in ("worst", "mean"))
    relevant = packed.relevant_matrix.sum(1)
    assert worst.ranks.tolist() == (20 - relevant + 1).tolist()
    assert mean.ranks.tolist() == ((20 - relevant) / 2 + 1).tolist()
    assert worst.chance == mean.chance
    drawn = [ranks(torch.rand(100, 20), torch.from_numpy(packed.relevant_matrix)) for _ in range(300)]
    assert worst.chance == pytest.approx(RetrievalMetrics.from_ranks(torch.cat(drawn)).sumr, abs=1.0)


def test_moment_groups_by_hand():
    nan = float("nan")
    moments = Moments(
        start=np.array([0.0, 10.0, 0.0, 0.0, nan, 5.0, 0.0]),
        end=np.array([2.0, 14.0, 5.0, 12.0, nan, 5.0, 4.0]),
        duration=np.array([10.0, 20.0, 10.0, 10.0, nan, 10.0, 20.0]),
    )  # ratios .2, .2, .5, over 1, unknown, 0 (no length), .2
    counts = RankCounts(torch.tensor([0, 4, 0, 9, 0, 0, 0]), torch.tensor([0, 0, 0, 0, 0, 0, 1]))
    short, long = moment_groups(counts, moments)
    assert (short.low, short.high, short.metrics.queries) == (0.0, 0.2, 3)
    assert (short.metrics.r1, short.metrics.tied) == (pytest.approx(100 / 3), pytest.approx(1 / 3))
    assert (long.low, long.high, long.metrics.queries, long.metrics.mnr) == (0.4, 1.0, 2, 5.5)


def test_tag_metrics_by_hand():
    counts = RankCounts(torch.tensor([0, 4, 0, 9, 0]), torch.tensor([0, 0, 2, 0, 1]))
    tags = [frozenset(some) for some in (["b"], ["a", "b"], [], ["b"], ["a"])]
    a, b = tag_metrics(counts, tags)  # ranks 1, 5, 3, 10, 2
    assert (a.tag, a.metrics) == ("a", RetrievalMetrics(0.0, 100.0, 100.0, 100.0, 300.0, 3.5, 3.5, 2, tied=0.5))
    assert (b.tag, b.metrics) == ("b", RetrievalMetrics.from_ranks(torch.tensor([1, 5, 10])))
    assert tag_metrics(counts, tags, "best")[0].metrics.r1 == 50.0
    assert tag_metrics(counts, [frozenset()] * 5) == ()


class Given(MeanPooling):
    """Scores are looked up; the embedding of a query or of a video is its number."""

    def __init__(self, scores):
        super().__init__(1, 1)
        self.scores = scores

    def score(self, text, video):
        return Scores(self.scores[text[:, 0].long()][:, video.frames[:, 0, 0].long()])


def numbers(packed, size):
    """What `Given` takes for the embeddings of a split, the gallery in parts of that size."""
    text = torch.arange(1.0 * len(packed.query_ids))[:, None]
    parts = torch.arange(1.0 * len(packed.video_ids))[:, None, None].split(size)
    return EncodedSplit(text, tuple(VideoEmbedding(None, x, torch.ones(len(x), 1, dtype=torch.bool)) for x in parts))


@pytest.mark.parametrize("ties", ["worst", "mean", "best"])
def test_a_matrix_of_scores_gives_the_report_of_a_model_with_these_scores(packed, planted, ties):
    for part in (packed, planted, packed.subset([1, 3, 8])):
        scores = torch.randint(0, 6, (len(part.query_ids), len(part.video_ids))).double()  # many ties
        config = EvaluationConfig(query_batch=4, ties=ties, bootstrap=20, seed=5)
        expected = evaluate(Given(scores), part, config, encoded=numbers(part, 3))
        found = report_from_scores(scores, part, EvaluationConfig(ties=ties, bootstrap=20, seed=5))
        assert found == replace(expected, text_to_text=None, baselines=())
        for name in ("ranks", "video_ranks", "query_to_video"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def test_what_is_no_matrix_of_scores_is_refused(packed):
    scores = torch.zeros(len(packed.query_ids), len(packed.video_ids))
    scores[7, 2] = torch.nan
    names = rf"\(first: '{packed.query_ids[7]}'\) and 1 of \d+ videos \(first: '{packed.video_ids[2]}'\)"
    with pytest.raises(ValueError, match=f"NaN for 1 of .* {names}"):
        report_from_scores(scores, packed)
    with pytest.raises(ValueError, match=f"NaN for 1 of .* {names}"):
        evaluate(Given(scores), packed, encoded=numbers(packed, 3))


def test_report_survives_its_files(model, packed, tmp_path):
    found = evaluate(model, packed, EvaluationConfig(ties="mean", bootstrap=30, caption_sets=True))
    assert found.video_to_sets is not None
    ids = ("日本語 #1#enc#0", "a\u2028b#enc#0", "x" * 300, *found.query_ids[3:])
    report = replace(found, query_ids=ids)
    report.to_json(tmp_path / "run" / "evaluation.json")
    read = EvaluationReport.from_json(tmp_path / "run" / "evaluation.json")
    assert read == report
    for name in ("ranks", "video_ranks", "query_to_video"):
        assert getattr(read, name).tolist() == getattr(report, name).tolist()


def test_what_is_read_of_a_damaged_evaluation_is_what_was_written(model, packed, tmp_path):
    report, path = evaluate(model, packed, EvaluationConfig(bootstrap=10)), tmp_path / "evaluation.json"
    rng = random.Random(20261122)
    report.to_json(path)
    whole, refused = path.read_bytes(), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert EvaluationReport.from_json(path) == report
        except DataError:
            refused += 1
    assert refused > 100  # the others hit blanks
    path.write_bytes(whole)
    path.with_name("evaluation_ranks.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"evaluation_ranks\.npz"):
        EvaluationReport.from_json(path)


def test_a_model_in_double_precision_is_evaluated(packed):
    config = ModelConfig(video_dim=packed.feature_dim, query_dim=packed.query_dim, hidden=16, heads=2)
    model = Retriever(config).eval()
    single = encode_split(model, packed)
    double = encode_split(model.double(), packed)
    assert double.text.dtype == torch.float64
    torch.testing.assert_close(double.text.float(), single.text, atol=1e-5, rtol=1e-4)
    assert evaluate(model, packed, encoded=double).text_to_video.sumr > 0
