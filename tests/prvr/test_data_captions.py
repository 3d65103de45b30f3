"""Caption files, moments, relevance sets, tags, and finding a corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from prvr.data import Caption, DataError, MomentTimes, TextData, open_corpus, pack, write_layout
from prvr.data.layout import read_captions, read_moments, read_relevance, read_tags


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "file.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_lines_of_captions_moments_relevance_and_tags(tmp_path: Path) -> None:
    """Ids end in #enc# and a number; lines are split at the first space."""
    text = "b#enc#0 two  words\u2028one line\na##x#enc#1 # text\r\nünï-日#enc#0 \u00a0 x\n\nb#enc#1 again"
    assert read_captions(file(tmp_path, text)) == (
        Caption("b#enc#0", "b", "two  words\u2028one line"),
        Caption("a##x#enc#1", "a##x", "# text"),
        Caption("ünï-日#enc#0", "ünï-日", "\u00a0 x"),
        Caption("b#enc#1", "b", "again"),
    )
    row = '{"split": "test", "cap_id": "a#enc#0", "vid": "a", "duration": 9, "ts": [5.5, 2], "kind": "v"}\n'
    assert read_moments(file(tmp_path, row)) == {"a#enc#0": MomentTimes(2.0, 5.5, 9.0)}
    row = '{"cap_id": "a#enc#0", "vids": ["a", "b"]}\n'
    assert read_relevance(file(tmp_path, row)) == {"a#enc#0": {"a": 1, "b": 1}}
    row = '{"cap_id": "a#enc#0", "tags": ["new [word]", "seen", "seen"]}\n'
    assert read_tags(file(tmp_path, row)) == {"a#enc#0": {"new [word]", "seen"}}


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_captions, "\n\n", "holds no caption"),
        (read_captions, "a#enc#0 x\nb#enc#0 \n", "line 2: caption 'b#enc#0' has no text"),
        (read_captions, "a#enc#0 x\na#enc#0 y\n", "line 2: caption id 'a#enc#0' is repeated"),
        (read_captions, b"a#enc#0 caf\xe9\n", "not UTF-8"),
        (read_tags, '{"cap_id": "a", "tags": []}\n{"tags": ["x"]}', "line 2: cap_id: Field required"),
    ],
)
def test_bad_lines(tmp_path: Path, read: Callable[[Path], object], text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(file(tmp_path, text))


def make(root: Path, name: str = "col", feature: str = "frames", **more: Any) -> None:
    captions = {
        "train": [Caption("x#enc#0", "x", "a text")],
        "test": [Caption(f"{v}#enc#{k}", v, "a text") for v, k in (("b", 0), ("a", 0), ("b", 1))],
    }
    videos = [(video, np.ones((2, 4), np.float32)) for video in "xab"]
    queries = [(caption.id, np.ones((2, 3), np.float32)) for part in captions.values() for caption in part]
    write_layout(root / name, TextData(captions, **more), videos=videos, queries=queries, feature=feature)


def test_a_split_has_its_gallery_in_order_and_relevance_within_it(tmp_path: Path) -> None:
    tags = {"b#enc#0": ("seen", "long"), "x#enc#0": {"seen"}}
    make(tmp_path, relevance={"b#enc#0": ["a", "x"]}, moments={"a#enc#0": MomentTimes(0.0, 1.0, 2.0)}, tags=tags)
    corpus = open_corpus(tmp_path, "col")
    split = corpus.split("test")
    assert corpus.splits == ("test", "train")
    assert split.video_ids == ("b", "a")
    assert [split.relevant(caption) for caption in split.captions] == [{"a", "b"}, {"a"}, {"b"}]
    assert split.moments["a#enc#0"].end == 1.0
    assert split.tags == {"b#enc#0": {"seen", "long"}, "x#enc#0": {"seen"}}
    with pytest.raises(DataError, match=r"colval\.caption\.txt.*\['test', 'train'\]"):
        corpus.split("val")


def test_the_layout_is_found_or_the_gap_is_named(tmp_path: Path) -> None:
    make(tmp_path, feature="i3d")
    make(tmp_path, "other")
    with pytest.raises(DataError, match=r"tvr: no such folder.*\['col', 'other'\]"):
        open_corpus(tmp_path, "tvr")
    features = tmp_path / "col" / "FeatureData"
    (features / "mine").mkdir()
    assert open_corpus(tmp_path, "col").feature_folder == features / "i3d"  # a published name goes first
    assert open_corpus(tmp_path, "col", feature="mine").feature_folder == features / "mine"
    with pytest.raises(DataError, match=r"\['i3d', 'mine'\]"):
        open_corpus(tmp_path, "col", feature="yours")
    (features / "i3d").rename(features / "frames")
    assert open_corpus(tmp_path, "col").feature_folder == features / "frames"  # as does the one that prvr writes
    (features / "frames").rename(features / "theirs")
    with pytest.raises(DataError, match=r"expected one folder.*\['mine', 'theirs'\]"):
        open_corpus(tmp_path, "col")


@pytest.mark.parametrize(("frames", "words"), [("clip_L14", "clip_L14"), ("slowfast_clip", "slowfast_clip_text")])
def test_the_files_of_msc_prvr_are_read_under_their_own_names(tmp_path: Path, frames: str, words: str) -> None:
    """Two HDF5 files without a folder; videos of ActivityNet without the `v_` of their captions."""
    for side in ("FeatureData", "TextData"):
        (tmp_path / "activitynet" / side).mkdir(parents=True)
    text = tmp_path / "activitynet" / "TextData"
    (text / "activitynettest.caption.txt").write_text("v_a#enc#0 a dog\nv_b#enc#0 a cat\n")
    with h5py.File(tmp_path / "activitynet" / "FeatureData" / f"activitynet_{frames}.h5", "w") as file:
        file.update({"a": np.ones((3, 4), np.float32), "b": np.eye(4, dtype=np.float32)})
    with h5py.File(text / f"activitynet_{words}.h5", "w") as file:
        file.update({f"v_{name}#enc#0": np.full((2, 5), 2.0, np.float32) for name in "ab"})
    (text / "roberta_activitynet_query_feat.hdf5").write_bytes(b"of other frames")
    split = pack(open_corpus(tmp_path, "activitynet"), "test", cache_dir=tmp_path / "cache")
    assert (split.video_ids, split.feature_dim, split.query_dim) == (("v_a", "v_b"), 4, 5)
    torch.testing.assert_close(split.video(1)[1], torch.eye(4), atol=1e-4, rtol=0)
    split.close()


def test_the_writer_refuses_what_it_could_not_read_back(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match="already exists"):
        make(tmp_path)
    bad = TextData({"test": [Caption("a", "a", "x\ny")]})
    with pytest.raises(DataError, match="one line of text"):
        write_layout(tmp_path / "caption", bad, videos=[], queries=[])
    with pytest.raises(DataError, match=r"tags: 1 caption ids are in no split, among them \['c#enc#0'\]"):
        make(tmp_path, "unknown", tags={"a#enc#0": ["seen"], "c#enc#0": ["seen"]})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["col"]


@pytest.mark.parametrize("bad", ["", "..", "a/b", "/a", "a\nb", "a b", "a\0b", "\ud800", "a\x7f"], ids=ascii)
def test_ids_that_the_files_cannot_hold_are_refused_before_anything_is_written(tmp_path: Path, bad: str) -> None:
    rows: dict[str, Any] = {"good": np.ones((1, 2)), bad: np.ones((1, 2))}
    for kind, videos, queries in (("video", rows, {}), ("caption", {}, rows)):
        with pytest.raises(DataError, match=f"1 {kind} ids cannot be written, among them") as caught:
            write_layout(tmp_path / "x", TextData({}), videos=videos.items(), queries=queries.items())
        str(caught.value).encode()
    assert not list(tmp_path.iterdir())
