"""A pipeline ranks the same when it was saved; a retriever that is searched ranks as it is evaluated."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusionret import PLAIN
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass
from search_files import TOY, make_features, make_index, tiny_model, walk, without
from torch import nn

from prvr import InputError, Pipeline, Retriever, stages
from prvr.config import RETRIEVERS, STRICT, PathConfig, RegisterConfig, RetrieverConfig
from prvr.data import DataError, PackedSplit, PackSettings, open_corpus, open_features, pack
from prvr.encoders import VideoFeatures
from prvr.evaluation import evaluate, find_moments
from prvr.evaluation.encode import encode_split
from prvr.models import Indexed, OwnRetriever, blocks_alone, path_alone, reconfigured
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.model_config import TokenModelConfig
from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.published.diffusionret.stage import DiffusionStage, fingerprint
from prvr.published.diffusionret.token_retriever import TokenRetriever
from prvr.published.qb_norm import QBNormSettings, QBNormStage
from prvr.scoring import max_scores, word_scores
from prvr.stages import (
    Direction,
    Rescore,
    RetrieverSettings,
    RetrieverStage,
    ScoreMatrix,
    Stage,
    TrainingFreeSettings,
    TrainingFreeStage,
    ZeroShotSettings,
    ZeroShotStage,
    add_scores,
    best_columns,
    merge_top_k,
)
from prvr.types import Scores, TextEmbedding, Texts, VideoEmbedding, query_vectors
from prvr_search import Query, SearchResult, open_model

Corpus = tuple[PackedSplit, VideoFeatures]


@pytest.fixture(scope="module")
def corpus(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """The test split of the toy corpus, packed for the tiny model, and its videos as a store."""
    found = open_corpus(toy_root, "toy-tiny")
    folder = tmp_path_factory.mktemp("corpus")
    settings = PackSettings(clips=8, frames=24)
    with (
        open_features(found.feature_folder) as features,
        pack(found, "test", cache_dir=folder / "packed", settings=settings) as whole,
    ):
        split = whole.subset(range(0, len(whole), 2))
        videos = {video: features.read(video).astype(np.float32) for video in split.video_ids}
        yield split, make_features(videos)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return Retriever.from_pretrained(tiny_model(tmp_path_factory.mktemp("first"))).eval()


def with_registers(folder: Path) -> Retriever:
    registers = RegisterConfig(kind="diffusion", num=3, steps=2)
    return Retriever.from_pretrained(tiny_model(folder / "registers", registers=registers)).eval()


def diffusion(first: Retriever, **changes: Any) -> DiffusionStage:
    torch.manual_seed(1)
    values: dict[str, Any] = {"steps": 4, "candidates": 6, "trained_on": fingerprint(first), "weight": 3.0} | changes
    config = RerankerConfig(width=16, **values)
    return DiffusionStage({"t2v": CandidateReranker(config).eval(), "v2t": CandidateReranker(config, "v2t").eval()})


def qb_norm(beta: float = 5.0, videos: VideoEmbedding | None = None) -> QBNormStage:
    return QBNormStage(torch.randn(31, 16, generator=torch.Generator().manual_seed(2)), videos, QBNormSettings(beta))


def token_retriever() -> TokenRetriever:
    torch.manual_seed(4)
    sizes: dict[str, Any] = {"video_dim": 512, "query_dim": 48, "hidden": 8, "heads": 2, "depth": 1}
    config = TokenModelConfig(kind="tokens", max_frames=20, max_words=12, frame_projection="linear", **sizes)
    return TokenRetriever(config).eval()


def tokens(**changes: Any) -> RetrieverStage:
    return RetrieverStage(token_retriever(), RetrieverSettings(**{"top_k": 7, "weight": 2.0} | changes))


class RegisterStage(Stage):
    """Compares texts with the registers of the first stage."""

    kind = "registers"
    top_k = 6

    def bind(self, direction: Direction, matrix: ScoreMatrix, prepared: None) -> Rescore:
        return add_scores(replace(matrix, retriever=self), direction, 2.0)

    def score(self, text: Texts, video: VideoEmbedding) -> Scores:
        return Scores(max_scores(query_vectors(text), video.registers, dots=False)[0])


@pytest.fixture(autouse=True)
def own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages.STAGES, "_entries", dict(stages.STAGES._entries))
    stages.STAGES.register("registers", RegisterStage, "For this test.")


STAGES = {
    "diffusion": lambda first: [diffusion(first)],
    "a stage that reads registers": lambda first: [RegisterStage()],
    "training-free": lambda first: [TrainingFreeStage(TrainingFreeSettings(weight=0.5, beta=0.3))],
    "words and frames": lambda first: [tokens(combine="replace")],
    "another retriever over everything": lambda first: [RetrieverStage(first, RetrieverSettings(top_k="all"))],
    "all": lambda first: [
        qb_norm(),
        ZeroShotStage(ZeroShotSettings(weight=0.3)),
        tokens(top_k=12),
        diffusion(first, combine="alone"),
    ],
}


def ranks_of(results: Sequence[SearchResult], retriever: Retriever, split: PackedSplit) -> list[int]:
    """The rank of the first relevant video for every third caption of a split, each found with its score."""
    scores = ScoreMatrix(retriever, encode_split(retriever, split)).rows("t2v", slice(0, None))[::3]
    for result, expected in zip(results, scores.tolist(), strict=True):
        found = {hit.video_id: hit.score for hit in result.hits}
        assert found == pytest.approx(dict(zip(split.video_ids, expected, strict=True)), abs=1e-3)
    return [
        next(rank for rank, hit in enumerate(result.hits, 1) if split.video_ids.index(hit.video_id) in relevant)
        for result, relevant in zip(results, split.relevant[::3], strict=True)
    ]


@pytest.mark.parametrize("name", STAGES)
def test_it_ranks_the_same_when_it_was_saved_and_is_not_searched(
    name: str, corpus: Corpus, first: Retriever, tmp_path: Path
) -> None:
    split, _ = corpus
    first = with_registers(tmp_path) if "registers" in name else first
    pipeline = Pipeline(first, STAGES[name](first))
    report = evaluate(pipeline, split, PLAIN)
    assert (report.ranks != evaluate(first, split, PLAIN).ranks).any() or name == "another retriever over everything"
    assert report.stages == pipeline.describe()
    pipeline.save_pretrained(tmp_path / "saved")
    loaded = Pipeline.from_pretrained(tmp_path / "saved")
    again = evaluate(loaded, split, PLAIN)
    assert (again.ranks == report.ranks).all()
    assert (again.video_ranks == report.video_ranks).all()
    with pytest.raises(
        InputError, match=r"search takes a retriever.*or search with its first stage: --model"
    ) as refused:
        open_model(tmp_path / "saved", TOY)
    open_model(str(refused.value).rpartition("--model ")[2], TOY)


def test_a_search_with_words_finds_what_evaluation_ranks(corpus: Corpus, tmp_path: Path) -> None:
    """Clips find candidates, and words re-rank them: of few videos all, so that nothing but the way is another."""
    split, videos = corpus
    words = Retriever.from_pretrained(tiny_model(tmp_path / "words", frame_query="words")).eval()
    expected = evaluate(words, split, PLAIN).ranks
    clips = reconfigured(words, {"clip_weight": 1.0, "frame_weight": 0.0})
    assert (expected != evaluate(clips, split, PLAIN).ranks).any()
    with make_index(tmp_path / "index", tmp_path / "words", videos) as index:
        results = index.search_many(split.captions[::3], len(split))
        alone = index.search(split.captions[9], 4)
    assert alone.hits == results[3].hits[:4]  # alone or in company, few or all
    assert ranks_of(results, words, split) == expected[::3].tolist()
    for query in find_moments(words, split, [0, 5], 2):
        for hit in query.hits:
            assert 0 <= hit.start < hit.end


@pytest.mark.parametrize(
    ("gate", "changes"),
    [
        (0.4, {}),
        *((gate, {"frame_query": "words"}) for gate in (0.0, 0.4, 1.0)),
        (0.4, {"frame_pooling": "key_clip"}),
        (0.4, {"branches": "clips", "clip_construction": "proposals"}),
        (0.4, {"branches": "frames"}),
    ],
)
def test_a_search_by_path_and_blocks_finds_what_evaluation_ranks(
    gate: float, changes: dict, corpus: Corpus, tmp_path: Path
) -> None:
    """The path finds candidates, and blocks re-rank them: of few videos all, so that nothing but the way is another."""
    split, videos = corpus
    folder = tiny_model(tmp_path / "whole", start="kernel", path=PathConfig((5, 7), "linear", 20), **changes)
    whole = Retriever.from_pretrained(folder).eval()
    whole.path.gate.fill_(gate)
    whole.save_pretrained(folder)
    report = evaluate(whole, split, PLAIN)
    alone = [evaluate(part(whole), split, PLAIN) for part in (path_alone, blocks_alone)]
    assert [(report.ranks == part.ranks).all() for part in alone] == [gate == 0, gate == 1]
    with make_index(tmp_path / "index", folder, videos) as index:
        results = index.search_many(split.captions[::3], len(split))
        hits = [index.search(split.captions[query], 1).hits[0] for query in (0, 6)]
    assert ranks_of(results, whole, split) == report.ranks[::3].tolist()
    for hit, example in zip(hits, find_moments(whole, split, [0, 6], 1), strict=True):
        video = split.video_ids.index(hit.video_id)
        shares = np.array([example.hits[0].start, example.hits[0].end]) / split.durations[video]
        assert np.array([hit.start, hit.end]) / hit.video.duration == pytest.approx(shares, abs=1e-6)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class OwnConfig(RetrieverConfig):
    what: str = "clips"
    num_clips: int = 8


class Own(OwnRetriever):
    """One vector against clips, with spans or without; or every word against frames; or with moments of its own."""

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)
        self.words, self.rows = nn.Linear(config.query_dim, config.hidden), nn.Linear(config.video_dim, config.hidden)
        alone = Indexed(clips=8, frames=False, clip_weight=1.0, frame_weight=0.0, spans=config.what == "spans")
        self.indexed = {"words": Indexed(whole=True), "moments": Indexed(whole=True), "none": None}.get(
            config.what, alone
        )

    def encode_text(self, words, word_mask):
        mapped, weights = self.words(words), word_mask / word_mask.sum(1, keepdim=True)
        sentence = (mapped * weights[..., None]).sum(1)
        return TextEmbedding(sentence, mapped, word_mask, weights) if self.config.what == "words" else sentence

    def encode_video(self, clips, frames, frame_mask):
        if self.config.what in ("words", "moments"):
            return VideoEmbedding(frames=self.rows(frames), frame_mask=frame_mask)
        first = torch.arange(8) / 8
        spans = torch.stack([first, (first + 0.25).clamp_max(1)], 1).expand(len(clips), -1, -1)
        return VideoEmbedding(self.rows(clips), clip_spans=spans if self.config.what == "spans" else None)

    def score(self, text, video):
        if self.config.what == "words":
            return Scores(word_scores(text.words, text.mask, text.weights, video.frames, video.frame_mask))
        rows, mask = (video.clips, None) if video.frames is None else (video.frames, video.frame_mask)
        return Scores(max_scores(text, rows, mask, dots=False)[0])

    def moments(self, text, video):
        if self.config.what != "moments":
            return super().moments(text, video)
        start = (1 + self.score(text, video).total) / 4
        spans = torch.stack([start, start + 0.25], 2)
        last = torch.tensor([0.9, 1.0]).expand_as(spans)
        scores = 2 + self.score(text, video).total
        return torch.cat([last, spans], 1), torch.cat([torch.ones_like(scores), scores], 1)


@pytest.mark.parametrize("what", ["clips", "spans", "words", "moments"])
def test_a_search_by_ones_own_retriever_finds_what_evaluation_ranks_and_its_moments(
    what: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RETRIEVERS, "_entries", dict(RETRIEVERS._all))
    RETRIEVERS.register("own", Own, "For this test.", OwnConfig)
    monkeypatch.setattr("prvr_search.ranking.results.NEIGHBOURS", 0)  # each video is a hit of its own
    split, videos = corpus
    torch.manual_seed(0)
    sizes: Any = {"kind": "own", "video_dim": 512, "query_dim": 48, "hidden": 16, "max_frames": 24, "max_words": 30}
    own = Own(OwnConfig(what=what, **sizes)).eval()
    own.save_pretrained(tmp_path / "own")
    report = evaluate(own, split, PLAIN)
    with make_index(tmp_path / "index", tmp_path / "own", videos) as index:
        results = index.search_many(split.captions[::3], len(split))
        hits = [index.search(split.captions[query], 1).hits[0] for query in (0, 6)]
    assert ranks_of(results, own, split) == report.ranks[::3].tolist()
    for hit, example in zip(hits, find_moments(own, split, [0, 6], 1), strict=True):
        shares = np.array([example.hits[0].start, example.hits[0].end])
        shares /= split.durations[split.video_ids.index(example.hits[0].video_id)]
        assert hit.video_id == example.hits[0].video_id
        assert np.array([hit.start, hit.end]) / hit.video.duration == pytest.approx(shares, abs=1e-3)
    Own(OwnConfig(what="none", **sizes)).save_pretrained(tmp_path / "none")
    with pytest.raises(DataError, match=r"none: its model is of kind 'own', which does not say how .*Set `indexed`"):
        open_model(tmp_path / "none", TOY)


def test_a_model_of_one_row_says_that_it_sees_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneRow(Own):
        def __init__(self, config: OwnConfig) -> None:
            super().__init__(config)
            self.indexed = Indexed(clips=1, frames=False, clip_weight=1.0, frame_weight=0.0)

        def encode_video(self, clips, frames, frame_mask):
            return VideoEmbedding(self.rows(clips).mean(1, keepdim=True))

    monkeypatch.setattr(RETRIEVERS, "_entries", dict(RETRIEVERS._all))
    RETRIEVERS.register("own", OneRow, "For this test.", OwnConfig)
    OneRow(OwnConfig(kind="own", video_dim=512, query_dim=48, hidden=16)).save_pretrained(tmp_path / "own")
    videos = make_features({"v.mp4": walk(30, 0, TOY.dim)})
    with make_index(tmp_path / "index", tmp_path / "own", videos) as index:
        assert len(index.search("a red square rises").hits) == 1
        with pytest.raises(InputError, match=r"a single row of each window, .*Leave out `then`"):
            index.search(Query("a red square rises", then="it falls"))


@pytest.mark.parametrize(
    "declared", [Indexed(clips=32, frames=False, clip_weight=1.0), Indexed(clips=8), Indexed(whole=True)]
)
def test_a_retriever_that_gives_other_rows_than_it_declares_is_not_searched_with(
    declared: Indexed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Own):
        def __init__(self, config: OwnConfig) -> None:
            super().__init__(config)
            self.indexed = declared

    monkeypatch.setattr(RETRIEVERS, "_entries", dict(RETRIEVERS._all))
    RETRIEVERS.register("own", Other, "For this test.", OwnConfig)
    Other(OwnConfig(kind="own", video_dim=512, query_dim=48, hidden=16)).save_pretrained(tmp_path / "own")
    with pytest.raises(DataError, match=r"`indexed` of Other says clips=.*gives 8 clips and no frames: correct"):
        make_index(tmp_path / "index", tmp_path / "own", make_features({"v.mp4": walk(30, 0, TOY.dim)}))


def test_an_index_without_videos_finds_nothing(tmp_path: Path) -> None:
    videos = make_features({"v.mp4": walk(30, 0, TOY.dim)})
    with make_index(tmp_path / "index", tiny_model(tmp_path / "words", frame_query="words")) as index:
        assert index.search("a red square rises").hits == ()
        index.update(videos)
        assert len(index.search("a red square rises").hits) == 1
        index.update(without(videos, "v.mp4"))
        assert index.search("a red square rises").hits == ()


class TestRefusals:
    def test_an_order_without_a_meaning(self, first: Retriever) -> None:
        order = "must come before stages over the best candidates, got: diffusion, zero_shot"
        with pytest.raises(InputError, match=order):
            Pipeline(first, [diffusion(first), ZeroShotStage()])
        with pytest.raises(InputError, match="qb_norm reads the scores of the first stage"):
            Pipeline(first, [ZeroShotStage(), qb_norm()])

    def test_damage(self, first: Retriever, tmp_path: Path) -> None:
        token_retriever().save_pretrained(tmp_path / "tokens")
        with pytest.raises(DataError, match="evaluate this one with prvr evaluate"):
            open_model(tmp_path / "tokens", TOY)
        folder = tmp_path / "saved"
        Pipeline(first, [qb_norm()]).save_pretrained(folder)
        bank = folder / "stages" / "1-qb_norm" / "bank.safetensors"
        bank.write_bytes(bank.read_bytes()[:-1] + b"x")
        with pytest.raises(DataError, match=r"bank.safetensors: is damaged or was changed"):
            Pipeline.from_pretrained(folder)
        with pytest.raises(DataError, match=r"not a pipeline, pipeline\.json is missing"):
            Pipeline.from_pretrained(tmp_path)


@given(st.integers(1, 9), st.integers(0, 2**31), st.booleans())
def test_the_best_columns_and_their_new_scores(top_k: int, seed: int, ties: bool) -> None:
    numbers = torch.Generator().manual_seed(seed)
    scores = torch.randint(4, (5, 9), generator=numbers).float() if ties else torch.rand(5, 9, generator=numbers)
    columns = best_columns(scores, top_k)
    for row, found in zip(scores.tolist(), columns.tolist(), strict=True):
        assert found == sorted(range(9), key=lambda i, row=row: (-row[i], i))[:top_k]
    new = torch.randn(5, top_k, generator=numbers)
    merged = merge_top_k(scores, columns, new)
    for row in range(5):
        order = merged[row].argsort(descending=True, stable=True).tolist()
        rest = [i for i in range(9) if i not in columns[row].tolist()]
        assert set(order[:top_k]) == set(columns[row].tolist()) or ties
        assert torch.equal(merged[row, rest], scores[row, rest])
        assert torch.equal(merged[row, columns[row]].argsort(stable=True), new[row].argsort(stable=True))
