"""Own captions: what a table may look like, what is refused and where, and that the corpus holds what it should."""

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from commands import SMALL, as_options, explained
from hypothesis import given
from hypothesis import strategies as st
from search_files import library_features, noise_features
from video_files import MeanColour

from prvr.cli import main
from prvr.corpora import SplitShares, read_user_captions, split_videos
from prvr.corpora.caption_corpus import convert_captions, videos_folder
from prvr.corpora.corpus_encoders import corpus_encoders, read_sentences
from prvr.corpora.user_captions import plain_ids
from prvr.data import DataError, open_corpus
from prvr.encoders import FeatureSpec, VideoFeatures, open_encoder, open_featurizer
from prvr.toy import read_toy_scenes, render
from prvr_search.films.toy_videos import write_mp4

NAMES = ["day 1/beach.mp4", "day 2/beach.mp4", "été #1.mp4", "talk.mkv", "x.mp4", "copy of x.mp4", "y.mp4", "z.mp4"]


def table(path: Path, *lines: str, end: str = "\n", mark: bytes = b"") -> Path:
    path.write_bytes(mark + "".join(line + end for line in lines).encode())
    return path


def make_store(dim: int = 4, encoder: Any = None, joint: int = 3) -> VideoFeatures:
    return noise_features(FeatureSpec(encoder or MeanColour().identity, 2.0, dim, joint), NAMES)


@pytest.fixture
def features() -> VideoFeatures:
    return make_store()


def said(path: Path) -> list[tuple[Any, ...]]:
    return [(c.line, c.video, c.text, c.start, c.end) for c in read_user_captions(path)]


