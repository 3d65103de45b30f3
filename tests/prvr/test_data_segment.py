"""Segment means: against the released readers' numbers, and against a plain loop."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prvr.data import sample_video, segment_mean
from prvr.data.sampling import growing_means, level_counts, normalise_rows

GOLDEN = Path(__file__).parent.parent / "fixtures" / "prvr_sampling.npz"
LENGTHS = [1, 5, 20, 31, 32, 33, 100, 128, 129, 140, 300]


def plain(x: np.ndarray, bins: int, keep_last: bool) -> np.ndarray:
    """The rule as the specification words it, in Python."""
    n = len(x)
    edges = [round(i * n / bins) for i in range(bins + 1)]  # Python rounds half to even too
    if not keep_last:
        edges = [min(edge, n - 1) for edge in edges]
    bounds = itertools.pairwise(edges)
    return np.stack([x[left:right].mean(axis=0) if right > left else x[min(left, n - 1)] for left, right in bounds])


@pytest.mark.parametrize("length", LENGTHS)
def test_released_sampling_agrees_with_the_authors_numbers(length: int) -> None:
    with np.load(GOLDEN) as golden:
        x, clips, frames = (golden[f"sampling/L{length}/{name}"] for name in ("x", "clip64", "frame64"))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(normalise_rows(segment_mean(wide, 32, keep_last=False)), clips, rtol=0, atol=1e-12)
    fine = wide if length <= 128 else segment_mean(wide, 128, keep_last=False)
    np.testing.assert_allclose(normalise_rows(fine), frames, rtol=0, atol=1e-12)
    ours = sample_video(x, keep_last=False)
    assert [part.dtype for part in ours] == [np.float32, np.float32]
    np.testing.assert_allclose(ours[0], clips, atol=1e-7)
    np.testing.assert_allclose(ours[1], frames, atol=1e-7)


@given(n=st.integers(1, 300), bins=st.integers(1, 140), keep_last=st.booleans())
def test_segment_mean_is_the_plain_loop(n: int, bins: int, keep_last: bool) -> None:
    x = np.random.default_rng(n).standard_normal((n, 3))
    np.testing.assert_allclose(segment_mean(x, bins, keep_last), plain(x, bins, keep_last), atol=1e-12)


@given(n=st.integers(1, 300), bins=st.integers(1, 140))
def test_every_row_counts_in_the_corrected_form_only(n: int, bins: int) -> None:
    kept, released = (
        np.stack([segment_mean(row[:, None], bins, keep).ravel() for row in np.eye(n)]) for keep in (True, False)
    )
    assert (kept.sum(axis=1) > 0).all() if n >= bins else kept[-1].any()
    np.testing.assert_allclose(kept.sum(axis=0), 1)  # means: weights of a segment sum to one
    np.testing.assert_allclose(released.sum(axis=0), 1)
    if n > 2 * bins:
        assert not released[-1].any()


def test_types_are_kept_and_nothing_is_refused() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    array, tensor = segment_mean(x, 3), segment_mean(torch.from_numpy(x), 3)
    assert (array.dtype, tensor.dtype) == (np.float32, torch.float32)
    np.testing.assert_array_equal(array, tensor.numpy())
    assert not any(part.any() for part in sample_video(np.zeros((4, 3), np.float32)))
    with pytest.raises(ValueError, match="length=0"):
        segment_mean(np.zeros((0, 3)), 4)


@given(n=st.integers(1, 300), seed=st.integers(0, 99))
def test_growing_means_are_the_plain_loop(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 3))
    x[seed % n] = 0
    rows = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    expected, counts, size = list(rows), [n], 1
    while counts[-1] > 1:
        size *= 4
        expected += [rows[first : first + size].mean(0) for first in range(0, n, size)]
        counts.append(len(range(0, n, size)))
    expected = [row / max(np.linalg.norm(row), 1e-12) for row in expected]
    assert level_counts(n) == counts
    np.testing.assert_allclose(growing_means(x), expected, atol=1e-9)
