"""Readers of the text-to-video benchmarks, on files in their public formats, and the corpora made from them."""

import json
import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
from benchmark_files import EXPECTED, LSMDC_IDS, MOMENTS, WRITERS
from hypothesis import given
from hypothesis import strategies as st

from prvr.config import load_config, preset_names
from prvr.corpora import Conversion
from prvr.data import Caption, Corpus, DataError, FeatureReader, open_corpus, open_features
from prvr.encoders import Identity
from prvr.papers.benchmarks import BENCHMARKS, Annotations, Benchmark
from prvr.papers.benchmarks.conversion import convert_benchmark, fit_words, match_videos


def benchmark(name: str) -> Benchmark:
    return BENCHMARKS[name].part


def read(name: str, folder: Path) -> Annotations:
    WRITERS[name](folder)
    return benchmark(name).read(folder)


class Text:
    """One row a word and one that ends the text, as CLIP has it; at most 12 rows."""

    identity, word_dim, joint_dim = Identity("counting", "w", "p"), 3, 4

    def words(self, text: str) -> np.ndarray:
        if not any(c.isalnum() for c in text) or len(text.split()) > 11:
            raise ValueError("too long or wordless")
        return np.array([[len(word), ord(word[0]), 1] for word in [*text.split(), "."]], np.float32)

    def sentence(self, text: str) -> np.ndarray:
        return np.array([len(self.words(text)), len(text), 0, 0], np.float32) / 100


words = Text().words


def features(folder: Path, ids: Iterable[str]) -> FeatureReader:
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "feature.hdf5", "w") as file:
        for number, name in enumerate(ids):
            file[name] = np.full((number + 2, 5), number + 1, np.float32)
    return open_features(folder)


def convert(
    name: str, tmp_path: Path, ids: Iterable[str] | None = None, collection: str | None = None, **options: object
) -> Conversion:
    (annotations := tmp_path / "annotations").mkdir(exist_ok=True)
    WRITERS[name](annotations)
    every = [video for split in EXPECTED[name].values() for video in split]
    with features(tmp_path / "features", every if ids is None else ids) as reader:
        return convert_benchmark(name, annotations, reader, Text(), tmp_path / "data" / (collection or name), **options)


class TestReaders:
    def test_other_forms_and_names_of_the_same_files(self, tmp_path: Path) -> None:
        names = ("msrvtt", "lsmdc", "msvd", "activitynet-paragraphs")
        for name in names:
            (tmp_path / name).mkdir()
        expected = {name: read(name, tmp_path / name) for name in names}
        path = tmp_path / "msrvtt" / "MSRVTT_train.9k.csv"  # a mark at the start of a file is no letter
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        path = tmp_path / "lsmdc" / "LSMDC16_challenge_1000_publictect.csv"
        path.rename(path.with_name("lsmdc16_challenge_1000_publictest.csv"))
        path = tmp_path / "msvd" / "raw-captions.pkl"
        path.with_suffix(".json").write_text(json.dumps(pickle.loads(path.read_bytes())))
        path.unlink()
        (tmp_path / "activitynet-paragraphs" / "val_ids.json").unlink()
        for name, before in expected.items():
            found = benchmark(name).read(tmp_path / name)
            assert {key: set(videos) for key, videos in found.splits.items()} == {
                key: set(videos) for key, videos in before.splits.items()
            }

    def test_every_benchmark_is_tested_and_documented_and_has_a_preset(self) -> None:
        presets = [name for name in preset_names() if name.startswith("diffusionret-")]
        own = {load_config(preset).data.collection: preset for preset in presets}
        for name in BENCHMARKS.names:
            chosen = benchmark(name).preset
            assert own.get(name.removesuffix("-7k"), chosen) == chosen
            assert load_config(chosen).model.max_words == benchmark(name).max_words
        assert set(EXPECTED) == set(BENCHMARKS.names)
        page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
        for entry in BENCHMARKS:
            assert re.search(rf"^\| `{entry.name}` \|.*\| {entry.part.max_words} \|$", page, re.MULTILINE)


