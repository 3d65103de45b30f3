"""An index of videos: what it holds follows the features, and its scores and ranks are those of evaluation."""

import json
import os
import shutil
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import POINTS, at_write, killed
from search_files import QUERY, TOY, files, make_features, make_index, some_videos, tiny_model, walk, without

from prvr import Retriever
from prvr.config import BlockConfig, Compat, PathConfig, dump_config, load_config
from prvr.data import DataError, PackSettings, open_corpus, open_features, pack
from prvr.encoders import Identity, VideoFeatures, open_featurizer
from prvr.errors import InputError
from prvr.evaluation import encode_split, find_moments
from prvr.published.diffusionret.model_config import TokenModelConfig
from prvr.published.diffusionret.token_retriever import TokenRetriever
from prvr_search import SearchFilter, SearchModel, SearchResult, VideoIndex, open_model
from prvr_search.ranking.scores import video_scores
from prvr_search.store.proof import read_proven, stamp_of, write_proven


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def ids(result: SearchResult) -> list[str]:
    return [hit.video_id for hit in result.hits]


def test_an_index_follows_the_features(tmp_path: Path) -> None:
    """New, changed and vanished videos; the end is that of an index made at once, and other files stay."""
    videos = some_videos([30, 7, 1, 24, 25, 60, 12, 90])
    with make_index(tmp_path / "index") as index:
        index.folder.mkdir(parents=True, exist_ok=True)
        (index.folder / "notes.txt").write_text("mine")
        index.update(make_features(dict(list(videos.items())[:5])))
        assert len(index.video_ids) == 5
        left = without(make_features(videos | {"v001.mp4": walk(9, 99)}), "v003.mp4")
        index.update(left)
        assert index.video_ids == left.video_ids
        with make_index(tmp_path / "fresh", features=left) as fresh:
            assert index.search(QUERY, 20) == fresh.search(QUERY, 20)
        index.update(without(left, *left.video_ids))
        assert index.search(QUERY).hits == ()
        assert (index.folder / "notes.txt").read_text() == "mine"


def test_copies_share_vectors(tmp_path: Path) -> None:
    videos = some_videos([12, 30])
    features = make_features(videos | {"a copy.mp4": videos["v001.mp4"], "z copy.mp4": videos["v001.mp4"]})
    with make_index(tmp_path / "alone", features=make_features(videos)) as alone:
        (vectors,) = vector_files_of(alone)
    with make_index(tmp_path / "index", features=features) as index:
        assert vector_files_of(index) == [vectors]  # named by what it holds
        before = files(index)
        index.update(features)
        assert files(index) == before  # nothing is written again
        hits = {hit.video_id: hit for hit in index.search(QUERY).hits}
        assert [copy.id for copy in hits["a copy.mp4"].copies] == ["v001.mp4", "z copy.mp4"]
        (only,) = index.search(QUERY, where=SearchFilter(names=["z*"])).hits
        assert only.video_id == "z copy.mp4"
        assert only.score == hits["a copy.mp4"].score
        snapshot = index.snapshot
        scores = video_scores(snapshot, index.model.encode_texts([QUERY]))
        assert scores.shape == (1, 4)
        assert np.isfinite(scores).all()


def vector_files_of(index: VideoIndex) -> list[str]:
    return sorted(path.name for path in index.folder.glob("*.vectors"))


def test_vectors_belong_to_features_and_not_to_a_film(features: VideoFeatures, tmp_path: Path) -> None:
    """Another library, or one that was damaged, may have other features of the same film."""
    first, *rest = features.entries.items()
    entries = {first[0]: replace(first[1], features="0" * 64), **dict(rest)}
    other = VideoFeatures(TOY, entries, lambda entry: walk(entry.frames, 99))
    with make_index(tmp_path, features=features) as index, make_index(tmp_path, features=other) as bad:
        expected = index.search(QUERY)
        scores = [{hit.video_id: hit.score for hit in found.hits} for found in (expected, bad.search(QUERY))]
        assert [video for video in scores[0] if scores[0][video] != scores[1][video]] == [first[0]]
        index.update(features)
        assert index.search(QUERY) == expected


