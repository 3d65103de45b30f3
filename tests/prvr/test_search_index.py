"""An index of videos: what it holds follows the store, and its scores and ranks are those of evaluation."""

import hashlib
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from search_files import (
    QUERY,
    TOY,
    contents,
    forget,
    found_in,
    make_index,
    sign,
    some_videos,
    tiny_model,
    walk,
    write_store,
)
from video_models import tiny_clip

from prvr import Retriever
from prvr.config import Compat, RegisterConfig, TokenModelConfig, dump_config, load_config
from prvr.data import DataError, PackSettings, open_corpus, open_features, pack
from prvr.evaluation.encode import encode_split
from prvr.evaluation.moments import find_moments
from prvr.models import TokenRetriever
from prvr.search import SearchModel, SearchResult, VideoIndex, open_model
from prvr.video import Identity, StoreHeader, TextFeaturizer, VideoStore, open_encoder, open_featurizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def ids(result: SearchResult) -> list[str]:
    return [hit.video_id for hit in result.hits]


def test_what_is_in_the_store_is_in_the_index(index: VideoIndex, store: VideoStore) -> None:
    assert index.video_ids == store.video_ids
    assert index.verify() == ()
    assert index.video("v005.mp4") == store.entries["v005.mp4"]
    assert index.source.windows_of("v005.mp4") == 1
    about = index.info()
    frames = sum(entry.frames for entry in store.entries.values())
    assert (about.videos, about.windows, about.frames, about.clips) == (8, 8, frames, 8 * 32)
    assert about.seconds == frames / 2
    assert about.bytes == sum(p.stat().st_size for p in (index.folder / "segments").rglob("*.*"))
    assert about.bytes_per_video == about.bytes / 8


def test_adding_again_leaves_all_as_it_is(index: VideoIndex, store: VideoStore) -> None:
    before = contents(index)
    report = index.add(store)
    assert report.unchanged == store.video_ids
    assert not report.added + report.changed + report.removed + report.stale
    assert contents(index) == before


def test_an_index_grows_and_follows_its_store(tmp_path: Path) -> None:
    """New, changed, moved and vanished videos; the end is that of an index made at once, but for keys."""
    videos = some_videos([30, 7, 1, 24, 25, 60, 12, 90])
    store = write_store(tmp_path / "store", dict(list(videos.items())[:5]))
    with make_index(tmp_path / "index") as index:
        assert index.add(store).added == store.video_ids
        store = write_store(store.folder, dict(list(videos.items())[5:]) | {"v001.mp4": walk(9, 99)})
        report = index.add(store)
        assert report.added == ("v005.mp4", "v006.mp4", "v007.mp4")
        assert report.stale == ("v001.mp4",)
        assert index.video("v001.mp4").sha256 != store.entries["v001.mp4"].sha256
        store = forget(store, "v003.mp4")
        report = index.update(store)
        assert (report.added, report.changed, report.removed) == ((), ("v001.mp4",), ("v003.mp4",))
        assert index.video_ids == store.video_ids
        assert index.verify() == ()
        with make_index(tmp_path / "fresh", store=store) as fresh:
            left, right = ([index.search(q, 20) for q in (QUERY, "a circle")] for index in (index, fresh))
            assert left == right


def test_what_was_removed_is_not_found(index: VideoIndex, store: VideoStore) -> None:
    first, second = index.search(QUERY, 2).hits
    assert index.remove([first.video_id]).removed == (first.video_id,)
    (found,) = index.search(QUERY, 1).hits
    assert found == replace(second, confidence=found.confidence)  # which the other videos change
    assert first.video_id not in index
    assert len(index) == 7
    assert index.verify() == ()
    with pytest.raises(KeyError):
        index.video(first.video_id)
    index.add(store)
    assert index.search(QUERY, 2).hits == (first, second)


def test_an_unknown_video_is_not_removed_and_no_other_is(index: VideoIndex) -> None:
    with pytest.raises(DataError, match=r"1 of 2 videos.*'v00.mp4'; close: .*Nothing was removed"):
        index.remove(["v000.mp4", "v00.mp4"])
    assert len(index) == 8


def test_all_may_be_removed(index: VideoIndex) -> None:
    index.remove(index.video_ids)
    assert index.search(QUERY).hits == ()
    assert index.info().videos == index.info().bytes == 0
    assert not list((index.folder / "segments").iterdir())


