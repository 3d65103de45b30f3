"""Training-free search: moments of all lengths are the rows of the index, found by every command as other rows are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import explained
from hypothesis import given
from hypothesis import strategies as st
from search_files import library_features, make_features, make_index, walk
from video_files import plain, write_video

from prvr.cli import main
from prvr.data import Corpus
from prvr.encoders import VideoFeatures, open_featurizer
from prvr.evaluation.zero_shot import zero_shot_scores
from prvr.published.tf_prvr import adaptive_moments
from prvr.scoring import best_moment
from prvr.stages.joint_space import moments_of
from prvr.types import JointRows
from prvr_search import VideoIndex
from prvr_search.ranking.results import WindowTimeline, merged_moments
from prvr_search.vectors.files import cut_windows

MODEL = ["--model", "training-free"]
START, END = 20.0, 35.0  # of the square in red.mp4
QUERY = "a red square"


def write_square(path: Path, colour: int, start: float, end: float, seconds: int = 60) -> Path:
    """A grey video with noise, two frames per second, and a square of a colour for some seconds."""
    rng = np.random.default_rng(colour + seconds)
    frames = [
        np.clip(frame + rng.integers(-8, 8, frame.shape), 0, 255).astype(np.uint8)
        for frame in plain([60] * 2 * seconds, 64, 64)
    ]
    for frame in frames[round(2 * start) : round(2 * end)]:
        frame[16:48, 16:48] = 20
        frame[16:48, 16:48, colour] = 250
    return write_video(path, frames, fps=2)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of a minute, each with a square of a colour for 15 s, a still one, and some of one or two frames."""
    folder = tmp_path_factory.mktemp("films")
    for colour, name in enumerate(["red.mp4", "green.mp4", "blue.mp4"]):
        write_square(folder / name, colour, START + 5 * colour, END + 5 * colour)
    write_square(folder / "red again.mp4", 0, 5, 12, 40)
    write_video(folder / "still.mp4", plain([90] * 60, 64, 64), fps=2)
    write_video(folder / "one.mp4", plain([50], 64, 64), fps=2)
    write_video(folder / "two.mp4", plain([50, 200], 64, 64), fps=2)
    library_features(folder)
    return folder


def hits_of(folder: Path, path: Path, *words: str) -> list[dict]:
    assert main(["search", str(folder), *words, *MODEL, "--encoder", "toy", "--json", str(path)]) == 0
    return json.loads(path.read_text())["results"][0]["hits"]


def overlap(start: float, end: float, first: float, last: float) -> float:
    return max(0.0, min(end, last) - max(start, first)) / (max(end, last) - min(start, first))


def by_hand(frames: np.ndarray, sentence: np.ndarray, beta: float = 0.7) -> float:
    vectors = adaptive_moments(frames[:, : len(sentence)], beta).vectors
    return float((vectors @ sentence / np.linalg.norm(vectors, axis=1)).max())


def test_a_sentence_and_a_moment_find_videos_and_their_moments(films: Path, tmp_path: Path) -> None:
    hits = hits_of(films, tmp_path / "a.json", QUERY)
    assert {hit["video"]["id"] for hit in hits[:2]} == {"red.mp4", "red again.mp4"}
    assert len(hits) == 7
    hit = next(hit for hit in hits if hit["video"]["id"] == "red.mp4")
    assert overlap(hit["start"], hit["end"], START, END) > 0.8
    line = np.array(hit["relevance"])
    assert START <= (line.argmax() + 0.5) / len(line) * 60 <= END
    features = library_features(films)
    sentence = open_featurizer("toy").sentence(QUERY).astype(np.float64)
    for hit in hits:
        name = hit["video"]["id"]
        assert 0 <= hit["start"] < hit["end"] <= hit["video"]["duration"]
        if name not in ("still.mp4", "one.mp4", "two.mp4"):
            assert hit["score"] == pytest.approx(by_hand(features.read(name), sentence), abs=1e-3)
    whole = {hit["video"]["id"]: (hit["start"], hit["end"] / hit["video"]["duration"]) for hit in hits}
    assert [whole[name] for name in ("still.mp4", "one.mp4", "two.mp4")] == [(0, 1)] * 3
    hit, *_ = hits_of(films, tmp_path / "a.json", "--like", "red.mp4@0:22-0:33")
    assert hit["video"]["id"] == "red again.mp4"
    assert overlap(hit["start"], hit["end"], 5, 12) > 0.7


# What the index holds.


def features_of(*lengths: int, seed: int = 0) -> VideoFeatures:
    return make_features({f"{i}.mp4": walk(length, seed + i) for i, length in enumerate(lengths)})