def test_many_small_files_are_joined(tmp_path: Path) -> None:
    """Whoever has them open keeps its state; what one video scores is the same whatever file it is in."""
    features = make_features(some_videos([3 + number % 5 for number in range(24)]))
    first = without(features, *features.video_ids[1:])
    with make_index(tmp_path / "index", features=first) as index, make_index(tmp_path / "index") as reader:
        reader.update(first)
        before = reader.search(QUERY)
        for number in range(2, 24):
            index.update(without(features, *features.video_ids[number:]))
            assert reader.search(QUERY) == before
            assert len(vector_files_of(index)) <= 8
        index.update(features)
        with make_index(tmp_path / "fresh", features=features) as fresh:
            assert len(vector_files_of(fresh)) == 1
            assert fresh.search(QUERY, 30) == index.search(QUERY, 30)


def test_a_file_that_is_believed_and_cannot_be_read_is_made_again(features: VideoFeatures, tmp_path: Path) -> None:
    with make_index(tmp_path, features=features) as index:
        expected, (name,) = index.search(QUERY), vector_files_of(index)
        write_proven(path := index.folder / name, [b"no vectors"])
        catalogue = index.folder / "catalogue"
        about = json.loads(bytes(read_proven(catalogue)[0]))
        write_proven(catalogue, [json.dumps({name: [stamp_of(path.stat()), *about[name][1:]]}).encode()])
    with make_index(tmp_path, features=features) as index:
        assert index.search(QUERY) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize("point", POINTS)
def test_killed_inside_a_write(point: str, tmp_path: Path) -> None:
    features = make_features(some_videos([2] * 11))
    with make_index(tmp_path / "whole", features=features) as index:
        expected = index.search(QUERY, 20)

    def act() -> None:
        for number in range(1, 11):
            make_index(tmp_path / "index", features=without(features, *features.video_ids[number:]))

    number = 1
    while killed(act, at_write(number, point)):
        with make_index(tmp_path / "index", features=features) as left:
            assert left.search(QUERY, 20) == expected
        shutil.rmtree(tmp_path / "index")
        number += 4
    assert number > 20


# Scores and ranks are those of evaluation.

VARIANTS = {
    "both": {},
    "frames alone": {"branches": "frames"},
    "one vector of all frames": {"frame_pooling": "attention"},
    "proposals": {"clip_construction": "proposals"},
    "frames of the key clip": {"clip_construction": "proposals", "frame_pooling": "key_clip"},
    "frames in both branches": {
        "clip_construction": "frames",
        "frame_pooling": "linear",
        "frame_query": "second",
        "clip_weight": 0.3,
    },
    "merged frames": {"clip_construction": "merged", "blocks": (BlockConfig(), BlockConfig("euclidean", 2.0))},
    "padding that counts": {"compat": Compat(padding="to_length")},
    "kernel path": {"branches": "none", "start": "kernel", "path": PathConfig((5, 7), "linear", 30)},
}


@pytest.fixture(scope="module")
def corpus(toy_root: Path, tmp_path_factory: pytest.TempPathFactory):
    """Half of the test split of the toy corpus, packed for the tiny model, and the features of its videos."""
    found = open_corpus(toy_root, "toy-tiny")
    folder = tmp_path_factory.mktemp("corpus")
    with open_features(found.feature_folder) as features:
        settings = PackSettings(clips=8, frames=24)
        with pack(found, "test", cache_dir=folder / "packed", settings=settings) as whole:
            split = whole.subset(range(0, len(whole), 2))
            yield split, make_features({v: features.read(v).astype(np.float32) for v in split.video_ids})


