"""Sentences without what all sentences have in common: what is subtracted, and that it is encoded once."""

from pathlib import Path

import numpy as np
import pytest
from counting_encoder import NAME, Colours, film
from search_files import QUERY, TOY, tiny_model

from prvr.cli import main
from prvr.encoders import open_featurizer
from prvr.errors import InputError
from prvr_search import open_model
from prvr_search.backends import write_signed
from prvr_search.centre import SENTENCES, SHARE
from prvr_search.vectors import unit


def test_sentences_are_compared_without_their_mean() -> None:
    side = open_featurizer("toy")
    mean = np.mean([side.sentence(text) for text in SENTENCES], 0)
    expected = unit(np.stack([side.sentence(text) - SHARE * mean for text in (QUERY, "a cat")]))
    np.testing.assert_allclose(open_model("zero-shot", TOY).encode_texts([QUERY, "a cat"]), expected, atol=1e-6)
    plain = open_model("training-free", TOY).encode_texts([QUERY])[0]
    np.testing.assert_allclose(plain, side.sentence(QUERY), atol=1e-6)


def test_no_two_sentences_share_a_subject_an_action_or_a_place() -> None:
    assert len(SENTENCES) == 32
    assert len({" ".join(text.split()[:3]) for text in SENTENCES}) == 32
    assert len({" ".join(text.split()[-3:]) for text in SENTENCES}) == 32


def test_a_text_alone_is_read_as_among_others(tmp_path: Path) -> None:
    model = open_model(tiny_model(tmp_path / "model"), TOY)
    alone = np.concatenate([model.encode_texts([text]) for text in SENTENCES[:5]])
    np.testing.assert_allclose(model.encode_texts(SENTENCES[:5]), alone, atol=1e-5)


class Counted:
    """Searches of a folder with an encoder of one's own, and what it encodes for each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "sentences"
        monkeypatch.setenv("READ", str(self.log))
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, str(folder / name))
        for number, name in enumerate(("red", "green", "blue")):
            film(folder / "films" / f"{name}.mp4", number)

    def search(self, films: str = "films", *words: str) -> list[str]:
        """The sentences, but for the trial of each start."""
        self.log.write_text("")
        command = ["search", str(self.folder / films), "something red", "--encoder", NAME, "--device", "cpu", *words]
        assert main(command) == 0
        return [text for text in self.log.read_text().splitlines() if text != "a video"]

    def mean(self) -> Path:
        (path,) = (self.folder / "XDG_CACHE_HOME" / "prvr" / "sentences").iterdir()
        return path


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    pytest.importorskip("av")
    return Counted(tmp_path, monkeypatch)


def test_the_sentences_are_encoded_once_for_all_folders(counted: Counted) -> None:
    query = ["something red"]
    assert sorted(counted.search()) == sorted([*SENTENCES, *query])
    assert counted.search() == query
    film(counted.folder / "others" / "dark.mp4", 2, 90)
    assert counted.search("others") == query


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "nan", "pickle"])
def test_a_damaged_mean_is_computed_again(damage: str, counted: Counted) -> None:
    counted.search()
    path = counted.mean()
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        path.write_bytes(content[:100] + b"!" + content[101:])
    else:
        rows = {"other": np.ones((7, 3), np.float32), "nan": np.full(3, np.nan, np.float32)}
        rows["pickle"] = np.array([print] * 3, object)
        write_signed(path, lambda file: np.save(file, rows[damage]))
    assert {*counted.search()} == {*SENTENCES, "something red"}
    assert path.read_bytes() == content


def test_an_encoder_that_reads_short_sentences_only_searches(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Colours.sentence

    def brief(encoder: Colours, text: str) -> np.ndarray:
        if len(text.split()) > 4:
            raise InputError("too long")
        return encode(encoder, text)

    monkeypatch.setattr(Colours, "sentence", brief)
    assert counted.search() == ["something red"]