def test_many_small_additions_become_few_segments_and_change_nothing(tmp_path: Path) -> None:
    """Keys stay, so that a backend need not learn a window twice."""
    videos = some_videos([6] * 20)
    with make_index(tmp_path / "index") as index, make_index(tmp_path / "once") as once:
        for number in range(20):
            store = write_store(tmp_path / "store", dict(list(videos.items())[number : number + 1]))
            index.add(store)
            assert index.info().segments <= 9
        once.add(store)
        assert index.info().segments == 6  # eight, eight, and four alone
        assert index.search(QUERY, 20) == once.search(QUERY, 20)
        assert np.array_equal(index.source.live_keys(), np.arange(20))
        assert index.verify() == ()


def test_a_segment_of_which_half_is_gone_is_written_anew(index: VideoIndex) -> None:
    name, before = index.source.segments, index.search(QUERY, 8)
    index.remove(["v000.mp4", "v001.mp4", "v002.mp4"])
    assert (index.source.segments, index.info().removed) == (name, 3)
    index.remove(["v003.mp4"])
    assert index.source.segments != name
    assert index.info().removed == 0
    assert index.info().clips == 4 * 32
    assert index.source.live_keys().tolist() == [4, 5, 6, 7]
    expected = [replace(hit, confidence=None) for hit in before.hits if hit.video_id >= "v004.mp4"]
    assert [replace(hit, confidence=None) for hit in index.search(QUERY, 8).hits] == expected


def test_keys_are_never_given_twice(index: VideoIndex, store: VideoStore) -> None:
    index.remove(index.video_ids[:3])
    index.add(store)
    assert index.source.live_keys().tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


# Scores and ranks are those of evaluation.

VARIANTS = {
    "both": {},
    "clips alone": {"branches": "clips"},
    "frames alone": {"branches": "frames"},
    "other weights": {"clip_weight": 0.3, "frame_weight": 0.9},
    "one vector of all frames": {"frame_pooling": "attention"},
    "registers": {"registers": RegisterConfig(kind="diffusion", num=2, steps=2)},
    "padding that counts": {"compat": Compat(padding="to_length")},
}


