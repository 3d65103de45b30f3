"""Adaptive segments: the authors' numbers, plain definitions as oracles, and what a change of the video changes."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy  # whose parts are imported when they are used
import torch
from golden import FIXTURES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from prvr import InputError
from prvr.segments import (
    AdaptiveSegments,
    adaptive_moments,
    adaptive_segments,
    level_cuts,
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


def tiling(length: int, generator: np.random.Generator, cuts: int) -> np.ndarray:
    edges = np.unique([0, length, *generator.integers(1, length, cuts)])
    return np.stack([edges[:-1], edges[1:]], 1)


def segmentation(length: int, seed: int, levels: int = 3) -> AdaptiveSegments:
    """Any spans that tile a video, whatever its frames."""
    generator = np.random.default_rng(seed)
    spans = [tiling(length, generator, int(generator.integers(0, length))) for _ in range(levels)]
    return AdaptiveSegments(np.concatenate(spans), np.cumsum([0, *map(len, spans)]))


def plain_weights(features: np.ndarray, segments: AdaptiveSegments) -> np.ndarray:
    """W by its definition, one pair after the other."""
    offsets, spans = segments.level_offsets, segments.spans.astype(float)
    level = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    weights = np.eye(len(spans))
    for a, (first, last) in enumerate(spans):
        for b, (begin, end) in enumerate(spans):
            alike = max(float(features[a] @ features[b]), 0.0)
            if a != b and level[a] == level[b]:
                usual = np.diff(spans[level == level[a]]).mean()
                weights[a, b] = alike + np.exp(-abs((first + last) / 2 - (begin + end) / 2) / usual)
            elif abs(level[a] - level[b]) == 1:
                shared = max(0.0, min(last, end) - max(first, begin))
                weights[a, b] = shared / (last - first + end - begin - shared) * alike
    return weights


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
    assert moments.vectors.dtype == np.float64
    assert len(moments.vectors) == len(moments.spans)


@given(arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 3)), st.floats(0, 4))
def test_peaks_and_plateaus_are_those_of_scipy(heights: np.ndarray, floor: float) -> None:
    detail = heights.astype(np.float64)
    peaks = scipy.signal.find_peaks(detail)[0]
    expected = peaks[detail[peaks] > max(detail.mean() + detail.std(), floor)] + 2
    np.testing.assert_array_equal(level_cuts(detail, floor), expected)


@given(st.integers(2, 60), seeds, st.sampled_from([0.0, 0.3, 0.7, 0.95]))
def test_propagation_is_that_of_the_whole_matrix(length: int, seed: int, beta: float) -> None:
    segments = segmentation(length, seed)
    features = segment_features(unit_frames(video(length, seed)), segments.spans)
    weights = plain_weights(features, segments)
    roots = np.sqrt(weights.sum(1))
    whole = np.eye(len(weights)) - beta * weights / np.outer(roots, roots)
    expected = (1 - beta) * np.linalg.solve(whole, features)
    np.testing.assert_allclose(propagate(features, segments, beta), expected, atol=1e-10)


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
def test_rotation_of_the_space_rotates_moments(length: int, seed: int) -> None:
    frames = video(length, seed)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((8, 8)))
    one, other = adaptive_moments(frames), adaptive_moments(frames @ rotation)
    np.testing.assert_array_equal(other.spans, one.spans)
    np.testing.assert_allclose(other.vectors, one.vectors @ rotation, atol=1e-10)


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
    assert np.isfinite(moments.vectors).all()
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])  # they cancel, and have no direction
    assert (adaptive_moments(opposite).vectors == 0).all()


def test_frames_without_direction_are_refused(unchecked: None) -> None:
    for frames, message in (
        (np.array([[1.0, 2.0], [0.0, 0.0]]), "frame 1 is zero"),
        (np.array([[1.0, 2.0], [np.inf, 0.0]]), "frame 1 has values that are not finite"),
        (np.ones((0, 4)), r"shape \(0, 4\)"),
    ):
        for use in (adaptive_segments, adaptive_moments):
            with pytest.raises(InputError, match=message):
                use(frames)
    for beta in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="beta"):
            adaptive_moments(video(9), beta)


def test_precision_layout_and_kind_of_the_array(unchecked: None) -> None:
    frames = video(64).astype(np.float32)
    expected = adaptive_moments(frames)
    wide = np.zeros((128, 16), np.float32)
    wide[::2, ::2] = frames
    kinds: list[Any] = [frames.astype(np.float64), wide[::2, ::2], np.asfortranarray(frames)]
    kinds += [frames.tolist(), torch.from_numpy(frames)]
    for same in kinds:
        np.testing.assert_array_equal(adaptive_moments(same).vectors, expected.vectors)
    before = frames.copy()
    adaptive_moments(frames)
    np.testing.assert_array_equal(frames, before)


def test_parts_know_their_surroundings_only() -> None:
    """A part is that of a video which ends where its surroundings end."""
    rows = unit_frames(video(800))
    segments = segmentation(800, 5)
    features = segment_features(rows, segments.spans)
    np.testing.assert_array_equal(propagate_in_parts(features, segments, part=800), propagate(features, segments))
    parts = propagate_in_parts(features, segments, part=200)
    changed = features.copy()
    far = segments.spans[:, 0] >= 450
    changed[far] = np.roll(features[far], 1, axis=1)
    first = segments.spans.mean(1) < 400  # the second part ends at 400, and what it sees at 450
    np.testing.assert_array_equal(propagate_in_parts(changed, segments, part=200)[first], parts[first])
    assert np.abs(parts - propagate(features, segments)).max() > 1e-6  # so it is not exact


def test_memory_is_less_than_half_of_the_whole_matrix() -> None:
    segments = adaptive_segments(video(8000))
    features = segment_features(unit_frames(video(8000)), segments.spans)
    tracemalloc.start()
    propagate(features, segments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * 8 * len(features) ** 2