class TestTables:
    def test_csv_as_spreadsheets_write_it(self, tmp_path: Path) -> None:
        path = table(
            tmp_path / "a.csv",
            "Video,Caption,start,end,who",
            'x.mp4,"says ""hi"", twice",1.5,3,me',
            "",
            'x.mp4,"two',
            'lines",,,',
            "été.mp4,=SUM(A1:A9) +1 @x,0:01.5,1:02:03,",
            "y.mp4,no times",
            end="\r\n",
            mark=b"\xef\xbb\xbf",
        )
        assert said(path) == [
            (2, "x.mp4", 'says "hi", twice', 1.5, 3.0),
            (4, "x.mp4", "two lines", None, None),
            (6, "été.mp4", "=SUM(A1:A9) +1 @x", 1.5, 3723.0),
            (7, "y.mp4", "no times", None, None),
        ]

    @pytest.mark.parametrize(("delimiter", "end"), [(",", "\n"), (";", "\r\n"), ("\t", "\r")])
    def test_separators_and_line_ends(self, delimiter: str, end: str, tmp_path: Path) -> None:
        rows = [[" SENTENCE ", "vid"], ["a, b; c", "x.mp4"], ["a dog\u2028runs", "y.mp4"]]
        lines = (delimiter.join(f'"{cell}"' for cell in row) for row in rows)
        expected = [(2, "x.mp4", "a, b; c", None, None), (3, "y.mp4", "a dog runs", None, None)]
        assert said(table(tmp_path / "a.csv", *lines, end=end)) == expected

    def test_json_lines(self, tmp_path: Path) -> None:
        rows = [
            {"vid": "x.mp4", "query": "a\ndog", "start": 1, "end": "0:02", "other": []},
            {"file": "ø.mp4", "text": "-1", "start": None},
        ]
        path = table(tmp_path / "a.jsonl", *(json.dumps(row) for row in rows), "", end="\r\n")
        assert said(path) == [(1, "x.mp4", "a dog", 1.0, 2.0), (2, "ø.mp4", "-1", None, None)]

    @pytest.mark.parametrize(
        ("name", "content", "why"),
        [
            ("a.csv", b"x.mp4,a dog\ny.mp4,a cat\n", "a.csv: header: no video and no text among ['x.mp4'"),
            ("a.csv", b"video,text\n", "no captions"),
            ("a.csv", b"video,file,text\nx,y,z\n", "a.csv: header: two columns could be the video"),
            ("a.csv", b'video,text\nx,"never closed\n', "Line 2: not readable as CSV"),
            ("a.csv", b"video,text\ny,caf\xe9\n", "line 2: not UTF-8"),
            ("a.jsonl", b'["x", "a"]\n', "Line 1: expected an object"),
            ("a.jsonl", b'{"video": "x", "text": "a", "start": NaN, "end": 1e999}\n', "NaN is not a JSON number"),
            ("a.csv", None, "no such file"),
        ],
    )
    def test_files_that_are_refused(self, name: str, content: bytes | None, why: str, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=re.escape(why)):
            read_user_captions(tmp_path / name)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_refused(self, tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
        folder = tmp_path_factory.mktemp("any")
        for name in ("a.csv", "a.jsonl"):
            (folder / name).write_bytes(b"video,text\n" * (name == "a.csv") + content)
            try:
                found = read_user_captions(folder / name)
            except DataError:
                continue
            assert all(c.text == " ".join(c.text.split()) != "" and c.video.strip() for c in found)


class TestSplits:
    @given(
        st.dictionaries(st.text(ascii_lowercase, min_size=1), st.sampled_from("abcdefghijklmnop"), min_size=4),
        st.integers(0, 3),
    )
    def test_every_video_in_one_and_copies_together(self, contents: dict[str, str], seed: int) -> None:
        different = len(set(contents.values()))
        if different < 4:
            with pytest.raises(DataError, match="too few"):
                split_videos(contents, SplitShares(seed=seed))
            return
        found = split_videos(contents, SplitShares(seed=seed))
        assert set(found) == set(contents)
        sides = {(content, found[video]) for video, content in contents.items()}
        assert len(sides) == different  # one side for each content
        sizes = Counter(side for _, side in sides)
        assert sizes["test"] == max(1, round(0.2 * different))
        assert sizes["val"] == max(1, round(0.1 * different))
        assert sizes["train"] >= 2
        assert split_videos(dict(reversed(contents.items())), SplitShares(seed=seed)) == found  # whatever the order

    @given(st.lists(st.text(min_size=1), unique=True))
    def test_ids_are_different_and_plain(self, names: list[str]) -> None:
        found = plain_ids(names)
        assert list(found) == names
        assert len(set(found.values())) == len(names)
        assert not any(set(plain) & set(" /#\t\n\\") for plain in found.values())
        assert all(plain.strip(".") for plain in found.values())


LINES = (
    "video,text,start,end",
    "day 1/beach,a wave,1,3",
    "day 2\\beach.mp4,A wave,,",
    "été #1,a dog,0,10.4",
    "talk,somebody talks,,",
    "x.mp4,a cat,2,4",
    "x,a cat,2,4",
    "y,a cat,5,6",
)


def test_what_the_corpus_holds(features: VideoFeatures, tmp_path: Path) -> None:
    text = open_featurizer("toy")
    ticks: list[tuple[int, int]] = []
    path = table(tmp_path / "films.csv", *LINES)
    report = convert_captions(path, features, text, tmp_path / "films", progress=lambda *at: ticks.append(at))
    assert report.path == tmp_path / "films"
    assert report.counts["videos"] == {"train": 4, "val": 1, "test": 1}
    assert sum(report.counts["captions"].values()) == 6
    assert [note.partition(". ")[0] for note in report.notes] == [
        "Few different videos: train 4, val 1, test 1",
        "Only one different video in val and test: every recall there is 100 %, whatever the model.",
        "4 of 6 captions have times",
        "1 moments cut to their video",
        "1 duplicate lines omitted",
        "2 videos without a caption omitted: copy of x.mp4, z.mp4 ...",
        "no comparison with zero-shot: captions and frames have different encoders",
    ]
    assert ticks == [(n, 12) for n in range(1, 13)]

    corpus = open_corpus(tmp_path, "films")
    rows = [json.loads(line) for line in (corpus.folder / "videos.jsonl").read_text().splitlines()]
    names = {row["id"]: row["video"] for row in rows}
    assert set(names.values()) == set(NAMES) - {"copy of x.mp4", "z.mp4"}
    splits = {name: corpus.split(name) for name in corpus.splits}
    assert set(splits) == {"train", "val", "test"}
    captions = {(names[c.video_id], c.text): (s, c) for s in splits.values() for c in s.captions}
    assert len(captions) == 6
    with corpus.open_features() as stored, corpus.open_queries() as queries:
        for plain, video in names.items():
            np.testing.assert_array_equal(stored.read(plain), features.read(video))
        for (_, words), (_, caption) in captions.items():
            np.testing.assert_array_equal(queries.read(caption.id), text.words(words))
    moments = {key: split.moments[caption.id] for key, (split, caption) in captions.items()}
    assert {m.duration for m in moments.values()} == {10.0}
    assert (moments["été #1.mp4", "a dog"].start, moments["été #1.mp4", "a dog"].end) == (0.0, 10.0)  # cut
    assert np.isnan(moments["talk.mkv", "somebody talks"].start)
    about = corpus_encoders(corpus)
    assert about is not None
    assert (about.frames, about.text, about.rate) == (features.encoder, text.identity, 2.0)


def test_equal_captions_are_right_for_each_other(features: VideoFeatures, tmp_path: Path) -> None:
    lines = [f"{name},{caption}" for name in NAMES for caption in ("A  wave", f"only of {plain_ids(NAMES)[name]}")]
    convert_captions(table(tmp_path / "f.csv", "video,text", *lines), features, open_featurizer("toy"), tmp_path / "f")
    corpus = open_corpus(tmp_path, "f")
    for split in map(corpus.split, corpus.splits):
        for caption in split.captions:
            copies = [name for name in split.video_ids if "x.mp4" in name and "x.mp4" in caption.video_id]
            expected = split.video_ids if caption.text == "A wave" else [*copies, caption.video_id]
            assert split.relevant(caption) == {*expected}


def test_problems_of_every_kind_come_in_one_round(features: VideoFeatures, tmp_path: Path) -> None:
    """Cells, videos, times and words: mending what one message names leaves nothing of the table for a second one."""
    lines = ["x,,1,2", "nobody,a,5,4", "x,b,9,12", "z,c,one,2", *(f"lost {number},g,," for number in range(30))]
    path = table(tmp_path / "f.csv", "video,text,start,end", *lines)
    with pytest.raises(DataError, match=r"35 problems.*And 15 more") as error:
        convert_captions(path, features, open_featurizer("toy"), tmp_path / "films")
    for line, problem in (
        (2, "text: expected words, got ''"),
        (3, "start 5 is not before end 4"),
        (3, "no video fits 'nobody'"),
        (4, "9 - 12 s lies beyond the end of 'x.mp4', which is 10.00 s long"),
        (5, "got 'one'"),
    ):
        assert re.search(rf"Line {line}: (?:(?!Line ).)*{re.escape(problem)}", str(error.value))
    path = table(path, "video,text", "x,?!", f"y,{'long ' * 65}", "z,a", "talk,b", "day 1/beach,c", "z,...")
    with pytest.raises(DataError, match=r"3 problems. Line 2: no word in.*Line 3: 65 words.*Line 7: no word"):
        convert_captions(path, features, open_featurizer("toy"), tmp_path / "root" / "films")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_moment_may_end_shortly_after_the_video_and_not_begin_there(features: VideoFeatures, tmp_path: Path) -> None:
    """The length is that of the file, not that of its rows, of which the last one may be missing."""
    entries = {name: replace(entry, duration=entry.duration - 0.2) for name, entry in features.entries.items()}
    films = VideoFeatures(features.spec, entries, lambda entry: features.read(entry.id))
    path = table(tmp_path / "f.csv", "video,text,start,end", "x,a,9,10.5", "x,b,9.9,10.1", "x,c,9,10.9")
    with pytest.raises(
        DataError, match=r"2 problems\. Line 3: 9\.9 - 10\.1 s lies beyond.*Line 4: 9 - 10\.9 s lies beyond"
    ):
        convert_captions(path, films, open_featurizer("toy"), tmp_path / "films")


def test_sentences_of_a_joint_encoder(clip: str, roberta: str, tmp_path: Path) -> None:
    encoder, side = open_encoder(clip), open_featurizer(clip)
    features = make_store(encoder.dim, encoder.identity, encoder.joint_dim)
    path = table(tmp_path / "f.csv", "video,text", *(f"{name},a red circle {n}" for n, name in enumerate(NAMES)))
    convert_captions(path, features, side, tmp_path / "own")
    words = open_featurizer(roberta)
    convert_captions(path, features, words, tmp_path / "words")
    convert_captions(path, features, words, tmp_path / "both", joint=side)
    for name, dim in (("own", 12), ("words", 0), ("both", 12)):
        corpus = open_corpus(tmp_path, name)
        about = corpus_encoders(corpus)
        assert about is not None
        assert about.joint_dim == dim
        rows = read_sentences(corpus, "train")
        assert (rows is None) == (dim == 0)
        if rows is not None:
            expected = [side.sentence(caption.text) for caption in corpus.split("train").captions]
            np.testing.assert_array_equal(rows, np.stack(expected))


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory, toy_root: Path) -> Path:
    """8 videos of the toy world as files, extracted, with a table of their captions."""
    folder = tmp_path_factory.mktemp("films")
    corpus = open_corpus(toy_root, "toy-tiny")
    split = corpus.split("test")
    kept = sorted(read_toy_scenes(corpus)["test"].videos, key=lambda video: video.duration)[:8]
    (folder / "videos").mkdir()
    for video in kept:
        write_mp4(folder / "videos" / f"{video.id}.mp4", render(video), scale=2)
    library_features(folder / "videos")
    some = {video.id for video in kept}
    rows = [(c, split.moments[c.id]) for c in split.captions if c.video_id in some]
    lines = (f'{c.video_id},"{c.text}",{m.start},{m.end}' for c, m in rows)
    table(folder / "films.csv", "video,text,start,end", *lines)
    return folder