@pytest.fixture(scope="module")
def corpus(toy_root: Path, tmp_path_factory: pytest.TempPathFactory):
    """The test split of the toy corpus, packed for the tiny model, and its videos as a store."""
    found = open_corpus(toy_root, "toy-tiny")
    folder = tmp_path_factory.mktemp("corpus")
    with open_features(found.feature_folder) as features:
        videos = {v: features.read(v).astype(np.float32) for v in found.split("test").video_ids}
    settings = PackSettings(clips=8, frames=24)
    with pack(found, "test", cache_dir=folder / "packed", settings=settings) as split:
        yield split, write_store(folder / "store", videos)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_ranks_are_those_of_evaluation(variant: str, corpus, tmp_path: Path) -> None:
    split, store = corpus
    folder = tiny_model(tmp_path / "model", **VARIANTS[variant])
    encoded = encode_split(retriever := Retriever.from_pretrained(folder), split)
    with torch.inference_mode():
        scores = torch.cat([retriever.score(encoded.text, part).total for part in encoded.videos], 1).numpy()
    with make_index(tmp_path / "index", folder, store, dtype="float32") as index:
        queries = range(0, len(split.query_ids), 7)
        results = index.search_many([split.captions[q] for q in queries], len(split))
    for q, result in zip(queries, results, strict=True):
        assert len(result.hits) == len(split)
        found = {hit.video_id: hit.score for hit in result.hits}
        expected = dict(zip(split.video_ids, scores[q].tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-5)
        apart = np.abs(np.diff(sorted(scores[q]))) > 1e-5
        if apart.all():  # else the order of two is that of rounding
            assert ids(result) == sorted(expected, key=lambda video: -expected[video])


def test_moments_are_those_that_evaluation_shows(corpus, tmp_path: Path) -> None:
    split, store = corpus
    folder = tiny_model(tmp_path / "model")
    queries = range(0, len(split.query_ids), 11)
    examples = find_moments(Retriever.from_pretrained(folder), split, queries, k=1)
    with make_index(tmp_path / "index", folder, store, dtype="float32") as index:
        for example in examples:
            (hit,) = index.search(example.caption, 1).hits
            video = split.video_ids.index(hit.video_id)
            expected = example.hits[0]
            assert hit.video_id == expected.video_id
            shares = np.array([expected.start, expected.end]) / split.durations[video]
            assert np.array([hit.start, hit.end]) / hit.video.duration == pytest.approx(shares, abs=1e-6)


def test_zero_shot_is_the_cosine_of_the_best_frame(index: VideoIndex, store: VideoStore) -> None:
    sentence = open_featurizer("toy").sentence(QUERY)
    for hit in index.search(QUERY, 8).hits:
        frames = store.read(hit.video_id)[:, :256]
        cosine = frames @ sentence / np.linalg.norm(frames, axis=1)
        assert hit.score == pytest.approx(cosine.max(), abs=1e-3)
        row = int(cosine.argmax())
        assert hit.relevance[min(63, int((row + 0.5) / len(frames) * 64))] == pytest.approx(cosine.max(), abs=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance", "share"), [("float16", 1e-3, 0.5), ("int8", 2e-2, 0.25 + 0.07)])
def test_smaller_vectors_change_scores_a_little(
    dtype, tolerance: float, share: float, store: VideoStore, model: Path, tmp_path: Path
) -> None:
    with (
        make_index(tmp_path / "a", model, store, dtype="float32") as exact,
        make_index(tmp_path / "b", model, store, dtype=dtype) as small,
    ):
        left, right = ({h.video_id: h.score for h in one.search(QUERY, 8).hits} for one in (exact, small))
        assert right == pytest.approx(left, abs=tolerance)
        vectors = [
            sum(p.stat().st_size for p in one.folder.rglob("*s.npy") if "clips" in p.name) for one in (exact, small)
        ]
        assert vectors[1] < (share + 0.05) * vectors[0]  # a scale is 4 bytes, a vector 16


def test_of_equal_scores_the_smaller_id_comes_first(tmp_path: Path) -> None:
    same = walk(10, 0)
    longer = {video: np.concatenate([same, same[-1:].repeat(more, 0)]) for more, video in enumerate("cabd")}
    store = write_store(tmp_path / "store", longer)
    with make_index(tmp_path / "index", store=store) as index:
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
        index.add(write_store(tmp_path / "other", some_videos([3]), other))
    with pytest.raises(DataError, match=r"at 4 frames per second; .* at 2\."):
        index.add(write_store(tmp_path / "rate", some_videos([3]), replace(TOY, rate=4.0)))
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


def test_queries_of_another_text_model_are_refused(model: Path, tmp_path: Path) -> None:
    make_index(tmp_path / "index", model).close()
    with pytest.raises(DataError, match=r"read by other .* was made for toy"):
        found_in(tmp_path / "index", text=other_text())


def test_a_clip_and_a_roberta_are_opened_by_the_names_that_the_index_knows(roberta: str, tmp_path: Path) -> None:
    clip = open_encoder(str(tiny_clip(tmp_path / "clip")))
    header = StoreHeader(clip.identity, 2.0, clip.dim, clip.joint_dim)
    store = write_store(tmp_path / "store", {f"v{i}": walk(8, i, clip.dim) for i in range(5)}, header)
    words = open_featurizer(roberta)
    trained = tiny_model(tmp_path / "model", video_dim=clip.dim, query_dim=words.word_dim)
    for name, model in {
        "zero-shot": open_model("zero-shot", header),
        "trained": open_model(trained, header, text=words),
    }.items():
        with make_index(tmp_path / name, model, store) as index:
            found = index.search(QUERY)
        assert found_in(tmp_path / name) == found
        assert len(found.hits) == 5
    shutil.rmtree(tmp_path / "clip")
    tiny_clip(tmp_path / "clip", nudge=0.1)
    with pytest.raises(DataError, match="the index was made for"):
        found_in(tmp_path / "zero-shot")
    assert found_in(tmp_path / "trained") == found


def test_the_index_has_its_own_model(model: Path, store: VideoStore, tmp_path: Path) -> None:
    """The run may go; the copy is checked by its hash."""
    folder = tiny_model(tmp_path / "model")
    with make_index(tmp_path / "index", folder, store) as index:
        before = index.search(QUERY)
    folder.rename(tmp_path / "elsewhere")
    assert found_in(tmp_path / "index") == before
    file = tmp_path / "index" / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with VideoIndex.open(tmp_path / "index") as index:
        assert [str(file) in said for said in index.verify()] == [True]
        with pytest.raises(DataError, match=r"model\.safetensors: does not match its hash"):
            index.search(QUERY)


def of_run(run: Path, changes: dict[str, object]) -> SearchModel:
    """The model of a run that was configured so."""
    (run / "config.yaml").write_text(dump_config(load_config("hybrid-toy", changes)), encoding="utf-8")
    return open_model(run, TOY)


def test_a_run_says_how_its_model_is_fed(toy_cache: Path, store: VideoStore, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_model(run / "best")
    found = []
    for keep in (True, False):
        one = of_run(run, {"data.keep_last_frame": keep})
        found.append((one.identity, one.encode_windows([store.read("v007.mp4")])[0].clips))
    assert found[0][0] != found[1][0]
    assert not np.allclose(found[0][1], found[1][1])
    other = replace(TOY, encoder=Identity("other", "0" * 64, "squeezed"))
    with pytest.raises(DataError, match=r"was trained on features of toy .* these are of other"):
        open_model(run, other, text=open_featurizer("toy"))
    with pytest.raises(DataError, match=r"was trained on words of toy .* read by other"):
        open_model(run, TOY, text=other_text())


def rewritten(folder: Path, how: str) -> None:
    """The same model as other files."""
    from safetensors.torch import load_file, save_file

    weights, config = folder / "model.safetensors", folder / "config.json"
    if how == "float16":
        save_file({name: value.half() for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    elif how == "metadata":
        save_file(load_file(weights), weights, {"format": "pt", "step": "7"})
    else:
        values = json.loads(config.read_text())
        for part, key in ((values, "dropout"), (values["compat"], "padding"), (values["blocks"][0], "width")):
            part.pop(key, None)
        config.write_text(json.dumps(values))


@pytest.mark.parametrize("how", ["float16", "metadata", "without defaults"])
def test_the_copy_of_a_model_is_that_model_whatever_its_files_are_like(
    how: str, store: VideoStore, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path / "model")
    whole = open_model(folder, TOY).identity
    rewritten(folder, how)
    assert (open_model(folder, TOY).identity == whole) is (how != "float16")
    with make_index(tmp_path / "index", folder, store) as index:
        found = index.search(QUERY)
    with VideoIndex.open(tmp_path / "index") as index:
        assert index.search(QUERY) == found
        assert index.verify() == ()
    rewritten(folder, "without defaults")
    assert open_model(folder, TOY).identity == VideoIndex.open(tmp_path / "index").source.manifest.model


def test_an_index_of_version_0_1_is_read(store: VideoStore, tmp_path: Path) -> None:
    """It tells the hash of the files of its model, and a seed that nothing draws from."""
    with make_index(tmp_path / "index", tiny_model(tmp_path / "model"), store) as index:
        found = index.search(QUERY)
    copy = tmp_path / "index" / "model"
    (copy / "feeding.json").write_text('{"keep_last": true, "seed": 3}\n')
    told = hashlib.sha256(hashlib.sha256((copy / "model.safetensors").read_bytes()).digest())
    for name in ("config.json", "feeding.json"):
        told.update(json.dumps(json.loads((copy / name).read_text()), sort_keys=True).encode())

    def change(body: dict) -> dict:
        about, content = body["index"], (copy / "feeding.json").read_bytes()
        about["model"]["weights"] = told.hexdigest()
        about["model_files"]["feeding.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return body

    sign(tmp_path / "index" / "index.json", change)
    with VideoIndex.open(tmp_path / "index") as index:
        assert index.search(QUERY) == found
        assert index.verify() == ()
        index.remove(["v001.mp4"])
        index.add(store)
        assert index.search(QUERY) == found
    told.update(b"another model")
    sign(tmp_path / "index" / "index.json", change)
    with pytest.raises(DataError, match="not the model that the index was built with"):
        found_in(tmp_path / "index")


def test_the_seed_of_a_run_is_not_of_its_model(toy_cache: Path, store: VideoStore, tmp_path: Path) -> None:
    """Nothing is drawn in evaluation, whatever the registers: the seed changes no vector, and no identity."""
    for start, noise in (("prior_sample", "gaussian"), ("gaussian", "gaussian"), ("prior_mean", "start")):
        run = tmp_path / f"{start}-{noise}"
        registers = RegisterConfig(kind="diffusion", num=2, start=start)
        tiny_model(run / "best", registers=registers, compat=Compat(register_noise=noise))
        found = []
        for seed in (1, 2):
            one = of_run(run, {"train.seed": seed})
            found.append((one.identity, one.encode_windows([store.read("v007.mp4")])[0]))
        assert found[0][0] == found[1][0]
        assert np.array_equal(found[0][1].clips, found[1][1].clips)
        assert np.array_equal(found[0][1].frames, found[1][1].frames)
        retriever = Retriever.from_pretrained(run / "best").eval()
        state = torch.random.get_rng_state()
        with torch.inference_mode():
            retriever.encode_video(torch.ones(1, 8, 512), torch.ones(1, 9, 512), torch.ones(1, 9, dtype=torch.bool))
        assert torch.equal(torch.random.get_rng_state(), state)


# Another index in the place of one that is open.


@pytest.mark.parametrize("hidden", [16, 32])
@pytest.mark.parametrize("backend", ["exact", "faiss"])
def test_an_index_that_is_replaced_while_it_is_open_brings_its_own_model(
    hidden: int, backend: str, store: VideoStore, model: Path, tmp_path: Path
) -> None:
    """The new model has the same width or another one: vectors and queries always come from one model."""
    if backend == "faiss":
        pytest.importorskip("faiss")
    other = tiny_model(tmp_path / "model", hidden=hidden, num_clips=4)
    for name, chosen in (("old", model), ("new", other)):
        make_index(tmp_path / name, chosen, store).close()
    expected = found_in(tmp_path / "new")
    with VideoIndex.open(tmp_path / "old", backend=backend) as index:
        before = index.search(QUERY)
        (tmp_path / "old").rename(tmp_path / "older")
        (tmp_path / "new").rename(tmp_path / "old")
        assert index.search(QUERY) == before
        assert index.refresh()
        assert index.search(QUERY).hits == expected.hits
        assert before.hits != expected.hits
        index.remove(["v000.mp4"])
        assert index.add(store).added == ("v000.mp4",)
        assert index.search(QUERY).hits == expected.hits
        assert not index.refresh()


def test_an_index_of_another_text_model_in_the_place_of_one_that_is_open_is_refused(
    store: VideoStore, model: Path, tmp_path: Path
) -> None:
    other = open_model(tiny_model(tmp_path / "model", hidden=32), TOY, text=other_text())
    make_index(tmp_path / "new", other, store).close()
    make_index(tmp_path / "index", model, store).close()
    with VideoIndex.open(tmp_path / "index", text=open_featurizer("toy")) as index:
        index.search(QUERY)
        (tmp_path / "index").rename(tmp_path / "old")
        (tmp_path / "new").rename(tmp_path / "index")
        assert index.refresh()
        with pytest.raises(DataError, match=r"read by toy .* was made for other"):
            index.search(QUERY)
    with VideoIndex.open(tmp_path / "old") as index:
        (tmp_path / "old").rename(tmp_path / "older")
        (tmp_path / "index").rename(tmp_path / "old")
        with pytest.raises(DataError, match="was replaced after it was opened"):
            index.search(QUERY)


def test_searches_while_indexes_take_turns_are_each_of_one_index(
    store: VideoStore, model: Path, tmp_path: Path
) -> None:
    other = tiny_model(tmp_path / "model", hidden=32)
    expected = []
    for name, chosen in (("a", model), ("b", other)):
        with make_index(tmp_path / name, chosen, store) as made:
            expected.append(made.search(QUERY).hits)
    shutil.copytree(tmp_path / "a", tmp_path / "index")
    with VideoIndex.open(tmp_path / "index") as index:
        stop, wrong, seen = threading.Event(), [], set()

        def search() -> None:
            try:
                while not stop.is_set():
                    seen.add(expected.index(index.search(QUERY).hits))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=search) for _ in range(2)]
        index.search(QUERY)
        for thread in threads:
            thread.start()
        for turn in range(12):
            shutil.copytree(tmp_path / "ba"[turn % 2], tmp_path / "next")
            (tmp_path / "index").rename(tmp_path / f"old{turn}")
            (tmp_path / "next").rename(tmp_path / "index")
            index.refresh()
            index.search(QUERY)
        stop.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert seen == {0, 1}


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
        ({"window": None}, "without a stride, None"),
        ({"window": 0.0, "stride": 0.0}, "0 < stride"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16'"),
    ],
)
def test_bad_options_are_refused(options, said: str, tmp_path: Path, unchecked: None) -> None:
    with pytest.raises(ValueError, match=said):
        make_index(tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()
