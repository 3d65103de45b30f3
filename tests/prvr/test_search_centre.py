"""Sentences without what all sentences have in common: what is subtracted, and that it is encoded once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting_encoder import NAME, film
from search_files import QUERY, TOY

from prvr.cli import main
from prvr.encoders import open_featurizer
from prvr_search import open_model
from prvr_search.store.proof import write_proven
from prvr_search.vectors.joint import SENTENCES, SHARE
from prvr_search.vectors.model import unit


def test_sentences_are_compared_without_their_mean() -> None:
    side = open_featurizer("toy")
    mean = np.mean([side.sentence(text) for text in SENTENCES], 0)
    expected = unit(np.stack([side.sentence(text) - SHARE * mean for text in (QUERY, "a cat")]))
    np.testing.assert_allclose(open_model("zero-shot", TOY).encode_texts([QUERY, "a cat"]), expected, atol=1e-6)


Search = Callable[..., list[str]]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Searches a folder with an encoder of one's own, and gives the sentences that it encodes."""
    pytest.importorskip("av")
    log = tmp_path / "sentences"
    monkeypatch.setenv("READ", str(log))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    film(tmp_path / "films" / "red.mp4", 0)

    def search(films: str = "films") -> list[str]:
        log.write_text("")
        assert main(["search", str(tmp_path / films), "something red", "--encoder", NAME, "--device", "cpu"]) == 0
        return [text for text in log.read_text().splitlines() if text != "a video"]  # the trial of each start

    return search


def test_the_sentences_are_encoded_once_for_all_folders_unless_their_mean_is_damaged(
    search: Search, tmp_path: Path
) -> None:
    query = ["something red"]
    assert sorted(search()) == sorted([*SENTENCES, *query])
    assert search() == query
    film(tmp_path / "others" / "dark.mp4", 2, 90)
    assert search("others") == query
    (path,) = (tmp_path / "XDG_CACHE_HOME" / "prvr" / "sentences").iterdir()
    content = path.read_bytes()
    for damage in (np.full(3, np.nan, "<f4").tobytes(), bytes(7)):
        write_proven(path, [damage])
        assert {*search()} == {*SENTENCES, *query}
        assert path.read_bytes() == content