def index_of(folder: Path, features: VideoFeatures, **options: object) -> VideoIndex:
    return make_index(folder, "training-free", features, **options)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40), seed=st.integers(0, 999))
def test_moments_that_follow_each_other_are_found_as_in_one_line(lengths: list[int], seed: int) -> None:
    """What is measured for the line of all scores holds for windows of any lengths."""
    scores = np.random.default_rng(seed).normal(size=len(lengths)).astype(np.float32)
    edges = np.append(0, np.cumsum(lengths)) / 2.0
    windows = [
        WindowTimeline(*edges[i : i + 2].tolist(), float(score), scores[i : i + 1]) for i, score in enumerate(scores)
    ]
    line = np.repeat(scores, lengths)
    expected = best_moment(torch.from_numpy(line), len(line) / 2.0)
    best, *others = merged_moments(windows, len(windows))
    assert (best.start, best.end) == pytest.approx(expected)
    assert all(one.end < best.start or one.start > best.end for one in others)


@given(rows=st.integers(2, 200), window=st.integers(2, 60), share=st.sampled_from([0.5, 1.0]), seed=st.integers(0, 999))
def test_fewer_moments_are_the_best_of_all(rows: int, window: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = [
        WindowTimeline(*times, 0.0, rng.normal(size=rng.integers(1, 9)).astype(np.float32))
        for times in cut_windows(rows, rows - 0.3, 1.0, float(window), share * window)[1].tolist()
    ]
    every = merged_moments(windows, len(windows))
    for most in {1, 2, 3, len(every) // 2 + 1, len(every)}:
        assert merged_moments(windows, most) == every[:most]


@pytest.mark.parametrize("zeros", [[0, 1, 30, 79], range(80)])
def test_frames_that_have_no_direction(zeros: list[int], tmp_path: Path) -> None:
    """As an encoder may give for black frames."""
    frames = walk(80, 3)
    frames[zeros] = 0
    with index_of(tmp_path / "index", make_features({"a.mp4": frames, "b.mp4": walk(30, 9)})) as index:
        hits = {hit.video_id: hit for hit in index.search(QUERY).hits}
        spans = index.snapshot.vectors(0)["times"]
    assert np.isfinite(hits["a.mp4"].score)
    assert (spans[0, 0], spans[-1, 1]) == (0, 40)
    assert (spans[1:, 0] == spans[:-1, 1]).all()


def test_a_frame_shown_twice_counts_once_and_a_pause_stays() -> None:
    frames = walk(60, 5).astype(np.float64)
    once, twice = moments_of(frames), moments_of(np.repeat(frames, 2, axis=0))
    assert len(once.spans) > 5 > len(adaptive_moments(np.repeat(frames, 2, axis=0)).spans)
    np.testing.assert_array_equal(twice.vectors, once.vectors)
    np.testing.assert_array_equal(twice.spans, 2 * once.spans)
    slides = np.repeat(walk(12, 6), 20, axis=0)  # what dropping all repeated frames would make one moment
    assert len(moments_of(slides).spans) > len(moments_of(walk(12, 6)).spans) == 1


# In evaluation.


def test_it_has_a_report_of_its_own_and_no_stages(
    toy_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    data = ["--data-root", str(toy_root), "--collection", "toy-tiny"]
    for name in ("zero-shot", "training-free"):
        assert main(["evaluate", name, *data]) == 0
        out = capsys.readouterr().out
        report = json.loads(Path(name, "evaluation_toy-tiny.json").read_text())
        assert f"{report['text_to_video']['sumr']:.1f}" in out
        assert f"--model {name}" in explained(["pipeline", name, "--output", "x"], capsys)
    assert "--stage training_free" in explained(["evaluate", name, *data, "--stage", "qb_norm"], capsys)
    assert "--model.hidden" in explained(["evaluate", name, *data, "--model.hidden", "3"], capsys)
    reports = [str(Path(name, "evaluation_toy-tiny.json")) for name in ("zero-shot", "training-free")]
    assert main(["compare", *reports, "--samples", "100"]) == 0
    assert "SumR" in capsys.readouterr().out


def test_evaluation_scores_the_best_moment(corpus: Corpus) -> None:
    scores = zero_shot_scores(corpus, "test", JointRows(0.7))
    side, content = open_featurizer("toy"), corpus.split("test")
    texts = [caption.text for caption in content.captions]
    with corpus.open_features() as features:
        expected = [
            [by_hand(features.read(video), side.sentence(text).astype(np.float64)) for text in texts]
            for video in content.video_ids
        ]
    np.testing.assert_allclose(scores.numpy().T, expected, atol=1e-5)
