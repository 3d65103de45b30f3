"""Confidence: the bank of unrelated sentences, its best scores through all changes, and how well it is calibrated."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_encoder import NAME, Colours, film
from hypothesis import given
from hypothesis import strategies as st
from search_files import (
    QUERY,
    TOY,
    make_features,
    make_index,
    some_videos,
    tiny_model,
    walk,
    without,
)
from test_search_row_sets import Storing

from prvr.cli import main
from prvr.data import DataError
from prvr.encoders import VideoFeatures
from prvr.errors import InputError
from prvr_search import WEAKER_BELOW, Library, Query, SearchHit, VideoIndex, open_model
from prvr_search import confidence as bank
from prvr_search.backends import write_signed
from prvr_search.confidence import confidence, score_to_pass, unrelated_sentences
from prvr_search.ranking import video_scores


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small retriever, which scores by clips and frames."""
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_every_pair_of_words_stands_once_in_a_draw() -> None:
    parts = [_parts(sentence) for sentence in unrelated_sentences(3)]
    assert len({*map(tuple, parts)}) == 32**2
    for first, second in combinations(range(3), 2):
        assert set(Counter((part[first], part[second]) for part in parts).values()) == {1}
    with pytest.raises(ValueError, match="0 to 31"):
        unrelated_sentences(32)


def _parts(sentence: str) -> list[str]:
    """Subject, action and place of a sentence."""
    lists = ([*map(str.strip, some.split("|"))] for some in (bank._SUBJECTS, bank._ACTIONS, bank._PLACES))
    found = [max((one for one in some if one in sentence), key=len) for some in lists]
    assert " ".join(found) == sentence
    return found


def check_bank(index: VideoIndex) -> None:
    """The best scores that the index keeps are those of its sentences, scored over all videos now."""
    text = index.model.encode_texts(unrelated_sentences()[::16])
    expected = video_scores(index.snapshot, text, None).max(1)
    best = index.snapshot.bank_best
    assert best is not None
    assert len(best) == 1024
    np.testing.assert_allclose(best[::16], expected, atol=2e-3)


def test_the_best_scores_follow_all_changes(tiny: Path, tmp_path: Path) -> None:
    features = make_features(some_videos([30, 7, 1, 24, 13]))
    with make_index(tmp_path / "index", tiny, window=5.0, stride=2.5) as index:
        assert index.snapshot.bank_best is None  # nothing was found by anybody
        assert index.search(QUERY).hits == ()
        index.update(features)
        check_bank(index)
        before = index.snapshot.bank_best
        index.update(without(features, "v000.mp4"))
        check_bank(index)
        assert not np.array_equal(before, index.snapshot.bank_best)
        index.update(without(features, "v000.mp4", "v003.mp4", "v004.mp4"))  # more than half: written again
        check_bank(index)
        index.update(make_features({"v001.mp4": walk(40, 50), "new.mp4": walk(9, 51)}))
        check_bank(index)


@pytest.mark.parametrize("model", ["zero-shot", "tiny"])
def test_false_alarms_are_as_frequent_as_they_should_be(
    model: str, tiny: Path, features: VideoFeatures, tmp_path: Path
) -> None:
    """Of sentences that are not in the bank."""
    with make_index(tmp_path / "index", tiny if model == "tiny" else model, features) as index:
        held_out = [sentence for draw in (7, 22) for sentence in unrelated_sentences(draw)]
        text: Any = index.model
        best = video_scores(index.snapshot, text.encode_texts(held_out), None).max(1)
        found = np.array([confidence(score, index.snapshot.bank_best) for score in best.tolist()])
        alarms = {nominal: float(np.mean(found >= 1 - nominal)) for nominal in (0.05, 0.1)}
        assert alarms == {nominal: pytest.approx(nominal, abs=0.02) for nominal in alarms}
        for sentence, expected in zip(held_out[::400], found[::400], strict=True):  # as a search says
            assert index.search(sentence, 1).hits[0].confidence == pytest.approx(expected, abs=2 / 1024)


