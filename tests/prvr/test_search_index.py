"""An index of videos: what it holds follows the features, and its scores and ranks are those of evaluation."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import POINTS, at_write, killed
from search_files import (
    QUERY,
    TOY,
    contents,
    make_features,
    make_index,
    some_videos,
    tiny_model,
    walk,
    without,
)

from prvr import Retriever
from prvr.config import BlockConfig, Compat, PathConfig, RegisterConfig, TokenModelConfig, dump_config, load_config
from prvr.data import DataError, PackSettings, open_corpus, open_features, pack
from prvr.data.sampling import growing_means, level_counts
from prvr.encoders import Identity, TextFeaturizer, VideoFeatures, open_featurizer
from prvr.evaluation import encode_split, find_moments
from prvr.models import TokenRetriever
from prvr_search import SearchModel, SearchResult, VideoIndex, open_model
from prvr_search.ranking import mean_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def ids(result: SearchResult) -> list[str]:
    return [hit.video_id for hit in result.hits]


def test_an_index_holds_the_videos_of_the_features(index: VideoIndex, features: VideoFeatures) -> None:
    assert index.video_ids == features.video_ids
    assert index.video("v005.mp4") == features.entries["v005.mp4"]
    frames = sum(sum(level_counts(entry.frames)) for entry in features.entries.values())
    assert index.source.manifest.sizes == {"windows": 8, "clips": 8 * 32, "frames": frames}


def test_updating_again_leaves_all_as_it_is(index: VideoIndex, features: VideoFeatures) -> None:
    before = contents(index)
    index.update(features)
    assert contents(index) == before
    with make_index(index.folder) as again:
        assert contents(again) == before


def test_an_index_follows_the_features(tmp_path: Path) -> None:
    """New, changed and vanished videos; the end is that of an index made at once, but for keys."""
    videos = some_videos([30, 7, 1, 24, 25, 60, 12, 90])
    with make_index(tmp_path / "index") as index:
        index.update(make_features(dict(list(videos.items())[:5])))
        assert len(index) == 5
        left = make_features(videos | {"v001.mp4": walk(9, 99)})
        index.update(without(left, "v003.mp4"))
        assert "v003.mp4" not in index
        with pytest.raises(KeyError):
            index.video("v003.mp4")
        assert index.video_ids == without(left, "v003.mp4").video_ids
        with make_index(tmp_path / "fresh", features=without(left, "v003.mp4")) as fresh:
            mine, its = ([one.search(q, 20) for q in (QUERY, "a circle")] for one in (index, fresh))
            assert mine == its
        index.update(left)
        with make_index(tmp_path / "whole", features=left) as whole:
            assert index.search(QUERY, 20) == whole.search(QUERY, 20)
        index.update(without(left, *left.video_ids))
        assert index.search(QUERY).hits == ()
        assert not any(file.stat().st_size for file in (index.folder / "rows").rglob("*") if file.is_file())


def test_small_additions_are_appended_and_change_nothing(tmp_path: Path) -> None:
    """A window keeps its number, so that a backend need not read it twice, and no row is written twice."""
    videos = make_features(some_videos([6] * 20))
    with make_index(tmp_path / "index") as index, make_index(tmp_path / "once", features=videos) as once:
        before = b""
        for number in range(20):
            index.update(without(videos, *videos.video_ids[number + 1 :]))
            (clips,) = index.folder.glob("rows/*/clips")
            assert clips.read_bytes().startswith(before)
            before = clips.read_bytes()
        assert index.search(QUERY, 20) == once.search(QUERY, 20)
        assert np.array_equal(index.source.live_keys(), np.arange(20))


def test_rows_are_written_anew_when_a_quarter_are_of_removed_videos(index: VideoIndex, features: VideoFeatures) -> None:
    generation, before = index.source.generation, index.search(QUERY, 8)
    spans = {"start": 0.0, "end": 0.0, "moments": ()}  # where a moment ends depends on the other videos, too
    index.update(without(features, *features.video_ids[:2]))
    assert index.source.generation == generation
    assert index.source.live_keys().tolist() == [2, 3, 4, 5, 6, 7]
    index.update(without(features, *features.video_ids[:3]))
    assert index.source.generation != generation
    assert index.source.windows == 5
    assert len(list((index.folder / "rows").iterdir())) == 1
    expected = [replace(hit, **spans) for hit in before.hits if hit.video_id >= "v003.mp4"]
    assert [replace(hit, **spans) for hit in index.search(QUERY, 8).hits] == expected
    index.update(features)
    assert index.source.live_keys().tolist() == list(range(8))


# It can be computed again: what does not fit is made again, and nothing else is touched.


@pytest.mark.parametrize(
    "damage", ["manifest", "a number", "a file", "half a file", "a link", "half written", "another model"]
)
def test_an_index_that_does_not_fit_is_made_again(
    damage: str, index: VideoIndex, features: VideoFeatures, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = index.search(QUERY)
    (rows,) = (index.folder / "rows").iterdir()
    match damage:
        case "manifest":
            (index.folder / "index.json").write_bytes(b"[" * 1000)
        case "a link":  # into somebody's file, which would be written to
            (rows / "clips").rename(index.folder.parent / "mine")
            (rows / "clips").symlink_to(index.folder.parent / "mine")
        case "half written":  # what a killed writer leaves
            (index.folder / f"index.json.{7:016x}.prvr-tmp").write_text("[")
            (index.folder / "index.json").unlink()
            (index.folder / "index.json").touch()
        case "a number":
            path = index.folder / "index.json"
            path.write_text(path.read_text().replace('"windows": 8', '"windows": 7'))
        case "a file":
            (rows / "windows").unlink()
        case "half a file":
            os.truncate(rows / "clips", (rows / "clips").stat().st_size // 2)
        case "another model":
            make_index(index.folder, model).close()
    with make_index(index.folder, features=features) as again:
        assert again.search(QUERY) == expected
    assert "rebuilding the index" in caplog.text


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"contains other files \(notes\.txt\)"):
        make_index(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["notes.txt"]


def test_a_reader_keeps_its_state_while_another_process_writes(index: VideoIndex, features: VideoFeatures) -> None:
    with make_index(index.folder) as reader:
        before = reader.search(QUERY)
        for number in range(6):
            index.update(without(features, features.video_ids[number]))
            assert reader.search(QUERY) == before
    with make_index(index.folder) as reader:
        assert reader.search(QUERY) == index.search(QUERY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize(("write", "point"), list(zip(range(1, 7), POINTS * 2, strict=True)))
def test_killed_inside_a_write(write: int, point: str, index: VideoIndex, features: VideoFeatures) -> None:
    expected = index.search(QUERY, 20)
    fewer = without(features, "v001.mp4", "v002.mp4", "v005.mp4", "v006.mp4")

    def act() -> None:
        index.update(fewer)
        index.update(features)

    killed(act, at_write(write, point))
    with make_index(index.folder, features=features) as left:
        assert left.search(QUERY, 20) == expected
        assert [path.name for path in (left.folder / "rows").iterdir()] == [left.source.generation]


# Scores and ranks are those of evaluation.

VARIANTS = {
    "both": {},
    "clips alone": {"branches": "clips"},
    "frames alone": {"branches": "frames"},
    "other weights": {"clip_weight": 0.3, "frame_weight": 0.9},
    "one vector of all frames": {"frame_pooling": "attention"},
    "proposals": {"clip_construction": "proposals"},
    "frames of the key clip": {"clip_construction": "proposals", "frame_pooling": "key_clip"},
    "frames in both branches": {"clip_construction": "frames", "frame_pooling": "linear", "frame_query": "second"},
    "merged frames": {"clip_construction": "merged", "blocks": (BlockConfig(), BlockConfig("euclidean", 2.0))},
    "registers": {"registers": RegisterConfig(kind="diffusion", num=2, steps=2)},
    "padding that counts": {"compat": Compat(padding="to_length")},
    "linear path": {"branches": "none", "start": "linear", "path": PathConfig((5, 1))},
    "Fourier features": {"branches": "none", "start": "linear", "path": PathConfig((3,), features=20)},
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_ranks_are_those_of_evaluation(variant: str, corpus, tmp_path: Path) -> None:
    split, videos = corpus
    folder = tiny_model(tmp_path / "model", **VARIANTS[variant])
    encoded = encode_split(retriever := Retriever.from_pretrained(folder), split)
    with torch.inference_mode():
        scores = torch.cat([retriever.score(encoded.text, part).total for part in encoded.videos], 1).numpy()
    with make_index(tmp_path / "index", folder, videos) as index:
        queries = range(0, len(split.query_ids), 7)
        results = index.search_many([split.captions[q] for q in queries], len(split))
    for q, result in zip(queries, results, strict=True):
        assert len(result.hits) == len(split)
        found = {hit.video_id: hit.score for hit in result.hits}
        expected = dict(zip(split.video_ids, scores[q].tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-3)  # vectors are kept in half precision
        apart = np.abs(np.diff(sorted(scores[q]))) > 2e-3
        if apart.all():  # else the order of two is that of rounding
            assert ids(result) == sorted(expected, key=lambda video: -expected[video])


@pytest.mark.parametrize(
    "variant",
    ["both", "proposals", "frames of the key clip", "frames in both branches", "merged frames", "linear path"],
)
def test_moments_are_those_that_evaluation_shows(variant: str, corpus, tmp_path: Path) -> None:
    split, videos = corpus
    folder = tiny_model(tmp_path / "model", **VARIANTS[variant])
    queries = range(0, len(split.query_ids), 11)
    examples = find_moments(Retriever.from_pretrained(folder), split, queries, k=1)
    with make_index(tmp_path / "index", folder, videos) as index:
        for example in examples:
            (hit,) = index.search(example.caption, 1).hits
            video = split.video_ids.index(hit.video_id)
            expected = example.hits[0]
            assert hit.video_id == expected.video_id
            shares = np.array([expected.start, expected.end]) / split.durations[video]
            assert np.array([hit.start, hit.end]) / hit.video.duration == pytest.approx(shares, abs=1e-6)


def test_zero_shot_is_the_cosine_of_the_best_frame_or_mean(index: VideoIndex, features: VideoFeatures) -> None:
    (sentence,) = index.model.encode_texts([QUERY])
    for hit in index.search(QUERY, 8).hits:
        frames = features.read(hit.video_id)[:, :256]
        cosine = growing_means(frames) @ sentence
        assert hit.score == pytest.approx(cosine.max(), abs=1e-3)
        line = mean_lines([cosine], [len(frames)])[0] if len(frames) > 1 else cosine
        row = int(line.argmax())
        assert hit.relevance[min(63, int((row + 0.5) / len(frames) * 64))] == pytest.approx(line.max(), abs=1e-3)
        assert hit.start <= (row + 0.5) / len(frames) * hit.video.duration <= hit.end


def test_of_equal_scores_the_smaller_id_comes_first(tmp_path: Path) -> None:
    same = walk(10, 0)
    longer = {video: np.concatenate([same, same[-1:].repeat(more, 0)]) for more, video in enumerate("cabd")}
    with make_index(tmp_path / "index", features=make_features(longer)) as index:
        assert ids(index.search(QUERY, 3)) == ["a", "b", "c"]


def test_many_queries_at_once_are_each_as_alone(index: VideoIndex) -> None:
    queries = [QUERY, "a circle", "blue", QUERY]
    together = index.search_many(queries, 3)
    assert [result.query for result in together] == queries
    assert together[0] == together[3]
    for query, result in zip(queries, together, strict=True):
        assert result == index.search(query, 3)
    assert index.search_many([]) == ()


# What is refused.


def test_another_encoder_rate_or_text_is_refused(index: VideoIndex, model: Path, tmp_path: Path) -> None:
    other = replace(TOY, encoder=Identity("other", "0" * 64, "squeezed"))
    with pytest.raises(DataError, match=r"features of other .* was made for toy"):
        index.update(make_features(some_videos([3]), other))
    with pytest.raises(DataError, match="the index was made for toy"):
        index.update(make_features(some_videos([3]), replace(TOY, rate=4.0)))
    with pytest.raises(DataError, match="the model reads features of toy"):
        VideoIndex(tmp_path / "new", open_model("zero-shot", TOY), other)
    with pytest.raises(DataError, match="two models"):
        open_model("zero-shot", other, text=open_featurizer("toy"))
    with pytest.raises(DataError, match="no zero-shot score"):
        open_model("zero-shot", replace(TOY, joint_dim=0))
    with pytest.raises(DataError, match=r"frames of width 512, those of .* have 12"):
        open_model(model, replace(TOY, dim=12))
    with pytest.raises(DataError, match="words of width 30"):
        open_model(tiny_model(tmp_path / "words", query_dim=30), TOY)
    with pytest.raises(DataError, match="neither a run"):
        open_model(tmp_path, TOY)


def other_text() -> TextFeaturizer:
    """Words as the toy world has them, by a model that says it is another."""
    text = open_featurizer("toy")
    text.identity = Identity("other", "1" * 64, "words")
    return text


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
        found.append((one.identity, one.encode_windows([features.read("v007.mp4")])[0].clips))
    assert found[0][0] != found[1][0]
    assert not np.allclose(found[0][1], found[1][1])
    other = replace(TOY, encoder=Identity("other", "0" * 64, "squeezed"))
    with pytest.raises(DataError, match=r"was trained on features of toy .* these are of other"):
        open_model(run, other, text=open_featurizer("toy"))
    with pytest.raises(DataError, match=r"was trained on words of toy .* read by other"):
        open_model(run, TOY, text=other_text())


def test_the_seed_of_a_run_is_not_of_its_model(toy_cache: Path, features: VideoFeatures, tmp_path: Path) -> None:
    """Nothing is drawn in evaluation, whatever the registers: the seed changes no vector, and no identity."""
    for start, noise in (("prior_sample", "gaussian"), ("gaussian", "gaussian"), ("prior_mean", "start")):
        run = tmp_path / f"{start}-{noise}"
        registers = RegisterConfig(kind="diffusion", num=2, start=start)
        tiny_model(run / "best", registers=registers, compat=Compat(register_noise=noise))
        found = []
        for seed in (1, 2):
            one = of_run(run, {"train.seed": seed})
            found.append((one.identity, one.encode_windows([features.read("v007.mp4")])[0]))
        assert found[0][0] == found[1][0]
        assert np.array_equal(found[0][1].clips, found[1][1].clips)
        assert np.array_equal(found[0][1].frames, found[1][1].frames)
        retriever = Retriever.from_pretrained(run / "best").eval()
        state = torch.random.get_rng_state()
        with torch.inference_mode():
            retriever.encode_video(torch.ones(1, 8, 512), torch.ones(1, 9, 512), torch.ones(1, 9, dtype=torch.bool))
        assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_compares_words_with_frames_is_refused(tmp_path: Path) -> None:
    config = TokenModelConfig(kind="tokens", video_dim=512, query_dim=48, hidden=8, heads=2, frame_projection="linear")
    TokenRetriever(config).save_pretrained(tmp_path / "tokens")
    with pytest.raises(DataError, match="compares every word with every frame"):
        open_model(tmp_path / "tokens", TOY)


@pytest.mark.parametrize("k", [0, -1])
def test_bad_questions_are_refused(index: VideoIndex, k: int) -> None:
    with pytest.raises(ValueError, match="expected positive numbers"):
        index.search(QUERY, k)
    with pytest.raises(ValueError, match="word"):
        index.search("  ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 10.0, "stride": 20.0}, "0 < stride <= window"),
        ({"window": None}, "or None for both"),
        ({"window": 0.0, "stride": 0.0}, "0 < stride"),
    ],
)
def test_bad_options_are_refused(options, said: str, tmp_path: Path, unchecked: None) -> None:
    with pytest.raises(ValueError, match=said):
        make_index(tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()