class TestBadAnnotations:
    @pytest.mark.parametrize(
        ("name", "file", "content", "expected"),
        [
            ("msrvtt", "MSRVTT_train.9k.csv", b"id\nvideo0\n", "no column 'video_id'"),
            ("msvd", "test_list.txt", b"unknown_1_2\n", "nothing about 1 videos"),
            ("msvd", "val_list.txt", b"-4wsuPCjDBc_5_15\n", "in train and in val"),
            # a hash of tuples in tuples would end the process; so would room for 2^32 objects
            ("msvd", "raw-captions.pkl", b"\x80\x04})" + b"\x85" * 3_000_000 + b"]s.", "it has tuples"),
            ("msvd", "raw-captions.pkl", b"\x80\x04}r\xff\xff\xff\xff.", "numbers more objects than it holds"),
            ("lsmdc", "LSMDC16_annos_val.csv", b"a,b,c,d,e,f\n", "1 columns separated by tabs, expected 6"),
            ("uca", "UCFCrime_Val.json", b'{"a": {"sentences": ["b"]}}', r"expected \{VIDEO: .*KeyError"),
            ("youcook2", "youcookii_annotations_trainval.json", b'{"database": {"a": 1}}', "expected 'database'"),
            ("didemo", "val_data.json", b"[", r"^\S+val_data\.json: not valid JSON \(.*\)\. Truncated\?"),
        ],
    )
    def test_is_explained(self, name: str, file: str, content: bytes, expected: str, tmp_path: Path) -> None:
        WRITERS[name](tmp_path)
        (tmp_path / file).write_bytes(content)
        with pytest.raises(DataError, match=expected):
            benchmark(name).read(tmp_path)

    def test_a_pickle_that_would_run_something(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        WRITERS["msvd"](tmp_path)
        monkeypatch.chdir(tmp_path)
        for content, expected in (
            (b"cos\nsystem\n(Vtouch ran\ntR.", "it has tuples, as calls of functions have"),
            (b"(cos\nsystem\nVtouch ran\no.", "it asks for os.system"),
        ):
            (tmp_path / "raw-captions.pkl").write_bytes(content)
            with pytest.raises(DataError, match=expected):
                benchmark("msvd").read(tmp_path)
            assert not (tmp_path / "ran").exists()


def test_features_are_found_under_names_of_files() -> None:
    for video, stored, entry in (
        (LSMDC_IDS[1], [f"films/{name}.avi" for name in LSMDC_IDS], f"films/{LSMDC_IDS[1]}.avi"),  # a name with times
        ("video7", ["video77", "all/video7.MP4"], "all/video7.MP4"),
        ("1@N_a.mov", ["1@N_a"], "1@N_a"),
        ("1@N_a.mov", ["1@N_a.mov.mp4"], "1@N_a.mov.mp4"),
        ("v_a1", ["a1.mp4"], "a1.mp4"),
        ("a.mp4", ["a.mp4", "b/a.mp4"], "a.mp4"),  # the exact id comes first
    ):
        assert match_videos([video], stored) == {video: entry}
    for videos, names in ((["a"], ["a.mp4", "b/a.avi"]), (["a.mp4", "a.avi"], ["a"])):
        with pytest.raises(DataError, match=r"2 entries of the features fit|fit two videos"):
            match_videos(videos, names)


def opened(conversion: Conversion) -> Corpus:
    return open_corpus(conversion.path.parent, conversion.path.name)


class TestCorpus:
    @pytest.mark.parametrize("name", BENCHMARKS.names)
    def test_holds_every_query_and_video(self, name: str, tmp_path: Path) -> None:
        found = convert(name, tmp_path)
        assert found.path == tmp_path / "data" / name
        corpus = open_corpus(tmp_path / "data", name)
        assert corpus.is_benchmark != (name in MOMENTS)  # else tables are those of text-to-video retrieval
        assert found.counts["missing"] == {}
        assert set(corpus.splits) == set(EXPECTED[name])
        for split, videos in EXPECTED[name].items():
            content = corpus.split(split)
            expected = [Caption(f"{v}#enc#{k}", v, text) for v, said in videos.items() for k, text in enumerate(said)]
            assert content.video_ids == tuple(videos)
            assert content.captions == tuple(expected)
            assert (found.counts["videos"][split], found.counts["captions"][split]) == (len(videos), len(expected))
        found_moments = {key: m for split in corpus.splits for key, m in corpus.split(split).moments.items()}
        assert {key: (m.start, m.end, m.duration) for key, m in found_moments.items()} == MOMENTS.get(name, {})
        with corpus.open_queries() as queries, corpus.open_features() as frames:
            first = corpus.split("test").captions[0]
            assert np.array_equal(queries.read(first.id), words(first.text))
            assert frames.read(first.video_id).shape[1] == 5

    def test_counts_captions_that_are_cut(self, tmp_path: Path) -> None:
        found = convert("didemo", tmp_path, max_words=4)
        # of 6 and 6 words; "waves" and "a child waves" fit
        assert list(found.notes) == ["2 captions cut to 4 rows of text features"]
        test = opened(found).split("test").captions[0]
        assert test.text == "the camera zooms in a hat"  # the text stays whole
        with opened(found).open_queries() as queries:
            assert np.array_equal(queries.read(test.id), words("the camera zooms"))
        about = json.loads((found.path / "corpus.json").read_text())
        assert (about["benchmark"], about["max_words"], about["cut"], about["missing"]) == ("didemo", 4, 2, {})


@given(st.integers(1, 30), st.integers(2, 14))
def test_cutting_keeps_the_longest_prefix_that_fits(count: int, most: int) -> None:
    text = " ".join(f"w{n}" for n in range(count))
    told, rows = fit_words(Text(), Caption("a#enc#0", "a", text), most)
    kept = min(count, most - 1, 11)  # one row ends the text; the model takes 11 words
    assert len(rows) == kept + 1
    assert told == " ".join(text.split()[:kept])
    assert np.array_equal(rows, words(told))