def test_the_command_and_training_on_it(films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert = ["convert", "captions", str(films / "films.csv"), "--features", str(films / "videos")]
    assert main([*convert, "--output", str(tmp_path / "data")]) == 0
    out = capsys.readouterr().out
    said = out.splitlines()[-1]
    assert said == (
        f"prvr train --preset hybrid-toy --data-root {tmp_path}/data --data.collection films --train.protocol val"
    )
    assert "40 of 40 captions have times" in out

    small = as_options(SMALL | {"train.epochs": 1, "train.batch_size": 8})
    run = ["--output", str(tmp_path / "run"), f"--data.cache_dir={tmp_path}/cache", "--device", "cpu", "-q"]
    assert main([*said.split()[1:], *small, *run]) == 0
    out = capsys.readouterr().out
    found = re.findall(r"^ *(\S.*?)((?: +\d+\.\d){5}) *$", out, flags=re.MULTILINE)
    rows = {name: [float(number) for number in numbers.split()] for name, numbers in found}
    assert rows["chance"][0] == pytest.approx(50)
    assert rows["zero-shot (joint encoder, no training)"][0] >= 30
    assert "this model" in rows
    searched = shlex.split(out.splitlines()[-1])  # the films that it was trained on, with it or with zero-shot
    assert searched[:3] == ["prvr", "search", str(films / "videos")]
    assert searched[3] in {caption.text for caption in open_corpus(tmp_path / "data", "films").split("test").captions}
    assert main([*searched[1:], "-k", "2", "-q"]) == 0
    assert "2 of 8 videos" in capsys.readouterr().out


"""An encoder whose words a model can learn to match with frames, while zero-shot ranks alike for every sentence."""


def test_a_corpus_of_several_folders_names_none(films: Path, tmp_path: Path) -> None:
    features, found = library_features(films / "videos"), tmp_path / "films"
    convert_captions(films / "films.csv", features, open_featurizer("toy"), found)
    corpus, rows = open_corpus(tmp_path, "films"), (found / "videos.jsonl").read_text()
    assert videos_folder(corpus) == (films / "videos").resolve()
    (found / "videos.jsonl").write_text(rows.replace(f"{films}/videos/", "/elsewhere/", 1))
    assert videos_folder(corpus) is None


def test_what_the_command_refuses(
    films: Path, features: VideoFeatures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["convert", "captions", str(films / "films.csv"), "--features", str(films / "videos")]
    good += ["--output", str(tmp_path)]
    assert "no video is encoded yet" in explained([*good[:4], str(tmp_path), *good[5:]], capsys)
    for option, value, said in (
        ("--test", "1.5", "expected shares above 0"),
        ("--collection", "../up", "expected letters"),
    ):
        assert said in explained([*good, option, value], capsys)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there" / "file").mkdir(parents=True)
    assert "already exists" in explained([*good, "--collection", "there"], capsys)
    few = table(tmp_path / "few.csv", "video,text", "x,a", "copy of x,b", "y,c", "z,d")
    with pytest.raises(DataError, match=r"3 different videos with captions \(1 more are copies\)"):
        convert_captions(few, features, open_featurizer("toy"), tmp_path / "few")
