"""Adaptive segments: the authors' numbers, plain definitions as oracles, and what a change of the video changes."""

import numpy as np
import pytest
from golden import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

from prvr import InputError
from prvr.published.tf_prvr import (
    adaptive_moments,
    adaptive_segments,
    propagate,
    propagate_in_parts,
    segment_features,
    unit_frames,
)

VIDEOS = (
    *("one", "two", "three", "short8", "short9", "short16"),
    *("events40", "events128", "drift333", "wide64", "stills"),
)


@pytest.fixture(scope="module")
def authors() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "prvr_tfprvr.npz") as file:
        return dict(file)


def video(length: int, seed: int = 0, dim: int = 8) -> np.ndarray:
    """Events of some frames each, with noise."""
    generator = np.random.default_rng(seed)
    events = np.repeat(generator.standard_normal((length, dim)), generator.geometric(0.15, length), axis=0)[:length]
    return events + 0.4 * generator.standard_normal((length, dim))


lengths = st.integers(1, 200)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", VIDEOS)
def test_authors_numbers(authors: dict[str, np.ndarray], name: str) -> None:
    frames = authors[f"{name}/frames"]
    segments, moments = adaptive_segments(frames), adaptive_moments(frames)
    np.testing.assert_array_equal(segments.spans, authors[f"{name}/segments"])
    np.testing.assert_array_equal(segments.level_offsets, authors[f"{name}/level_offsets"])
    np.testing.assert_array_equal(moments.spans, authors[f"{name}/moment_spans"])
    np.testing.assert_allclose(moments.vectors, authors[f"{name}/moments"], rtol=0, atol=1e-12)
    scores = (authors[f"{name}/queries"].astype(np.float64) @ moments.vectors.T).max(1)
    np.testing.assert_allclose(scores, authors[f"{name}/scores"], rtol=0, atol=1e-12)


@given(lengths, seeds)
def test_segments_of_a_level_and_moments_tile_the_video(length: int, seed: int) -> None:
    segments, moments = adaptive_segments(video(length, seed)), adaptive_moments(video(length, seed))
    assert len(segments.level_offsets) == 1 + max(1, int(np.log2(max(length - 2, 7) / 7)))
    for spans in (*segments.levels(), moments.spans):
        assert (spans[0, 0], spans[-1, 1]) == (0, length)
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        assert (spans[:, 0] < spans[:, 1]).all()


@given(lengths, seeds)
def test_without_propagation_the_score_is_a_mean_of_cosines_over_levels(length: int, seed: int) -> None:
    frames, query = video(length, seed), np.random.default_rng(seed).standard_normal(8)
    query /= np.linalg.norm(query)
    rows = unit_frames(frames)
    per_frame = []  # each frame has one segment at each level, and so one mean of cosines
    for spans in adaptive_segments(frames).levels():
        cosines = segment_features(rows, spans) @ query
        per_frame.append(np.repeat(cosines, np.diff(spans)[:, 0]))
    score = (adaptive_moments(frames, beta=0.0).vectors @ query).max()
    assert score == pytest.approx(np.mean(per_frame, 0).max(), abs=1e-12)


@given(lengths, seeds)
def test_lengths_of_frames_are_ignored(length: int, seed: int) -> None:
    frames = video(length, seed)
    scaled = frames * 2.0 ** np.random.default_rng(seed).integers(-400, 400, (length, 1))
    np.testing.assert_allclose(adaptive_moments(scaled).vectors, adaptive_moments(frames).vectors, atol=1e-10)


@pytest.mark.parametrize("length", [1, 3, 16, 40])
def test_stills_are_one_segment(length: int) -> None:
    still = np.full((length, 3), 0.7)
    segments, moments = adaptive_segments(still), adaptive_moments(still)
    assert np.unique(segments.spans).tolist() == [0, length]
    np.testing.assert_allclose(moments.vectors, unit_frames(still[:1]) * (moments.vectors @ unit_frames(still[:1])[0]))
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])  # they cancel, and have no direction
    assert (adaptive_moments(opposite).vectors == 0).all()


def test_frames_without_direction_are_refused(unchecked: None) -> None:
    for frames, message in (
        (np.array([[1.0, 2.0], [0.0, 0.0]]), "frame 1 is zero"),
        (np.array([[1.0, 2.0], [np.inf, 0.0]]), "frame 1 has values that are not finite"),
        (np.ones((0, 4)), r"shape \(0, 4\)"),
    ):
        with pytest.raises(InputError, match=message):
            adaptive_moments(frames)
    with pytest.raises(InputError, match="beta"):
        adaptive_moments(video(9), 1.0)


def test_parts_know_their_surroundings_only() -> None:
    """A part is that of a video which ends where its surroundings end."""
    rows = unit_frames(video(800))
    segments = adaptive_segments(video(800))
    features = segment_features(rows, segments.spans)
    np.testing.assert_array_equal(propagate_in_parts(features, segments, part=800), propagate(features, segments))
    parts = propagate_in_parts(features, segments, part=200)
    changed = features.copy()
    far = segments.spans[:, 0] >= 450
    changed[far] = np.roll(features[far], 1, axis=1)
    first = segments.spans.mean(1) < 400  # the second part ends at 400, and what it sees at 450
    np.testing.assert_array_equal(propagate_in_parts(changed, segments, part=200)[first], parts[first])
    assert np.abs(parts - propagate(features, segments)).max() > 1e-6  # so it is not exact
