"""What version 0.1 wrote: its stores and indexes open, give what they gave, and can be gone on with."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from search_files import forget, write_store

from prvr.errors import DataError
from prvr.search import VideoIndex
from prvr.video import Identity, VideoStore

WEIGHTS = "b5f0db735d9d8fe97eedac255bac1be7b079027c54f52bc0e07db5f1be335376"
ARCHIVE = Path(__file__).parents[1] / "fixtures" / "written_by_0.1.tar.xz"
"""store: four videos; index-zero-shot: float16, two segments, one video removed; index-trained: int8, windows of 3 s;
hits.json: what both indexes answered. Its runs are of a configuration that is no longer read."""
QUERIES = ARCHIVE.with_name("queries_of_0.1.npz")
"""What the encoder of that version made of the sentences in hits.json; its weights are no longer in the package."""


class EncoderOf01:
    """Reads those sentences as version 0.1 did."""

    identity, word_dim, joint_dim = Identity("toy", WEIGHTS, "words in lower case, at most 64"), 48, 256

    def words(self, text: str) -> np.ndarray:
        return np.load(QUERIES)[f"{text}/words"]

    def sentence(self, text: str) -> np.ndarray:
        return np.load(QUERIES)[f"{text}/sentence"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_store_is_read(old: Path) -> None:
    store = VideoStore(old / "store")
    assert store.video_ids == tuple(f"film{i}.mp4" for i in range(4))
    assert store.read("film2.mp4").shape == (10, 512)
    assert not store.verify()


@pytest.mark.parametrize("name", ["index-zero-shot", "index-trained"])
def test_an_index_answers_as_it_did_and_can_be_changed(old: Path, name: str) -> None:
    hits = json.loads((old / "hits.json").read_text())[name]
    with pytest.raises(DataError, match="Give the text model of the index, or rebuild the index"):
        VideoIndex.open(old / name).search("a person")
    with VideoIndex.open(old / name, text=EncoderOf01()) as index:
        assert index.verify() == ()
        for query, expected in hits.items():
            found = [[hit.video_id, hit.score] for hit in index.search(query, 5).hits]  # moments have another rule now
            assert found == [[video, pytest.approx(score, abs=1e-4)] for video, score, *_ in expected]
        videos = set(index.video_ids)
        store = VideoStore(old / "store")
        write_store(old / "store", {"new.mp4": store.read("film0.mp4")}, store.header)
        report = index.update(forget(store, "film3.mp4"))
        assert (set(report.added) - {"film1.mp4"}, report.removed) == ({"new.mp4"}, ("film3.mp4",))
        assert set(index.video_ids) == (videos | {"new.mp4", "film1.mp4"}) - {"film3.mp4"}
        assert index.verify() == ()
        assert {hit.confidence for hit in index.search(query, 5).hits} == {None}