MOMENTS = {"both", "proposals", "frames of the key clip", "frames in both branches", "merged frames", "kernel path"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_ranks_and_moments_are_those_of_evaluation(variant: str, corpus, tmp_path: Path) -> None:
    split, videos = corpus
    folder = tiny_model(tmp_path / "model", **VARIANTS[variant])
    encoded = encode_split(retriever := Retriever.from_pretrained(folder), split)
    with torch.inference_mode():
        scores = torch.cat([retriever.score(encoded.text, part).total for part in encoded.videos], 1).numpy()
    with make_index(tmp_path / "index", folder, videos) as index:
        queries = range(0, len(split.query_ids), 7)
        results = index.search_many([split.captions[q] for q in queries], len(split))
        for example in find_moments(retriever, split, queries, k=1) if variant in MOMENTS else ():
            (hit,) = index.search(example.caption, 1).hits
            expected = example.hits[0]
            assert hit.video_id == expected.video_id
            shares = np.array([expected.start, expected.end]) / split.durations[split.video_ids.index(hit.video_id)]
            assert np.array([hit.start, hit.end]) / hit.video.duration == pytest.approx(shares, abs=1e-6)
    for q, result in zip(queries, results, strict=True):
        assert len(result.hits) == len(split)
        own = {hit.video_id: hit.score for hit in result.hits}
        expected = dict(zip(split.video_ids, scores[q].tolist(), strict=True))
        assert own == pytest.approx(expected, abs=1e-3)  # vectors are kept in half precision
        apart = np.abs(np.diff(sorted(scores[q]))) > 2e-3
        if apart.all():  # else the order of two is that of rounding
            assert ids(result) == sorted(expected, key=lambda video: -expected[video])


def test_of_equal_scores_the_smaller_id_comes_first(tmp_path: Path) -> None:
    same = walk(10, 0)
    longer = {video: np.concatenate([same, same[-1:].repeat(more, 0)]) for more, video in enumerate("cabd")}
    with make_index(tmp_path / "index", features=make_features(longer)) as index:
        assert ids(index.search(QUERY, 3)) == ["a", "b", "c"]


# What is refused.


def test_another_encoder_rate_text_or_window_is_refused(index: VideoIndex, model: Path, tmp_path: Path) -> None:
    other = replace(TOY, encoder=Identity("other", "0" * 64, "squeezed"))
    config = TokenModelConfig(kind="tokens", video_dim=512, query_dim=48, hidden=8, heads=2, frame_projection="linear")
    TokenRetriever(config).save_pretrained(tmp_path / "tokens")
    words = tiny_model(tmp_path / "words", query_dim=30)
    for ask, problem in (
        (lambda: index.update(make_features(some_videos([3]), replace(TOY, rate=4.0))), "was made for toy"),
        (lambda: VideoIndex(tmp_path / "new", open_model("zero-shot", TOY), other), "the model reads features of toy"),
        (lambda: open_model("zero-shot", other, text=open_featurizer("toy")), "two models"),
        (lambda: open_model("zero-shot", replace(TOY, joint_dim=0)), "no zero-shot score"),
        (lambda: open_model(model, replace(TOY, dim=12)), r"width 512, those of .* have 12"),
        (lambda: open_model(words, TOY), "words of width 30"),
        (lambda: open_model(tmp_path / "tokens", TOY), "is of kind .tokens."),
        (lambda: make_index(tmp_path / "new", window=10.0, stride=20.0), "0 < stride <= window"),
        (lambda: make_index(tmp_path / "new", window=None), "or None for both"),
    ):
        with pytest.raises((DataError, InputError), match=problem):
            ask()


def of_run(run: Path, changes: dict[str, object]) -> SearchModel:
    """The model of a run that was configured so."""
    (run / "config.yaml").write_text(dump_config(load_config("hybrid-toy", changes)), encoding="utf-8")
    return open_model(run, TOY)


def test_a_run_says_how_its_model_is_fed(toy_cache: Path, features: VideoFeatures, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_model(run / "best")
    found = []
    for keep in (True, False):
        one = of_run(run, {"data.keep_last_frame": keep})
        _, (vectors,) = one.encode_video(features.read("v007.mp4"), np.array([[0, 90]]))
        found.append((one.identity, vectors.clips))
    assert found[0][0] != found[1][0]
    assert not np.allclose(found[0][1], found[1][1])
    text = open_featurizer("toy")
    other = replace(TOY, encoder=Identity("other", "0" * 64, "squeezed"))
    with pytest.raises(DataError, match=r"was trained on features of toy .* these are of other"):
        open_model(run, other, text=text)
    text.identity = Identity("other", "1" * 64, "words")
    with pytest.raises(DataError, match=r"was trained on words of toy .* these are of other"):
        open_model(run, TOY, text=text)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked as POSIX does")
def test_processes_that_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    features = make_features(some_videos([4 + number % 5 for number in range(60)]))
    ids = features.video_ids
    parts = [features, without(features, *ids[:20]), without(features, *ids[40:]), features]
    children = []
    for part in parts:
        if (child := os.fork()) == 0:
            code = 1
            try:
                for end in range(10, len(ids), 7):
                    with make_index(tmp_path, features=without(part, *part.video_ids[end:])) as index:
                        index.search(QUERY)
                code = 0
            except BaseException:
                traceback.print_exc()  # the parent sees no more than a status
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(parts)
    with make_index(tmp_path, features=features) as index, make_index(tmp_path / "own", features=features) as alone:
        assert index.search(QUERY, 60) == alone.search(QUERY, 60)