def test_a_text_alone_is_read_as_among_others(tiny: Path) -> None:
    sentences = unrelated_sentences()[::200]
    for name in ("zero-shot", tiny):
        model: Any = open_model(name, TOY)
        alone = np.concatenate([model.encode_texts([sentence]) for sentence in sentences])
        np.testing.assert_allclose(model.encode_texts(sentences), alone, atol=1e-5)


def test_hits_below_a_confidence_are_left_out(index: VideoIndex) -> None:
    hits = index.search(QUERY).hits
    best = index.snapshot.bank_best
    assert [one.confidence for one in hits] == [confidence(one.score, best) for one in hits]
    sure = [one.confidence for one in hits if one.confidence is not None]
    assert len(sure) == len(hits)
    assert sure == sorted(sure, reverse=True)
    assert len({*sure}) > 2
    least = sure[1]
    expected = tuple(one for one, its in zip(hits, sure, strict=True) if its >= least)
    assert index.search(QUERY, min_confidence=least).hits == expected
    assert 0 < len(expected) < len(hits)
    result = index.search(QUERY, min_confidence=1.0)
    assert result.nothing_fits == (not result.hits)
    with pytest.raises(InputError, match="0 to 1"):
        index.search(QUERY, min_confidence=1.5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.95, 0.999]))
def test_what_surpasses_a_score_has_its_confidence(scores: list[int], sure: float) -> None:
    best = np.array(scores) / 10
    level = score_to_pass(best, sure)
    assert level is not None
    for score in np.arange(-1, 21) / 20:
        found = confidence(float(score), best)
        assert found is not None
        assert (found >= sure - 1e-9) == (score > level) or sure == 0.0


def test_a_result_says_which_score_is_no_weaker_match(index: VideoIndex) -> None:
    result = index.search(QUERY, 20)
    assert result.level is not None
    for hit in result.hits:
        assert hit.is_weaker == (hit.score <= result.level)
    assert result.scale[1] >= result.level
    assert index.search(Query([QUERY, "a cat"])).level is None


def test_stages_leave_the_confidence_of_the_first_stage(tiny: Path, features: VideoFeatures, tmp_path: Path) -> None:
    staged = open_model(tiny, TOY, stages=[{"kind": "zero_shot", "weight": 1.0}])
    with make_index(tmp_path / "a", tiny, features) as plain, make_index(tmp_path / "b", staged, features) as index:
        expected = {hit.video_id: hit for hit in plain.search(QUERY).hits}
        found = {hit.video_id: hit for hit in index.search(QUERY).hits}
    assert {name: hit.confidence for name, hit in found.items()} == {n: h.confidence for n, h in expected.items()}
    assert {name: hit.score for name, hit in found.items()} != {name: hit.score for name, hit in expected.items()}


