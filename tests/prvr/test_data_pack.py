"""The packed split: the same numbers as the sources, built once, whole or not at all, and never silently wrong."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import file_size_limit

from prvr.config import ModelConfig, load_config
from prvr.data import (
    Caption,
    Corpus,
    DataError,
    MomentTimes,
    PackedSplit,
    PackSettings,
    TextData,
    open_corpus,
    pack,
    sample_video,
    write_layout,
)
from prvr.data.packing import repack
from prvr.data.sampling import normalise_rows
from prvr.evaluation import EvaluationReport, report_from_scores
from prvr.evaluation.tables import metrics_table
from prvr.training import open_split

LENGTHS = {"one": 1, "few": 7, "edge": 128, "many-日本": 300}
CAPTIONS = [("one", 0), ("few", 0), ("edge", 0), ("many-日本", 0), ("one", 1), ("edge", 1)]
WORDS = (1, 30, 45, 3, 2, 31)


def features() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    videos = {v: rng.standard_normal((n, 6)).astype(np.float32) for v, n in LENGTHS.items()}
    rows = [rng.standard_normal((n, 4)).astype(np.float32) for n in WORDS]
    return videos, {f"{v}#enc#{k}#+": words for (v, k), words in zip(CAPTIONS, rows, strict=True)}


def corpus_of(root: Path, videos: dict | None = None, queries: dict | None = None, tags: Any = None) -> Corpus:
    default = features()
    captions = {"test": [Caption(f"{v}#enc#{k}#+", v, f"text {k}") for v, k in CAPTIONS]}
    moments, relevance = {"edge#enc#1#+": MomentTimes(1.0, 2.0, 9.0)}, {"one#enc#1#+": ["edge", "elsewhere"]}
    texts = TextData(captions=captions, moments=moments, relevance=relevance, tags=tags)
    videos, queries = videos or default[0], queries or default[1]
    write_layout(root / "col", texts, videos=videos.items(), queries=queries.items())
    return open_corpus(root, "col")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return corpus_of(tmp_path)


@pytest.fixture
def packed(corpus: Corpus, tmp_path: Path) -> PackedSplit:
    return pack(corpus, "test", cache_dir=tmp_path / "cache")


def test_what_is_packed_is_what_the_sources_say_also_in_batches(packed: PackedSplit) -> None:
    videos, queries = features()
    assert packed.constant == ()  # the features differ
    assert packed.video_ids == tuple(LENGTHS)
    assert packed.query_ids == tuple(queries)
    assert packed.captions == tuple(f"text {k}" for _, k in CAPTIONS)
    assert packed.query_to_video.tolist() == [0, 1, 2, 3, 0, 2]
    assert packed.relevant == ({0}, {1}, {2}, {3}, {0, 2}, {2})
    assert packed.relevant_matrix[4].tolist() == [True, False, True, False]
    assert [packed.queries_of(i).tolist() for i in range(4)] == [[0, 4], [1], [2, 5], [3]]
    assert packed.frame_counts.tolist() == [1, 7, 128, 128]
    assert (packed.feature_dim, packed.query_dim, len(packed)) == (6, 4, 4)
    np.testing.assert_array_equal(np.stack(packed.moments)[:, 5], [1.0, 2.0, 9.0])
    assert np.isnan(np.stack(packed.moments)[:, :5]).all()
    np.testing.assert_array_equal(packed.durations, [np.nan, np.nan, 9.0, np.nan])
    for i, x in enumerate(videos.values()):
        for ours, expected in zip(packed.video(i), sample_video(x), strict=True):
            np.testing.assert_array_equal(ours.numpy(), expected)
    for j, x in enumerate(queries.values()):
        assert len(packed.query(j)) == min(len(x), 30)
        np.testing.assert_allclose(packed.query(j).numpy(), normalise_rows(x)[:30], atol=1e-7)
    videos = [row for batch in packed.video_batches(3) for row in zip(*batch, strict=True)]
    assert [int(index) for *_, index in videos] == list(range(4))
    for clips, frames, mask, index in videos:
        torch.testing.assert_close(clips, packed.video(int(index))[0], rtol=0, atol=0)
        torch.testing.assert_close(frames[mask], packed.video(int(index))[1], rtol=0, atol=0)
        assert not frames[~mask].any()
    queries = [row for batch in packed.query_batches(4) for row in zip(*batch, strict=True)]
    assert [int(index) for _, _, index in queries] == list(range(6))
    for words, mask, index in queries:
        torch.testing.assert_close(words[mask], packed.query(int(index)), rtol=0, atol=0)
        assert not words[~mask].any()


def test_a_video_is_as_long_as_any_of_its_queries_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Though its last query may not know it, or lengths were rounded differently; lengths that differ are told."""
    corpus = corpus_of(tmp_path)
    for first, second, expected in ((30.0, None, 30.0), (30.4, 30.0, 30.4), (30.0, 45.0, 45.0)):
        rows = [{"cap_id": f"one#enc#{i}#+", "duration": d, "ts": None} for i, d in enumerate((first, second)) if d]
        corpus.text_file("moments").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        packed = pack(corpus, "test", cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(packed.durations, [expected, np.nan, np.nan, np.nan])
        np.testing.assert_array_equal(packed.subset([0]).durations, [expected])
        assert ("different lengths" in caplog.text) == (expected == 45.0)


def test_a_subset_is_renumbered_and_shares_the_store(packed: PackedSplit) -> None:
    part = packed.subset([2, 0])
    assert part.video_ids == ("one", "edge")
    assert part.query_ids == tuple(packed.query_ids[j] for j in (0, 2, 4, 5))
    assert part.query_to_video.tolist() == [0, 1, 0, 1]
    assert part.relevant == ({0}, {1}, {0, 1}, {1})
    assert part.files is packed.files
    torch.testing.assert_close(next(part.video_batches(9))[0][1], packed.video(2)[0], rtol=0, atol=0)
    torch.testing.assert_close(part.query(3), packed.query(5), rtol=0, atol=0)
    lonely = part.subset([1])
    assert (lonely.video_ids, lonely.relevant) == (("edge",), ({0}, {0}))
    assert packed.subset([0]).relevant == ({0}, {0})  # "edge", which also matches, is not in this gallery
    for bad in ([], [0, 0], [4]):
        with pytest.raises(DataError, match="subset of col test"):
            packed.subset(bad)


TAGS = {"one#enc#1#+": ["seen", "short"], "edge#enc#1#+": ["seen"], "many-日本#enc#0#+": ["wörter [neu]"]}


def test_tags_belong_to_their_queries_also_in_subsets(tmp_path: Path) -> None:
    with pack(corpus_of(tmp_path, tags=TAGS), "test", cache_dir=tmp_path / "cache") as packed:
        assert packed.tags == tuple(map(frozenset, ([], [], [], ["wörter [neu]"], ["seen", "short"], ["seen"])))
        part = packed.subset([2, 3])
        assert part.query_ids == ("edge#enc#0#+", "many-日本#enc#0#+", "edge#enc#1#+")
        assert part.tags == (frozenset(), {"wörter [neu]"}, {"seen"})


class Watched(PackSettings):
    """Calls a function before it samples a video."""

    def __init__(self, call: Callable[[], object], **changes: Any) -> None:
        super().__init__(**changes)
        object.__setattr__(self, "call", call)

    def video(self, rows: np.ndarray) -> Any:
        self.call()  # pyright: ignore[reportAttributeAccessIssue]
        return super().video(rows)


def test_it_is_built_once_and_anew_when_source_or_settings_change(corpus: Corpus, tmp_path: Path) -> None:
    calls: list[None] = []

    def build(**changes: Any) -> Path:
        calls.clear()
        settings = Watched(lambda: calls.append(None), **changes)
        return pack(corpus, "test", cache_dir=tmp_path / "c", settings=settings).files.folder

    first = build()
    assert len(calls) == 4
    assert build() == first
    assert not calls
    other = {build(clips=8), build(words=5), build(keep_last=False)}
    assert len(other | {first}) == 4
    tags = corpus.text_file("tags")
    for number, word in enumerate(("seen", "tall")):  # of the same size
        tags.write_text(f'{{"cap_id": "one#enc#0#+", "tags": ["{word}"]}}', encoding="utf-8")
        os.utime(tags, (number, number))
        folder = build()
        assert folder not in {first, *other}
        other.add(folder)
    tags.unlink()
    assert build() == first


def test_a_build_that_is_broken_off_leaves_nothing(corpus: Corpus, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(corpus, "test", cache_dir=tmp_path / "cache", settings=Watched(interrupt))
    with file_size_limit(4096), pytest.raises(DataError, match="disk is full"):  # the frames need 6 kB
        pack(corpus, "test", cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert len(pack(corpus, "test", cache_dir=tmp_path / "cache")) == 4


def test_settings_reach_the_store_and_widths_are_checked_before_and_after_packing(
    corpus: Corpus, tmp_path: Path
) -> None:
    settings = PackSettings(clips=4, frames=16, words=5, keep_last=False, dtype="float16")
    packed = pack(corpus, "test", cache_dir=tmp_path / "cache", settings=settings)
    clips, frames = sample_video(features()[0]["many-日本"], 4, 16, keep_last=False)
    assert packed.video(3)[0].dtype == torch.float32
    np.testing.assert_allclose(packed.video(3)[0].numpy(), clips, atol=1e-3)
    np.testing.assert_allclose(packed.video(3)[1].numpy(), frames, atol=1e-3)
    assert packed.query(2).shape == (5, 4)
    with pytest.raises(ValueError, match="at least 1"):
        PackSettings(clips=0)
    for _ in range(2):
        both = r"6 wide.* expects 9; .* 4 wide, but the model expects 8\. Set model\.video_dim=6 and model\.query_dim=4"
        with pytest.raises(DataError, match=both):
            pack(corpus, "test", cache_dir=tmp_path / "cache", feature_dim=9, query_dim=8)
        pack(corpus, "test", cache_dir=tmp_path / "cache", feature_dim=6, query_dim=4)


@pytest.mark.parametrize(("value", "name"), [(0.0, "zero"), (3.0, "equal")])
def test_features_that_tell_nothing_apart_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: float, name: str
) -> None:
    corpus = corpus_of(tmp_path, {v: np.full_like(x, value) for v, x in features()[0].items()})
    packed = pack(corpus, "test", cache_dir=tmp_path / "cache", settings=PackSettings(dtype="float16"))
    sentence = f"All frame features of col test are {name}: videos cannot be told apart."
    assert packed.constant == (sentence,)
    assert sentence in caplog.text
    assert packed.subset([1]).constant == ()  # of one video there is nothing to tell apart


def test_bad_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    videos, queries = features()
    videos["few"][3] = 0
    queries["many-日本#enc#0#+"][:2] = 0
    videos["many-日本"] = videos["edge"].copy()
    videos["one"] = np.repeat(videos["one"], 3, axis=0)
    for other in ("one#enc#0#+", "few#enc#0#+", "one#enc#1#+"):  # the texts of the first two are equal
        queries[other] = queries["edge#enc#0#+"].copy()
    corpus = corpus_of(tmp_path / "a", videos, queries)
    for _ in range(2):
        caplog.clear()
        with pack(corpus, "test", cache_dir=tmp_path / "cache") as packed:
            assert not packed.video(1)[1][3].any()
        assert "3 feature rows are all zero, in 2 videos or captions (few" in caplog.text
        assert "1 videos have the features of another video (many-日本 those of edge ...)" in caplog.text
        assert "1 captions have the features of another caption (one#enc#1#+ those of one#enc#0#+ ...)" in caplog.text
        assert "of 1 videos or captions are the same in all their rows (one ...)" in caplog.text
    videos["few"][3] = np.nan
    with pytest.raises(DataError, match=r"'few'.*NaN or infinity in frame row 3"):
        pack(corpus_of(tmp_path / "b", videos, queries), "test", cache_dir=tmp_path / "cache")
    del videos["few"]
    with pytest.raises(DataError, match=r"1 of 4 videos have no features.*\['few'\]"):
        pack(corpus_of(tmp_path / "c", videos, queries), "test", cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
@pytest.mark.parametrize("name", ["clips.bin", "frames.bin", "words.bin", "index.npz", "text.json", "meta.json"])
def test_damage_is_found_and_packing_again_mends_it(
    packed: PackedSplit, corpus: Corpus, tmp_path: Path, name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, folder = packed.video(3)[1], packed.files.folder
    packed.close()
    data = bytearray((folder / name).read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
    (folder / name).unlink()
    if how != "remove":
        (folder / name).write_bytes(data[:-1] if how == "cut" else data)
    with pytest.raises(DataError, match="Delete this folder") as caught:
        PackedSplit.open(folder)
    assert str(folder) in str(caught.value)
    again = pack(corpus, "test", cache_dir=tmp_path / "cache")
    assert "Building it again" in caplog.text
    again.files.verify()
    torch.testing.assert_close(again.video(3)[1], good, rtol=0, atol=0)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [folder.name]


def test_two_may_pack_at_once(corpus: Corpus, tmp_path: Path) -> None:
    both = Barrier(2)

    def build(_: int) -> Path:
        meet = lru_cache(lambda: both.wait(60))  # before the first video alone
        packed = pack(corpus, "test", cache_dir=tmp_path / "cache", settings=Watched(meet))
        packed.files.verify()
        return packed.files.folder

    with ThreadPoolExecutor() as pool:
        folders = list(pool.map(build, range(2)))
    assert list((tmp_path / "cache").iterdir()) == folders[:1] == folders[1:]


def test_videos_without_features_are_left_out_where_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted wherever a report of the split is shown, and the store is another one."""
    videos = {name: rows for name, rows in features()[0].items() if name != "edge"}
    corpus, cache = corpus_of(tmp_path, videos), tmp_path / "cache"
    with pytest.raises(DataError, match=r"1 of 4 videos have no features.*\['edge'\]"):
        pack(corpus, "test", cache_dir=cache)
    packed = pack(corpus, "test", cache_dir=cache, skip_missing=True)
    assert packed.video_ids == ("one", "few", "many-日本")
    assert packed.query_ids == tuple(f"{v}#enc#{k}#+" for v, k in CAPTIONS if v != "edge")
    assert "1 videos have no features and are left out" in caplog.text
    again = repack(packed, ModelConfig(video_dim=6, query_dim=4, max_frames=3), keep_last=True)
    assert again.video_ids == packed.video_ids
    assert again.frame_counts.max() == 3
    report = report_from_scores(torch.rand(len(packed.query_ids), 3), packed)
    report.to_json(tmp_path / "report.json")
    assert EvaluationReport.from_json(tmp_path / "report.json").left_out == report.left_out == 1
    assert "1 videos without features left out" in str(metrics_table(report).title)
    config = load_config("hybrid-toy", {"data.root": str(tmp_path), "data.collection": "col", "data.missing": "skip"})
    model = replace(config.model, video_dim=6, query_dim=4)
    config = replace(config, model=model, data=replace(config.data, cache_dir=str(cache)))
    assert len(open_split(config, "test")) == 3
    nothing = corpus_of(tmp_path / "none", {"elsewhere": videos["one"]})
    with pytest.raises(DataError, match="4 of 4 videos have no features"):
        pack(nothing, "test", cache_dir=cache, skip_missing=True)