class Counted:
    """Searches of folders with an encoder of one's own, and what it encodes for each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.logs = folder, [folder / "sentences", folder / "videos"]
        for name, value in zip(("READ", "ENCODED"), self.logs, strict=True):
            monkeypatch.setenv(name, str(value))
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, str(folder / name))

    def search(self, films: str = "films", *words: str, code: int = 0) -> tuple[list[str], int]:
        """The sentences, but for the trial of each start, and the number of the videos."""
        for log in self.logs:
            log.write_text("")
        command = ["search", str(self.folder / films), "something red", "--encoder", NAME, "--device", "cpu", *words]
        assert main(command) == code
        sentences, videos = (log.read_text().splitlines() for log in self.logs)
        return [text for text in sentences if text != "a video"], len(videos)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    pytest.importorskip("av")
    for number, name in enumerate(("red", "green", "blue")):
        film(tmp_path / "films" / f"{name}.mp4", number)
    return Counted(tmp_path, monkeypatch)


def test_the_unrelated_sentences_are_encoded_once_for_all_folders(counted: Counted) -> None:
    films, query = counted.folder / "films", ["something red"]
    assert counted.search() == ([*unrelated_sentences(), *query], 3)
    assert counted.search() == (query, 0)
    (films / "red.mp4").rename(films / "renamed.mp4")
    assert counted.search() == (query, 0)
    film(films / "more.mp4", 1, 120)
    assert counted.search() == (query, 1)
    held = (films / "more.mp4").rename(counted.folder / "held.mp4")
    assert counted.search() == (query, 0)
    held.rename(films / "more.mp4")
    assert counted.search() == (query, 0)
    film(counted.folder / "others" / "dark.mp4", 2, 90)
    assert counted.search("others") == (query, 1)
    assert counted.search("films", "--model", "training-free") == (query, 0)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    counted.logs[0].write_text("")
    shutil.rmtree(counted.folder / "XDG_CACHE_HOME" / "prvr" / "search")  # all indexes are made again
    command = [sys.executable, "-P", "-m", "prvr.cli", "search", str(films), *query]
    done = subprocess.run([*command, "--encoder", NAME], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [text for text in counted.logs[0].read_text().splitlines() if text != "a video"] == query


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "nan", "pickle"])
def test_damaged_vectors_of_sentences_are_computed_again(damage: str, counted: Counted) -> None:
    before = confidences(counted)
    (path,) = (counted.folder / "XDG_CACHE_HOME" / "prvr" / "sentences").iterdir()
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        path.write_bytes(content[:500] + b"!" + content[501:])
    else:
        rows = {"other": np.ones((7, 3), np.float32), "nan": np.full((1024, 3), np.nan, np.float32)}
        rows["pickle"] = np.array([print] * 1024, object)
        write_signed(path, lambda file: np.save(file, rows[damage]))
    shutil.rmtree(counted.folder / "XDG_CACHE_HOME" / "prvr" / "search")
    assert confidences(counted) == before
    assert path.read_bytes() == content


def confidences(counted: Counted) -> list[float | None]:
    with Library(counted.folder / "films", encoder=NAME) as library:
        return [hit.confidence for hit in library.search("something red").hits]


def test_slow_sentences_are_announced(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Colours, "sentence", slowly(Colours.sentence))
    counted.search()
    assert "sentences encoded, once for this text encoder" in capsys.readouterr().err
    counted.search()
    assert "sentences encoded" not in capsys.readouterr().err


def slowly(encode: Any) -> Any:
    def encode_slowly(encoder: Colours, text: str) -> np.ndarray:
        time.sleep(0.003)
        return encode(encoder, text)

    return encode_slowly


class Brief(Storing):
    """A model that reads a few words only."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = replace(self.identity, weights="brief")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        if any(len(text.split()) > 6 for text in texts):
            raise InputError("too long")
        return super().encode_texts(texts)


def test_a_model_that_cannot_read_the_bank_has_no_confidence(features: VideoFeatures, tmp_path: Path) -> None:
    with make_index(tmp_path / "index", Brief(), features) as index:
        assert index.snapshot.bank_best is None
        result = index.search(QUERY)
        assert {hit.confidence for hit in result.hits} == {None}
        assert result.fitting == len(result.hits)
        with pytest.raises(DataError, match="gives no confidences"):
            index.search(QUERY, min_confidence=0.5)


def test_weaker_matches_follow_the_last_one_that_fits(index: VideoIndex) -> None:
    result = index.search(QUERY, 3)

    def graded(*sure: float | None) -> int:
        hits: list[SearchHit] = [replace(hit, confidence=c) for hit, c in zip(result.hits, sure, strict=True)]
        return replace(result, hits=tuple(hits)).fitting

    assert [graded(1.0, WEAKER_BELOW, 0.94), graded(0.9, 0.99, 0.9), graded(0.9, 0.5, 0.0)] == [2, 2, 0]
    assert graded(None, None, None) == 3
